"""Extracts strict schemas of the kinds in deploy/kubernetes: tests/support/kubernetes-1.30.json.

The package with all schemas, kubernetes-validate, has 17,000 files, so tests use this extract.
pip install kubernetes-validate==1.37.0 && python -m tools.kubernetes_schemas
"""

import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "tests/support/kubernetes-1.30.json"
VERSION = "v1.30.0-local-strict"
KINDS = {
    "ConfigMap": "core.v1",
    "Deployment": "apps.v1",
    "Namespace": "core.v1",
    "NetworkPolicy": "networking.v1",
    "PodDisruptionBudget": "policy.v1",
    "Service": "core.v1",
    "ServiceAccount": "core.v1",
}


def strip(node: Any) -> Any:
    """Return a schema without its descriptions, which are nine tenths of it."""
    if isinstance(node, dict):
        return {
            key: strip(value)
            for key, value in node.items()
            if not (key == "description" and isinstance(value, str))
            and not key.startswith("x-kubernetes")
        }
    return [strip(each) for each in node] if isinstance(node, list) else node


def main() -> None:
    """Write the file."""
    package = importlib.metadata.distribution("kubernetes-validate")
    stored = f"kubernetes_validate/kubernetes-json-schema/{VERSION}/_definitions.json"
    known = json.loads(Path(str(package.locate_file(stored))).read_text())["$defs"]
    found: dict[str, Any] = {}
    wanted = [f"io.k8s.api.{group}.{kind}" for kind, group in KINDS.items()]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = strip(known[name])
            wanted += re.findall(r"#/\$defs/([\w.-]+)", json.dumps(found[name]))
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    OUT.write_text('{"$defs": {\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main()
