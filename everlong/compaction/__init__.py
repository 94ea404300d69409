"""Compaction, context, facts and recall: pure functions of entries, policy and a given time."""

from everlong.compaction.compactor import BUDGET_BYTES_MIN, compact, summary_prompt
from everlong.compaction.context import build_context, estimate_tokens, next_expiry_ms, size_of
from everlong.compaction.facts import change_data, facts_at, forget, remember
from everlong.compaction.snapshot import Item, Kept, Note, Snapshot, dump, load
from everlong.compaction.text import PATTERN_CHARS_MAX, excerpt, grep, shorten

__all__ = [
    "BUDGET_BYTES_MIN",
    "PATTERN_CHARS_MAX",
    "Item",
    "Kept",
    "Note",
    "Snapshot",
    "build_context",
    "change_data",
    "compact",
    "dump",
    "estimate_tokens",
    "excerpt",
    "facts_at",
    "forget",
    "grep",
    "load",
    "next_expiry_ms",
    "remember",
    "shorten",
    "size_of",
    "summary_prompt",
]
