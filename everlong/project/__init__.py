"""New projects: the template of `everlong init`, and its writer.

Needs no package of an extra. It writes only into an empty directory, and never over a file.
"""

import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Final

from everlong.errors import ConfigError

TEMPLATE: Final[dict[str, tuple[str, str]]] = {
    "app.py": ("app.py.txt", "the agent: its tools, its instructions, its model"),
    "test_app.py": ("test_app.py.txt", "its tests, without an API key"),
    "conftest.py": ("conftest.py.txt", "Everlong's fixtures for pytest"),
    "pyproject.toml": ("pyproject.toml.txt", "dependencies, and pytest's settings"),
    ".env.example": ("env.example.txt", "settings of a deployment"),
    "Dockerfile": ("Dockerfile.txt", "an image of the worker and the dashboard"),
    "docker-compose.yml": ("docker-compose.yml.txt", "both of them in containers"),
    "README.md": ("README.md.txt", "the next commands"),
    ".gitignore": ("gitignore.txt", "what stays out of git"),
}
"""Files of a project: the file of the template for each, and what it is."""
# What is there before a project is: a repository, an environment, data of `everlong dev`.
_ALLOWED: Final = frozenset({".git", ".venv", "venv", ".everlong"})
_NAME: Final = "PROJECT-NAME"
_SHOWN_MAX: Final = 3
NEXT: Final = (
    ("pip install -e '.[dev]'", "in a virtual environment"),
    ("pytest", ""),
    ("everlong dev app:agent --reload", "Temporal, a store, a worker and the dashboard"),
    ("everlong send ops-1 'Why is the api slow?' --agent ops", "in a second terminal"),
    ("everlong approve ops-1", "in a third, or in the dashboard"),
)
"""The next commands, as in the README of the project."""


def create_project(directory: Path) -> str:
    """Write a project into a directory that is new or empty; return a report with the next commands.

    Raises `ConfigError` if it cannot, before anything is written if the directory is not empty.
    """
    name = re.sub(r"[^a-z0-9]+", "-", directory.absolute().name.lower()).strip("-") or "agent"
    template = files(__name__) / "template"
    try:
        _prepare(directory)
        for path, (source, _) in TEMPLATE.items():
            text = (template / source).read_text(encoding="utf-8").replace(_NAME, name)
            with (directory / path).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigError(
            f"no project can be made in {directory}: {error.strerror}: {error.filename}. Give another "
            "directory, as in: everlong init ~/my-agent"
        ) from error
    return _describe(directory)


def _prepare(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    found = sorted(path.name for path in directory.iterdir() if path.name not in _ALLOWED)
    if not found:
        return
    more = f" and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
    raise ConfigError(
        f"the directory {directory.absolute()} is not empty: it has "
        f"{', '.join(found[:_SHOWN_MAX])}{more}. Nothing was written. Give a new directory, as in: "
        f"everlong init {directory / 'my-agent'}"
    )


def _describe(directory: Path) -> str:
    width = max(map(len, TEMPLATE))
    listed = [f"  {path:<{width}}  {what}" for path, (_, what) in TEMPLATE.items()]
    commands = [f"cd {shlex.quote(str(directory))}"] if directory != Path() else []
    width = max(len(command) for command, _ in NEXT)
    commands += [f"{command:<{width}}  # {what}" if what else command for command, what in NEXT]
    return "\n".join(
        [
            f"A project in {directory.absolute()}:",
            *listed,
            "",
            "Next:",
            *(f"  {command}" for command in commands),
        ]
    )
