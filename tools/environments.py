"""Virtual environments for the checks of the package, created by uv, or by pip if uv is missing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
STEP_SECONDS_MAX: Final = 600.0


class StepFailed(Exception):
    """A command exited with an error. The message is its output."""


def run(*command: str | Path, cwd: Path = ROOT, stdin: str = "", shown: bool = False) -> str:
    """Run a command; return its output. With `shown`, its output goes to the terminal instead."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            input=stdin,
            stdout=None if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.PIPE,
            text=True,
            check=False,
            timeout=STEP_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        raise StepFailed(f"{command[0]} took over {STEP_SECONDS_MAX:g} s") from None
    if done.returncode:
        raise StepFailed((done.stderr or done.stdout or f"{command[0]}: {done.returncode}").strip())
    return done.stdout or ""


def find_uv() -> str | None:
    """Return the path of uv, from the variable UV or from PATH."""
    return shutil.which(os.environ.get("UV") or "uv")


def require_uv(what: str) -> str:
    """Return the path of uv, or exit with a message."""
    found = find_uv()
    if found is None:
        sys.exit(
            f"error: {what} needs uv: pip cannot do this. Install it (python3 -m pip install uv, or "
            "https://docs.astral.sh/uv/), or name it: UV=/path/to/uv"
        )
    return found


def create(folder: Path) -> Path:
    """Create an empty environment with this Python; return its interpreter."""
    uv = find_uv()
    if uv is None:
        run(sys.executable, "-m", "venv", "--clear", folder)
    else:
        run(uv, "venv", "-q", "--clear", "--python", sys.executable, folder)
    return folder / "bin" / "python"


def install(python: Path, arguments: Sequence[str | Path]) -> None:
    """Install packages into an environment, with arguments that both pip and uv accept."""
    uv = find_uv()
    if uv is None:
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments)
    else:
        run(uv, "pip", "install", "-q", "--python", python, *arguments)


def count_packages(python: Path) -> int:
    """Return the number of packages in an environment, without pip, setuptools and wheel."""
    code = (
        "from importlib import metadata as m; "
        "print(len({d.name.lower() for d in m.distributions()} - {'pip', 'setuptools', 'wheel'}))"
    )
    return int(run(python, "-c", code))
