"""Tool context: what a running tool may know about its call."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

from everlong.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallInfo:
    """A running tool call."""

    thread_id: str
    agent: str
    call_id: str
    """The model's id of the call."""
    idempotency_key: str
    """The same for every attempt of this call, and unique to it. Pass it to services that take such
    keys, so that an effect happens once even if the tool runs twice."""
    attempt: int
    """Number of the attempt, from 1."""


_CURRENT: contextvars.ContextVar[CallInfo] = contextvars.ContextVar("everlong_call")


def current_call() -> CallInfo:
    """Return the call of the running tool. Works in sync and async tools.

    A tool need not send heartbeats: Everlong sends them while the tool runs, so a crash of the worker is
    noticed within seconds, and another worker retries the call.
    """
    try:
        return _CURRENT.get()
    except LookupError:
        raise ConfigError(
            "current_call() was called outside a tool. Call it in the function decorated with @tool, "
            "and pass the values to threads that you start."
        ) from None


@contextlib.contextmanager
def set_current_call(call: CallInfo) -> Iterator[None]:
    """Make a call the current one inside the block, in this context and its copies."""
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)
