"""Stored bytes by cause: they add up to what the store holds, and are divided rightly."""

import dataclasses
import datetime
from collections.abc import Sequence

import pytest

from everlong.cli.values import past_time
from everlong.client.stored_bytes import BytesPoint, Cause, StoredBytes, count_stored_bytes
from everlong.codecs import EverlongCodec
from everlong.errors import ConfigError
from everlong.models import (
    CompactionNote,
    Entry,
    Kind,
    Message,
    SegmentRef,
    SnapshotRef,
    ToolCall,
    build_note,
    thread_key,
)
from everlong.storage.context_store import write_message
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import NO_THREAD, PackStore
from tests.support.sample_payloads import noise, payload

KEY = thread_key("default", "ops-7")
DAY_MS = 86_400_000
START_MS = 1_763_276_400_000


def _reply(*tools: str) -> Message:
    calls = tuple(ToolCall(id=f"c{n}", tool=tool, arguments="{}") for n, tool in enumerate(tools))
    return Message(role="assistant", text="on it", tool_calls=calls)


def _result(size_bytes: int, seed: int) -> Message:
    return Message(role="tool", call_id="c0", text=noise(size_bytes // 2, seed).hex())


class _Writer:
    """Writes a journal entry by entry, as a thread does, and remembers its head."""

    def __init__(self) -> None:
        self.store = MemoryBlobStore()
        self.packs = PackStore(self.store)
        self.journal = Journal(self.packs, KEY)
        self.head: SegmentRef | None = None
        self.seq = 0
        self.time_ms = START_MS

    async def add(self, kind: Kind, message: Message) -> None:
        entry, _ = await write_message(
            self.journal, kind, message, self.time_ms, 32_000, inline_bytes_max=1024
        )
        await self.append(entry)

    async def append(self, *entries: Entry) -> None:
        placed = [
            dataclasses.replace(each, seq=self.seq + n) for n, each in enumerate(entries, start=1)
        ]
        self.seq += len(placed)
        self.head, _ = await self.journal.append(self.head, placed)

    async def compact(self) -> None:
        ref, _ = await self.packs.write_body(KEY, Kind.SNAPSHOT, noise(9000, self.seq))
        note = CompactionNote(
            snapshot=SnapshotRef(ref=ref, upto_seq=self.seq),
            reason="size",
            before_bytes=2,
            after_bytes=1,
        )
        await self.append(build_note(1, Kind.COMPACTION, note, self.time_ms))

    async def count(self, since_ms: int = 0) -> StoredBytes:
        return await count_stored_bytes(self.packs, KEY, self.head, since_ms=since_ms)

    def stored_bytes(self) -> int:
        return sum(len(each) for each in self.store._objects.values())


def _by_cause(found: StoredBytes) -> dict[tuple[Cause, str], int]:
    return {(each.cause, each.tool): each.stored_bytes for each in found.causes}


async def test_causes_add_up_to_the_store_over_many_segments_and_folds() -> None:
    writer = _Writer()
    for step in range(80):
        await writer.add(Kind.MESSAGE, Message(role="user", text=f"question {step}"))
        await writer.add(Kind.REPLY, _reply("read", "grep"))
        await writer.add(Kind.TOOL_RESULT, _result(4000, step))
        await writer.add(Kind.TOOL_RESULT, _result(500, step))
        if step % 40 == 39:
            await writer.compact()
    found = await writer.count()
    assert not found.problem
    assert found.stored_bytes == writer.stored_bytes()
    assert found.recent_bytes == found.stored_bytes - found.undated_bytes
    causes = _by_cause(found)
    read, grep = causes[Cause.TOOL_RESULTS, "read"], causes[Cause.TOOL_RESULTS, "grep"]
    assert read > 80 * 2000 > grep > 80 * 200
    assert causes[Cause.SNAPSHOTS, ""] > 2 * 9000
    assert causes[Cause.SUPERSEDED, ""] > 0
    assert (Cause.TOOL_RESULTS, "unknown") not in causes
    assert (Cause.UNKNOWN, "") not in causes


async def test_what_is_new_is_told_from_what_is_old_by_the_time_of_entries() -> None:
    writer = _Writer()
    await writer.add(Kind.REPLY, _reply("read"))
    await writer.add(Kind.TOOL_RESULT, _result(50_000, 1))
    writer.time_ms += 3 * DAY_MS
    await writer.add(Kind.REPLY, _reply("log"))
    await writer.add(Kind.TOOL_RESULT, _result(9_000, 2))
    found = await writer.count(since_ms=START_MS + DAY_MS)
    recent = {each.tool: each.recent_bytes for each in found.causes if each.tool}
    assert recent["read"] == 0
    assert recent["log"] == _by_cause(found)[Cause.TOOL_RESULTS, "log"] > 4000
    old, new = _select(found.points, START_MS + DAY_MS)
    assert old[Cause.TOOL_RESULTS] > 25_000 > 9_000 > new[Cause.TOOL_RESULTS]
    assert len(found.points) <= 60


def _select(
    points: Sequence[BytesPoint], before_ms: int
) -> tuple[dict[Cause, int], dict[Cause, int]]:
    halves: tuple[dict[Cause, int], dict[Cause, int]] = ({}, {})
    for point in points:
        half = halves[point.start_ms >= before_ms]
        for cause, size_bytes in point.bytes_by_cause.items():
            half[cause] = half.get(cause, 0) + size_bytes
    return halves


async def test_payloads_of_a_workflow_without_a_journal_are_payloads() -> None:
    store = MemoryBlobStore()
    packs = PackStore(store)
    await EverlongCodec(packs).encode([payload(noise(50_000, 1)), payload(noise(8000, 2))])
    found = await count_stored_bytes(packs, NO_THREAD, None, since_ms=0)
    assert _by_cause(found) == {
        (Cause.PAYLOADS, ""): sum(len(each) for each in store._objects.values())
    }


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_damaged_journal_is_a_problem_and_its_bytes_still_count(is_lost: bool) -> None:
    writer = _Writer()
    await writer.add(Kind.REPLY, _reply("read"))
    await writer.add(Kind.TOOL_RESULT, _result(9000, 1))
    assert writer.head is not None
    key = next(key for key in writer.store._objects if writer.head.ref.digest in key)
    if is_lost:
        await writer.store.delete([key])
    else:
        writer.store._objects[key] = b"damaged"
    found = await writer.count()
    assert "could not be read" in found.problem
    assert found.stored_bytes == writer.stored_bytes()


def test_a_past_time_is_a_duration_a_day_or_a_date() -> None:
    parse = past_time("--since")
    now = datetime.datetime.now().astimezone()
    assert now.timestamp() - parse("2h") == pytest.approx(7200, abs=60)
    midnight = datetime.datetime.fromtimestamp(parse("monday")).astimezone()
    assert (midnight.weekday(), midnight.hour, midnight.minute) == (0, 0, 0)
    assert 0 <= now.timestamp() - parse("monday") < 8 * 86_400
    assert parse("2025-01-02") == datetime.datetime(2025, 1, 2).astimezone().timestamp()
    assert parse("2025-01-02T03:04+00:00") == 1_735_787_040
    for wrong in ("mon", "2099-01-01", "-2h", "", "9" * 30):
        with pytest.raises(ConfigError, match="--since"):
            parse(wrong)
