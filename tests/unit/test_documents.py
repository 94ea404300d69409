"""Rules about the documents. Each test lists all violations."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import typer.main
from temporalio.worker import Worker

import everlong
from everlong import cli
from everlong.agents.tools import ToolOptions
from everlong.worker_options import WorkerOptions
from tools import guarantees

ROOT = Path(__file__).parents[2]


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


def documents() -> list[Path]:
    folders = (ROOT / "docs", ROOT / "examples")
    found = sorted(path for folder in folders for path in folder.rglob("*.md"))
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *found]


def test_python_in_documents_compiles() -> None:
    violations = []
    for path in documents():
        for block in python_blocks(path):
            try:
                compile(block, path.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            except SyntaxError as error:
                violations.append(f"{path.name}: {error}")
    assert violations == []


def test_the_sample_of_the_readme_is_short_and_runs() -> None:
    first = next(block for block in python_blocks(ROOT / "README.md") if "Agent(" in block)
    assert len(first.splitlines()) <= 20
    namespace: dict[str, object] = {}
    exec(first, namespace)
    assert any(isinstance(value, everlong.Agent) for value in namespace.values())


def read_row(text: str, heading: str, variant: str) -> list[str]:
    """Return the cells of a variant's row in the table below a heading of the benchmarks."""
    section = text.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    [row] = [line for line in section.splitlines() if line.startswith(f"| {variant} |")]
    return [cell.strip().replace(",", "") for cell in row.strip("|").split("|")]


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    readme = (ROOT / "README.md").read_text()
    sdk, ours = (
        read_row(page, "To step 200", name) for name in ("SDK ExternalStorage", "Everlong")
    )
    history = [f"{int(row[4]) / 1e6:.{digits}f} MB" for row, digits in ((sdk, 1), (ours, 2))]
    bucket = [f"{int(row[6]) / 1e6:.{digits}f} MB" for row, digits in ((sdk, 0), (ours, 1))]
    resumes = [
        f"{int(read_row(page, heading, name)[1]) / 1000:.1f} s"
        for heading, name in (
            ("Cold resume at step 60", "plain"),
            ("Cold resume at step 200", "SDK ExternalStorage"),
            ("Cold resume at step 200", "Everlong"),
        )
    ]
    assert f"ended in step 69 | {' | '.join(history)} |" in readme
    assert f"| {' | '.join(bucket)} |" in readme
    assert f"| {resumes[0]} at step 60 | {' | '.join(resumes[1:])} |" in readme


def test_commands_in_documents_exist() -> None:
    commands = set(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined] # a Group
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    violations = []
    for path in documents():
        text = path.read_text()
        programs = re.findall(r"(?:^|`|\$ )everlong ([a-z][a-z-]*)", text, flags=re.MULTILINE)
        made = re.findall(r"(?:^|`)make ([a-z-]+)", text, flags=re.MULTILINE)
        violations += [f"{path.name}: everlong {each}" for each in programs if each not in commands]
        violations += [f"{path.name}: make {each}" for each in made if each not in targets]
    assert violations == []


def test_links_in_documents_lead_somewhere() -> None:
    violations = [
        f"{path.name}: {target}"
        for path in documents()
        for target in re.findall(r"\]\(([^)#]+)", path.read_text())
        if not target.startswith(("http://", "https://")) and not (path.parent / target).exists()
    ]
    assert violations == []


def find_anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)", text, flags=re.MULTILINE)
    plain = [re.sub(r"[`*]", "", heading.strip().lower()) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_links_to_headings_in_documents_lead_somewhere() -> None:
    anchors = {path.resolve(): find_anchors(path) for path in documents()}
    violations = []
    for path in documents():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", path.read_text()):
            linked = (path.parent / target).resolve() if target else path.resolve()
            if linked in anchors and anchor not in anchors[linked]:
                violations.append(f"{path.name}: {target}#{anchor}")
    assert violations == []


def settings() -> set[str]:
    """The variables that are read."""
    sources = [
        (ROOT / "everlong" / name).read_text() for name in ("config.py", "worker_options.py")
    ]
    return set(re.findall(r'"(EVERLONG_[A-Z_]+)"', "".join(sources)))


def test_every_setting_is_documented() -> None:
    documented = (ROOT / "README.md").read_text() + (ROOT / "docs/how-to/deploy.md").read_text()
    assert settings() - set(re.findall(r"EVERLONG_[A-Z_]+", documented)) == set()


# The agent of docker-compose.yml, which passes it to the command.
OF_COMPOSE = {"EVERLONG_AGENT"}


def test_every_variable_in_documents_is_read() -> None:
    known = settings() | OF_COMPOSE
    violations = {
        f"{path.name}: {named}"
        for path in documents()
        for named in re.findall(r"\bEVERLONG_[A-Z_]+[A-Z]\b", path.read_text())
        if named not in known
    }
    assert violations == set()


# Names of bounds that are no arguments in Python, and whose they are.
BOUNDS_ELSEWHERE = {
    "max_temp_directory_size": "DuckDB",
    "max_tokens": "settings of a provider's model",
    "payload_bytes_max": "an example of how to name one",
    "rows_max": "the JSON API",
}


def option_names() -> set[str]:
    """Return the options that `tool` takes by name."""
    return set(ToolOptions.__annotations__)


def parameters(*callables: Callable[..., object]) -> set[str]:
    return {name for each in callables for name in inspect.signature(each).parameters}


def test_every_bound_in_documents_can_be_set() -> None:
    settable = parameters(everlong.EverlongPlugin, everlong.Policy, everlong.Agent, everlong.ask)
    settable |= parameters(everlong.Tool, Worker) | option_names() | BOUNDS_ELSEWHERE.keys()
    violations = {
        f"{path.name}: {named}"
        for path in documents()
        for named in re.findall(r"`(max_[a-z_]+|[a-z_]+_max)(?:=[^`]*)?`", path.read_text())
        if named not in settable
    }
    assert violations == set()


def test_every_argument_of_a_worker_in_documents_is_a_setting_of_the_command() -> None:
    """`everlong worker` makes the `Worker`, so its users cannot give it an argument."""
    given = dataclasses.fields(WorkerOptions)
    options = WorkerOptions(**{each.name: "2" if each.name == "identity" else 2 for each in given})  # type: ignore[arg-type] # any numbers
    settable = {*options.to_arguments(), "sticky_queue_schedule_to_start_timeout"}
    kinds = r"max_[a-z_]+|[a-z_]+_timeout|[a-z_]+_poller_behavior|[a-z_]+_polls"
    violations = {
        f"{path.name}: {named}"
        for path in documents()
        for named in re.findall(rf"`({kinds})(?:=[^`]*)?`", path.read_text())
        if named in parameters(Worker) - settable
    }
    assert violations == set()


def test_every_test_file_in_the_makefile_exists() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    named = [
        prefix + file
        for prefix, files in re.findall(r"\$\(addprefix (tests/\w+/test_),([^)]*)\)", makefile)
        for file in files.split()
    ]
    assert len(named) > 40
    assert [file for file in named if not (ROOT / file).exists()] == []


def test_ci_runs_the_command_of_the_readme() -> None:
    assert "make test" in (ROOT / ".ci/run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()


def test_constraints_pin_every_package_and_name_no_host() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)


def test_guarantees_are_numbered_without_gaps_and_each_has_a_test() -> None:
    text = guarantees.GUARANTEES.read_text()
    numbers = [int(number) for number in re.findall(r"^\*\*(\d+)\. ", text, flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert set(guarantees.find_marked_tests()) == set(numbers)


def test_the_page_of_the_guarantees_tests_is_what_the_markers_say() -> None:
    """After a change of markers, names or files of tests: `make guarantees`."""
    assert guarantees.PAGE.read_text() == guarantees.render()
