"""Generator of the list of tests of each guarantee: `python -m tools.guarantees`.

A test names the guarantees that it shows by its marker, `@pytest.mark.guarantee(3)`. The marker stands
on a test, on a class of tests, or on a whole module (`pytestmark`). Markers are read from the source:
nothing is imported or run.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUARANTEES = ROOT / "docs" / "concepts" / "guarantees.md"
PAGE = ROOT / "docs" / "reference" / "guarantee-tests.md"
MARKER = "guarantee"

HEAD = """\
# Tests of the guarantees

The tests that show each of the [guarantees](../concepts/guarantees.md), by their place below `tests/`.
`make guarantees` generates this page from the markers of the tests (`@pytest.mark.guarantee(3)`).
"""


def read_promises() -> dict[int, str]:
    """Return the first sentence of each guarantee, by its number."""
    found = re.findall(
        r"^\*\*(\d+)\. (.+?)\*\*", GUARANTEES.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    return {int(number): " ".join(text.split()).rstrip(".,:") for number, text in found}


def find_marked_tests() -> dict[int, list[tuple[str, str]]]:
    """Return file and name of each marked test, by the number of the guarantee."""
    found: dict[int, list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT / "tests").as_posix()
        for name, numbers in _marks(ast.parse(path.read_text()).body):
            for number in numbers:
                found.setdefault(number, []).append((file, name))
    return found


def render() -> str:
    """Return the page as it has to be."""
    tests = find_marked_tests()
    parts = [HEAD]
    for number, promise in read_promises().items():
        parts.append(f"\n**{number}. {promise}**\n")
        for file, name in tests.get(number, []):
            parts.append(f"- `{file}::{name}`\n" if name else f"- `{file}`\n")
    return "".join(parts)


def _marks(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, list[int]]]:
    """Yield each marked name with its numbers; the name of a module is empty."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            numbers = [number for each in node.decorator_list for number in _numbers(each)]
            if numbers:
                yield owner + node.name, numbers
            if isinstance(node, ast.ClassDef):
                yield from _marks(node.body, f"{node.name}::")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            numbers = [number for each in ast.walk(node.value) for number in _numbers(each)]
            if numbers:
                yield owner + ("" if name == "pytestmark" else name), numbers


def _numbers(node: ast.AST) -> list[int]:
    """Return the arguments of `pytest.mark.guarantee(...)`."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == MARKER:
        return [ast.literal_eval(argument) for argument in node.args]
    return []


if __name__ == "__main__":
    PAGE.write_text(render())
    print(f"{PAGE.relative_to(ROOT)}: {sum(map(len, find_marked_tests().values()))} tests")
