"""The Dockerfile's own steps, carried out without an engine and without a network."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Instruction = tuple[str, list[str]]


def instructions() -> list[Instruction]:
    """Each instruction of the Dockerfile with its words; comments and continuations are gone."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    lines = [shlex.split(line, posix=True) for line in text.splitlines() if line.strip()]
    return [(words[0], words[1:]) for words in lines]


def copies() -> list[tuple[list[str], str]]:
    """Sources and destination of each COPY out of the build context."""
    words = [words for name, words in instructions() if name == "COPY"]
    return [(w[:-1], w[-1]) for w in words if not w[0].startswith("--from=")]


def pattern(line: str) -> re.Pattern[str]:
    """Translate a line of .dockerignore: `**/` spans folders, `*` does not."""
    parts = {"**/": "(?:.*/)?", "*": "[^/]*"}
    pieces = re.split(r"(\*\*/|\*)", line)
    return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces) + "(?:/.*)?")


def in_context(path: Path) -> bool:
    """Whether .dockerignore lets a path through. The last line that matches decides."""
    included = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        rule = line.strip().removeprefix("!")
        if rule and not rule.startswith("#") and pattern(rule).fullmatch(path.as_posix()):
            included = line.startswith("!")
    return included


def run(*command: str | Path, **environment: str) -> str:
    """Run a Python command of the image in this interpreter; what it printed.

    `-P` keeps the current folder, which is this repository, from being imported instead.
    """
    result = subprocess.run(
        [sys.executable, "-P", *map(str, command)],
        env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def installed_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the wheel, built from exactly what is copied, has been installed."""
    pytest.importorskip("pip", reason="uv makes environments without pip, unless it gets --seed")
    work = tmp_path_factory.mktemp("image")
    source, wheels, target = work / "src", work / "wheels", work / "site"
    for names, destination in copies():
        for name in names:
            place = source / destination / ("" if (ROOT / name).is_dir() else name)
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                skip = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, place, ignore=skip, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / name, place)
    offline = ["--no-deps", "--no-index"]
    run("-m", "pip", "wheel", *offline, "--no-build-isolation", "--wheel-dir", wheels, source)
    [wheel] = wheels.glob("everlong-*.whl")
    run("-m", "pip", "install", *offline, "--target", target, wheel)
    return target


def test_every_base_image_has_an_exact_version() -> None:
    bases = {words[0] for name, words in instructions() if name == "FROM"}
    assert len(bases) == 1, "the virtual environment is copied from one stage to the other"
    assert re.fullmatch(r"python:3\.13\.\d+-slim-bookworm", bases.pop())


def test_every_copied_source_exists_and_is_in_the_build_context() -> None:
    sources = [Path(name) for names, _ in copies() for name in names]
    assert sources
    for path in sources:
        assert (ROOT / path).exists(), path
        assert in_context(path), path


@pytest.mark.parametrize(
    "name", [".env", ".git/config", ".venv/bin/python", ".everlong/db", "tests/unit", "deploy"]
)
def test_secrets_and_unneeded_files_stay_out_of_the_build_context(name: str) -> None:
    assert not in_context(Path(name))


def test_compiled_files_stay_out_of_the_build_context() -> None:
    assert in_context(Path("everlong/storage/file.py"))
    assert not in_context(Path("everlong/storage/__pycache__/file.cpython-313.pyc"))


def test_the_image_runs_everlong_as_a_fixed_user_that_is_not_root() -> None:
    last = dict(instructions())
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"][0])
    assert last["ENTRYPOINT"] == ["[everlong]"]
    assert last["CMD"] == ["[--help]"]
    assert "PYTHONUNBUFFERED=1" in last["ENV"]


def test_everything_that_pip_installs_is_constrained() -> None:
    installs = [" ".join(w) for name, w in instructions() if name == "RUN" and "install" in w]
    pip = [command for command in installs if "pip" in command]
    assert pip
    assert all("-c constraints.txt" in command for command in pip), pip


def test_pip_never_resolves_everlong_in_the_image() -> None:
    pip = [words for name, words in instructions() if name == "RUN" and "pip" in words]
    assert pip
    assert not any(re.match(r"everlong(\[|$|==)", word) for words in pip for word in words)


def test_the_wheel_reports_its_version(installed_wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    where = run("-c", "import everlong; print(everlong.__file__)", PYTHONPATH=str(installed_wheel))
    assert Path(where.strip()).is_relative_to(installed_wheel)
    printed = run("-m", "everlong", "--version", PYTHONPATH=str(installed_wheel))
    assert project["version"] in printed


def test_the_wheel_holds_only_the_package(installed_wheel: Path) -> None:
    names = {path.name for path in installed_wheel.iterdir() if path.suffix != ".dist-info"}
    assert names - {"bin"} == {"everlong"}
    assert (installed_wheel / "everlong" / "py.typed").exists()
