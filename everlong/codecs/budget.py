"""Budget of inline bytes for one workflow task completion.

The server terminates a workflow for more than 4 MB in one completion, however small each payload is.
The activation hook opens a budget for each activation's completion. The codec encodes the completion's
payloads in the same asyncio task, and finds the budget in a context variable.
"""

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Protocol

from temporalio.api.history.v1 import HistoryEvent

from everlong import limits


class Drain(Protocol):
    """Decides whether one run continues to offload although its worker has `mode="read"`."""

    def begin(self, *, replaying: bool) -> None:
        """Record an activation of the run."""
        ...

    def note(self, event: HistoryEvent) -> None:
        """Look for refs in an event of the run's history."""
        ...

    @property
    def holds_refs(self) -> bool:
        """Whether the run's history is known to hold a ref."""
        ...

    @property
    def is_draining(self) -> bool:
        """Whether the run holds refs, or may hold some because its history has not been read yet."""
        ...

    async def decide(self) -> bool:
        """Wait a bounded time for the history to be read, then return `is_draining`."""
        ...

    def note_refs(self) -> None:
        """Record that a ref was written for the run."""
        ...


class CompletionBudget:
    """Bytes left for the inline payloads of a completion.

    Args:
        goes_to_history: The payloads go into a history. Answers to queries do not, so an offloaded
            object would never be read again: they stay inline.
        leaves_namespace: The result leaves for another namespace, like any Nexus payload.
        replaying: Core most likely discards the commands, so payloads are offloaded only if they do not
            fit inline.
        run_id: The run that is activated.
        drain: Decides whether the run drains; None on a worker that writes.
        left_bytes: Bytes left of the task's budget.

    """

    def __init__(
        self,
        *,
        goes_to_history: bool = True,
        leaves_namespace: bool = False,
        replaying: bool = False,
        run_id: str = "",
        drain: Drain | None = None,
        left_bytes: int = limits.COMPLETION_BYTES_MAX,
    ) -> None:
        self.left_bytes = left_bytes
        self._deadline = float("inf")
        self.goes_to_history = goes_to_history
        self.leaves_namespace = leaves_namespace
        self.replaying = replaying
        self.run_id = run_id
        self.drain = drain
        self.plain_bytes_max = 0
        """Size up to which values that a draining run hands to another run stay plain."""
        self.returns_to_drain = False
        """Whether the current payload is a result for the history of a draining run."""

    async def drains(self) -> bool:
        """Return whether a worker in read mode must offload this completion's payloads."""
        if self.drain is None:
            return False
        if self.returns_to_drain:
            return True
        if not self.goes_to_history:
            return self.drain.holds_refs
        if self.replaying:
            return self.drain.is_draining
        return await self.drain.decide()

    @property
    def stays_plain_bytes_max(self) -> int:
        """Size up to which values stay plain in a run that drains or may have to.

        Until it is known whether a run holds refs, only larger values are offloaded: the next worker to
        read them may lack the plugin, as in the first phase of a rollout.
        """
        known = self.drain is None or self.drain.holds_refs or self.returns_to_drain
        return self.plain_bytes_max if known else limits.DRAIN_HANDOVER_BYTES_MAX

    @property
    def prefers_inline(self) -> bool:
        """Whether payloads of any size stay inline where they fit."""
        return self.replaying or not self.goes_to_history

    def begin(self) -> None:
        """Start the time limit of the encoding: the server does not wait for the task forever."""
        if self._deadline == float("inf"):
            self._deadline = time.monotonic() + limits.COMPLETION_SECONDS_MAX

    @property
    def is_late(self) -> bool:
        """Whether the time limit is over, so that the remaining payloads should stay inline."""
        return time.monotonic() > self._deadline

    def take(self, size_bytes: int) -> bool:
        """Take bytes for a payload that stays inline; return whether enough were left."""
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        return True


class TaskBudget:
    """Budget of inline bytes shared by the activations of one workflow task.

    Core completes a workflow task with one request. It carries the commands of all activations of that
    task (local activities cause several), and commands of a replay before it that history does not hold.
    So an activation gets what the previous ones left, until the task is known to be completed: the next
    task has a longer history.
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
            history_length: Length of the history, from the activation.
            live: The activation belongs to a task that this worker completes, and is not a replay.
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
        """Return the budget of an activation that only holds queries.

        Args:
            history_length: Length of the history, from the activation.
            alone: The answer is a request of its own. Otherwise it goes out with the task's commands.
            run_id: The run that is queried.

        """
        if alone:
            return CompletionBudget(goes_to_history=False, run_id=run_id)
        if self._is_next_task(history_length):
            self._budget.left_bytes = limits.COMPLETION_BYTES_MAX
            self._live_length = history_length
        left_bytes = self._budget.left_bytes
        self._budget = CompletionBudget(goes_to_history=False, run_id=run_id, left_bytes=left_bytes)
        return self._budget

    def _is_next_task(self, history_length: int) -> bool:
        """Return whether the task of the last live activation has been completed since."""
        return self._live_length is not None and history_length > self._live_length


class ActivityResult:
    """Whether the running activity's result goes into the history of a draining run."""

    def __init__(self) -> None:
        self.offloads = False

    @staticmethod
    def current() -> "ActivityResult":
        """Return this asyncio task's instance. One task decodes, runs and encodes one activity."""
        result = ACTIVITY_RESULT.get()
        if result is None:
            ACTIVITY_RESULT.set(result := ActivityResult())
        return result


ACTIVITY_RESULT: Final[ContextVar[ActivityResult | None]] = ContextVar(
    "everlong_activity_result", default=None
)
UNWATCHED: Final[ContextVar[Callable[[], bool]]] = ContextVar("everlong_unwatched")
"""Set by a worker: returns whether its workflow tasks have no activation hook, and so no budget."""
BUDGET: Final[ContextVar[CompletionBudget | None]] = ContextVar("everlong_budget", default=None)


async def drains(*, in_activity: bool) -> bool:
    """Return whether the payloads encoded in this asyncio task go into the history of a draining run.

    An activity may also use a client, whose codec has no activity id; a client writes plain payloads. A
    workflow task without an activation hook may belong to a draining run.
    """
    budget = BUDGET.get()
    if budget is not None:
        return await budget.drains()
    result = ACTIVITY_RESULT.get()
    if in_activity or result is not None:
        return in_activity and result is not None and result.offloads
    return is_unwatched()


def is_unwatched() -> bool:
    """Return whether this asyncio task belongs to a worker whose workflows have no activation hook."""
    unwatched = UNWATCHED.get(None)
    return unwatched is not None and unwatched()
