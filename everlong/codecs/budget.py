"""How much one workflow task completion may carry inline.

The server terminates a workflow for more than 4 MB in one completion, however small each payload is.
The activation hook opens a budget for each activation's completion, and the codec, which encodes its
payloads in the same task of the event loop, finds it here.
"""

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Protocol

from temporalio.api.history.v1 import HistoryEvent

from everlong import limits


class Drain(Protocol):
    """Whether one run goes on offloading though its worker has `mode="read"`."""

    def begin(self, *, replaying: bool) -> None:
        """Take note of an activation of the run."""
        ...

    def note(self, event: HistoryEvent) -> None:
        """Look for refs in an event of the run's history."""
        ...

    @property
    def holds_refs(self) -> bool:
        """Whether a ref in the run's history is known."""
        ...

    @property
    def is_draining(self) -> bool:
        """Whether the run holds refs, or may hold some: its history has not been read yet."""
        ...

    async def decide(self) -> bool:
        """Return `is_draining`, after waiting a bounded time for the history to be read."""
        ...

    def note_refs(self) -> None:
        """Take note that a ref was written for the run."""
        ...


class CompletionBudget:
    """Bytes that are left for the payloads of a completion.

    Answers to queries do not last: they are in no history, so an object in the store would never be
    read again. A result that leaves for another namespace is like any Nexus payload. What a
    replay issues again is most likely discarded, so it is stored only if it does not fit inline.
    """

    def __init__(
        self,
        *,
        lasting: bool = True,
        leaving: bool = False,
        replaying: bool = False,
        run_id: str = "",
        drain: Drain | None = None,
        left_bytes: int = limits.COMPLETION_BYTES_MAX,
    ) -> None:
        self.left_bytes = left_bytes
        self._deadline = float("inf")
        self.lasting = lasting
        self.leaving = leaving
        self.replaying = replaying
        self.run_id = run_id
        self.drain = drain
        self.plain_bytes_max = 0
        """Values that a draining run hands to another run stay plain up to this size."""
        self.returns_to_drain = False
        """Whether the payload at hand is a result that goes into the history of a draining run."""

    async def drains(self) -> bool:
        """Return whether a worker that writes plain payloads has to offload this completion."""
        if self.drain is None:
            return False
        if self.returns_to_drain:
            return True
        if not self.lasting:
            return self.drain.holds_refs
        if self.replaying:
            return self.drain.is_draining
        return await self.drain.decide()

    @property
    def stays_plain_bytes_max(self) -> int:
        """The size up to which values stay plain in a run that drains, or may have to.

        While it is not known whether a run holds refs, only larger values are offloaded: a worker
        without the plugin may be the next to read them, as in the first phase of a rollout.
        """
        known = self.drain is None or self.drain.holds_refs or self.returns_to_drain
        return self.plain_bytes_max if known else limits.DRAIN_HANDOVER_BYTES_MAX

    @property
    def prefers_inline(self) -> bool:
        """Whether payloads of any size stay inline where they fit."""
        return self.replaying or not self.lasting

    def begin(self) -> None:
        """Take note that payloads are being encoded: the task does not wait for ever."""
        if self._deadline == float("inf"):
            self._deadline = time.monotonic() + limits.COMPLETION_SECONDS_MAX

    @property
    def is_late(self) -> bool:
        """Whether so much time is gone that the rest had better stay inline."""
        return time.monotonic() > self._deadline

    def take(self, size_bytes: int) -> bool:
        """Take bytes for a payload that stays inline; tell whether they were there."""
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        return True


class TaskBudget:
    """What the activations of one workflow task may carry inline together.

    Core answers a workflow task by one request. The request carries the commands of all activations of
    that task (local activities make it several), and the commands of a replay before it that history
    does not hold. So an activation gets what the ones before it have left, until a task is known to
    have been answered: the next one has a longer history.
    """

    def __init__(self) -> None:
        self._live_length: int | None = None
        self._budget = CompletionBudget()

    def open(
        self,
        history_length: int,
        *,
        live: bool,
        replaying: bool = False,
        settled: bool = False,
        run_id: str = "",
    ) -> CompletionBudget:
        """Return the budget of an activation that may issue commands.

        Args:
            history_length: Length of the history, as the activation says.
            live: The activation belongs to a task that this worker answers, and is no replay.
            replaying: Core most likely discards the commands.
            settled: History is known to hold all commands so far, so Core keeps none of them.
            run_id: The run that is activated.

        """
        if settled or self._is_next_task(history_length):
            self._budget.left_bytes = limits.COMPLETION_BYTES_MAX
        self._live_length = history_length if live else None
        self._budget = CompletionBudget(
            replaying=replaying, run_id=run_id, left_bytes=self._budget.left_bytes
        )
        return self._budget

    def open_for_answers(
        self, history_length: int, *, alone: bool, run_id: str = ""
    ) -> CompletionBudget:
        """Return the budget of an activation that only asks queries.

        Args:
            history_length: Length of the history, as the activation says.
            alone: The answer is a request of its own. Otherwise it goes out with the task's commands.
            run_id: The run that is asked.

        """
        if alone:
            return CompletionBudget(lasting=False, run_id=run_id)
        if self._is_next_task(history_length):
            self._budget.left_bytes = limits.COMPLETION_BYTES_MAX
            self._live_length = history_length
        left_bytes = self._budget.left_bytes
        self._budget = CompletionBudget(lasting=False, run_id=run_id, left_bytes=left_bytes)
        return self._budget

    def _is_next_task(self, history_length: int) -> bool:
        """Whether the task of the last live activation has been answered since."""
        return self._live_length is not None and history_length > self._live_length


class ActivityResult:
    """Whether the result of the activity under way goes into the history of a draining run."""

    def __init__(self) -> None:
        self.offloads = False

    @staticmethod
    def current() -> "ActivityResult":
        """Return the one of this asyncio task, which decodes, runs and encodes one activity."""
        result = ACTIVITY_RESULT.get()
        if result is None:
            ACTIVITY_RESULT.set(result := ActivityResult())
        return result


ACTIVITY_RESULT: Final[ContextVar[ActivityResult | None]] = ContextVar(
    "everlong_activity_result", default=None
)
UNWATCHED: Final[ContextVar[Callable[[], bool]]] = ContextVar("everlong_unwatched")
"""Set by a worker: whether its workflow tasks have no activation hook, and so no budget."""
BUDGET: Final[ContextVar[CompletionBudget | None]] = ContextVar("everlong_budget", default=None)


async def drains(*, in_activity: bool) -> bool:
    """Return whether payloads that are encoded here go into the history of a draining run.

    An activity may also use a client, whose codec has no activity id: a client writes plain. A workflow
    task without an activation hook may belong to a run that drains.
    """
    budget = BUDGET.get()
    if budget is not None:
        return await budget.drains()
    result = ACTIVITY_RESULT.get()
    if in_activity or result is not None:
        return in_activity and result is not None and result.offloads
    return is_unwatched()


def is_unwatched() -> bool:
    """Return whether this is a task of a worker whose workflows have no activation hook."""
    unwatched = UNWATCHED.get(None)
    return unwatched is not None and unwatched()
