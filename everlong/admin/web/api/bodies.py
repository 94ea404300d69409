"""What bodies of requests are made of: texts, names, reasons. Nothing that cannot be stored gets in.

Lists and objects are counted before their items are looked at: each item that does not fit would be an
error of its own, and a million of them take half a minute.
"""

import dataclasses
import math
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

_DEPTH_MAX: Final = 8
_FIELDS_MAX: Final = 64
# Of all that is nested in the fields: some of them are short lists.
_VALUES_MAX: Final = 1_000


def _sound(text: str) -> str:
    """Refuse what cannot be stored: lone surrogates, and what no terminal should get."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate is no character") from None
    if "\0" in text:
        raise ValueError("NUL is no character of a text")
    return text


def at_most(count_max: int) -> BeforeValidator:
    """Return what refuses a longer list or object before anything in it is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count_max:
            raise ValueError(f"{len(value)} items; {count_max} is the most")
        return value

    return BeforeValidator(check)


def _plain(value: Any) -> Any:
    """Refuse values that JSON does not have, or that are nested or repeated without need."""
    left = [(value, 0)]
    count = 0
    while left:
        each, depth = left.pop()
        _check_plain(each)
        inside = _inside(each)
        count += len(inside)
        if depth > _DEPTH_MAX:
            raise ValueError(f"nested more than {_DEPTH_MAX} times")
        if count > _VALUES_MAX:
            raise ValueError(f"more than {_VALUES_MAX} values")
        left += [(item, depth + 1) for item in inside]
    return value


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []


def _check_plain(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("no number of JSON")
    if isinstance(value, int) and abs(value) > 2**63 - 1:
        raise ValueError("a number has 64 bits")
    if isinstance(value, str):
        _sound(value)


Text = Annotated[str, AfterValidator(_sound)]
By = Annotated[Text, Field(max_length=64, description="Who; only asked of those without a token.")]
Reason = Annotated[Text, Field(max_length=300, description="Why, for those who read the journal.")]
Fields = Annotated[
    dict[str, Any], Field(max_length=_FIELDS_MAX), AfterValidator(_plain), at_most(_FIELDS_MAX)
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
    """Who asks for a change, and why."""

    by: By = ""
    reason: Reason = ""
