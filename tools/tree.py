"""Figures of the source tree: modules, names, imports and words that the house style forbids.

`python -m tools.tree [CHECKOUT ...]` prints a column for each checkout; the default is this one. So two
commits are compared in one run.
"""

import argparse
import ast
import collections
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = "everlong"
# Endings of participles, and words that only look like one.
_PARTICIPLE: Final = re.compile(r"[a-z]+(ed|ing)")
_NO_PARTICIPLE: Final = frozenset(
    {
        "need",
        "feed",
        "seed",
        "embed",
        "exceed",
        "proceed",
        "speed",
        "string",
        "ping",
        "bring",
        "ring",
    }
)
_WORDS: Final = re.compile(
    r"\b(somebody|nobody|whoever|anybody|anew|told|tells?|lies?|beside)\b|\bfor good\b|there is none of",
    re.IGNORECASE,
)
_PERSONS: Final = re.compile(r"\b(somebody|nobody|whoever|anybody)\b", re.IGNORECASE)
_TEXTS: Final = (".py", ".md", ".html", ".js", ".css", ".yml", ".yaml", ".toml", ".sh")


def list_modules(root: Path) -> dict[str, Path]:
    """Return the modules of the package by name, packages included."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def find_imports(tree: ast.AST, modules: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a module imports, anywhere in its code."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in modules else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found & modules.keys()


def list_functions(tree: ast.AST) -> Iterator[str]:
    """Yield the names of functions and methods; properties may be adjectives, so they are left out."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
        if not decorators & {"property", "cached_property", "setter"}:
            yield node.name


def is_participle(name: str) -> bool:
    """Return whether the first word of a function's name is a participle."""
    first = name.strip("_").split("_")[0]
    return _PARTICIPLE.fullmatch(first) is not None and first not in _NO_PARTICIPLE


def count_words(root: Path, pattern: re.Pattern[str], folders: tuple[str, ...]) -> int:
    """Return how often a pattern occurs in the texts of some folders or files of a checkout."""
    files = [
        path
        for name in folders
        for path in ((root / name).rglob("*") if (root / name).is_dir() else [root / name])
        if path.suffix in _TEXTS and path.is_file()
    ]
    return sum(len(pattern.findall(path.read_text())) for path in files)


def measure(root: Path) -> dict[str, str]:
    """Measure a checkout."""
    modules = list_modules(root)
    trees = {name: ast.parse(path.read_text()) for name, path in modules.items()}
    importers: dict[str, set[str]] = collections.defaultdict(set)
    for name, tree in trees.items():
        for imported in find_imports(tree, modules):
            importers[imported].add(name)
    plain = {name: path for name, path in modules.items() if path.name != "__init__.py"}
    lines = {name: len(path.read_text().splitlines()) for name, path in modules.items()}
    sizes = sorted(lines[name] for name in plain)
    basenames = collections.Counter(path.name for path in plain.values())
    gerunds = sorted(path.stem for path in plain.values() if path.stem.endswith("ing"))
    functions = [name for tree in trees.values() for name in list_functions(tree)]
    import_lines = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    documents = ("docs", "README.md", "CONTRIBUTING.md")
    return {
        "modules, without __init__": str(len(plain)),
        "lines of a module, median": f"{statistics.median(sizes):.0f}",
        "lines of a module, p90": str(sizes[int(0.9 * len(sizes))]),
        "lines of code": f"{sum(lines.values()):,}",
        "import lines": f"{import_lines / sum(lines.values()):.1%}",
        "modules named by a gerund": f"{len(gerunds)} {', '.join(gerunds[:5])}",
        "modules that share a basename": str(sum(n for n in basenames.values() if n > 1)),
        "modules with one importer": str(sum(len(importers[name]) == 1 for name in plain)),
        "functions and methods": f"{len(functions):,}",
        "of them named by a participle": str(sum(map(is_participle, functions))),
        "somebody, nobody, whoever, anybody: code": str(count_words(root, _PERSONS, (PACKAGE,))),
        "somebody, nobody, whoever, anybody: docs": str(count_words(root, _PERSONS, documents)),
        "all words of the list: code": str(count_words(root, _WORDS, (PACKAGE,))),
        "all words of the list: docs": str(count_words(root, _WORDS, documents)),
        "all words of the list: tests, bench, tools": str(
            count_words(root, _WORDS, ("tests", "bench", "tools", "examples"))
        ),
    }


def main() -> None:
    """Print the figures of each checkout."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).parents[1]])
    columns = [measure(root) for root in parser.parse_args().checkouts]
    for name in columns[0]:
        print(f"{name:45}", *(f"{column[name]:>16}" for column in columns))


if __name__ == "__main__":
    main()
