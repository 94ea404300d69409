"""Search attributes of threads: their keys, and the values that a thread is started with."""

from typing import Final

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

AGENT: Final = SearchAttributeKey.for_keyword("EverlongAgent")
STATUS: Final = SearchAttributeKey.for_keyword("EverlongStatus")
REASON: Final = SearchAttributeKey.for_keyword("EverlongReason")
PENDING: Final = SearchAttributeKey.for_int("EverlongPendingApprovals")
ASKED_AT: Final = SearchAttributeKey.for_datetime("EverlongAskedAt")
STATE_BYTES: Final = SearchAttributeKey.for_int("EverlongStateBytes")
GROWTH: Final = SearchAttributeKey.for_float("EverlongGrowthBytesPerHour")
LAST_RESUME: Final = SearchAttributeKey.for_float("EverlongLastResumeMs")

ACTIVE: Final = "active"


def start_attributes(agent: str) -> TypedSearchAttributes:
    """Return what a new thread would say of itself after its first step.

    A thread that is started with them can be found at once, and has no need to write them: an upsert is
    an event, a billed action, and a write to the server's list of workflows.
    """
    return TypedSearchAttributes(
        [
            SearchAttributePair(AGENT, agent),
            SearchAttributePair(STATUS, ACTIVE),
            SearchAttributePair(REASON, ""),
            SearchAttributePair(PENDING, 0),
            SearchAttributePair(STATE_BYTES, 0),
            SearchAttributePair(GROWTH, 0.0),
        ]
    )
