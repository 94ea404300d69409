"""The tree is the architecture: a module imports only what its row allows."""

import ast
import functools
import sys
from pathlib import Path

import everlong
from everlong.models.search_attributes import SEARCH_ATTRIBUTES

ROOT = Path(everlong.__file__).parent
STDLIB_ONLY: set[str] = set()
PURE = {"pydantic", "pydantic_core"}

# module or folder -> (modules of ours that it may import, packages that it may import)
ROWS: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), STDLIB_ONLY),
    "limits": (set(), STDLIB_ONLY),
    "policy": ({"limits"}, PURE),
    "versions": (set(), STDLIB_ONLY),
    "models": ({"limits", "policy"}, PURE),
    "models/thread_ids": ({"errors"}, STDLIB_ONLY),
    "models/search_attributes": ({"models"}, {"temporalio"}),
    "models/json_payloads": (set(), PURE | {"temporalio"}),
    "doctor": (
        {
            "client",
            "codecs",
            "doctor/probes",
            "errors",
            "limits",
            "models",
            "models/search_attributes",
            "storage",
            "sweep",
            "versions",
        },
        {"temporalio", "google"},
    ),
    "doctor/probes": ({"errors", "models", "storage"}, {"temporalio"}),
    "storage": ({"errors", "limits", "models"}, PURE),
    "compaction": ({"errors", "limits", "models", "policy"}, PURE),
    "storage/context_store": (
        {"compaction", "errors", "limits", "models", "policy", "storage"},
        STDLIB_ONLY,
    ),
    "live": ({"errors", "limits", "models"}, PURE),
    "notify": ({"errors", "limits", "models", "models/thread_ids"}, PURE),
    "archive": ({"errors", "limits", "models", "storage"}, PURE),
    "queries": ({"errors", "queries/engine"}, STDLIB_ONLY),
    "queries/engine": ({"errors", "queries", "queries/sources", "storage"}, {"temporalio"}),
    "queries/sources": (
        {"archive", "client", "errors", "limits", "models", "storage"},
        {"temporalio"},
    ),
    "agents": ({"errors", "limits", "models", "policy"}, PURE),
    "codecs": (
        {"errors", "limits", "models", "policy", "storage", "telemetry"},
        PURE | {"temporalio", "google", "opentelemetry"},
    ),
    "sweep": (
        {"codecs", "errors", "limits", "models", "policy", "storage", "telemetry"},
        PURE | {"temporalio", "google"},
    ),
    "workflows": (
        {
            "errors",
            "models/json_payloads",
            "limits",
            "models",
            "models/search_attributes",
            "models/thread_ids",
            "policy",
        },
        PURE | {"temporalio"},
    ),
    "activities": (
        {
            "agents",
            "compaction",
            "errors",
            "models/json_payloads",
            "limits",
            "live",
            "models",
            "notify",
            "storage/context_store",
            "policy",
            "doctor/probes",
            "storage",
            "sweep",
            "telemetry",
            "versions",
        },
        PURE | {"temporalio", "opentelemetry"},
    ),
    "interceptors": (
        {
            "codecs",
            "errors",
            "limits",
            "models",
            "policy",
            "storage",
            "telemetry",
            "models/thread_ids",
        },
        PURE | {"google", "temporalio", "opentelemetry"},
    ),
    "importers": ({"errors", "limits", "models"}, PURE),
    "worker_options": ({"errors", "limits"}, {"temporalio"}),
    "config": ({"errors", "limits", "worker_options"}, {"temporalio"}),
    "client": (
        {
            "archive",
            "compaction",
            "config",
            "errors",
            "models/json_payloads",
            "limits",
            "models",
            "models/search_attributes",
            "models/thread_ids",
            "storage/context_store",
            "policy",
            "storage",
            "sweep",
            "telemetry",
        },
        PURE | {"temporalio"},
    ),
    "telemetry": (
        {"agents", "errors", "limits", "models", "storage"},
        {"opentelemetry", "prometheus_client", "temporalio"},
    ),
    "plugin": (
        {
            "activities",
            "agents",
            "client",
            "codecs",
            "config",
            "errors",
            "interceptors",
            "limits",
            "live",
            "models",
            "notify",
            "policy",
            "storage",
            "sweep",
            "telemetry",
            "worker_options",
            "versions",
            "workflows",
        },
        {"temporalio", "opentelemetry"},
    ),
    "client_plugin": (
        {
            "client",
            "codecs",
            "interceptors",
            "storage",
            "telemetry",
            "versions",
        },
        {"temporalio"},
    ),
    "connection": (
        {
            "agents",
            "client_plugin",
            "codecs",
            "config",
            "errors",
            "limits",
            "live",
            "models",
            "notify",
            "plugin",
            "storage",
            "telemetry",
        },
        {"temporalio", "opentelemetry"},
    ),
    "banner": ({"", "agents", "config", "storage"}, STDLIB_ONLY),
    "worker": (
        {
            "agents",
            "banner",
            "config",
            "connection",
            "errors",
            "models",
            "plugin",
            "worker_options",
        },
        {"temporalio"},
    ),
    "embedded": (
        {"config", "errors", "limits", "models/search_attributes", "models", "worker_options"},
        {"temporalio"},
    ),
    "admin": (
        {
            "format",
            "archive",
            "client",
            "doctor",
            "errors",
            "limits",
            "models",
            "models/search_attributes",
            "models/thread_ids",
            "notify",
            "policy",
            "storage",
            "telemetry",
        },
        {"temporalio"},
    ),
    "console": (set(), {"rich"}),
    "format": ({"limits", "models"}, STDLIB_ONLY),
    "admin/web": (
        {
            "admin",
            "doctor",
            "queries",
            "queries/engine",
            "queries/sources",
            "archive",
            "format",
            "client",
            "codecs",
            "config",
            "errors",
            "limits",
            "live",
            "models",
            "notify",
            "policy",
            "storage",
            "telemetry",
            "models/thread_ids",
            "versions",
        },
        PURE
        | {
            "fastapi",
            "jinja2",
            "markdown_it",
            "markupsafe",
            "starlette",
            "google",
            "temporalio",
        },
    ),
    "demo": (
        {
            "client",
            "console",
            "format",
            "agents",
            "config",
            "connection",
            "embedded",
            "errors",
            "limits",
            "models",
            "policy",
            "storage",
            "telemetry",
            "testing",
        },
        PURE | {"rich", "temporalio"},
    ),
    "cli": (
        {
            "",
            "admin",
            "archive",
            "banner",
            "doctor",
            "queries",
            "queries/engine",
            "queries/sources",
            "client",
            "console",
            "admin/web",
            "format",
            "config",
            "connection",
            "demo",
            "embedded",
            "errors",
            "limits",
            "live",
            "models",
            "notify",
            "policy",
            "project",
            "storage",
            "models/search_attributes",
            "models/thread_ids",
            "worker_options",
            "worker",
        },
        {"typer", "rich", "temporalio"},
    ),
    "testing": (
        {
            "agents",
            "client",
            "embedded",
            "errors",
            "limits",
            "models",
            "plugin",
            "policy",
            "storage",
        },
        PURE | {"google", "opentelemetry", "pytest", "temporalio"},
    ),
    "": (
        {"agents", "client", "config", "errors", "models", "plugin", "policy", "storage"},
        {"temporalio"},
    ),
    "project": ({"errors"}, STDLIB_ONLY),
    "__main__": ({"", "cli", "errors", "project"}, STDLIB_ONLY),
}

# A vendor's package is imported by that vendor's file alone.
VENDORS = {
    "agents/providers": {"pydantic_ai"},
    "archive/parquet": {"pyarrow"},
    "queries/sandbox": {"duckdb"},
    "queries/view_files": {"pyarrow"},
    "codecs/matcher": {"pyfastcdc"},
    "admin/web/server": {"h11", "uvicorn"},
    "storage/encryption_keys": {"cryptography"},
    "storage/objects": {"zstandard"},
    "storage/packs": {"zstandard"},
    "storage/buckets": {"obstore"},
    "storage/aws": {"obstore", "botocore"},
    "cli/terminal": {"prompt_toolkit"},
}


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def find_row(module: str) -> str:
    """The row that a module belongs to: its own or its folder's, if there is one, or its package's."""
    own = "/".join(module.split("/")[:2])
    return own if own in ROWS else own.split("/")[0]


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Return dotted names of all imports, those inside functions included."""
    found: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def own_module(dotted: str) -> str:
    """`everlong.storage.file.FileBlobStore` -> `storage/file`."""
    parts = dotted.split(".")[1:]
    while parts:
        stem = ROOT.joinpath(*parts)
        if stem.is_dir() or stem.with_suffix(".py").exists():
            return "/".join(parts)
        parts.pop()
    return ""


def module_name(path: Path) -> str:
    name = path.with_suffix("").as_posix()
    return name.removesuffix("__init__").rstrip("/")


def is_allowed(module: str, dotted: str) -> bool:
    """Check one import of a module against the module's row."""
    row = find_row(module)
    ours, packages = ROWS.get(row, (set(), set()))
    package = dotted.split(".")[0]
    if package == "everlong":
        target = find_row(own_module(dotted))
        return target in ours or target == row
    return package in sys.stdlib_module_names or package in packages | VENDORS.get(module, set())


def test_modules_import_only_what_their_row_allows() -> None:
    violations = [
        f"{path} imports {dotted}"
        for path in modules()
        for dotted in sorted(imports(path))
        if not is_allowed(module_name(path), dotted)
    ]
    assert violations == []


def test_every_row_has_a_module() -> None:
    used = {find_row(module_name(path)) for path in modules()}
    assert set(ROWS) == used


def test_only_config_reads_the_environment() -> None:
    readers = {
        path.as_posix()
        for path in modules()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    }
    assert readers == {"config.py"}


def test_workflow_code_and_policy_are_pure() -> None:
    forbidden = {"time", "random", "os", "uuid", "secrets", "socket", "subprocess", "pathlib"}
    violations = [
        f"{path} imports {dotted}"
        for path in modules()
        if path.parts[0] in {"workflows", "policy", "models", "compaction"}
        for dotted in sorted(imports(path))
        if dotted.split(".")[0] in forbidden
    ]
    assert violations == []


def test_search_attributes_are_named_in_one_module() -> None:
    names = tuple(SEARCH_ATTRIBUTES)
    violations = [
        f"{path}:{node.lineno}"
        for path in modules()
        if path.as_posix() != "models/search_attributes.py"
        for node in ast.walk(parse(path))
        if (isinstance(node, ast.Name) and node.id == "SearchAttributeKey")
        or (isinstance(node, ast.Constant) and is_query(node.value, names))
    ]
    assert violations == []


def is_query(value: object, names: tuple[str, ...]) -> bool:
    """Whether a text is a search attribute, or compares one. Docstrings may mention them."""
    return isinstance(value, str) and any(
        value == name or f"{name} =" in value or f"{name} >" in value for name in names
    )
