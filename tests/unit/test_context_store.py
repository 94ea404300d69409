"""Contexts that are too large for memory: read in parts, and compacted part by part."""

import asyncio
from collections.abc import Sequence
from typing import cast

from everlong.compaction import compact, dump
from everlong.models import Entry, Kind, Message, Ref, SegmentRef
from everlong.policy import Policy
from everlong.storage.context_store import LoadedContext, load_in_parts
from everlong.storage.journal import JournalReader
from tests.support.conversations import Thread

KIB = 1024
ALL = 10**9


class ListedJournal:
    """A journal in memory, which counts what is read of it."""

    def __init__(self, thread: Thread) -> None:
        self.items = thread.items
        self.read_seqs: list[int] = []

    async def read(
        self, head: SegmentRef | None, first_seq: int = 1, last_seq: int | None = None
    ) -> list[Entry]:
        return [item.entry for item in self.items[first_seq - 1 : last_seq]]

    async def messages(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Message]:
        self.read_seqs += [entry.seq for entry in entries]
        return [message for entry in entries if (message := self.items[entry.seq - 1].message)]


def load(thread: Thread, *, keep_from_seq: int = ALL, part_bytes: int) -> LoadedContext:
    past = LoadedContext(None, (), Policy(), 10**6)
    journal = ListedJournal(thread)
    ref = Ref(digest="0" * 64, thread="0" * 32, size_bytes=1, kind=Kind.SEGMENT)
    head = SegmentRef(ref=ref, first_seq=1, count=len(thread.items))
    found = asyncio.run(
        load_in_parts(
            cast("JournalReader", journal), head, past, keep_from_seq, part_bytes=part_bytes
        )
    )
    assert journal.read_seqs == list(range(1, len(thread.items) + 1)), "each message is read once"
    return found


def build_thread(steps: int = 400) -> Thread:
    thread = Thread()
    thread.user("Later, rotate the key of src/vault/core.py.")
    for number in range(steps):
        thread.step(f"cat src/module_{number}.py", f"def load_{number}(): ...\n" * 100)
    return thread


def test_a_context_of_one_part_is_loaded_whole() -> None:
    thread = build_thread(20)
    found = load(thread, part_bytes=256 * KIB)
    assert (found.base, found.folded_bytes) == (None, 0)
    assert list(found.items) == thread.items


def test_a_larger_context_is_compacted_part_by_part() -> None:
    thread = build_thread()
    found = load(thread, part_bytes=64 * KIB)
    assert found.base is not None
    assert sum(item.entry.size_bytes for item in found.items) < 2 * 64 * KIB
    whole = sum(item.entry.size_bytes for item in thread.items)
    left = sum(item.entry.size_bytes for item in found.items)
    assert found.folded_bytes + left == whole
    # What follows is the same as for any other context, and the first words are still there.
    base = compact(found.base, found.items, Policy(), 10**6, keep_from_seq=ALL)
    text = dump(base).decode()
    assert "Later, rotate the key of src/vault/core.py." in text
    assert "src/module_3.py" in text
    assert dump(load(thread, part_bytes=64 * KIB).base or base) == dump(found.base)


def test_entries_of_the_step_in_progress_are_kept_whole() -> None:
    thread = build_thread(100)
    keep_from_seq = 102
    found = load(thread, keep_from_seq=keep_from_seq, part_bytes=32 * KIB)
    assert found.base is not None
    assert found.base.upto_seq < keep_from_seq
    assert [item.entry.seq for item in found.items] == list(
        range(found.base.upto_seq + 1, len(thread.items) + 1)
    )
