"""Time series of one thread: stored bytes, context and resume times, sampled from its journal.

Every reply entry records the thread's sizes, so a few samples suffice: the number of entries read is
bounded, however long the journal is.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from temporalio.client import Client

from everlong.client.lookup import look_up
from everlong.models import Entry, seq_after
from everlong.storage.pack_store import PackStore, gather_bounded

POINTS_MAX: Final = 120
# Entries read for each sample. A step with one tool has two entries, so a window nearly always holds
# a reply.
_WINDOW_ENTRIES: Final = 8
# The newest entries are all read: for recent detail, and for resumes.
_RECENT_ENTRIES: Final = 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """Sizes of a thread at one model call."""

    seq: int
    time_ms: int
    step: int
    """Model calls before this one."""
    stored_bytes: int
    """Bytes that the thread had stored before this call."""
    context_bytes: int
    tokens: int = 0
    cost_usd: float = 0.0
    resume_ms: float = 0.0
    """Duration of the resume right before this call; 0 without one."""
    resume_cause: str = ""
    resume_events: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """Growth of a thread."""

    points: tuple[Point, ...]
    """Oldest first."""
    resumes: tuple[Point, ...]
    """Points among the newest entries that follow a resume, oldest first."""
    entries: int
    """Number of entries in the journal."""
    is_sampled: bool
    """Whether points were left out."""


async def load_series(
    client: Client, packs: PackStore, thread_id: str, *, points_max: int = POINTS_MAX
) -> Series:
    """Load the growth of a thread: about `points_max` points at most, evenly spread over its life."""
    found = await look_up(client, packs, thread_id)
    journal, head = found.journal, found.head
    if head is None:
        return Series(points=(), resumes=(), entries=0, is_sampled=False)
    last_seq = seq_after(head) - 1
    recent_seq = max(1, last_seq - _RECENT_ENTRIES + 1)
    # Before the samples, not with them: it fills the cache with the folds that they need.
    recent = extract_points(await journal.read(head, recent_seq, last_seq))
    windows = await gather_bounded(
        [
            partial(journal.read, head, seq, min(seq + _WINDOW_ENTRIES, recent_seq) - 1)
            for seq in choose_samples(recent_seq - 1, points_max // 2)
        ]
    )
    older = [point for window in windows for point in extract_points(window)[:1]]
    newer = thin_points(recent, max(1, points_max - len(older)))
    return Series(
        points=drop_parent_points([*older, *newer]),
        resumes=tuple(point for point in drop_parent_points(recent) if point.resume_ms),
        entries=last_seq,
        is_sampled=recent_seq > 1 or len(newer) < len(recent),
    )


def choose_samples(last_seq: int, count: int) -> list[int]:
    """Return at most `count` seqs to sample, evenly spread over 1 to `last_seq`."""
    step = max(_WINDOW_ENTRIES, -(-last_seq // max(1, count)))
    return list(range(1, last_seq + 1, step))


def extract_points(entries: Iterable[Entry]) -> list[Point]:
    """Return one point for each reply."""
    return [
        Point(
            seq=entry.seq,
            time_ms=entry.time_ms,
            step=entry.step.number,
            stored_bytes=entry.step.thread_bytes,
            context_bytes=entry.step.context_bytes,
            tokens=entry.tokens,
            cost_usd=entry.cost_usd,
            resume_ms=entry.step.resume_ms,
            resume_cause=entry.step.resume_cause,
            resume_events=entry.step.resume_events,
        )
        for entry in entries
        if entry.step is not None
    ]


def drop_parent_points(points: Sequence[Point]) -> tuple[Point, ...]:
    """Drop a fork's points that belong to the thread it was forked from.

    Step numbers only grow within a thread, and a fork counts from 0 again.
    """
    begins = [at for at in range(1, len(points)) if points[at].step <= points[at - 1].step]
    return tuple(points[begins[-1] :] if begins else points)


def thin_points(points: Sequence[Point], count: int) -> list[Point]:
    """Return at most `count` points, evenly spread, the newest always included."""
    if len(points) <= count:
        return list(points)
    step = len(points) / count
    return [points[len(points) - 1 - int(number * step)] for number in reversed(range(count))]
