"""Values of options: whole numbers, durations and words of a list, with errors that say what fits."""

from collections.abc import Callable, Collection
from typing import Any

from everlong.errors import ConfigError, quote, suggest
from everlong.format import join_words, parse_duration


def whole_number(name: str, least: int, most: int | None = None) -> Callable[[Any], int]:
    """Return a parser for the whole numbers within these bounds."""
    allowed = f"{least} or more" if most is None else f"{least} to {most}"

    def parse(value: Any) -> int:
        text = str(value)
        number = int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else None
        if number is None or number < least or (most is not None and number > most):
            raise ConfigError(f"{name} is {quote(text)}. Give a whole number, {allowed}.")
        return number

    return parse


def duration(name: str) -> Callable[[Any], float]:
    """Return a parser for durations in seconds: `90s`, `5m`, or a number of seconds."""

    def parse(value: Any) -> float:
        try:
            return parse_duration(str(value))
        except ValueError as error:
            raise ConfigError(f"{name}: {error}.") from None

    return parse


def word(name: str, words: Collection[str]) -> Callable[[Any], str]:
    """Return a parser for one of some words."""

    def parse(value: Any) -> str:
        if value and value not in words:
            hint = suggest(str(value), words)
            raise ConfigError(
                f"{name} cannot be {quote(str(value))}.{hint} Use {join_words(words)}."
            )
        return str(value)

    return parse
