"""The entry point of the `everlong` command.

Without the packages of `everlong[admin]` it can print its version and make a project.
"""

import sys


def main() -> None:
    """Run the command line, or print how to install the packages that it needs."""
    try:
        from everlong.cli import run
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich", "fastapi", "uvicorn"}:
            raise
        _run_base(sys.argv[1:], error.name)
        return
    run()


def _run_base(arguments: list[str], missing: str) -> None:
    from pathlib import Path

    from everlong import __version__
    from everlong.errors import EverlongError
    from everlong.project import create_project

    match arguments:
        case ["--version"]:
            sys.stdout.write(f"everlong {__version__}\n")
        case ["init", *rest] if len(rest) <= 1 and not any(each.startswith("-") for each in rest):
            try:
                sys.stdout.write(f"{create_project(Path(*rest))}\n")
            except EverlongError as error:
                sys.stderr.write(f"error: {error}\n")
                sys.exit(error.exit_code)
        case _:
            sys.exit(
                f"error: the command line needs {missing!r}. Install it with: "
                "pip install 'everlong[admin]'"
            )


if __name__ == "__main__":
    main()
