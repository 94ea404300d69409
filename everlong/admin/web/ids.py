"""How requests name threads and runs: in paths, queries and bodies.

Any id that Temporal takes is taken here, so that every thread can be opened and governed. Whether a new
thread may be given an id is decided in one place, `everlong.thread_ids.check_new_id`.
"""

from typing import Annotated, Final

from fastapi import Depends, Path, Query
from pydantic import AfterValidator, Field

from everlong.thread_ids import ID_BYTES_MAX, check_new_id, id_problem

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
