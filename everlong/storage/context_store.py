"""Store of a thread's contexts: reads its snapshot, the entries since, and their messages.

It reads no more than the model's context needs. Compaction itself stays pure, in `compaction/`.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Final

from everlong import limits
from everlong.compaction import Item, Snapshot, compact, dump, load, shorten
from everlong.errors import RefRefused
from everlong.models import (
    Context,
    Entry,
    Kind,
    Message,
    SegmentRef,
    SnapshotRef,
    seq_after,
)
from everlong.policy import Policy
from everlong.storage.journal import Journal, JournalReader
from everlong.storage.objects import run_in_thread
from everlong.storage.pack_store import PackStore
from everlong.storage.segments import MESSAGE_KINDS

# A shortened message names its own seq, with which a model recalls the whole message. The seq is unknown
# when the message is stored, so it is filled in on reading.
_MARK: Final = re.compile(r"\[\.\.\. \d+ bytes left out; recall\(seq=0\) shows them \.\.\.\]")


# Messages that a compaction holds at once. With their notes and terms they take about four times that in
# memory. One message of the largest size, 64 MiB, may come on top.
PART_BYTES_MAX: Final = 16 * limits.MIB
# Entries of a part that is read: some megabytes without their messages.
_PART_ENTRIES: Final = 4096
# A part is compacted to this many times the final budget, so that the last compaction has a choice.
_PART_BUDGETS: Final = 4


@dataclasses.dataclass(frozen=True)
class LoadedContext:
    """A thread's context as loaded for a step."""

    base: Snapshot | None
    items: tuple[Item, ...]
    """Entries since the snapshot, including those that are not journalled yet."""
    policy: Policy
    now_ms: int
    folded_bytes: int = 0
    """Size of the messages that are in the base already, if a compaction has read them in parts."""


class ContextStore:
    """The contexts of one thread: reads the current one, and stores snapshots."""

    def __init__(self, packs: PackStore, thread: str) -> None:
        self._packs = packs
        self._thread = thread
        self.journal = Journal(packs, thread)

    async def load_context(
        self, context: Context, own: Policy, tail: Sequence[Entry] = ()
    ) -> LoadedContext:
        """Load the parts of a context. `own` is the agent's policy, which the context may change."""
        policy = own if context.policy is None else Policy().with_changes(context.policy)
        base = None
        first_seq = 1
        if context.snapshot is not None:
            base = await self._read_snapshot(context.snapshot)
            first_seq = base.upto_seq + 1
        entries = [*await self.journal.read(context.head, first_seq), *tail]
        items = await load_items(self.journal, entries)
        return LoadedContext(base, tuple(items), policy, context.now_ms)

    async def load_to_compact(
        self, context: Context, own: Policy, keep_from_seq: int, *, part_bytes: int = PART_BYTES_MAX
    ) -> LoadedContext:
        """Load a context for a compaction, in a bounded part of memory.

        Entries are read in parts. Each part but the last is compacted into the snapshot before the next
        one is read, to more than the compaction leaves in the end. A context of one part, as almost all
        are, is loaded as for a model call.
        """
        policy = own if context.policy is None else Policy().with_changes(context.policy)
        base = None if context.snapshot is None else await self._read_snapshot(context.snapshot)
        found = LoadedContext(base, (), policy, context.now_ms)
        return await load_in_parts(
            self.journal, context.head, found, keep_from_seq, part_bytes=part_bytes
        )

    async def write_snapshot(
        self, snapshot: Snapshot, context_bytes: int, previous: SnapshotRef | None = None
    ) -> tuple[SnapshotRef, int]:
        """Store a snapshot, which mostly repeats `previous`; return its ref and the bytes written."""
        ref, written_bytes = await self._packs.write_body(
            self._thread,
            Kind.SNAPSHOT,
            dump(snapshot),
            previous=None if previous is None else previous.ref,
        )
        return (
            SnapshotRef(ref=ref, upto_seq=snapshot.upto_seq, context_bytes=context_bytes),
            written_bytes,
        )

    async def _read_snapshot(self, snapshot: SnapshotRef) -> Snapshot:
        if snapshot.ref.thread != self._thread:
            raise RefRefused(
                f"snapshot {snapshot.ref.digest} belongs to another thread and is not read. Find "
                "out which program gave it to this thread."
            )
        return load(await self._packs.read_body(snapshot.ref))


async def load_in_parts(
    journal: JournalReader,
    head: SegmentRef | None,
    past: LoadedContext,
    keep_from_seq: int,
    *,
    part_bytes: int,
) -> LoadedContext:
    """Return a past with the entries after it; if they are too many for one part, with a newer base."""
    last_seq = 0 if head is None else seq_after(head) - 1
    next_seq = 1 if past.base is None else past.base.upto_seq + 1
    while next_seq <= last_seq:
        entries = await journal.read(head, next_seq, min(last_seq, next_seq + _PART_ENTRIES - 1))
        while entries:
            count = _count_entries(entries, part_bytes - _measure_items(past.items))
            items = await load_items(journal, entries[:count])
            entries = entries[count:]
            past = dataclasses.replace(past, items=(*past.items, *items))
            next_seq = items[-1].entry.seq + 1
            more = bool(entries) or next_seq <= last_seq
            full = _measure_items(past.items) >= part_bytes
            if more and full and past.items[0].entry.seq < keep_from_seq:
                past = await run_in_thread(_compact_part, past, keep_from_seq)
    return past


def _compact_part(past: LoadedContext, keep_from_seq: int) -> LoadedContext:
    to_bytes = _PART_BUDGETS * past.policy.compact_to_bytes
    base = compact(
        past.base,
        past.items,
        past.policy,
        past.now_ms,
        keep_from_seq=keep_from_seq,
        to_bytes=to_bytes,
    )
    taken = [item for item in past.items if item.entry.seq <= base.upto_seq]
    return dataclasses.replace(
        past,
        base=base,
        items=past.items[len(taken) :],
        folded_bytes=past.folded_bytes + _measure_items(taken),
    )


def _count_entries(entries: Sequence[Entry], bytes_max: int) -> int:
    """Return how many entries fit, at least one."""
    for number, entry in enumerate(entries):
        bytes_max -= _measure_entry(entry)
        if bytes_max < 0:
            return max(1, number)
    return len(entries)


def _measure_items(items: Sequence[Item]) -> int:
    return sum(_measure_entry(item.entry) for item in items)


def _measure_entry(entry: Entry) -> int:
    """Return the size of an entry's message as a model sees it."""
    return min(entry.size_bytes, limits.SHOWN_BYTES_MAX) if entry.original else entry.size_bytes


async def load_items(journal: JournalReader, entries: Sequence[Entry]) -> list[Item]:
    """Return entries with their messages, as a model sees them."""
    spoken = [entry for entry in entries if entry.kind in MESSAGE_KINDS]
    messages = dict(
        zip((entry.seq for entry in spoken), await journal.messages(spoken), strict=True)
    )
    return [Item(entry, _fill_in_seq(entry, messages.get(entry.seq))) for entry in entries]


async def write_message(
    journal: Journal,
    kind: Kind,
    message: Message,
    time_ms: int,
    bytes_max: int,
    *,
    inline_bytes_max: int = limits.ENTRY_BODY_BYTES_MAX,
) -> tuple[Entry, int]:
    """Store a message whole and, if it is too long for a model, also shortened."""
    shown = shorten(message.text, bytes_max, seq=0)
    if shown == message.text:
        return await journal.write_body_entry(
            kind, message, time_ms, inline_bytes_max=inline_bytes_max
        )
    entry, shown_bytes = await journal.write_body_entry(
        kind, dataclasses.replace(message, text=shown), time_ms, inline_bytes_max=inline_bytes_max
    )
    # The entry refers to the whole message, so that is stored as a pack whatever its size.
    whole, whole_bytes = await journal.write_body_entry(
        kind, message, time_ms, inline_bytes_max=0, excerpt=entry.ref
    )
    return dataclasses.replace(entry, original=whole.ref), whole_bytes + shown_bytes


def _fill_in_seq(entry: Entry, message: Message | None) -> Message | None:
    if entry.original is None or message is None:
        return message
    marks = list(_MARK.finditer(message.text))
    if not marks:
        return message
    at, end = marks[-1].span()
    mark = marks[-1][0].replace("seq=0", f"seq={entry.seq}")
    text = message.text[:at] + mark + message.text[end:]
    return dataclasses.replace(message, text=text)
