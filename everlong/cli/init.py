"""`everlong init`: makes a project."""

from pathlib import Path
from typing import Annotated

import typer

from everlong.cli.help import Commands
from everlong.console import out, sanitise
from everlong.project import create_project

commands = Commands()


@commands.command()
def init(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIRECTORY", help="A new or empty directory; by default this one."),
    ] = Path(),
) -> None:
    """Make a project that runs: an agent, its test, settings, containers.

    It needs no API key: a script stands in for the model. A directory that is not empty is refused, and
    no file is ever overwritten. A repository (.git) and an environment (.venv) may be there.

    Examples:
        everlong init my-agent

    """
    out.print(sanitise(create_project(directory)), markup=False, soft_wrap=True)
