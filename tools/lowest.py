"""Sets up an environment with the lowest version of each dependency that `pyproject.toml` allows.

Test tools keep the versions of `constraints.txt`. `make test-lowest` runs the tests in it.
"""

import itertools
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from tools.environments import ROOT, StepFailed, create, install, require_uv, run

FOLDER: Final = ".venv-lowest"
# Tools that are not needed, or that need newer versions of the packages under test.
_LEFT_OUT: Final = ("everlong", "mypy", "playwright", "ruff", "schemathesis", "temporalio-openai")
_FLOOR: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9a-z.]+)")


def main() -> int:
    """Set up the environment; fail if a dependency cannot be installed at its lower bound."""
    uv = require_uv("make test-lowest")
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    tools = [each for each in extras.pop("dev") if not each.startswith(_LEFT_OUT)]
    floors = read_floors([*project["dependencies"], *itertools.chain(*extras.values())])
    found = _set_up(uv, ROOT / FOLDER, list(extras), tools)
    above = sorted(name for name in floors if not same(found[name], floors[name]))
    print(f"{FOLDER}: {len(found)} packages, {len(floors)} with a lower bound of ours")
    for name in above:
        print(f"error: {name}>={floors[name]} cannot be tested: other packages need {found[name]}")
    return 1 if above else 0


def normalize(name: str) -> str:
    """Return a package's name in normalized form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    """Return the versions in lines `name==version`, by normalized name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, flags=re.MULTILINE)
    return {normalize(name): version for name, version in found}


def same(version: str, other: str) -> bool:
    """Return whether two versions are equal, apart from trailing zeros."""
    return re.sub(r"(\.0)+$", "", version) == re.sub(r"(\.0)+$", "", other)


def read_floors(requirements: list[str]) -> dict[str, str]:
    """Return the lower bounds of requirements by normalized name."""
    found = [_FLOOR.match(each) for each in requirements if not each.startswith("everlong")]
    return {normalize(each[1]): each[2] for each in found if each}


def _set_up(uv: str, folder: Path, extras: list[str], tools: list[str]) -> dict[str, str]:
    """Make an environment; return the versions of the package's dependencies."""
    python = create(folder)
    options = ["--resolution", "lowest-direct", "--python", str(python), "--no-header"]
    named = [word for extra in extras for word in ("--extra", extra)]
    text = run(uv, "pip", "compile", "-q", "--no-annotate", *options, *named, "pyproject.toml")
    found = read_pins(text)
    usual = read_pins((ROOT / "constraints.txt").read_text())
    lowest, others = folder / "lowest.txt", folder / "others.txt"
    lowest.write_text(text)
    others.write_text("".join(f"{n}=={v}\n" for n, v in usual.items() if n not in found))
    # Compiled: the workflow sandbox imports modules again, which is slow from source.
    install(python, ["--compile-bytecode", "-r", lowest, *tools, "-c", others])
    install(python, ["--compile-bytecode", "--no-deps", "-e", "."])
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StepFailed as error:
        sys.exit(f"error: {error}")
