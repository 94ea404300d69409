"""Sample journal with every kind of entry, and archives of it."""

import dataclasses
from typing import Final

from everlong.archive import Facts, Manifest, make_archive_id, writer
from everlong.compaction import Snapshot, dump
from everlong.models import (
    Approval,
    CompactionNote,
    ControlNote,
    Counters,
    Decision,
    Entry,
    Fact,
    ForkNote,
    Kind,
    MemoryChange,
    Message,
    Resolution,
    SegmentRef,
    SnapshotRef,
    Status,
    StepInfo,
    ThreadStatus,
    ToolCall,
    UnknownOutcome,
    VoteNote,
    build_entry,
    build_note,
    seq_after,
    thread_key,
)
from everlong.policy import LimitHit
from everlong.storage.context_store import write_message
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore
from everlong.testing import workload

NAMESPACE: Final = "default"
NOW_MS: Final = 1_794_800_000_000
NATIVE: Final = {
    "kind": "response",
    "model_name": "some-model",
    "parts": [
        {"part_kind": "thinking", "content": "hm", "signature": "c2ln"},
        {"part_kind": "text", "content": "I looked: it is 5°, naïve \u0000 and ☃."},
    ],
}


class ThreadBuilder:
    """Journal builder of one thread."""

    def __init__(
        self, packs: PackStore, thread_id: str = "ops-7", namespace: str = NAMESPACE
    ) -> None:
        self.packs = packs
        self.thread_id = thread_id
        self.namespace = namespace
        self.thread = thread_key(namespace, thread_id)
        self.journal = Journal(packs, self.thread)
        self.head: SegmentRef | None = None
        self.steps = 0

    async def add(self, *entries: Entry) -> None:
        first_seq = seq_after(self.head)
        placed = [dataclasses.replace(each, seq=first_seq + i) for i, each in enumerate(entries)]
        self.head, _ = await self.journal.append(self.head, placed)

    def time_ms(self) -> int:
        return NOW_MS + 1000 * seq_after(self.head)

    async def say(self, kind: Kind, message: Message) -> None:
        entry, _ = await write_message(self.journal, kind, message, self.time_ms(), 32 * 1024)
        await self.add(entry)

    async def note(self, kind: Kind, data: object) -> None:
        await self.add(build_note(1, kind, data, self.time_ms()))

    async def step(self, tool: str = "search_logs", result: str | None = None) -> None:
        """Append one model call and the result of its tool."""
        assistant, answer = workload.step(self.steps)
        call_id = answer["tool_call_id"]
        arguments = assistant["tool_calls"][0]["function"]["arguments"]
        call = ToolCall(id=call_id, tool=tool, arguments=arguments)
        reply = Message(role="assistant", text=assistant["content"], tool_calls=(call,))
        info = StepInfo(
            number=self.steps,
            thread_bytes=1000 * self.steps,
            context_bytes=500,
            resume_ms=12.5 * (self.steps % 3 == 2),
            resume_cause="crash" if self.steps % 3 == 2 else "",
            resume_events=self.steps % 3,
        )
        entry = build_entry(1, Kind.REPLY, reply, self.time_ms())
        await self.add(dataclasses.replace(entry, tokens=100, cost_usd=0.25, step=info))
        text = answer["content"] if result is None else result
        message = Message(role="tool", text=text, call_id=call_id, tool=tool)
        await self.say(Kind.TOOL_RESULT, message)
        self.steps += 1

    async def compact(self) -> None:
        upto_seq = seq_after(self.head) - 1
        data = dump(
            Snapshot(
                upto_seq=upto_seq,
                time_ms=self.time_ms(),
                budget_bytes=4096,
                summary=f"what was before {upto_seq}",
                summary_seq=upto_seq,
            )
        )
        ref, _ = await self.packs.write_body(self.thread, Kind.SNAPSHOT, data)
        snapshot = SnapshotRef(ref=ref, upto_seq=upto_seq, context_bytes=len(data))
        compacted = CompactionNote(
            snapshot=snapshot, reason="asked", before_bytes=9000, after_bytes=300
        )
        await self.note(Kind.COMPACTION, compacted)

    def status(self, word: Status = Status.ARCHIVED) -> ThreadStatus:
        return ThreadStatus(
            agent="ops",
            status=word,
            counters=Counters(steps=self.steps, messages=1, answered=1),
            head=self.head,
            waiting_messages=0,
            last_failure="",
        )

    def facts(self, number: int = 0) -> Facts:
        now_ms = NOW_MS + number
        return Facts(
            archive_id=make_archive_id(now_ms, bytes([number % 256]) * 4),
            thread_id=self.thread_id,
            namespace=self.namespace,
            thread=self.thread,
            entries=seq_after(self.head) - 1,
            archived_ms=now_ms,
            by="ann",
            reason="it is over",
            status=self.status(),
        )

    async def write_archive(self, number: int = 0) -> Manifest:
        return await writer.write(self.packs, self.journal, self.facts(number))


async def build_thread(packs: PackStore, thread_id: str = "ops-7") -> ThreadBuilder:
    """Return a thread whose journal has every kind of entry."""
    life = ThreadBuilder(packs, thread_id)
    await life.say(Kind.MESSAGE, Message(role="user", text="why is it slow?"))
    await life.step()
    await life.step(result="x" * 100_000)
    await life.step(tool="restart", result="error: no such service")
    asked = Approval(id="9-1-aa", tool="restart", arguments="{}", asked_ms=NOW_MS)
    await life.note(Kind.ASKED, asked)
    decided = Decision(
        id="9-1-aa", tool="restart", asked_ms=NOW_MS, approve=True, by="ann", reason="go on"
    )
    await life.note(Kind.DECIDED, decided)
    voted = VoteNote(id="9-1-aa", tool="restart", by="bob", votes=1, needed=2)
    await life.note(Kind.VOTED, voted)
    unknown = UnknownOutcome(
        id="9-1-aa-1",
        tool="restart",
        arguments="{}",
        cause="timeout",
        idempotency_key="k",
        asked_ms=NOW_MS,
    )
    await life.note(Kind.OUTCOME_UNKNOWN, unknown)
    resolved = Resolution(
        id="9-1-aa-1", tool="restart", asked_ms=NOW_MS, outcome="done", by="ann", result="it runs"
    )
    await life.note(Kind.OUTCOME_RESOLVED, resolved)
    fact = Fact(key="region", text="eu-1", time_ms=NOW_MS)
    await life.note(Kind.MEMORY, MemoryChange(remembered=fact))
    await life.compact()
    reply = build_entry(1, Kind.REPLY, Message(role="assistant", native=NATIVE), life.time_ms())
    await life.add(dataclasses.replace(reply, tokens=7))
    await life.say(Kind.MESSAGE, Message(role="user", text="and now? " + "long " * 20_000))
    await life.step()
    await life.compact()
    await life.say(Kind.FAILURE, Message(role="failure", text="the provider is away"))
    await life.note(Kind.CONTROL, ControlNote(action="pause", by="bob", reason="look first"))
    hit = LimitHit(limit="steps_max", value=5, bound=4, action="archive")
    await life.note(Kind.LIMIT, hit)
    await life.note(Kind.FORK, ForkNote(thread_id="ops-6", seq=3, by="cy"))
    await life.say(Kind.MESSAGE, Message(role="user", text="☃"))
    return life
