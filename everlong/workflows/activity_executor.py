"""Activity executor: runs the activities of a thread, and waits while one is held.

An activity that had no effect yet fails with the type `HELD` when it cannot continue, for example while
the store is down. The thread then waits, longer each time, and schedules the activity again without
limit. A hold ends neither the thread nor its turn.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic_core import to_json
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from everlong import limits
from everlong.models import (
    APPEND_JOURNAL,
    BRIEF,
    CALL_MODEL,
    COLLECT,
    HELD,
    RUN_TOOL,
    CallStatus,
    Context,
    Status,
    identify_call,
    make_printable,
)
from everlong.models.json_payloads import from_raw, to_raw, writes_plain_json
from everlong.models.state import replace_values
from everlong.workflows import deadlines, visibility

if TYPE_CHECKING:
    from everlong.workflows.thread import Thread

T = TypeVar("T")

_INTERVAL: Final = timedelta(seconds=limits.RETRY_SECONDS_MAX)
_TIMEOUT: Final = timedelta(seconds=limits.ACTIVITY_SECONDS_MAX)
_CHECK_TIMEOUT: Final = timedelta(seconds=limits.DECISION_SECONDS_MAX)
_HOLDS_MAX: Final = 10  # 10 s doubled ten times is far over the longest pause.
# Activities that a paused thread does not start.
_STEPS: Final = frozenset({CALL_MODEL, RUN_TOOL, BRIEF, COLLECT})


class StepAbandoned(Exception):
    """The run or the thread is about to end or to pause, so a held step is left as it is."""


def build_retry_policy(number: int = limits.CALL_ATTEMPTS_MAX) -> RetryPolicy:
    """Return a retry policy. 0 means no limit: for our own code, which never fails permanently."""
    return RetryPolicy(maximum_interval=_INTERVAL, maximum_attempts=number)


@dataclasses.dataclass(eq=False)
class _Call:
    """A call of an activity that has not ended: it runs, or waits for its next try."""

    activity: str
    key: str
    is_running: bool = True
    held_by: str = ""
    """Text of a hold. It stays while the next try runs, until that is known to be held no more."""
    is_retried: bool = False
    """Whether the activity has signalled that its attempts fail."""


class ActivityExecutor:
    """Runs the activities of one run of a thread."""

    def __init__(self, thread: "Thread") -> None:
        self._thread = thread
        self._calls: list[_Call] = []
        self.blobs = 0
        """Stored objects that this run has read. A replay fetches them again."""
        self.offloaded_bytes = 0
        """Size of those objects, in bytes."""

    @property
    def held_by(self) -> str:
        """Text of a hold; empty if no activity is held."""
        return next((call.held_by for call in self._calls if call.held_by), "")

    @property
    def retried(self) -> str:
        """Type of the activity that is tried again and again; empty if none is."""
        return next((call.activity for call in self._calls if call.is_retried), "")

    def take_call_status(self, signalled: CallStatus) -> bool:
        """Take in the signal of a running activity. Return whether it changes anything.

        One about a call that has ended, or that waits for its next try, is late.
        """
        for call in self._calls:
            if call.key == signalled.call and call.is_running:
                before = (call.is_retried, call.held_by)
                call.is_retried = call.is_retried or signalled.status == Status.RETRYING
                if signalled.status != Status.RETRYING:
                    is_held = signalled.status == Status.HELD
                    call.held_by = (signalled.text or HELD) if is_held else ""
                return before != (call.is_retried, call.held_by)
        return False

    async def execute(
        self,
        name: str,
        argument: object,
        result_type: type[T],
        retry_policy: RetryPolicy,
        *,
        should_abandon: Callable[[], bool] = lambda: False,
    ) -> T:
        """Run an activity. While it is held, wait and schedule it again.

        Raises `StepAbandoned` instead if `should_abandon` returns true in such a wait.
        """
        call = _Call(name, identify_call(name, argument))
        thread = self._thread
        holds = thread.state.holds

        def should_leave() -> bool:
            # A thread that ends leaves its steps, but the entries that it still has must be journalled.
            if thread.stopping:
                return name != APPEND_JOURNAL
            return (name in _STEPS and thread.state.pause is not None) or should_abandon()

        self._calls.append(call)
        try:
            while True:
                call.is_running = True
                try:
                    result = await self._run(name, argument, result_type, retry_policy)
                except ActivityError as error:
                    if get_failure_type(error) != HELD:
                        raise
                    text = describe_failure(name, error, limits.HELD_REASON_CHARS_MAX)
                    call.is_running, call.is_retried, call.held_by = False, False, text or HELD
                    visibility.publish_status(thread)
                else:
                    if thread.state.holds:
                        thread.state = replace_values(thread.state, holds=0)
                    return result
                if not should_leave():
                    holds = await self._pause(holds, should_leave)
                if should_leave() or thread.roll_reason() is not None:
                    raise StepAbandoned
                argument = _mark_after_hold(argument)
        finally:
            self._calls.remove(call)

    async def check(
        self, name: str, argument: object, result_type: type[T], *, attempts_max: int = 0
    ) -> T:
        """Run a short activity for an update, concurrently with the steps. It is given up after a while.

        A store that is down must not keep an update, and a roll, waiting.
        """
        retry_policy = build_retry_policy(attempts_max)
        return await self._run(
            name, argument, result_type, retry_policy, seconds_max=_CHECK_TIMEOUT
        )

    async def _run(
        self,
        name: str,
        argument: object,
        result_type: type[T],
        retry_policy: RetryPolicy,
        *,
        seconds_max: timedelta | None = None,
    ) -> T:
        converter = workflow.payload_converter()
        # A team's own converter may depend on the activity's context, which only the SDK passes to it.
        is_raw = writes_plain_json(converter)
        found: RawValue | T = await workflow.execute_activity(
            name,
            to_raw(argument, converter) if is_raw else argument,
            result_type=RawValue if is_raw else result_type,
            schedule_to_close_timeout=seconds_max,
            start_to_close_timeout=seconds_max or _TIMEOUT,
            heartbeat_timeout=timedelta(seconds=self._thread.policy.heartbeat_seconds),
            retry_policy=retry_policy,
        )
        if isinstance(found, RawValue):
            result, size_bytes = from_raw(found, result_type, converter), len(found.payload.data)
        else:
            result, size_bytes = found, len(to_json(found))
        # Up to this size, the codec keeps results of our activities in the history.
        self.count_read(size_bytes, limits.STATE_BYTES_MAX)
        return result

    def count_read(self, size_bytes: int, inline_bytes_max: int = limits.INLINE_BYTES_MAX) -> None:
        """Count a value that a replay reads from the store. Smaller values are in the history."""
        if size_bytes > inline_bytes_max:
            self.blobs += 1
            self.offloaded_bytes += size_bytes

    async def _pause(self, holds: int, should_leave: Callable[[], bool]) -> int:
        """Wait before the next try, longer each time. A stop or a deadline ends the wait early.

        `holds` is the number of earlier holds of this activity. Activities that run at the same time
        count their own.
        """
        thread = self._thread
        more = min(holds + 1, _HOLDS_MAX)
        thread.state = replace_values(thread.state, holds=max(thread.state.holds, more))
        seconds = min(limits.HELD_PAUSE_SECONDS_MIN * 2.0**holds, limits.HELD_PAUSE_SECONDS_MAX)
        pause = timedelta(seconds=seconds)
        deadline = deadlines.get_time_to_deadline(thread.state, thread.now_ms())
        # If the thread is already stopping, there is no stop to wake for: wait the whole pause.
        was_stopping = thread.stopping
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: should_leave() or (thread.stopping and not was_stopping),
                timeout=pause if deadline is None else min(pause, deadline),
            )
        thread.state = deadlines.apply_deadlines(thread.state, thread.now_ms())
        thread.send_notices()
        return more


def _mark_after_hold(argument: object) -> object:
    """Return an activity's argument for a try after a hold."""
    context = getattr(argument, "context", None)
    if not isinstance(context, Context):
        return argument
    return replace_values(argument, context=replace_values(context, after_hold=True))


def get_failure_type(error: ActivityError) -> str:
    """Return the type of the failure that our activity raised; empty for other failures."""
    return (error.cause.type or "") if isinstance(error.cause, ApplicationError) else ""


def describe_failure(
    what: str, error: ActivityError, chars_max: int = limits.REASON_CHARS_MAX
) -> str:
    """Return what failed and why, in short: operational state holds the text for a while."""
    cause = error.cause
    # Messages of our own activities name what failed. A time-out of the server does not.
    reason = cause.message if isinstance(cause, ApplicationError) else f"{what}: {cause or error}"
    return make_printable(reason, chars_max)
