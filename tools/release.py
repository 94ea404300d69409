"""Builds the package, checks it, and runs the demo from its wheel in an empty environment.

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


def run_demo(wheel: Path, folder: Path) -> None:
    """Install the wheel as a user would, and run `everlong demo` outside the checkout."""
    python = create(folder / "venv")
    started = time.monotonic()
    install(python, [f"everlong[embedded] @ {wheel.as_uri()}", "-c", ROOT / "constraints.txt"])
    seconds = time.monotonic() - started
    print(f"Installed {count_packages(python)} packages in {seconds:.1f} s.", flush=True)
    place = folder / "elsewhere"
    place.mkdir()
    os.environ.pop("PYTHONPATH", None)
    run(python.parent / "everlong", "demo", cwd=place, shown=True)


def main(arguments: Sequence[str]) -> int:
    """Build, check, install, run."""
    if arguments:
        sys.exit("error: make package takes no arguments")
    with tempfile.TemporaryDirectory(prefix="everlong-package-") as name:
        wheel = build(Path(name))
        for path in sorted(DIST.iterdir()):
            print(f"dist/{path.name}: {path.stat().st_size:,} bytes, passes twine check")
        run_demo(wheel, Path(name))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except StepFailed as error:
        sys.exit(f"error: {error}")
