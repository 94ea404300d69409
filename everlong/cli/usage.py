"""Usage errors: what a command line got wrong, in the voice of Everlong's own errors."""

import re
from collections.abc import Sequence
from typing import Any, Final

import typer

from everlong.cli.help import is_argument
from everlong.errors import quote, suggest

# Typer has a copy of Click since 0.25, so the class is found by a subclass that Typer exports.
USAGE_ERROR: Final[type[Exception]] = typer.BadParameter.__mro__[1]
_EXTRA: Final = re.compile(r"Got unexpected extra argument(\(s\)|s)? \((?P<text>.*)\)", re.DOTALL)
_NO_VALUE: Final = re.compile(r"Option '?(?P<name>-[\w-]+)'? requires an argument")


def explain_usage(error: Any, arguments: Sequence[str]) -> str:
    """Return the message for a usage error of Typer: what is wrong, and what to type next."""
    path = error.ctx.command_path if error.ctx else "everlong"
    if path == "everlong" and arguments[:1] and not arguments[0].startswith("-"):
        path = f"everlong {arguments[0]}"  # The parser of options does not know its command.
    return f"{path}: {_explain(error)} See: {path} --help"


def _explain(error: Any) -> str:
    kind = type(error).__name__
    message = " ".join(str(error.message or "").split())
    params: Sequence[Any] = error.ctx.command.get_params(error.ctx) if error.ctx else ()
    if kind == "NoSuchOption":
        options = [name for each in params for name in each.opts if name.startswith("--")]
        return (
            f"there is no option {quote(error.option_name)}.{suggest(error.option_name, options)}"
        )
    if kind == "MissingParameter" and error.param is not None:
        return f"{_get_name(error.param)} is missing."
    if found := _EXTRA.search(message):
        return (
            f"there are more arguments than it takes: {quote(found['text'])}. Put a text with blanks "
            "in quotes."
        )
    if found := _NO_VALUE.search(message):
        return f"{found['name']} needs a value."
    if getattr(error, "param", None) is not None:
        message = f"{_get_name(error.param)}: {message}"
    return f"{message.rstrip('.')}."


def _get_name(param: Any) -> str:
    return str(param.metavar or param.name.upper()) if is_argument(param) else str(param.opts[-1])
