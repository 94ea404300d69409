"""The map and the drawings of CONTRIBUTING.md name files, functions and tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
ROW = re.compile(r"^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)
HOP = re.compile(r"^ ?(\d+) +[▼▲│├▶ ]+([\w./]+\.(?:py|js)) +([\w.]+) ", re.MULTILINE)


def drawings() -> dict[str, list[tuple[int, str, str]]]:
    """Return the hops of each drawing: number, file, name."""
    found = re.findall(r"### How (.+?) travels\n.*?```text\n(.*?)```", TEXT, flags=re.DOTALL)
    return {
        flow: [(int(number), file, name) for number, file, name in HOP.findall(drawing)]
        for flow, drawing in found
    }


def defines(path: Path, name: str) -> bool:
    """Return whether a file defines a function, a class, a method (`Class.method`) or a constant."""
    source = path.read_text()
    if path.suffix == ".js":
        return re.search(rf"\bfunction {re.escape(name)}\(", source) is not None
    body = ast.parse(source).body
    *owners, last = name.split(".")
    for owner in owners:
        body = next((n.body for n in body if isinstance(n, ast.ClassDef) and n.name == owner), [])
    return any(last in names(node) for node in body)


def names(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [each.id for each in node.targets if isinstance(each, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def find_missing(places: list[tuple[str, str]]) -> list[str]:
    missing = []
    for file, name in places:
        path = ROOT / "everlong" / file
        if not path.exists():
            missing.append(file)
        elif not defines(path, name):
            missing.append(f"{file}: {name}")
    return missing


def test_the_map_names_what_exists() -> None:
    rows = ROW.findall(TEXT)
    assert len(rows) == 36
    assert find_missing([(file, name) for file, name, _ in rows]) == []
    assert [test for _, _, test in rows if not (ROOT / "tests" / test).exists()] == []


@pytest.mark.parametrize("flow", ["a payload", "a resume", "a message", "an approval"])
def test_a_drawing_has_ten_hops_at_most_and_names_what_exists(flow: str) -> None:
    hops = drawings()[flow]
    assert [number for number, _, _ in hops] == list(range(1, len(hops) + 1))
    assert 5 <= len(hops) <= 10
    assert find_missing([(file, name) for _, file, name in hops]) == []


def test_a_missing_name_is_found() -> None:
    assert find_missing([("limits.py", "NO_SUCH_BOUND"), ("no_such_file.py", "x")]) == [
        "limits.py: NO_SUCH_BOUND",
        "no_such_file.py",
    ]


def index_definitions() -> set[str]:
    """Return all names of the package: `name`, `module.name`, `Class.member`, `file.py`, `folder/`."""
    found = set()
    for path in (ROOT / "everlong").rglob("*.py"):
        place = path.relative_to(ROOT / "everlong")
        found |= {path.name, str(place), f"{place.parent}/", f"{place.parent.name}.{path.stem}"}
        found.add(place.parent.name)
        for node in ast.parse(path.read_text()).body:
            for name in names(node):
                found |= {name, f"{path.stem}.{name}"}
                if isinstance(node, ast.ClassDef):
                    found |= {f"{name}.{each}" for part in node.body for each in names(part)}
    return found


def test_the_guarantees_name_code_that_exists() -> None:
    text = (ROOT / "docs" / "concepts" / "guarantees.md").read_text()
    paragraphs = re.findall(r"^\*\*\d+\. .+?(?=\n\n)", text, flags=re.MULTILINE | re.DOTALL)
    assert len(paragraphs) > 100
    named = [
        name
        for paragraph in paragraphs
        if (last := re.search(r"\.\s+((?:`[^`]+`[,\s]*)+)\.$", paragraph))
        for name in re.findall(r"`([^`]+)`", last[1])
    ]
    assert len(named) > 100
    definitions = index_definitions() | {"everlong.ask", "embedded.stack.lock_data_dir"}
    assert [name for name in named if name not in definitions] == []
