"""Help of the commands, in plain text: what a command does, its arguments and options, and examples.

The text comes from a command's docstring: a summary, paragraphs, and a last section `Examples:` with one
line of shell each. Printing it imports neither Rich's renderer nor a client.
"""

import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import typer
from typer.core import TyperCommand
from typer.models import CommandFunctionType

_WIDTH_MAX: Final = 100
# Wider spellings of an option have their text on the next line.
_SPELLING_CHARS_MAX: Final = 26
_EXAMPLES: Final = re.compile(r"\n *Examples:\n")


class Command(TyperCommand):
    """A command whose help is printed by this module."""

    @property
    def summary(self) -> str:
        """First sentence of its help."""
        return self._paragraphs()[0]

    @property
    def text(self) -> list[str]:
        """Paragraphs of its help after the summary."""
        return self._paragraphs()[1:]

    @property
    def examples(self) -> list[str]:
        """Lines of shell that can be pasted; a line that begins with `#` is a comment."""
        parts = _EXAMPLES.split(textwrap.dedent(f"{self.help or ''}\n"), maxsplit=1)
        return textwrap.dedent(parts[1]).strip().splitlines() if len(parts) > 1 else []

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        formatter.write(format_command(ctx.command_path, self, self.get_params(ctx)))

    def _paragraphs(self) -> list[str]:
        before = _EXAMPLES.split(f"{self.help or ''}\n", maxsplit=1)[0]
        return [" ".join(each.split()) for each in before.strip().split("\n\n")]


class Commands(typer.Typer):
    """The commands of one module."""

    def __init__(self) -> None:
        super().__init__(add_completion=False, rich_markup_mode=None)

    def command(
        self, name: str | None = None, **options: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Register a command, as `Typer.command` does."""
        return super().command(name, **{"cls": Command, **options})


def format_command(path: str, command: Command, params: Sequence[Any]) -> str:
    """Return the help of a command."""
    arguments = [each for each in params if is_argument(each)]
    options = [each for each in params if not is_argument(each) and not each.hidden]
    usage = " ".join([path, *map(_spell_argument, arguments), "[OPTIONS]" if options else ""])
    lines = [*_wrap(command.summary), ""]
    for paragraph in command.text:
        lines += [*_wrap(paragraph), ""]
    lines += ["USAGE", *_wrap(usage.strip(), indent=2, more=4)]
    if arguments:
        lines += ["", "ARGUMENTS", *format_rows(map(describe_param, arguments))]
    if options:
        lines += ["", "OPTIONS", *format_rows(map(describe_param, options))]
    if command.examples:
        lines += ["", "EXAMPLES", *(f"  {each}" for each in command.examples)]
    return "\n".join(lines) + "\n"


def is_argument(param: Any) -> bool:
    """Whether a parameter is an argument, and not an option."""
    return bool(param.param_type_name == "argument")


def describe_param(param: Any) -> tuple[str, str]:
    """Return how a parameter is written, and what it means."""
    text = " ".join((param.help or "").split())
    if is_argument(param):
        return _get_metavar(param), text
    default = None if param.required or param.is_flag else param.default
    if default not in (None, "", [], ()) and not callable(default):
        text = f"{text} Default: {getattr(default, 'value', default)}.".strip()
    if param.multiple:
        text += " Repeatable."
    spelling = ", ".join(param.opts)
    return (spelling if param.is_flag else f"{spelling} {_get_metavar(param)}"), text


def format_rows(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield aligned lines: what is typed, and what it means."""
    listed = list(rows)
    width = max((len(name) for name, _ in listed if len(name) <= _SPELLING_CHARS_MAX), default=0)
    indent = 2 + width + 2
    for name, text in listed:
        begin = f"  {name:<{width}}  "
        if len(name) > width:
            yield f"  {name}"
            begin = " " * indent
        yield from textwrap.wrap(
            text, _get_width(), initial_indent=begin, subsequent_indent=" " * indent
        ) or [begin.rstrip()]


def _wrap(text: str, *, indent: int = 0, more: int | None = None) -> list[str]:
    following = indent if more is None else more
    return textwrap.wrap(
        text,
        _get_width(),
        initial_indent=" " * indent,
        subsequent_indent=" " * following,
        break_on_hyphens=False,
    )


def _get_width() -> int:
    return max(40, min(_WIDTH_MAX, shutil.get_terminal_size((_WIDTH_MAX, 25)).columns))


def _get_metavar(param: Any) -> str:
    if param.metavar:
        return str(param.metavar)
    if not is_argument(param) and isinstance(param.default, int):
        return "N"
    return str(param.name).upper()


def _spell_argument(param: Any) -> str:
    text = _get_metavar(param) + ("..." if param.nargs == -1 else "")
    return text if param.required else f"[{text}]"
