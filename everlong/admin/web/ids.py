"""What requests name threads and runs by: in paths, queries and bodies, and checked alike in all.

A thread that there is can be named, whoever gave it its id. A new one gets an id that people can see.
"""

import unicodedata
from typing import Annotated, Final

from fastapi import Path, Query
from pydantic import AfterValidator, Field

THREAD_ID_BYTES_MAX: Final = 1_000
"""As long as Temporal takes an id."""
# Control characters, and halves of characters, which nothing encodes.
_NEVER: Final = frozenset({"Cc", "Cs"})
RUN_ID: Final = r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$"
"""A run, or none."""


def checked_id(text: str) -> str:
    """Return an id that a thread may have; refuse any other."""
    if not 0 < len(text.encode(errors="replace")) <= THREAD_ID_BYTES_MAX:
        raise ValueError(f"an id has 1 to {THREAD_ID_BYTES_MAX} bytes")
    if any(unicodedata.category(each) in _NEVER for each in text):
        raise ValueError("an id has no control characters")
    return text


def _new_id(text: str) -> str:
    """Return an id that a person can see."""
    if not text.isprintable() or not text.strip():
        raise ValueError("an id has printable characters only, and not just blanks")
    return checked_id(text)


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
NewId = Annotated[str, Field(min_length=1, max_length=THREAD_ID_BYTES_MAX), AfterValidator(_new_id)]
