"""The entry point of the `everlong` command."""

import sys


def main() -> None:
    """Run the command line, or print how to install the packages that it needs."""
    try:
        from everlong.cli import run
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich", "fastapi", "uvicorn"}:
            raise
        sys.exit(
            f"error: the command line needs {error.name!r}. Install it with: "
            "pip install 'everlong[admin]'"
        )
    run()


if __name__ == "__main__":
    main()
