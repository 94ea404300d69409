"""Time travel: the state of a thread at an entry of its journal, and the difference between two.

Reads the journal only. It holds no step that a reset has undone, and no other branch.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import Final, TypeVar

from pydantic import TypeAdapter
from temporalio.client import Client

from everlong import compaction, limits
from everlong.archive import ArchivedJournal, Manifest, StoredArchive
from everlong.archive import manifest as manifests
from everlong.client.status import open_journal
from everlong.client.status import read_status as status_of
from everlong.compaction.survival import Evaluation
from everlong.errors import EntryNotFound, ThreadNotFound
from everlong.models import (
    Approval,
    ControlNote,
    Decision,
    Entry,
    Fact,
    Kind,
    Message,
    SegmentRef,
    SnapshotRef,
    ThreadStatus,
    Totals,
    Vote,
    VoteNote,
    add_up,
    seq_after,
    thread_key,
)
from everlong.policy import Policy
from everlong.storage.context_store import load_items
from everlong.storage.journal import JournalReader
from everlong.storage.pack_store import PackStore
from everlong.storage.segments import MESSAGE_KINDS, parse_compaction


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadView:
    """A thread as it was right after an entry."""

    thread_id: str
    agent: str
    seq: int
    time_ms: int
    totals: Totals | None
    """None if they were not asked for: an archive has to be read up to this entry for them."""
    pending: tuple[Approval, ...]
    facts: tuple[Fact, ...]
    snapshot: SnapshotRef | None
    """The base of the context, if it had been compacted."""
    context: tuple[Message, ...]
    """What a model call would have read then, by the policy that the thread has now."""
    context_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadDiff:
    """What changed in a thread from one entry to a later one."""

    thread_id: str
    first_seq: int
    last_seq: int
    entries: tuple[Entry, ...]
    """Those after the first, up to the last; or the newest of them, if that was asked for."""
    left_out: int
    """Entries between the two that are not among these."""
    totals: Totals
    """What these entries add."""
    context_added: tuple[Message, ...]
    context_removed: tuple[Message, ...]
    """No longer shown, or shown shorter: compacted, or expired."""
    context_bytes: tuple[int, int]
    """Before and after."""
    facts_added: tuple[Fact, ...]
    facts_removed: tuple[Fact, ...]
    asked: tuple[Approval, ...]
    decided: tuple[Decision, ...]


@dataclasses.dataclass(frozen=True)
class Scene:
    """What a model call would have read after an entry."""

    time_ms: int
    snapshot: SnapshotRef | None
    snapshot_data: bytes
    context: tuple[Message, ...]
    facts: tuple[Fact, ...]
    base: compaction.Snapshot | None
    items: tuple[compaction.Item, ...]

    @cached_property
    def context_bytes(self) -> int:
        """Size of the context."""
        return compaction.measure_messages(self.context)


@dataclasses.dataclass(frozen=True)
class CompactionScore:
    """Which literals of the tool calls after an entry a compacted context holds."""

    seq: int
    """Last entry before the cut."""
    budget_bytes: int
    literals: int
    """Number of paths, ids, names and numbers of later calls that stand before the cut."""
    share: float
    """Share of them that the context holds after the compactions that the thread makes."""
    tail_share: float
    """Share that the last messages of the same size hold."""
    recalled_share: float
    """Share that the context holds or `recall` finds."""


# An evaluation compacts some ten times, at about 0.2 s for each MiB: two minutes at most.
_EVALUATED_ENTRIES_MAX: Final = 20_000
_EVALUATED_BYTES_MAX: Final = 64 * limits.MIB


def _evaluate(items: Sequence[compaction.Item], policy: Policy) -> list[CompactionScore]:
    evaluation = Evaluation(items, policy)
    spoken = [item.entry.seq for item in items if item.message is not None]
    found = []
    for at in evaluation.list_cuts():
        scores = {
            score.strategy: score for score in evaluation.measure(at, (policy.compact_to_bytes,))
        }
        if scores:
            ours, tail = scores["chain"], scores["tail"]
            found.append(
                CompactionScore(
                    seq=spoken[at - 1],
                    budget_bytes=ours.budget_bytes,
                    literals=sum(ours.there.values()),
                    share=ours.share,
                    tail_share=tail.share,
                    recalled_share=ours.share_with_recall,
                )
            )
    return found


class Timeline:
    """The past of one thread, up to what its journal held when this was opened."""

    def __init__(
        self,
        thread_id: str,
        status: ThreadStatus,
        journal: JournalReader,
        archive: Manifest | None = None,
        passed_over: tuple[str, ...] = (),
    ) -> None:
        self.thread_id = thread_id
        self.status = status
        self.journal = journal
        self.archive = archive
        """Where it is read from, if the server does not know the thread any more."""
        self.passed_over = passed_over
        """Newer archives that cannot be read, and why."""

    @classmethod
    async def open(cls, client: Client, packs: PackStore, thread_id: str) -> "Timeline":
        """Open a thread's journal as it is now; if the thread is deleted, its newest archive."""
        try:
            status = await status_of(client, thread_id)
        except ThreadNotFound:
            archive = await open_archive(client, packs, thread_id)
            if archive is None:
                raise
            return cls.from_archive(archive)
        return cls(thread_id, status, open_journal(client, packs, thread_id))

    @classmethod
    def from_archive(cls, archive: StoredArchive) -> "Timeline":
        """Read the past of a thread from an archive."""
        facts = archive.facts
        return cls(
            facts.thread_id,
            facts.status,
            ArchivedJournal(archive),
            archive.manifest,
            archive.passed_over,
        )

    def check_head(self, seq: int) -> SegmentRef:
        """Return the journal's head, which has to hold that entry."""
        head = self.status.head
        if head is None:
            raise EntryNotFound(f"the journal of thread {self.thread_id!r} holds no entries yet")
        if not 1 <= seq < seq_after(head):
            raise EntryNotFound(
                f"the journal of thread {self.thread_id!r} holds entries 1 to {seq_after(head) - 1}, "
                f"and no {seq}"
            )
        return head

    async def load_scene(self, seq: int) -> Scene:
        """Read what a model call would have read after an entry, and no more."""
        head = self.check_head(seq)
        snapshot, data = await self._load_snapshot(head, seq)
        base = None if snapshot is None else compaction.load(data)
        first_seq = 1 if base is None else base.upto_seq + 1
        # At least the entry itself, for the time. Notes are journalled after what they came before.
        entries = await self.journal.read(head, min(first_seq, seq), seq)
        time_ms = max(entry.time_ms for entry in entries)
        items = await load_items(self.journal, [each for each in entries if each.seq >= first_seq])
        policy = self.status.policy
        # Results were cut to what their tool allows when they were stored.
        context = compaction.build_context(
            base, items, policy, time_ms, lambda _: limits.TEXT_BYTES_MAX
        )
        facts = compaction.list_facts(base, items, policy, time_ms)
        return Scene(time_ms, snapshot, data, tuple(context), facts, base, tuple(items))

    async def _load_snapshot(self, head: SegmentRef, seq: int) -> tuple[SnapshotRef | None, bytes]:
        """Return the snapshot in force after an entry, if there was one, and its bytes."""
        entry = await self.journal.last(head, Kind.COMPACTION, before_seq=seq)
        if entry is None:
            return None, b""
        return parse_compaction(entry).snapshot, await self.journal.snapshot(head, entry)

    async def estimate_compaction(self, seq: int) -> tuple[int, int]:
        """Return the size of the context after an entry, and what a compaction would leave of it."""
        before = await self.load_scene(seq)
        policy = self.status.policy
        # In a thread: it takes some tens of milliseconds, which would block the event loop.
        after = await asyncio.to_thread(
            compaction.compact,
            before.base,
            before.items,
            policy,
            before.time_ms,
            keep_from_seq=seq + 1,
        )
        left = [item for item in before.items if item.entry.seq > after.upto_seq]
        context = compaction.build_context(
            after, left, policy, before.time_ms, lambda _: limits.TEXT_BYTES_MAX
        )
        return before.context_bytes, compaction.measure_messages(context)

    async def evaluate_compaction(self) -> list[CompactionScore]:
        """Compare compactions of the past with what later tool calls used.

        The newest 20,000 entries are read, up to 64 MiB; a cut with few literals has no score.
        """
        head = self.status.head
        if head is None:
            return []
        last_seq = seq_after(head) - 1
        first_seq = max(1, last_seq - _EVALUATED_ENTRIES_MAX + 1)
        entries = await self.journal.read(head, first_seq, last_seq)
        left, start = _EVALUATED_BYTES_MAX, len(entries)
        while start and entries[start - 1].size_bytes <= left:
            start -= 1
            left -= entries[start].size_bytes
        items = await load_items(self.journal, entries[start:])
        return await asyncio.to_thread(_evaluate, items, self.status.policy)

    async def load_totals(self, seq: int) -> Totals:
        """Return the totals of all entries up to one. Only an archive is read whole for them."""
        return await self.journal.totals(self.check_head(seq), seq)

    async def load_pending(self, seq: int) -> tuple[Approval, ...]:
        """Return the approvals that waited after an entry. They belong to the newest reply."""
        head = self.check_head(seq)
        reply = await self.journal.last(head, Kind.REPLY, before_seq=seq)
        if reply is None:
            return ()
        return find_pending(await self.journal.read(head, reply.seq, seq))


async def open_archive(
    client: Client, packs: PackStore, thread_id: str, archive_id: str | None = None
) -> StoredArchive | None:
    """Open an archive of a thread, the newest if none is named; None if there is none.

    Newer ones whose manifests cannot be read are passed over, and named in `passed_over`.
    """
    thread = thread_key(client.namespace, thread_id)
    if archive_id is not None:
        return await StoredArchive.open(packs, await manifests.read(packs, thread, archive_id))
    found = await manifests.find_newest(packs, thread)
    if found.manifest is None:
        if found.passed_over:  # There are archives, and none can be read.
            raise found.passed_over[0].error
        return None
    archive = await StoredArchive.open(packs, found.manifest)
    archive.passed_over = tuple(map(str, found.passed_over))
    return archive


async def read_messages(client: Client, packs: PackStore, thread_id: str) -> list[Message]:
    """Return a thread's whole conversation, long messages in full, read from its journal."""
    past = await Timeline.open(client, packs, thread_id)
    entries = await past.journal.read(past.status.head)
    message_entries = [entry for entry in entries if entry.kind in MESSAGE_KINDS]
    return await past.journal.messages(message_entries, whole=True)


async def read_state(
    client: Client, packs: PackStore, thread_id: str, seq: int, *, totals: bool = True
) -> ThreadView:
    """Return what a thread was right after an entry, and what its model would have read then.

    It costs no more in a long journal than in a short one. Totals of an archive take a read of all of
    its entries up to this one.
    """
    past = await Timeline.open(client, packs, thread_id)
    scene = await past.load_scene(seq)
    return ThreadView(
        thread_id=thread_id,
        agent=past.status.agent,
        seq=seq,
        time_ms=scene.time_ms,
        totals=await past.load_totals(seq) if totals else None,
        pending=await past.load_pending(seq),
        facts=scene.facts,
        snapshot=scene.snapshot,
        context=scene.context,
        context_bytes=scene.context_bytes,
    )


async def compare_states(
    client: Client,
    packs: PackStore,
    thread_id: str,
    first_seq: int,
    last_seq: int | None = None,
    *,
    entries_max: int | None = None,
) -> ThreadDiff:
    """Return what changed in a thread from one entry to another, or to the newest.

    With `entries_max`, no more than the newest of the entries between are read: contexts and facts are
    compared in any case.
    """
    past = await Timeline.open(client, packs, thread_id)
    if last_seq is None:
        last_seq = max(first_seq, seq_after(past.status.head) - 1)
    if first_seq > last_seq:
        raise EntryNotFound(
            f"entry {first_seq} is after entry {last_seq}; give the earlier one first"
        )
    before, after = await past.load_scene(first_seq), await past.load_scene(last_seq)
    between = last_seq - first_seq
    listed = between if entries_max is None else min(between, entries_max)
    entries = await past.journal.read(past.check_head(last_seq), last_seq - listed + 1, last_seq)
    return ThreadDiff(
        thread_id=thread_id,
        first_seq=first_seq,
        last_seq=last_seq,
        entries=tuple(entries),
        left_out=between - listed,
        totals=add_up(entries),
        context_added=find_added(before.context, after.context),
        context_removed=find_added(after.context, before.context),
        context_bytes=(before.context_bytes, after.context_bytes),
        facts_added=find_added(before.facts, after.facts),
        facts_removed=find_added(after.facts, before.facts),
        asked=find_asked(entries),
        decided=find_decided(entries),
    )


H = TypeVar("H", bound=Hashable)

_APPROVAL: Final = TypeAdapter(Approval)
_DECIDED: Final = TypeAdapter(Decision)
_VOTED: Final = TypeAdapter(VoteNote)
_CONTROL: Final = TypeAdapter(ControlNote)
# Calls belong to the newest reply. With one of these, none of them waits for a person any more.
_ENDS_CALLS: Final = frozenset({Kind.MESSAGE, Kind.REPLY, Kind.FAILURE, Kind.FORK})


def find_pending(entries: Iterable[Entry]) -> tuple[Approval, ...]:
    """Return the approvals that wait after these entries, the oldest first."""
    waiting: dict[str, Approval] = {}
    for entry in entries:
        if entry.kind in _ENDS_CALLS or _is_stop(entry):
            waiting.clear()
        elif entry.kind == Kind.ASKED:
            approval = _APPROVAL.validate_python(entry.data)
            waiting[approval.id] = approval
        elif entry.kind == Kind.VOTED:
            voted = _VOTED.validate_python(entry.data)
            if (asked := waiting.pop(voted.id, None)) is not None:
                changed = _add_vote(asked, voted, entry.time_ms)
                waiting[changed.id] = changed
        elif entry.kind == Kind.DECIDED:
            decided = _DECIDED.validate_python(entry.data)
            asked = waiting.pop(decided.id, None)
            if asked is not None and decided.escalated:
                waiting[asked.id] = dataclasses.replace(
                    asked,
                    escalated=True,
                    approvers=asked.escalate_to,
                    deadline_ms=None,
                    needed=min(asked.needed, len(asked.escalate_to)),
                    votes=(),
                )
    return tuple(waiting.values())


def _add_vote(asked: Approval, voted: VoteNote, time_ms: int) -> Approval:
    """Return an approval after a vote. A change of the arguments makes earlier votes void."""
    vote = Vote(by=voted.by, ms=time_ms)
    if not voted.next_id:
        return dataclasses.replace(asked, votes=(*asked.votes, vote))
    return dataclasses.replace(
        asked, id=voted.next_id, arguments=voted.arguments, votes=(vote,), edit=None
    )


def find_asked(entries: Iterable[Entry]) -> tuple[Approval, ...]:
    """Return the approvals that were asked for."""
    return tuple(
        _APPROVAL.validate_python(entry.data) for entry in entries if entry.kind == Kind.ASKED
    )


def find_decided(entries: Iterable[Entry]) -> tuple[Decision, ...]:
    """Return the decisions that were made, by people and by deadlines."""
    return tuple(
        _DECIDED.validate_python(entry.data) for entry in entries if entry.kind == Kind.DECIDED
    )


def find_added(before: Sequence[H], after: Sequence[H]) -> tuple[H, ...]:
    """Return what `after` has and `before` has not, in order; what is there twice counts twice."""
    left = Counter(before)
    found = []
    for each in after:
        if left[each] > 0:
            left[each] -= 1
        else:
            found.append(each)
    return tuple(found)


def _is_stop(entry: Entry) -> bool:
    return entry.kind == Kind.CONTROL and _CONTROL.validate_python(entry.data).action == "stop"
