"""Wire types of the live channel: what a worker posts, what the admin server answers.

A post describes the worker's running steps, and a lost one is repaired by the next: the answer says how
much of each text the server has, and the worker continues from there. Nothing is queued.
"""

import dataclasses
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from everlong import limits
from everlong.errors import ConfigError

POST_PATH: Final = "/api/v1/live"

TEXT_CHARS_MAX: Final = 128 * limits.KIB
"""Part of a reply that is sent live: about 30,000 tokens. The journal has the whole reply."""
PIECE_CHARS_MAX: Final = 16 * limits.KIB
"""Part of a text in one post."""
PROGRESS_CHARS_MAX: Final = 300
POST_STEPS_MAX: Final = 256
"""Steps in one post. More of them take turns."""
POST_CHARS_MAX: Final = 64 * limits.KIB
"""Text of all steps of a post together. With 12 bytes for a character, and 500 for the rest of a step, a
post has 900 KB; the admin server accepts 4 MiB."""
FLUSH_SECONDS: Final = 0.05
"""Time between two posts of a worker while there is news."""
REFRESH_SECONDS: Final = 1.0
"""Time after which a worker reports a running step again, so that the server knows that it runs."""
SILENT_SECONDS: Final = 5.0
"""Time after which the server takes a step that was not reported for interrupted."""

StepKind: TypeAlias = Literal["reply", "tool"]
StepState: TypeAlias = Literal["running", "done", "cut"]
Name: TypeAlias = Annotated[str, Field(max_length=limits.CALL_NAME_CHARS_MAX)]


@dataclasses.dataclass(frozen=True)
class LiveServer:
    """An admin server that takes live output, and the token for it."""

    url: str
    token: str = dataclasses.field(default="", repr=False)
    """Token of a user with the role `worker`, for a worker. A listener's user may read threads."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port
        except ValueError:
            is_valid = False
        if not is_valid or parts.username or parts.query or parts.fragment:
            raise ConfigError(
                "the URL of the live server is not one. Give the admin server's URL, as in "
                "http://127.0.0.1:8234, without credentials or a query."
            )
        if not self.token.isascii() or not self.token.isprintable():
            raise ConfigError("the token of the live server has characters other than ASCII")


@dataclass(frozen=True, kw_only=True)
class LiveStep:
    """One attempt of a model call or a tool call, as its worker reports it."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """Random id of the attempt."""
    thread_id: Annotated[str, Field(min_length=1, max_length=1000)]
    kind: StepKind
    attempt: Annotated[int, Field(ge=1, le=1_000_000)]
    order: Annotated[int, Field(ge=0, le=2**53)]
    """Time at which the server scheduled the attempt, in Unix milliseconds: later attempts have more."""
    seq: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Seq that a reply's entry will have. 0 for a tool."""
    call_id: Name = ""
    tool: Name = ""
    state: StepState = "running"
    offset: Annotated[int, Field(ge=0, le=TEXT_CHARS_MAX)] = 0
    """Position of `text` in the reply, in characters."""
    text: Annotated[str, Field(max_length=PIECE_CHARS_MAX)] = ""
    """Piece of the reply; for a tool, its newest progress."""


def _check_count(steps: Any) -> Any:
    """Count steps before they are validated: each invalid one would make several errors of its own."""
    if isinstance(steps, list | tuple) and len(steps) > POST_STEPS_MAX:
        raise ValueError(f"{len(steps)} steps; at most {POST_STEPS_MAX} are allowed")
    return steps


@dataclass(frozen=True, kw_only=True)
class LivePost:
    """Body of a worker's post."""

    namespace: Annotated[str, Field(min_length=1, max_length=1000)]
    steps: Annotated[
        tuple[LiveStep, ...], Field(max_length=POST_STEPS_MAX), BeforeValidator(_check_count)
    ]


@dataclass(frozen=True, kw_only=True)
class LiveAnswer:
    """Response to a post."""

    chars: dict[str, int]
    """Characters that the server has, by the step's id: only of steps whose threads have listeners."""
    ended: tuple[str, ...] = ()
    """Steps to send no more of: a later attempt has begun, or there is no room."""


@dataclasses.dataclass(frozen=True)
class LiveEvent:
    """An event for listeners, as server-sent events have it: a name, and an object as its data."""

    name: Literal["open", "start", "delta", "progress", "cut", "done", "dropped"]
    data: dict[str, str | int | bool]
