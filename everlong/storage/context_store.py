"""Store of a thread's contexts: reads its snapshot, the entries since, and their messages.

It reads no more than the model's context needs. Compaction itself stays pure, in `compaction/`.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Final

from everlong import limits
from everlong.compaction import Item, Snapshot, dump, load, shorten
from everlong.errors import RefRefused
from everlong.models import (
    Context,
    Entry,
    Kind,
    Message,
    SnapshotRef,
)
from everlong.policy import Policy
from everlong.storage.journal import Journal, JournalReader
from everlong.storage.pack_store import PackStore
from everlong.storage.segments import MESSAGE_KINDS

# A shortened message names its own seq, with which a model recalls the whole message. The seq is unknown
# when the message is stored, so it is filled in on reading.
_MARK: Final = re.compile(r"\[\.\.\. \d+ bytes left out; recall\(seq=0\) shows them \.\.\.\]")


@dataclasses.dataclass(frozen=True)
class LoadedContext:
    """A thread's context as loaded for a step."""

    base: Snapshot | None
    items: tuple[Item, ...]
    """Entries since the snapshot, including those that are not journalled yet."""
    policy: Policy
    now_ms: int


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
