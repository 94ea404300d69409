"""Search attributes of threads: their keys, and the values of a new thread.

`everlong setup`, the doctor, workers and lists of threads all read this one list.
"""

from collections.abc import Sequence
from typing import Any, Final

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from everlong.models.status import Status

AGENT: Final = SearchAttributeKey.for_keyword("EverlongAgent")
STATUS: Final = SearchAttributeKey.for_keyword("EverlongStatus")
REASON: Final = SearchAttributeKey.for_keyword("EverlongReason")
STATE_BYTES: Final = SearchAttributeKey.for_int("EverlongStateBytes")
GROWTH: Final = SearchAttributeKey.for_float("EverlongGrowthBytesPerHour")
PENDING: Final = SearchAttributeKey.for_int("EverlongPendingApprovals")
ASKED_AT: Final = SearchAttributeKey.for_datetime("EverlongAskedAt")
LAST_RESUME: Final = SearchAttributeKey.for_float("EverlongLastResumeMs")
LABELS: Final = SearchAttributeKey.for_keyword_list("EverlongLabels")
FORK_OF: Final = SearchAttributeKey.for_keyword("EverlongForkOf")
"""Key of the thread that a fork began from, by `thread_key`: a column of SQL visibility takes 255
characters, and an id may be longer."""

_KEYS: Final[tuple[SearchAttributeKey[Any], ...]] = (
    AGENT,
    STATUS,
    REASON,
    STATE_BYTES,
    GROWTH,
    PENDING,
    ASKED_AT,
    LAST_RESUME,
    LABELS,
    FORK_OF,
)
SEARCH_ATTRIBUTES: Final = {
    key.name: key.indexed_value_type.name.title().replace("_", "") for key in _KEYS
}
"""Name and type of each attribute, the type as the Temporal CLI spells it: `Keyword`, `Int`, ..."""
OPTIONAL_ATTRIBUTES: Final = {
    LABELS.name: "threads take no labels",
    FORK_OF.name: "the forks of a thread are not listed",
}
"""Attributes that only some threads write, and what the namespace lacks without each. SQL visibility has
3 columns for KeywordList and 10 for Keyword, which other applications may have taken."""


def build_start_attributes(agent: str, labels: Sequence[str] = ()) -> TypedSearchAttributes:
    """Return the attributes of a new thread, for a start with a message.

    A thread that is started with them is listed at once, and need not set them itself: an upsert is an
    event, a billed action, and a write to the server's visibility store.
    """
    return TypedSearchAttributes(
        [
            SearchAttributePair(AGENT, agent),
            SearchAttributePair(STATUS, Status.WORKING.value),
            SearchAttributePair(REASON, ""),
            SearchAttributePair(PENDING, 0),
            SearchAttributePair(STATE_BYTES, 0),
            SearchAttributePair(GROWTH, 0.0),
            *_build_label_pairs(labels),
        ]
    )


def build_label_attributes(labels: Sequence[str]) -> TypedSearchAttributes | None:
    """Return the attribute of labels, or None without any."""
    return TypedSearchAttributes(_build_label_pairs(labels)) if labels else None


def build_fork_attributes(labels: Sequence[str], fork_of: str) -> TypedSearchAttributes | None:
    """Return the attributes of a fork, or None without any. The thread publishes the others itself."""
    origin = [SearchAttributePair(FORK_OF, fork_of)] if fork_of else []
    found = [*_build_label_pairs(labels), *origin]
    return TypedSearchAttributes(found) if found else None


def _build_label_pairs(labels: Sequence[str]) -> list[SearchAttributePair[Any]]:
    return [SearchAttributePair(LABELS, list(labels))] if labels else []
