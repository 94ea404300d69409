"""Search attributes of threads: their keys, and the values that a thread is started with.

This is the only list of them: `everlong setup`, the doctor, workers and lists of threads all read it.
"""

from typing import Any, Final

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

AGENT: Final = SearchAttributeKey.for_keyword("EverlongAgent")
STATUS: Final = SearchAttributeKey.for_keyword("EverlongStatus")
REASON: Final = SearchAttributeKey.for_keyword("EverlongReason")
STATE_BYTES: Final = SearchAttributeKey.for_int("EverlongStateBytes")
GROWTH: Final = SearchAttributeKey.for_float("EverlongGrowthBytesPerHour")
PENDING: Final = SearchAttributeKey.for_int("EverlongPendingApprovals")
ASKED_AT: Final = SearchAttributeKey.for_datetime("EverlongAskedAt")
LAST_RESUME: Final = SearchAttributeKey.for_float("EverlongLastResumeMs")

_KEYS: Final[tuple[SearchAttributeKey[Any], ...]] = (
    AGENT,
    STATUS,
    REASON,
    STATE_BYTES,
    GROWTH,
    PENDING,
    ASKED_AT,
    LAST_RESUME,
)
SEARCH_ATTRIBUTES: Final = {key.name: key.indexed_value_type.name.title() for key in _KEYS}
"""Name and type of each attribute, the type as the Temporal CLI spells it: `Keyword`, `Int`, ..."""

ACTIVE: Final = "active"


def build_start_attributes(agent: str) -> TypedSearchAttributes:
    """Return the attributes that a new thread would have after its first step.

    A thread that is started with them can be found at once and does not write them itself: an upsert is
    an event, a billed action and a write to the server's visibility store.
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
