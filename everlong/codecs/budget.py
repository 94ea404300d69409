"""How much one workflow task completion may carry inline.

The server ends a workflow for more than 4 MB in one completion, however small each payload is. The
activation hook opens a budget for each completion, and the codec, which encodes its payloads in the
same task of the event loop, finds it here.
"""

from contextvars import ContextVar
from typing import Final

from everlong import limits


class CompletionBudget:
    """Bytes that are left for the payloads of a completion.

    Answers to queries do not last: they are in no history, so an object in the store would never be
    read again. A result that leaves for another namespace is like any Nexus payload.
    """

    def __init__(self, *, lasting: bool = True, leaving: bool = False) -> None:
        self.left_bytes = limits.COMPLETION_BYTES_MAX
        self.lasting = lasting
        self.leaving = leaving

    def take(self, size_bytes: int) -> bool:
        """Take bytes for a payload that stays inline; tell whether they were there."""
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        return True


BUDGET: Final[ContextVar[CompletionBudget | None]] = ContextVar("everlong_budget", default=None)
