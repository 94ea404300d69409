"""Builders of journals and their entries."""

from typing import Final

from everlong.models import Entry, Kind, Message, Segment, SegmentRef, build_entry, thread_key
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from tests.support.sample_payloads import noise

THREAD: Final = thread_key("default", "ops-7")


def entry(seq: int, text: str = "hello", kind: Kind = Kind.MESSAGE) -> Entry:
    """Return an entry with its message inside, of any length."""
    roles = {Kind.MESSAGE: "user", Kind.REPLY: "assistant", Kind.TOOL_RESULT: "tool"}
    message = Message(role=roles.get(kind, "failure"), text=text)
    return build_entry(seq, kind, message, 1_763_276_400_000 + seq)


def noisy(seq: int, text_bytes: int) -> Entry:
    """Return an entry whose text does not compress below a half."""
    return entry(seq, noise(text_bytes // 2, seq).hex())


def journal(store: MemoryBlobStore | None = None, thread_id: str = "ops-7") -> Journal:
    packs = PackStore(MemoryBlobStore() if store is None else store)
    return Journal(packs, thread_key("default", thread_id))


async def append_entries(into: Journal, upto: int, each: int = 1) -> SegmentRef:
    """Append entries 1 to `upto`, `each` at a time; return the head."""
    head: SegmentRef | None = None
    for first in range(1, upto + 1, each):
        last = min(upto, first + each - 1)
        head, _ = await into.append(
            head, [entry(seq, f"text {seq}") for seq in range(first, last + 1)]
        )
    assert head is not None
    return head


async def texts(of: Journal, head: SegmentRef, first_seq: int = 1) -> list[str]:
    """Return the texts of all messages from `first_seq` on."""
    entries = await of.read(head, first_seq)
    return [message.text for message in await of.messages(entries)]


async def newest_segment(of: Journal, head: SegmentRef) -> Segment:
    """Return the segment that a head names."""
    return (await of._segments.read_head(head)).segment
