"""Builds the package, checks it, and tries its wheel in empty environments, without and with extras.

The built files stay in `dist/`.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.environments import ROOT, StepFailed, count_packages, create, install, run

DIST: Final = ROOT / "dist"


def build(folder: Path) -> Path:
    """Build sdist and wheel with `python -m build`, check them with twine; return the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    python = create(folder / "tools")
    install(python, ["build", "twine"])
    run(python, "-m", "build", "--outdir", DIST)
    run(python, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    [wheel] = DIST.glob("everlong-*.whl")
    return wheel


def check_base(wheel: Path, folder: Path) -> None:
    """Install the wheel without extras: the plugin, a new project, and errors that name an extra."""
    python = install_wheel(wheel, "", folder / "base")
    command = python.parent / "everlong"
    print(run(command, "--version", cwd=folder).strip(), flush=True)
    run(command, "init", "base-project", cwd=folder)
    run(python, "-c", "from everlong import Agent, EverlongPlugin; EverlongPlugin(store='memory:')")
    for arguments in (["dev"], ["threads"], ["init", "--help"]):
        try:
            run(command, *arguments, cwd=folder)
        except StepFailed as error:
            if "pip install 'everlong[admin]'" in str(error):
                continue
            raise
        raise StepFailed(f"everlong {arguments[0]} needs an extra, and did not fail without it")


def run_demo(wheel: Path, folder: Path) -> None:
    """Install the wheel as a user would; run the tests of a new project and `everlong demo`."""
    python = install_wheel(wheel, "[embedded]", folder / "venv", "pytest", "pytest-asyncio")
    command = python.parent / "everlong"
    run(command, "init", "project", cwd=folder)
    run(python, "-m", "pytest", cwd=folder / "project", shown=True)
    run(command, "demo", cwd=folder / "project", shown=True)


def install_wheel(wheel: Path, extras: str, folder: Path, *others: str) -> Path:
    """Install the wheel into an empty environment; return its interpreter."""
    python = create(folder)
    started = time.monotonic()
    wanted = f"everlong{extras} @ {wheel.as_uri()}"
    install(python, [wanted, *others, "-c", ROOT / "constraints.txt"])
    seconds = time.monotonic() - started
    print(f"everlong{extras}: {count_packages(python)} packages in {seconds:.1f} s.", flush=True)
    return python


def main(arguments: Sequence[str]) -> int:
    """Build, check, install, run."""
    if arguments:
        sys.exit("error: make package takes no arguments")
    with tempfile.TemporaryDirectory(prefix="everlong-package-") as name:
        wheel = build(Path(name))
        for path in sorted(DIST.iterdir()):
            print(f"dist/{path.name}: {path.stat().st_size:,} bytes, passes twine check")
        os.environ.pop("PYTHONPATH", None)
        check_base(wheel, Path(name))
        run_demo(wheel, Path(name))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except StepFailed as error:
        sys.exit(f"error: {error}")
