"""The public surface: exported names, the error tree, and what an import of them loads."""

import re
import subprocess
import sys
from pathlib import Path

import everlong
from everlong import errors, testing

ROOT = Path(__file__).parents[2]


def test_export_list_is_pinned() -> None:
    assert sorted(everlong.__all__) == [
        "Agent",
        "Always",
        "BlobStore",
        "CallInfo",
        "EverlongError",
        "EverlongPlugin",
        "Model",
        "OutcomeUnknown",
        "Policy",
        "Reply",
        "ThreadStart",
        "Tool",
        "__version__",
        "ask",
        "current_call",
        "open_store",
        "thread",
        "threads",
        "tool",
    ]
    assert all(hasattr(everlong, name) for name in everlong.__all__)


def test_export_list_of_the_testing_kit_is_pinned() -> None:
    assert sorted(testing.__all__) == [
        "AskedCall",
        "DrivenThread",
        "EverlongEnv",
        "FakeApprover",
        "RecordedModel",
        "RecordedSpans",
        "RunAgent",
        "ScriptedModel",
        "Step",
        "ThreadSizes",
        "ToolRecord",
        "call",
    ]
    assert all(hasattr(testing, name) for name in testing.__all__)


def test_a_scripted_agent_imports_neither_a_server_nor_the_test_environment() -> None:
    loaded = imported_with(
        "from everlong.testing import ScriptedModel",
        *("pytest", "temporalio", "everlong.plugin", "everlong.embedded"),
    )
    assert loaded == "[]"


def test_version_is_the_projects() -> None:
    assert f'version = "{everlong.__version__}"' in (ROOT / "pyproject.toml").read_text()


def error_types() -> list[type[errors.EverlongError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [each for each in found if issubclass(each, errors.EverlongError)]


def test_every_error_is_drawn_in_the_tree_and_exits_non_zero() -> None:
    drawn = set(re.findall(r"\w+", errors.__doc__ or ""))
    violations = [
        error.__name__
        for error in error_types()
        if error.__name__ not in drawn or error.exit_code == 0
    ]
    assert violations == []


def test_workflow_imports_are_light() -> None:
    """The sandbox imports `everlong` again for each workflow, with everything that it imports."""
    assert imported_with(EXPORTS, "everlong.admin", *FROM_EXTRAS) == "[]"


def test_ask_needs_no_extra() -> None:
    """`everlong.ask` and the plugin work without the packages of `everlong[admin]`."""
    assert imported_with("import everlong.client.archives", *FROM_EXTRAS) == "[]"


# Each name is imported on its first use.
EXPORTS = "from everlong import *"
FROM_EXTRAS = (
    *("duckdb", "pyarrow", "fastapi", "jinja2", "prometheus_client", "rich", "starlette", "typer"),
    *("uvicorn", "opentelemetry.exporter", "pydantic_ai", "cryptography"),
)


def imported_with(statement: str, *names: str) -> str:
    code = f"import sys; {statement}; print([name for name in {names} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_names_and_submodules_are_there_after_a_plain_import() -> None:
    code = (
        "import everlong; assert set(everlong.__all__) <= set(dir(everlong)); "
        "assert everlong.errors.EverlongError is everlong.EverlongError"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


SANDBOXED = """
import everlong
from temporalio.worker.workflow_sandbox import SandboxRestrictions
from temporalio.worker.workflow_sandbox._importer import Importer
from temporalio.worker.workflow_sandbox._restrictions import RestrictionContext

restrictions = SandboxRestrictions.default.with_passthrough_modules("everlong")
importer = Importer(restrictions, RestrictionContext())
with importer.applied():
    inside = everlong.EverlongError
from everlong.errors import EverlongError
assert inside is EverlongError
assert everlong.errors.EverlongError is EverlongError
"""


def test_a_name_used_first_in_a_workflow_is_the_hosts_own() -> None:
    subprocess.run([sys.executable, "-c", SANDBOXED], check=True)
