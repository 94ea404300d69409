"""Running the activities of a thread, and holding where one cannot begin."""

import contextlib
import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic_core import to_json
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from everlong import limits
from everlong.models import APPEND_JOURNAL, HELD, printable

if TYPE_CHECKING:
    from everlong.workflows.thread import Thread

T = TypeVar("T")

_INTERVAL: Final = timedelta(seconds=limits.RETRY_SECONDS_MAX)
_TIMEOUT: Final = timedelta(seconds=limits.ACTIVITY_SECONDS_MAX)
_HEARTBEAT: Final = timedelta(seconds=limits.HEARTBEAT_SECONDS)
_HOLDS_MAX: Final = 10  # 10 s doubled ten times is far over the longest pause.


class LeftWhileHeld(Exception):
    """A step that cannot go on is left as it is, since the run or the thread is to end."""


def attempts(number: int = limits.CALL_ATTEMPTS_MAX) -> RetryPolicy:
    """Return the retry policy of what may fail for good. 0 is for our own code, which never does."""
    return RetryPolicy(maximum_interval=_INTERVAL, maximum_attempts=number)


class Executor:
    """Runs the activities of one run of a thread."""

    def __init__(self, thread: "Thread") -> None:
        self._thread = thread
        self._held: dict[object, str] = {}  # What each activity that is held waits for.
        self.blobs = 0
        """Results of this run that are objects in the store: a replay fetches them."""
        self.offloaded_bytes = 0

    @property
    def held_by(self) -> str:
        """What the thread waits for, if it is held."""
        return next(iter(self._held.values()), "")

    async def execute(
        self, name: str, argument: object, result_type: type[T], retry_policy: RetryPolicy
    ) -> T:
        """Run an activity. While it is held before it could begin, wait and try again."""
        token = object()
        thread = self._thread
        holds = thread.state.holds
        try:
            while True:
                self._held.pop(token, None)
                try:
                    result: T = await workflow.execute_activity(
                        name,
                        argument,
                        result_type=result_type,
                        start_to_close_timeout=_TIMEOUT,
                        heartbeat_timeout=_HEARTBEAT,
                        retry_policy=retry_policy,
                    )
                except ActivityError as error:
                    if type_of(error) != HELD:
                        raise
                    self._held[token] = reason_of(name, error, limits.HELD_REASON_CHARS_MAX)
                else:
                    self._count(result)
                    thread.state = dataclasses.replace(thread.state, holds=0)
                    return result
                # A step is left when the thread is to end; what the journal must still get is not.
                leaves = name != APPEND_JOURNAL
                if not (leaves and thread.stopping):
                    holds = await self._pause(holds)
                if (leaves and thread.stopping) or thread.roll_reason() is not None:
                    raise LeftWhileHeld
        finally:
            self._held.pop(token, None)

    def _count(self, result: object) -> None:
        size_bytes = len(to_json(result))
        if size_bytes > limits.INLINE_BYTES_MAX:
            self.blobs += 1
            self.offloaded_bytes += size_bytes

    async def _pause(self, holds: int) -> int:
        """Wait before the next try: longer each time, but not through a wish to stop.

        `holds` says how often this activity was held before; those beside it count for themselves.
        """
        thread = self._thread
        more = min(holds + 1, _HOLDS_MAX)
        thread.state = dataclasses.replace(thread.state, holds=max(thread.state.holds, more))
        seconds = min(limits.HELD_PAUSE_SECONDS_MIN * 2.0**holds, limits.HELD_PAUSE_SECONDS_MAX)
        was_stopping = thread.stopping  # What comes after a stop has to wait like the rest.
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: thread.stopping and not was_stopping, timeout=timedelta(seconds=seconds)
            )
        return more


def type_of(error: ActivityError) -> str:
    """Return the type that our activity gave its failure."""
    return (error.cause.type or "") if isinstance(error.cause, ApplicationError) else ""


def reason_of(what: str, error: ActivityError, chars_max: int = limits.REASON_CHARS_MAX) -> str:
    """Say what failed and why, shortly: it stays in operational state for a while."""
    cause = error.cause
    # Our activities say themselves what failed; of a time-out, only the server knows.
    reason = cause.message if isinstance(cause, ApplicationError) else f"{what}: {cause or error}"
    return printable(reason, chars_max)
