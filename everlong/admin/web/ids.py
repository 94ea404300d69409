"""What requests name threads and runs by: in paths, queries and bodies, and checked alike in all.

An id that is taken anywhere can be named everywhere: people see it, and an address can hold it.
"""

from typing import Annotated, Final

from fastapi import Path, Query
from pydantic import AfterValidator, Field

THREAD_ID_BYTES_MAX: Final = 1_000
"""As long as Temporal takes an id."""
RUN_ID: Final = r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$"
"""A run, or none."""


def checked_id(text: str) -> str:
    """Return an id that Temporal takes and a person can see; refuse any other."""
    if not 0 < len(text.encode(errors="replace")) <= THREAD_ID_BYTES_MAX:
        raise ValueError(f"an id has 1 to {THREAD_ID_BYTES_MAX} bytes")
    if not text.isprintable() or not text.strip():
        raise ValueError("an id has printable characters only, and not just blanks")
    return text


def _from_path(text: str) -> str:
    """Undo what `shell` left escaped."""
    return checked_id(text.replace("%2F", "/").replace("%25", "%"))


def _optional(text: str) -> str:
    """Return what somebody typed or pasted; empty if that is nothing."""
    text = text.strip()
    return checked_id(text) if text else ""


ThreadId = Annotated[
    str,
    Path(description="The thread's id, percent-encoded as one segment.", min_length=1),
    AfterValidator(_from_path),
]
QueryId = Annotated[
    str,
    Query(alias="id", min_length=1, max_length=THREAD_ID_BYTES_MAX),
    AfterValidator(checked_id),
]
OptionalQueryId = Annotated[
    str, Query(alias="thread", max_length=THREAD_ID_BYTES_MAX), AfterValidator(_optional)
]
BodyId = Annotated[
    str, Field(min_length=1, max_length=THREAD_ID_BYTES_MAX), AfterValidator(checked_id)
]
