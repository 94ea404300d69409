"""Values of options: whole numbers, durations and words of a list, with errors that say what fits."""

import datetime
from collections.abc import Callable, Collection
from typing import Any

from everlong.errors import ConfigError, quote, suggest
from everlong.format import join_words, parse_duration

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


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


def past_time(name: str) -> Callable[[Any], float]:
    """Return a parser for times in the past, as Unix time: `2h` ago, a weekday, a date, a date and time.

    A weekday is the last one that has begun. Times without a zone are local.
    """

    def parse(value: Any) -> float:
        text, now = str(value).strip(), datetime.datetime.now().astimezone()
        if (day := text.lower()) in (*_WEEKDAYS, "today", "yesterday"):
            days = (now.weekday() - _WEEKDAYS.index(day)) % 7 if day in _WEEKDAYS else 0
            start = now.replace(hour=0, minute=0, second=0, microsecond=0)
            return (start - datetime.timedelta(days=days + (day == "yesterday"))).timestamp()
        try:
            found = datetime.datetime.fromisoformat(text).astimezone().timestamp()
        except (ValueError, OverflowError, OSError):
            try:
                found = now.timestamp() - parse_duration(text)
            except ValueError:
                raise ConfigError(
                    f"{name} is {quote(text)}. Write how long ago, as in 2h or 3d, a day, as in monday "
                    "or 2026-11-16, or a time, as in 2026-11-16T09:30."
                ) from None
        if not 0 <= found <= now.timestamp():
            raise ConfigError(f"{name} is {quote(text)}, which is not in the past.")
        return found

    return parse
