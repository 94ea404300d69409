"""How requests name threads and runs: in paths, queries and bodies.

Any id that Temporal takes is taken here, so that every thread can be opened and governed. Whether a new
thread may be given an id is decided in one place, `everlong.models.thread_ids.check_new_id`.
"""

import dataclasses
import math
from typing import Annotated, Any, Final

from fastapi import Depends, Path, Query
from pydantic import AfterValidator, BeforeValidator, Field

from everlong.models.thread_ids import ID_BYTES_MAX, check_new_id, id_problem

BY_QUERY: Final = "-"
"""Stands in a path for a thread that the parameter `id` names."""
RUN_ID: Final = r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$"
"""A run, or none."""


def checked_id(text: str) -> str:
    """Return an id that a thread may have; refuse any other."""
    if problem := id_problem(text):
        raise ValueError(problem)
    return text


def _from_path(text: str) -> str:
    """Undo what `shell` left escaped."""
    return checked_id(text.replace("%2F", "/").replace("%25", "%"))


def _optional(text: str) -> str:
    """Return what a person typed or pasted, without blanks at its ends."""
    text = text.strip()
    return checked_id(text) if text else ""


def _given(text: str) -> str:
    return checked_id(text) if text else ""


def _new_id(text: str) -> str:
    """Return an id that a new thread may be given."""
    check_new_id(text)
    return text


def _named(
    thread_id: Annotated[
        str,
        Path(
            description="The thread's id, percent-encoded as one segment; or `-`, with the parameter "
            "`id`: a path cannot hold `.` and `..`, and some proxies change `%2F`.",
            min_length=1,
        ),
        AfterValidator(_from_path),
    ],
    by_query: Annotated[
        str,
        Query(
            alias="id", max_length=ID_BYTES_MAX, description="The thread's id, if the path has `-`."
        ),
        AfterValidator(_given),
    ] = "",
) -> str:
    """Return the id that a request names its thread by."""
    return by_query if by_query and thread_id == BY_QUERY else thread_id


ThreadId = Annotated[str, Depends(_named)]
QueryId = Annotated[
    str,
    Query(alias="id", min_length=1, max_length=ID_BYTES_MAX),
    AfterValidator(checked_id),
]
OptionalQueryId = Annotated[str, Query(alias="id", max_length=ID_BYTES_MAX), AfterValidator(_given)]
TypedId = Annotated[str, Query(alias="thread", max_length=ID_BYTES_MAX), AfterValidator(_optional)]
BodyId = Annotated[str, Field(min_length=1, max_length=ID_BYTES_MAX), AfterValidator(checked_id)]
NewId = Annotated[str, Field(min_length=1), AfterValidator(_new_id)]


SEQ_MAX: Final = 10_000_000
ARCHIVE_ID: Final = r"^([0-9]{8}T[0-9]{9}Z-[0-9a-f]{8})?$"
Seq = Annotated[int, Path(ge=1, le=SEQ_MAX, description="An entry's place in the journal.")]
SeqQuery = Annotated[int, Query(ge=1, le=SEQ_MAX)]
OptionalSeq = Annotated[int | None, Query(ge=1, le=SEQ_MAX)]


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
