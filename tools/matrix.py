"""Install matrix: Everlong with each extra, together with other plugins for Temporal.

Each neighbour is resolved alone first and then pinned to that version: otherwise a resolver could pick
an older version and report success. Each cell is resolved, installed into its own environment, and
imported. The table is Markdown.
"""

import argparse
import dataclasses
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.environments import StepFailed, create, install, require_uv, run
from tools.lowest import read_pins


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """A package that teams install together with Everlong."""

    name: str
    requirements: tuple[str, ...]
    held: tuple[str, ...]
    """Packages pinned to their newest version."""
    imports: tuple[str, ...]
    """Names to import, as `module:name`."""


NEIGHBOURS: Final = (
    Neighbour(
        "openai-agents",
        ("temporalio[openai-agents]",),
        ("openai-agents", "temporalio-openai-agents"),
        ("temporalio.contrib.openai_agents:OpenAIAgentsPlugin",),
    ),
    Neighbour(
        "pydantic-ai",
        ("pydantic-ai",),
        ("pydantic-ai", "pydantic-ai-slim"),
        ("pydantic_ai.durable_exec.temporal:PydanticAIPlugin",),
    ),
    Neighbour(
        "langgraph",
        ("temporalio[langgraph]",),
        ("langgraph", "temporalio-langgraph"),
        ("temporalio.contrib.langgraph:LangGraphPlugin",),
    ),
    Neighbour(
        "strands-agents",
        ("temporalio[strands-agents]",),
        ("strands-agents", "temporalio-strands-agents"),
        ("temporalio.contrib.strands:StrandsPlugin",),
    ),
    Neighbour(
        "google-adk",
        ("temporalio[google-adk]",),
        ("google-adk", "temporalio-google-adk"),
        ("temporalio.contrib.google_adk_agents:GoogleAdkPlugin",),
    ),
    Neighbour(
        "opentelemetry-distro",
        ("temporalio[opentelemetry]", "opentelemetry-distro[otlp]"),
        ("opentelemetry-distro",),
        (
            "temporalio.contrib.opentelemetry:OpenTelemetryPlugin",
            "opentelemetry.distro:OpenTelemetryDistro",
        ),
    ),
)

# Imports of a user of each extra.
_BASE: Final = (
    "everlong:EverlongPlugin",
    "everlong:ask",
    "everlong.storage.buckets:open_bucket",
)
EXTRAS: Final = {
    "": _BASE,
    "agent": (*_BASE, "everlong.agents.providers:ProviderModel"),
    "admin": (
        *_BASE,
        "everlong.cli:app",
        "everlong.admin.web.app:create_admin_app",
        "everlong.archive.parquet:ArchiveWriter",
        "duckdb:connect",
        "opentelemetry.exporter.otlp.proto.grpc.trace_exporter:OTLPSpanExporter",
        "opentelemetry.exporter.otlp.proto.http.trace_exporter:OTLPSpanExporter",
        "opentelemetry.exporter.prometheus:PrometheusMetricReader",
    ),
}
_IMPORT: Final = """
import importlib, sys
for name in sys.argv[1:]:
    module, _, attribute = name.partition(":")
    getattr(importlib.import_module(module), attribute)
from everlong import EverlongPlugin
EverlongPlugin(store="memory:")
"""


@dataclasses.dataclass
class Cell:
    """The result for one extra with one neighbour."""

    extra: str
    neighbour: str
    versions: str = ""
    packages: int = 0
    resolves: str = "-"
    imports: str = "-"
    changed: str = ""
    """Packages whose version differs from the neighbour's own resolution."""
    seconds: float = 0.0
    failure: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether no step has failed."""
        return not self.failure

    def row(self) -> str:
        """Return the row of the table."""
        name = f"everlong[{self.extra}]" if self.extra else "everlong"
        cells = [name, self.neighbour, self.versions, self.packages or "", self.resolves]
        return "| " + " | ".join(map(str, [*cells, self.imports, self.changed or "nothing"])) + " |"


class Matrix:
    """The cells, resolved and installed one after the other in a temporary folder."""

    def __init__(self, uv: str, folder: Path, *, resolve_only: bool) -> None:
        self._uv = uv
        self._folder = folder
        self._resolve_only = resolve_only
        run(uv, "build", "-q", "--wheel", "--out-dir", folder)
        [self._wheel] = folder.glob("everlong-*.whl")
        self._alone: dict[str, dict[str, str]] = {}

    def check(self, extra: str, neighbour: Neighbour) -> Cell:
        """Resolve, install and import one cell."""
        started = time.monotonic()
        cell = Cell(extra, neighbour.name)
        try:
            self._check(cell, neighbour)
        except StepFailed as error:
            cell.failure = str(error)
            cell.resolves, cell.imports = (
                (cell.resolves, "no") if cell.resolves == "yes" else ("no", cell.imports)
            )
        cell.seconds = time.monotonic() - started
        return cell

    def _check(self, cell: Cell, neighbour: Neighbour) -> None:
        if neighbour.name not in self._alone:
            self._alone[neighbour.name] = self._resolve(neighbour.requirements)
        alone = self._alone[neighbour.name]
        held = [f"{name}=={alone[name]}" for name in neighbour.held]
        cell.versions = ", ".join(each.replace("==", " ") for each in held)
        own = f"everlong{f'[{cell.extra}]' if cell.extra else ''} @ {self._wheel.as_uri()}"
        together = self._resolve([own, *neighbour.requirements, *held])
        cell.resolves, cell.packages = "yes", len(together) + 1
        changed = [each for each in alone if together.get(each) != alone[each]]
        cell.changed = ", ".join(
            f"{each} {alone[each]} to {together.get(each, 'none')}" for each in changed
        )
        if not self._resolve_only:
            self._import(cell, own, together, neighbour)
            cell.imports = "yes"

    def _resolve(self, requirements: Sequence[str]) -> dict[str, str]:
        """Return the newest compatible versions, by package."""
        options = ["--python", sys.executable, "--no-header", "--no-annotate"]
        lines = "\n".join(requirements)
        return read_pins(run(self._uv, "pip", "compile", "-q", *options, "-", stdin=lines))

    def _import(self, cell: Cell, own: str, together: dict[str, str], neighbour: Neighbour) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            python = create(Path(name) / "venv")
            listed = Path(name) / "versions.txt"
            listed.write_text("".join(f"{name}=={together[name]}\n" for name in together))
            install(python, ["--no-deps", "-r", listed, own])
            run(self._uv, "pip", "check", "-q", "--python", python)
            run(python, "-c", _IMPORT, *EXTRAS[cell.extra], *neighbour.imports, cwd=Path(name))


def main(arguments: Sequence[str]) -> int:
    """Check the requested cells; print the table, and the output of the steps that failed."""
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    parser.add_argument("--resolve-only", action="store_true", help="install nothing")
    parser.add_argument("--only", default="", help="only neighbours whose names contain this")
    given = parser.parse_args(arguments)
    uv = require_uv("make matrix")
    cells = []
    with tempfile.TemporaryDirectory(prefix="everlong-matrix-") as name:
        matrix = Matrix(uv, Path(name), resolve_only=given.resolve_only)
        for neighbour in [each for each in NEIGHBOURS if given.only in each.name]:
            for extra in EXTRAS:
                cell = matrix.check(extra, neighbour)
                cells.append(cell)
                print(f"{cell.seconds:5.1f} s  {cell.row()}", file=sys.stderr, flush=True)
    print("| install | with | newest | packages | resolves | imports | changed by Everlong |")
    print("|---|---|---|---|---|---|---|")
    print(*(cell.row() for cell in cells), sep="\n")
    failed = [cell for cell in cells if not cell.is_sound]
    for cell in failed:
        print(f"\n{cell.row()}\n{re.sub(r'^', '    ', cell.failure, flags=re.MULTILINE)}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except StepFailed as error:
        sys.exit(f"error: {error}")
