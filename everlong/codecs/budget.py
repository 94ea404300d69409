"""How much one workflow task completion may carry inline.

The server terminates a workflow for more than 4 MB in one completion, however small each payload is.
The activation hook opens a budget for each activation's completion, and the codec, which encodes its
payloads in the same task of the event loop, finds it here.
"""

import time
from contextvars import ContextVar
from typing import Final

from everlong import limits


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
        left_bytes: int = limits.COMPLETION_BYTES_MAX,
    ) -> None:
        self.left_bytes = left_bytes
        self._deadline = float("inf")
        self.lasting = lasting
        self.leaving = leaving
        self.replaying = replaying
        self.run_id = run_id

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


BUDGET: Final[ContextVar[CompletionBudget | None]] = ContextVar("everlong_budget", default=None)
