"""How much one workflow task completion may carry inline.

The server ends a workflow for more than 4 MB in one completion, however small each payload is. The
activation hook opens a budget for each completion, and the codec, which encodes its payloads in the
same task of the event loop, finds it here.
"""

import time
from contextvars import ContextVar
from typing import Final

from everlong import limits


class CompletionBudget:
    """Bytes that are left for the payloads of a completion.

    Answers to queries do not last: they are in no history, so an object in the store would never be
    read again. A result that leaves for another namespace is like any Nexus payload. What a
    replay issues again is most likely discarded, so nothing is stored for it.
    """

    def __init__(
        self,
        *,
        lasting: bool = True,
        leaving: bool = False,
        replaying: bool = False,
        run_id: str = "",
    ) -> None:
        self.left_bytes = limits.COMPLETION_BYTES_MAX
        self._deadline = float("inf")
        self.lasting = lasting
        self.leaving = leaving
        self.replaying = replaying
        self.run_id = run_id

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


BUDGET: Final[ContextVar[CompletionBudget | None]] = ContextVar("everlong_budget", default=None)
