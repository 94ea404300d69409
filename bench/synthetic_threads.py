"""Synthetic threads and journals, written to visibility and the store without a worker."""

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from everlong import ThreadStart
from everlong.compaction import Snapshot
from everlong.models import (
    AGENT_WORKFLOW,
    CARD_MEMO,
    CompactionNote,
    Counters,
    Entry,
    Fact,
    Kind,
    Message,
    SegmentRef,
    StepInfo,
    ThreadCard,
    ThreadState,
    build_note,
    thread_key,
)
from everlong.models.search_attributes import (
    AGENT,
    ASKED_AT,
    GROWTH,
    LAST_RESUME,
    PENDING,
    REASON,
    STATE_BYTES,
    STATUS,
)
from everlong.storage.context_store import ContextStore, write_message
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore

AGENTS: Final = ("ops", "support", "research", "billing")
_AT_ONCE: Final = 32
_LISTED_SECONDS_MAX: Final = 120.0
_KIB: Final = 1024
_HOUR_MS: Final = 3_600_000
# One entry in twenty is a long tool result, stored as a separate body.
_LONG_EVERY: Final = 20
_LONG_BYTES: Final = 6_000
_APPEND_ENTRIES: Final = 32
_COMPACT_EVERY: Final = 5 * _APPEND_ENTRIES


async def populate(
    client: Client, count: int, *, prefix: str = "thread", first: int = 0, digits: int = 5
) -> None:
    """Start threads without a worker, with the memo and search attributes of long-running ones."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def start(number: int) -> None:
        async with places:
            await client.start_workflow(
                AGENT_WORKFLOW,
                ThreadStart(agent=AGENTS[number % len(AGENTS)]),
                id=f"{prefix}-{number:0{digits}}",
                task_queue="no-worker",
                memo={CARD_MEMO: card(number)},
                search_attributes=attributes(number),
            )

    await asyncio.gather(*(start(number) for number in range(first, first + count)))


async def wait_until_listed(client: Client, count: int) -> None:
    """Wait until visibility lists `count` threads."""
    deadline = time.monotonic() + _LISTED_SECONDS_MAX
    query = f"WorkflowType = '{AGENT_WORKFLOW}'"
    while (found := (await client.count_workflows(query)).count) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"visibility lists {found} of {count} threads")
        await asyncio.sleep(0.1)


def card(number: int) -> ThreadCard:
    """Return the card of a thread, with sizes and trends that depend on its number."""
    now_ms = time.time_ns() // 1_000_000
    stored = (number * 7919 % 4096 + 1) * 4 * _KIB
    return ThreadCard(
        ms=now_ms,
        steps=number % 900 + 1,
        messages=number % 40 + 1,
        runs=number % 30 + 1,
        tokens=(number % 900 + 1) * 2_300,
        cost_usd=round((number % 900 + 1) * 0.0071, 4),
        operational_bytes=2_000 + number % 3_000,
        context_bytes=(number % 200 + 4) * _KIB,
        stored_bytes=stored,
        read_bytes=stored * 40,
        lag_bytes=number % 7 * _KIB if number % 50 == 0 else 0,
        lag_since_ms=now_ms - 60_000 if number % 50 == 0 else None,
        resume_ms=20.0 + number % 400,
        trend=tuple(
            (now_ms - (24 - hour) * _HOUR_MS, stored * (hour + 1) // 24) for hour in range(24)
        ),
    )


def attributes(number: int) -> TypedSearchAttributes:
    """Return the search attributes of a thread."""
    pending = 2 if number % 400 == 7 else 0
    status, reason = "waiting", ""
    if pending:
        status = "approval"
    elif number % 61 == 0:
        status, reason = "paused", "same_failure_max" if number % 2 else "person"
    pairs: list[SearchAttributePair[Any]] = [
        SearchAttributePair(AGENT, AGENTS[number % len(AGENTS)]),
        SearchAttributePair(STATUS, status),
        SearchAttributePair(REASON, reason),
        SearchAttributePair(PENDING, pending),
        SearchAttributePair(STATE_BYTES, card(number).stored_bytes),
        SearchAttributePair(GROWTH, number % 997 * 512.0),
        SearchAttributePair(LAST_RESUME, 20.0 + number % 400),
    ]
    if pending:
        asked = datetime.now(UTC) - timedelta(minutes=number % 600)
        pairs.append(SearchAttributePair(ASKED_AT, asked))
    return TypedSearchAttributes(pairs)


async def start_with_journal(
    client: Client, packs: PackStore, thread_id: str, entries: int, *, task_queue: str, agent: str
) -> SegmentRef:
    """Start a waiting thread with a journal of `entries` entries: turns with one tool call each."""
    journal = Journal(packs, thread_key(client.namespace, thread_id))
    began_ms = time.time_ns() // 1_000_000 - 60_000 * entries
    head: SegmentRef | None = None
    written = 0
    contexts = ContextStore(packs, thread_key(client.namespace, thread_id))
    for first in range(1, entries + 1, _APPEND_ENTRIES):
        last = min(entries, first + _APPEND_ENTRIES - 1)
        made = [await _build_entry(journal, seq, began_ms) for seq in range(first, last + 1)]
        if first % _COMPACT_EVERY == 1 and first > 1:
            made[0] = await _build_compaction(contexts, first, began_ms)
        head, head_bytes = await journal.append(head, [each for each, _ in made])
        written += head_bytes + sum(body_bytes for _, body_bytes in made)
    if head is None:
        raise ValueError("a journal has at least one entry")
    turns = entries // len(_TURN)
    counters = Counters(steps=2 * turns, messages=turns, answered=turns, written_bytes=written)
    await client.start_workflow(
        AGENT_WORKFLOW,
        ThreadStart(agent=agent, state=ThreadState(head=head, counters=counters)),
        id=thread_id,
        task_queue=task_queue,
    )
    return head


_TURN: Final[Sequence[tuple[Kind, str]]] = (
    (Kind.MESSAGE, "user"),
    (Kind.REPLY, "assistant"),
    (Kind.TOOL_RESULT, "tool"),
    (Kind.REPLY, "assistant"),
)


async def _build_entry(journal: Journal, seq: int, began_ms: int) -> tuple[Entry, int]:
    kind, role = _TURN[(seq - 1) % len(_TURN)]
    text = f"entry {seq}: the queue of checkout has {seq * 31 % 977} jobs"
    if kind == Kind.TOOL_RESULT and seq % _LONG_EVERY == 3:
        text = "\n".join(f"{text}, line {line}" for line in range(_LONG_BYTES // len(text)))
    message = Message(
        role=role,
        text=text,
        call_id=f"call-{seq}" if role == "tool" else "",
        tool="read" if role == "tool" else "",
    )
    entry, written = await write_message(journal, kind, message, began_ms + 60_000 * seq, 32 * _KIB)
    step = StepInfo(number=seq // 2, thread_bytes=900 * seq, context_bytes=40_000)
    return _set_seq(entry, seq, step if kind == Kind.REPLY else None), written


async def _build_compaction(contexts: ContextStore, seq: int, began_ms: int) -> tuple[Entry, int]:
    """Store a snapshot of all earlier entries; return the compaction entry."""
    time_ms = began_ms + 60_000 * seq
    fact = Fact(key="owner", text=f"checkout belongs to team {seq % 7}", time_ms=time_ms)
    snapshot = Snapshot(upto_seq=seq - 1, time_ms=time_ms, budget_bytes=64 * _KIB, facts=(fact,))
    ref, written = await contexts.write_snapshot(snapshot, 4 * _KIB)
    done = CompactionNote(
        snapshot=ref, reason="size", before_bytes=256 * _KIB, after_bytes=4 * _KIB
    )
    return build_note(seq, Kind.COMPACTION, done, time_ms), written


def _set_seq(entry: Entry, seq: int, step: StepInfo | None) -> Entry:
    return dataclasses.replace(entry, seq=seq, step=step)
