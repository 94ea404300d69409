"""Stored bytes of a thread by cause: what its objects in the store hold, and when they were written.

Each object of the thread counts with its stored size, so the causes add up to what the store holds. An
object that holds several things, as a segment of the journal does, is divided by their plaintext.
"""

import collections
import dataclasses
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Final

from temporalio.client import Client

from everlong import limits
from everlong.archive import manifest as manifests
from everlong.client.errors import translate_errors
from everlong.client.lookup import find_readable_head
from everlong.client.time_travel import open_archive
from everlong.errors import BlobMissing, EverlongError, ThreadNotFound
from everlong.models import Entry, Kind, Ref, Segment, SegmentRef, thread_key
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore, gather_bounded, object_key, thread_prefix
from everlong.storage.quarantine import PREFIX as QUARANTINE
from everlong.storage.segments import parse_compaction, to_message

# 250 bytes of memory each: 125 MB. An agent of 2 objects a step has this many after 250,000 steps.
OBJECTS_MAX: Final = 500_000
# Objects that the journal does not name are read to find out what they are: up to this many, and up to
# this size each. 16 are in memory at once, so 64 MiB.
_OPENED_MAX: Final = 2_000
_OPENED_BYTES_MAX: Final = 4 * limits.MIB
# Points of a series. A chart of 720 pixels has 12 for each.
_POINTS_MAX: Final = 60
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_WIDTHS_MS: Final = (
    _MINUTE_MS,
    10 * _MINUTE_MS,
    _HOUR_MS,
    6 * _HOUR_MS,
    _DAY_MS,
    7 * _DAY_MS,
    30 * _DAY_MS,
)
_UNKNOWN_TOOL: Final = "unknown"
# The newest events of a history are one request, and a client without their keys cannot read them.
_HEAD_SECONDS_MAX: Final = 10.0


class Cause(StrEnum):
    """Why bytes are stored."""

    MESSAGES = "messages"
    """Messages to the agent, and reasons of failed turns."""
    REPLIES = "replies"
    """Replies of the model."""
    TOOL_RESULTS = "tool_results"
    """Results of tools, also those of sub-agents."""
    JOURNAL = "journal"
    """Bookkeeping: entries without a message, refs, folds."""
    SNAPSHOTS = "snapshots"
    """Compacted contexts, the present one and the earlier ones that time travel reads."""
    SUPERSEDED = "superseded"
    """Pieces of the journal that newer ones replaced. A sweep frees those that nothing else needs."""
    PAYLOADS = "payloads"
    """Values in the workflow's history: inputs and results of activities, such as the model input of a
    loop that passes its messages to each call."""
    ARCHIVES = "archives"
    """Parquet files of the journal, with their manifests."""
    QUARANTINE = "quarantine"
    """Objects that a sweep has set aside, and deletes after the grace period."""
    UNKNOWN = "unknown"
    """Objects that could not be read here, or were too many to read."""


_CAUSES: Final = {
    Kind.MESSAGE: Cause.MESSAGES,
    Kind.FAILURE: Cause.MESSAGES,
    Kind.REPLY: Cause.REPLIES,
    Kind.TOOL_RESULT: Cause.TOOL_RESULTS,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CauseBytes:
    """Stored bytes of one cause."""

    cause: Cause
    tool: str = ""
    """Name of the tool, for results of tools."""
    stored_bytes: int
    recent_bytes: int
    """Those of `stored_bytes` that were written since `StoredBytes.since_ms`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BytesPoint:
    """Bytes that were written in one interval and are still stored."""

    start_ms: int
    bytes_by_cause: dict[Cause, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredBytes:
    """Stored bytes of a thread by cause, the largest first."""

    thread_id: str
    causes: tuple[CauseBytes, ...]
    stored_bytes: int
    """Sum of the causes: what the store holds of the thread."""
    recent_bytes: int
    objects: int
    since_ms: int
    points: tuple[BytesPoint, ...]
    """Bytes over time, oldest first, without intervals in which nothing was written."""
    width_ms: int
    """Length of the interval of a point."""
    undated_bytes: int = 0
    """Bytes of objects whose time the store does not report. They are in no point."""
    is_partial: bool = False
    """Whether the thread has more objects than were counted."""
    problem: str = ""
    """Why the journal could not be read to its end; what it names then counts as `superseded`."""


class _Tally:
    """Bytes by cause, tool and minute."""

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.totals: collections.Counter[tuple[Cause, str]] = collections.Counter()
        self.recent: collections.Counter[tuple[Cause, str]] = collections.Counter()
        self.hours: collections.Counter[tuple[int, Cause]] = collections.Counter()
        self.minutes: collections.Counter[tuple[int, Cause]] = collections.Counter()
        self.undated_bytes = 0

    def add(self, cause: Cause, size_bytes: int, time_ms: int | None, tool: str = "") -> None:
        if size_bytes <= 0:
            return
        self.totals[cause, tool] += size_bytes
        if time_ms is None:
            self.undated_bytes += size_bytes
            return
        if time_ms >= self.since_ms:
            self.recent[cause, tool] += size_bytes
        self.minutes[time_ms // _MINUTE_MS, cause] += size_bytes
        if len(self.minutes) > 100_000:  # A thread of months: hours are fine enough.
            self._merge_minutes()

    def _merge_minutes(self) -> None:
        for (minute, cause), size_bytes in self.minutes.items():
            self.hours[minute // 60, cause] += size_bytes
        self.minutes.clear()

    def build_points(self) -> tuple[tuple[BytesPoint, ...], int]:
        """Return the series, and the width of its intervals."""
        least = _MINUTE_MS
        if self.hours:
            self._merge_minutes()
            least = _HOUR_MS
        written = [(minute * _MINUTE_MS, cause, n) for (minute, cause), n in self.minutes.items()]
        written += [(hour * _HOUR_MS, cause, n) for (hour, cause), n in self.hours.items()]
        if not written:
            return (), least
        first_ms, last_ms = min(each[0] for each in written), max(each[0] for each in written)
        fitting = (
            width
            for width in _WIDTHS_MS
            if width >= least and (last_ms - first_ms) // width < _POINTS_MAX
        )
        width_ms = next(fitting, (last_ms - first_ms) // _POINTS_MAX + 1)
        points: dict[int, collections.Counter[Cause]] = {}
        for time_ms, cause, size_bytes in written:
            start_ms = time_ms - time_ms % width_ms
            points.setdefault(start_ms, collections.Counter())[cause] += size_bytes
        return tuple(
            BytesPoint(start_ms=start_ms, bytes_by_cause=dict(points[start_ms]))
            for start_ms in sorted(points)
        ), width_ms


@dataclasses.dataclass(frozen=True)
class _Object:
    size_bytes: int
    modified_ms: int | None


async def measure_stored_bytes(
    client: Client, packs: PackStore, thread_id: str, *, since_ms: int | None = None
) -> StoredBytes:
    """Return the stored bytes of a thread by cause, and those written since a time or the last day.

    It lists the thread's objects, and reads its journal without results of tools. It needs no worker.
    """
    try:
        with translate_errors(thread_id):
            description = await client.get_workflow_handle(thread_id).describe()
        # From the history, since a query would resume the thread.
        head = await find_readable_head(client, description, _HEAD_SECONDS_MAX)
    except ThreadNotFound:
        if await open_archive(client, packs, thread_id) is None:
            raise
        head = None
    return await count_stored_bytes(
        packs,
        thread_key(client.namespace, thread_id),
        head,
        since_ms=int(time.time() * 1000) - _DAY_MS if since_ms is None else since_ms,
        thread_id=thread_id,
    )


async def count_stored_bytes(
    packs: PackStore,
    key: str,
    head: SegmentRef | None,
    *,
    since_ms: int,
    thread_id: str = "",
) -> StoredBytes:
    """Return the stored bytes of the thread with this key, whose journal has this head."""
    tally = _Tally(since_ms)
    objects, is_partial = await _list_objects(packs, thread_prefix(key))
    count = len(objects)
    problem = ""
    if head is not None:
        try:
            await _Walk(Journal(packs, key), key, objects, tally).run(head)
        except EverlongError as error:
            problem = f"the journal could not be read to its end: {error}"
    await _add_others(packs, key, objects, tally)
    count += await _add_listed(packs, f"{manifests.PREFIX}{key}/", Cause.ARCHIVES, tally)
    for prefix in (thread_prefix(key), f"{manifests.PREFIX}{key}/"):
        count += await _add_listed(packs, f"{QUARANTINE}{prefix}", Cause.QUARANTINE, tally)
    points, width_ms = tally.build_points()
    causes = [
        CauseBytes(
            cause=cause,
            tool=tool,
            stored_bytes=size_bytes,
            recent_bytes=tally.recent[cause, tool],
        )
        for (cause, tool), size_bytes in tally.totals.items()
    ]
    causes.sort(key=lambda each: (-each.stored_bytes, each.cause, each.tool))
    return StoredBytes(
        thread_id=thread_id,
        causes=tuple(causes),
        stored_bytes=sum(tally.totals.values()),
        recent_bytes=sum(tally.recent.values()),
        objects=count,
        since_ms=since_ms,
        points=points,
        width_ms=width_ms,
        undated_bytes=tally.undated_bytes,
        is_partial=is_partial,
        problem=problem,
    )


def add_up_causes(found: Iterable[StoredBytes]) -> tuple[CauseBytes, ...]:
    """Return the causes of several threads together, the largest first."""
    totals: collections.Counter[tuple[Cause, str]] = collections.Counter()
    recent: collections.Counter[tuple[Cause, str]] = collections.Counter()
    for each in found:
        for one in each.causes:
            totals[one.cause, one.tool] += one.stored_bytes
            recent[one.cause, one.tool] += one.recent_bytes
    return tuple(
        CauseBytes(cause=key[0], tool=key[1], stored_bytes=size_bytes, recent_bytes=recent[key])
        for key, size_bytes in sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    )


async def _list_objects(packs: PackStore, prefix: str) -> tuple[dict[str, _Object], bool]:
    objects: dict[str, _Object] = {}
    async for info in packs.store.list(prefix):
        if len(objects) >= OBJECTS_MAX:
            return objects, True
        objects[info.key] = _Object(info.size_bytes, info.modified_ms)
    return objects, False


async def _add_listed(packs: PackStore, prefix: str, cause: Cause, tally: _Tally) -> int:
    count = 0
    async for info in packs.store.list(prefix):
        tally.add(cause, info.size_bytes, info.modified_ms)
        count += 1
    return count


class _Walk:
    """Divides the objects that a journal names among causes, and takes them out of `objects`."""

    def __init__(
        self, journal: Journal, thread: str, objects: dict[str, _Object], tally: _Tally
    ) -> None:
        self._journal = journal
        self._prefix = thread_prefix(thread)
        self._objects = objects
        self._tally = tally
        # Tools of the newest reply's calls whose results have not come yet, in the order of the calls.
        self._tools: collections.deque[str] = collections.deque()

    async def run(self, head: SegmentRef) -> None:
        time_ms = None
        async for place, segment in self._journal.segments(head):
            if segment.entries:
                time_ms = segment.entries[-1].time_ms
            await self._add_segment(place, segment, time_ms)

    async def _add_segment(self, place: SegmentRef, segment: Segment, time_ms: int | None) -> None:
        replies = await self._read_calls(segment.entries)
        shares: collections.Counter[tuple[Cause, str, int]] = collections.Counter()
        for entry in segment.entries:
            tool = self._find_tool(entry, replies)
            cause = _CAUSES.get(entry.kind, Cause.JOURNAL)
            if entry.kind == Kind.COMPACTION:
                self._add_ref(_find_snapshot(entry), Cause.SNAPSHOTS, entry.time_ms)
            if edit := str((entry.data or {}).get("edit", "")):  # Arguments that a person changed.
                self._add(f"{self._prefix}{edit}.pack", Cause.JOURNAL, entry.time_ms)
            self._add_ref(entry.original, cause, entry.time_ms, tool)
            if entry.ref is None or entry.ref == place.ref:  # The body is in the segment.
                shares[cause, tool, entry.time_ms] += entry.size_bytes
            else:
                self._add_ref(entry.ref, cause, entry.time_ms, tool)
        self._divide(place.ref, shares, time_ms)

    def _divide(
        self, ref: Ref, shares: Mapping[tuple[Cause, str, int], int], time_ms: int | None
    ) -> None:
        """Divide a segment's stored bytes by its plaintext; what is left is bookkeeping."""
        stored = self._objects.pop(object_key(ref), None)
        if (
            stored is None
        ):  # Another thread's, which a fork shares; or freed, and kept in an archive.
            return
        plain_bytes = max(ref.size_bytes, sum(shares.values()), 1)
        left_bytes = stored.size_bytes
        for (cause, tool, entry_ms), size_bytes in shares.items():
            share_bytes = stored.size_bytes * size_bytes // plain_bytes
            self._tally.add(cause, share_bytes, entry_ms, tool)
            left_bytes -= share_bytes
        self._tally.add(
            Cause.JOURNAL, left_bytes, stored.modified_ms if time_ms is None else time_ms
        )

    def _add_ref(self, ref: Ref | None, cause: Cause, time_ms: int, tool: str = "") -> None:
        if ref is not None:
            self._add(object_key(ref), cause, time_ms, tool)

    def _add(self, key: str, cause: Cause, time_ms: int, tool: str = "") -> None:
        stored = self._objects.pop(key, None)
        if stored is not None:
            self._tally.add(cause, stored.size_bytes, time_ms, tool)

    async def _read_calls(self, entries: Sequence[Entry]) -> dict[int, list[str]]:
        """Return the tools that each reply calls, by the reply's seq."""
        replies = [each for each in entries if each.kind == Kind.REPLY]
        try:
            bodies = await self._journal.bodies(replies)
        except BlobMissing:  # The results then count for an unknown tool.
            return {}
        return {
            entry.seq: [call.tool for call in to_message(entry, body).tool_calls]
            for entry, body in zip(replies, bodies, strict=True)
        }

    def _find_tool(self, entry: Entry, replies: Mapping[int, list[str]]) -> str:
        """Return the tool of a result: results are journalled in the order of the reply's calls."""
        if entry.kind == Kind.REPLY:
            self._tools = collections.deque(replies.get(entry.seq, ()))
        if entry.kind != Kind.TOOL_RESULT:
            return ""
        return self._tools.popleft() if self._tools else _UNKNOWN_TOOL


def _find_snapshot(entry: Entry) -> Ref | None:
    try:
        return parse_compaction(entry).snapshot.ref
    except BlobMissing:  # A revived thread: the snapshot was gone before.
        return None


async def _add_others(
    packs: PackStore,
    thread: str,
    objects: Mapping[str, _Object],
    tally: _Tally,
) -> None:
    """Add the objects that the journal does not name: superseded pieces of it, and payloads."""
    small = (key for key, each in objects.items() if each.size_bytes <= _OPENED_BYTES_MAX)
    opened = list(itertools.islice(small, _OPENED_MAX))
    found = await gather_bounded([partial(_classify, packs, thread, key) for key in opened])
    causes = dict.fromkeys(objects, Cause.UNKNOWN) | dict(zip(opened, found, strict=True))
    for key, cause in causes.items():
        tally.add(cause, objects[key].size_bytes, objects[key].modified_ms)


async def _classify(packs: PackStore, thread: str, key: str) -> Cause:
    """Return what an object is by its head: only payloads have an envelope."""
    name = key.removeprefix(thread_prefix(thread)).removesuffix(".pack")
    try:
        pack = await packs.open(thread, bytes.fromhex(name))
    except (EverlongError, ValueError):
        return Cause.UNKNOWN
    return Cause.PAYLOADS if pack.envelope else Cause.SUPERSEDED
