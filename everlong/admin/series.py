"""How a thread's size has grown, and what its resumes took, from samples of its journal.

Every reply says how large the thread was, so a few of them are enough: what is read has a bound, however
long the journal is.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from temporalio.client import Client

from everlong.client.lookup import standing
from everlong.models import Entry, seq_after
from everlong.storage.pack_store import PackStore, gathered

POINTS_MAX: Final = 120
# Read around each sample. A step with one tool has two entries, so this holds a reply nearly always.
_WINDOW_ENTRIES: Final = 8
# The newest entries are read all: for what happened lately, and for resumes.
_RECENT_ENTRIES: Final = 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A thread at one of its model calls."""

    seq: int
    time_ms: int
    step: int
    """Model calls before this one."""
    stored_bytes: int
    """Stored by the thread before it."""
    context_bytes: int
    tokens: int = 0
    cost_usd: float = 0.0
    resume_ms: float = 0.0
    """What the resume right before it took; 0 if there was none."""
    resume_cause: str = ""
    resume_events: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """How a thread has grown."""

    points: tuple[Point, ...]
    """Oldest first."""
    resumes: tuple[Point, ...]
    """Those of the newest entries that came after a resume, oldest first."""
    entries: int
    """How many the journal holds."""
    is_sampled: bool
    """Whether there are more points than these."""


async def load_series(
    client: Client, packs: PackStore, thread_id: str, *, points_max: int = POINTS_MAX
) -> Series:
    """Return how a thread has grown: at most about `points_max` points, evenly spread over its life."""
    found = await standing(client, packs, thread_id)
    journal, head = found.journal, found.head
    if head is None:
        return Series(points=(), resumes=(), entries=0, is_sampled=False)
    last_seq = seq_after(head) - 1
    recent_seq = max(1, last_seq - _RECENT_ENTRIES + 1)
    # First, alone: the samples then find the folds that it has read in the cache.
    recent = points_of(await journal.read(head, recent_seq, last_seq))
    windows = await gathered(
        [
            partial(journal.read, head, seq, min(seq + _WINDOW_ENTRIES, recent_seq) - 1)
            for seq in sample_seqs(recent_seq - 1, points_max // 2)
        ]
    )
    older = [point for window in windows for point in points_of(window)[:1]]
    newer = thinned(recent, max(1, points_max - len(older)))
    return Series(
        points=own([*older, *newer]),
        resumes=tuple(point for point in own(recent) if point.resume_ms),
        entries=last_seq,
        is_sampled=recent_seq > 1 or len(newer) < len(recent),
    )


def sample_seqs(last_seq: int, count: int) -> list[int]:
    """Return where to look in the entries 1 to `last_seq`: at most `count` places, evenly spread."""
    step = max(_WINDOW_ENTRIES, -(-last_seq // max(1, count)))
    return list(range(1, last_seq + 1, step))


def points_of(entries: Iterable[Entry]) -> list[Point]:
    """Return a point for each reply."""
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


def own(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points of the thread itself. Of a fork, those before it are the other thread's.

    Steps only grow within a thread, and are counted anew in a fork.
    """
    begins = [at for at in range(1, len(points)) if points[at].step <= points[at - 1].step]
    return tuple(points[begins[-1] :] if begins else points)


def thinned(points: Sequence[Point], count: int) -> list[Point]:
    """Return at most `count` of the points, evenly spread, the newest always among them."""
    if len(points) <= count:
        return list(points)
    step = len(points) / count
    return [points[len(points) - 1 - int(number * step)] for number in reversed(range(count))]
