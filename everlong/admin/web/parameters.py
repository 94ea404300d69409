"""Request parameters: types for ids, numbers and texts in paths, queries and bodies, with their checks.

Any id that Temporal accepts is accepted here, so every existing thread can be opened and governed.
`everlong.models.thread_ids.check_new_id` alone decides which ids a new thread may have.

Lists and objects in a body are counted before their items are validated. Otherwise each invalid item
would produce an error of its own, and a million of them take half a minute.
"""

import dataclasses
import math
from typing import Annotated, Any, Final

from fastapi import Depends, Path, Query
from pydantic import AfterValidator, BeforeValidator, Field

from everlong.models.labels import LABEL_CHARS_MAX, LABELS_MAX
from everlong.models.thread_ids import ID_BYTES_MAX, check_new_id, find_id_problem

BY_QUERY: Final = "-"
"""Placeholder in a path. The query parameter `id` then names the thread."""
RUN_ID: Final = r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$"
"""A run id, or an empty string."""
AGE: Final = r"^((idle-)?[0-9]{1,4}[mhd])?$"
"""A bound of the last activity, or an empty string."""


def check_id(text: str) -> str:
    """Return an id that a thread may have. Raises ValueError for any other text."""
    if problem := find_id_problem(text):
        raise ValueError(problem)
    return text


def _unescape_id(text: str) -> str:
    """Undo the escapes that `app.Gateway` keeps inside a path segment."""
    return check_id(text.replace("%2F", "/").replace("%25", "%"))


def _check_typed_id(text: str) -> str:
    """Return a typed or pasted id without surrounding blanks, or an empty string."""
    text = text.strip()
    return check_id(text) if text else ""


def _check_optional_id(text: str) -> str:
    return check_id(text) if text else ""


def _check_new_id(text: str) -> str:
    """Return an id that a new thread may have."""
    check_new_id(text)
    return text


def _resolve_thread_id(
    thread_id: Annotated[
        str,
        Path(
            description="The thread's id, percent-encoded as one segment; or `-`, with the parameter "
            "`id`: a path cannot hold `.` and `..`, and some proxies change `%2F`.",
            min_length=1,
        ),
        AfterValidator(_unescape_id),
    ],
    by_query: Annotated[
        str,
        Query(
            alias="id", max_length=ID_BYTES_MAX, description="The thread's id, if the path has `-`."
        ),
        AfterValidator(_check_optional_id),
    ] = "",
) -> str:
    """Return the thread id of a request, from its path or its query."""
    return by_query if by_query and thread_id == BY_QUERY else thread_id


ThreadId = Annotated[str, Depends(_resolve_thread_id)]
QueryId = Annotated[
    str,
    Query(alias="id", min_length=1, max_length=ID_BYTES_MAX),
    AfterValidator(check_id),
]
OptionalQueryId = Annotated[
    str, Query(alias="id", max_length=ID_BYTES_MAX), AfterValidator(_check_optional_id)
]
TypedId = Annotated[
    str, Query(alias="thread", max_length=ID_BYTES_MAX), AfterValidator(_check_typed_id)
]
BodyId = Annotated[str, Field(min_length=1, max_length=ID_BYTES_MAX), AfterValidator(check_id)]
NewId = Annotated[str, Field(min_length=1), AfterValidator(_check_new_id)]


SEQ_MAX: Final = 10_000_000
ARCHIVE_ID: Final = r"^([0-9]{8}T[0-9]{9}Z-[0-9a-f]{8})?$"
Seq = Annotated[int, Path(ge=1, le=SEQ_MAX, description="The entry's number in the journal.")]
SeqQuery = Annotated[int, Query(ge=1, le=SEQ_MAX)]
OptionalSeq = Annotated[int | None, Query(ge=1, le=SEQ_MAX)]


_DEPTH_MAX: Final = 8
_FIELDS_MAX: Final = 64
# Nested values of all fields together: some fields are short lists.
_VALUES_MAX: Final = 1_000


def _check_text(text: str) -> str:
    """Reject lone surrogates, which cannot be stored, and NUL, which terminals must not get."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text has a lone surrogate, which is not a character") from None
    if "\0" in text:
        raise ValueError("the text has a NUL character")
    return text


def limit_items(count_max: int) -> BeforeValidator:
    """Return a validator that rejects a longer list or object before its items are validated."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count_max:
            raise ValueError(f"{len(value)} items; at most {count_max} are allowed")
        return value

    return BeforeValidator(check)


def _check_json(value: Any) -> Any:
    """Reject values that are not JSON, are nested too deeply, or are too many."""
    left = [(value, 0)]
    count = 0
    while left:
        each, depth = left.pop()
        _check_value(each)
        inside = _list_children(each)
        count += len(inside)
        if depth > _DEPTH_MAX:
            raise ValueError(f"nested more than {_DEPTH_MAX} levels deep")
        if count > _VALUES_MAX:
            raise ValueError(f"more than {_VALUES_MAX} values")
        left += [(item, depth + 1) for item in inside]
    return value


def _list_children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []


def _check_value(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("NaN and infinities are not JSON numbers")
    if isinstance(value, int) and abs(value) > 2**63 - 1:
        raise ValueError("an integer has at most 64 bits")
    if isinstance(value, str):
        _check_text(value)


Text = Annotated[str, AfterValidator(_check_text)]
By = Annotated[
    Text,
    Field(
        max_length=64,
        description="Author of the change. Ignored if a token or a proxy names the user.",
    ),
]
Reason = Annotated[Text, Field(max_length=300, description="Reason, which the journal keeps.")]
LabelTexts = Annotated[
    tuple[Annotated[Text, Field(min_length=1, max_length=LABEL_CHARS_MAX)], ...],
    Field(max_length=LABELS_MAX),
    limit_items(LABELS_MAX),
]
Fields = Annotated[
    dict[str, Any],
    Field(max_length=_FIELDS_MAX),
    AfterValidator(_check_json),
    limit_items(_FIELDS_MAX),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangeRequest:
    """Author of a change, and the reason."""

    by: By = ""
    reason: Reason = ""
