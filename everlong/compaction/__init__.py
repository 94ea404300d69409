"""Compaction, context, facts and recall: pure functions of entries, policy and a given time."""

from everlong.compaction.agent_memory import dump_change, forget, list_facts, remember
from everlong.compaction.compactor import BUDGET_BYTES_MIN, build_summary_prompt, compact
from everlong.compaction.context import (
    build_context,
    estimate_tokens,
    find_next_expiry_ms,
    measure_messages,
)
from everlong.compaction.snapshot import Item, KeptMessage, Note, Snapshot, dump, load
from everlong.compaction.text import PATTERN_CHARS_MAX, excerpt, grep, shorten

__all__ = [
    "BUDGET_BYTES_MIN",
    "PATTERN_CHARS_MAX",
    "Item",
    "KeptMessage",
    "Note",
    "Snapshot",
    "build_context",
    "build_summary_prompt",
    "compact",
    "dump",
    "dump_change",
    "estimate_tokens",
    "excerpt",
    "find_next_expiry_ms",
    "forget",
    "grep",
    "list_facts",
    "load",
    "measure_messages",
    "remember",
    "shorten",
]
