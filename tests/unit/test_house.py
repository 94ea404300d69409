"""Guards for the house: what is exported, documented and promised."""

import dataclasses
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main
from temporalio.worker import Worker

import everlong
from everlong import cli, errors
from everlong.worker_options import WorkerOptions

ROOT = Path(__file__).parents[2]


def test_export_list_is_pinned() -> None:
    assert sorted(everlong.__all__) == [
        "Agent",
        "BlobStore",
        "CallInfo",
        "EverlongError",
        "EverlongPlugin",
        "Model",
        "Policy",
        "Reply",
        "ThreadStart",
        "Tool",
        "__version__",
        "ask",
        "current_call",
        "open_store",
        "tool",
    ]
    assert all(hasattr(everlong, name) for name in everlong.__all__)


def test_version_is_the_projects() -> None:
    assert f'version = "{everlong.__version__}"' in (ROOT / "pyproject.toml").read_text()


def error_types() -> list[type[errors.EverlongError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [each for each in found if issubclass(each, errors.EverlongError)]


@pytest.mark.parametrize("error", error_types(), ids=lambda error: error.__name__)
def test_every_error_is_drawn_in_the_tree_and_exits_non_zero(
    error: type[errors.EverlongError],
) -> None:
    assert re.search(rf"\b{error.__name__}\b", errors.__doc__ or "")
    assert error.exit_code != 0


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_python_in_documents_compiles(path: Path) -> None:
    for block in python_blocks(path):
        compile(block, str(path), "exec", flags=0x2000)  # PyCF_ALLOW_TOP_LEVEL_AWAIT


def test_the_sample_of_the_readme_is_short_and_runs() -> None:
    first = next(block for block in python_blocks(ROOT / "README.md") if "Agent(" in block)
    assert len(first.splitlines()) <= 20
    namespace: dict[str, object] = {}
    exec(first, namespace)
    assert any(isinstance(value, everlong.Agent) for value in namespace.values())


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_commands_in_documents_exist(path: Path) -> None:
    text = path.read_text()
    commands = set(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined] # a Group
    for named in re.findall(r"(?:^|`|\$ )everlong ([a-z]+)", text, flags=re.MULTILINE):
        assert named in commands, f"{path.name}: everlong {named}"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for named in re.findall(r"(?:^|`)make ([a-z-]+)", text, flags=re.MULTILINE):
        assert named in targets, f"{path.name}: make {named}"


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_links_in_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def settings() -> set[str]:
    """The variables that are read."""
    sources = [
        (ROOT / "everlong" / name).read_text() for name in ("config.py", "worker_options.py")
    ]
    return set(re.findall(r'"(EVERLONG_[A-Z_]+)"', "".join(sources)))


def test_every_setting_is_documented() -> None:
    documented = (ROOT / "README.md").read_text() + (ROOT / "docs/deploy.md").read_text()
    assert settings() - set(re.findall(r"EVERLONG_[A-Z_]+", documented)) == set()


# The agent of docker-compose.yml, which passes it to the command.
OF_COMPOSE = {"EVERLONG_AGENT"}


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_variable_in_documents_is_read(path: Path) -> None:
    named = set(re.findall(r"\bEVERLONG_[A-Z_]+[A-Z]\b", path.read_text()))
    assert named - settings() - OF_COMPOSE == set()


# Names of bounds that are no arguments in Python, and whose they are.
BOUNDS_ELSEWHERE = {
    "max_temp_directory_size": "DuckDB",
    "max_tokens": "settings of a provider's model",
    "payload_bytes_max": "an example of how to name one",
    "rows_max": "the JSON API",
}


def option_names() -> set[str]:
    """Options of tools and models, which `tool` takes by name."""
    return set(re.findall(r'"([a-z_]+)"', (ROOT / "everlong/agents/options.py").read_text()))


def parameters(*callables: Callable[..., object]) -> set[str]:
    return {name for each in callables for name in inspect.signature(each).parameters}


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_bound_in_documents_can_be_set(path: Path) -> None:
    named = set(re.findall(r"`(max_[a-z_]+|[a-z_]+_max)(?:=[^`]*)?`", path.read_text()))
    ours = parameters(everlong.EverlongPlugin, everlong.Policy, everlong.Agent, everlong.ask)
    ours |= parameters(everlong.Tool) | option_names()
    assert named - ours - parameters(Worker) - BOUNDS_ELSEWHERE.keys() == set()


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_argument_of_a_worker_in_documents_is_a_setting_of_the_command(path: Path) -> None:
    """`everlong worker` makes the `Worker`, so its users cannot give it an argument."""
    given = dataclasses.fields(WorkerOptions)
    options = WorkerOptions(**{each.name: "2" if each.name == "identity" else 2 for each in given})  # type: ignore[arg-type] # any numbers
    settable = {*options.to_arguments(), "sticky_queue_schedule_to_start_timeout"}
    kinds = r"max_[a-z_]+|[a-z_]+_timeout|[a-z_]+_poller_behavior|[a-z_]+_polls"
    named = set(re.findall(rf"`({kinds})(?:=[^`]*)?`", path.read_text()))
    assert (named & parameters(Worker)) - settable == set()


def test_ci_runs_the_command_of_the_readme() -> None:
    assert "make test" in (ROOT / ".ci/run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()


def test_constraints_pin_every_package_and_name_no_host() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)


def test_every_test_that_a_guarantee_names_is_there() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    contract = (ROOT / "everlong" / "testing" / "contract.py").read_text()
    named = re.findall(r"`([a-z/_0-9]+\.py)::([\w:]+)`", text)
    assert len(named) > 300
    for file, test in named:
        source = (ROOT / "tests" / file).read_text() + contract * file.startswith("contract/")
        name = test.split("::")[-1]
        assert name == "runTest" or f"def {name}(" in source, f"{file}::{test}"
    numbers = [int(number) for number in re.findall(r"^\*\*(\d+)\. ", text, flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_what_a_workflow_imports_is_light() -> None:
    """A sandbox imports `everlong` anew, with all that it imports, for each workflow."""
    assert imported_with("everlong", "everlong.admin", *FROM_EXTRAS) == "[]"


def test_a_question_to_a_thread_needs_no_extra() -> None:
    """`everlong.ask` and the plugin come without the packages of `everlong[admin]`."""
    assert imported_with("everlong.admin.service", *FROM_EXTRAS) == "[]"


FROM_EXTRAS = (
    *("duckdb", "pyarrow", "fastapi", "jinja2", "prometheus_client", "rich", "starlette", "typer"),
    *("uvicorn", "opentelemetry.exporter", "pydantic_ai", "cryptography"),
)


def imported_with(module: str, *names: str) -> str:
    code = f"import sys, {module}; print([name for name in {names} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.strip()
