"""What a tool may know of the call that it runs for."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

from everlong.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallInfo:
    """A tool call under way."""

    thread_id: str
    agent: str
    call_id: str
    """As the model named it."""
    idempotency_key: str
    """The same on every attempt at this call, and on no other call: give it to services that know
    such keys, so that an effect happens once though the tool ran twice."""
    attempt: int
    """From 1."""


_CURRENT: contextvars.ContextVar[CallInfo] = contextvars.ContextVar("everlong_call")


def current_call() -> CallInfo:
    """Return the call that the running tool was called for. Works in sync and async tools.

    A tool need not send heartbeats: Everlong does, for as long as the tool runs, so the end of its
    worker is noticed within seconds and the call is tried again elsewhere.
    """
    try:
        return _CURRENT.get()
    except LookupError:
        raise ConfigError(
            "current_call() was called outside a tool. Call it in the function that has @tool, and "
            "hand what you need of it to threads that you start."
        ) from None


@contextlib.contextmanager
def set_current_call(call: CallInfo) -> Iterator[None]:
    """Make it the current call of what runs inside, in this context and its copies."""
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)
