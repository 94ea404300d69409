"""Threads with long journals that are written straight into the store."""

import random
import time

from everlong import ThreadStart
from everlong.compaction.snapshot import Snapshot, dump
from everlong.models import (
    AGENT_WORKFLOW,
    CompactionNote,
    Counters,
    Entry,
    Kind,
    Message,
    SegmentRef,
    SnapshotRef,
    StepInfo,
    ThreadState,
    ToolCall,
    build_entry,
    build_note,
    thread_key,
)
from everlong.storage.journal import Journal
from tests.support.dashboard import Stage

# Entries of one append: a long journal takes a second or two.
BATCH = 500
EVERY_MS = 30_000
ASKS = ("query_metrics", "read_log", "list_deploys", "diff_config")
RESULTS = (
    "p95 of checkout is 1.84 s in eu-west-1, 0.21 s elsewhere, since 14:02 UTC",
    "14:02:11 WARN checkout pool=payments waited 1.6 s for a connection (32 of 32 in use)",
    "deploys since noon: payments 2.41.0 at 13:58 by ci, search 1.9.2 at 12:20 by ci",
    "payments 2.41.0: pool.max_size 64 -> 32, pool.timeout_ms 500 -> 2000",
)


async def write_long_journal(stage: Stage, thread_id: str, count: int, compacted_seq: int) -> str:
    """Start a thread whose journal has `count` entries; return the path of its page."""
    packs, thread = stage.threads.plugin.packs, thread_key(stage.client.namespace, thread_id)
    journal = Journal(packs, thread)
    began_ms = time.time_ns() // 1_000_000 - count * EVERY_MS
    data = dump(Snapshot(upto_seq=compacted_seq, time_ms=began_ms, budget_bytes=65_536))
    ref, _ = await packs.write_body(thread, Kind.SNAPSHOT, data)
    compacted = CompactionNote(
        snapshot=SnapshotRef(ref=ref, upto_seq=compacted_seq),
        reason="size",
        before_bytes=260_000,
        after_bytes=60_000,
    )
    head: SegmentRef | None = None
    sizes = _Sizes()
    for first in range(1, count + 1, BATCH):
        batch = [
            entry(seq, began_ms, sizes) for seq in range(first, min(count, first + BATCH - 1) + 1)
        ]
        place = compacted_seq + 1 - first
        if 0 <= place < len(batch):
            batch[place] = build_note(
                compacted_seq + 1, Kind.COMPACTION, compacted, batch[place].time_ms
            )
        head, _ = await journal.append(head, batch)
    state = ThreadState(
        head=head,
        snapshot=compacted.snapshot,
        context_bytes=sizes.context_bytes,
        counters=Counters(
            messages=1,
            answered=1,
            steps=count // 2,
            tokens=count // 2 * 14_000,
            cost_usd=count // 2 * 0.02,
            written_bytes=sizes.stored_bytes,
        ),
    )
    await stage.client.start_workflow(
        AGENT_WORKFLOW,
        ThreadStart(agent="ops", state=state),
        id=thread_id,
        task_queue=stage.threads.task_queue,
    )
    return f"/threads/{thread_id}"


class _Sizes:
    """Sizes of the thread so far."""

    def __init__(self) -> None:
        self.chance = random.Random(7)
        self.stored_bytes = 0
        self.context_bytes = 4_000

    def step(self) -> None:
        new_bytes = int(self.chance.expovariate(1 / 3_000))
        self.stored_bytes += 300 + new_bytes // 3
        self.context_bytes += 200 + new_bytes
        if self.context_bytes > 262_144:  # As compaction does.
            self.context_bytes = 64_000


def entry(seq: int, began_ms: int, sizes: _Sizes) -> Entry:
    """Return an entry. Every second one is a reply, which records the sizes."""
    time_ms = began_ms + seq * EVERY_MS
    asked = ASKS[seq // 2 % 4]
    if seq == 1:
        text = "Checkout is slow again. Find out why, and mend it if you may."
        return build_entry(seq, Kind.MESSAGE, Message(role="user", text=text), time_ms)
    if seq % 2:
        text = f"{RESULTS[(seq - 1) // 2 % 4]} (result {seq})"
        result = Message(role="tool", text=text, call_id=f"call-{seq - 1}", tool=asked)
        return build_entry(seq, Kind.TOOL_RESULT, result, time_ms)
    sizes.step()
    arguments = f'{{"window": "15m", "seq": {seq}}}'
    calls = (ToolCall(id=f"call-{seq}", tool=asked, arguments=arguments),)
    reply = build_entry(seq, Kind.REPLY, Message(role="assistant", tool_calls=calls), time_ms)
    is_resume = seq % 40 == 0
    step = StepInfo(
        number=seq // 2,
        thread_bytes=sizes.stored_bytes,
        context_bytes=sizes.context_bytes,
        resume_ms=sizes.chance.uniform(90, 320) if is_resume else 0,
        resume_cause="cold" if is_resume else "",
        resume_events=sizes.chance.randrange(40, 390) if is_resume else 0,
    )
    return Entry(**{**vars(reply), "step": step})
