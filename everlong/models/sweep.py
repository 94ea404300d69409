"""What a sweep is asked for, and what it reports."""

import dataclasses
from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from everlong.policy import Retention

SWEEP_REASONS_MAX: Final = 20
"""Reasons that a report gives for being incomplete; each has at most 400 characters."""
SWEEP_THREADS_MAX: Final = 50
"""Threads that a report names: those of which most would go, or went."""

_Who = Annotated[str, Field(max_length=64)]
_Why = Annotated[str, Field(max_length=300)]

SweepClass = Literal["payload", "journal", "archive", "unknown"]
"""Of a stored object. Unknown is what cannot be read; it is kept for the longest of the times."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Argument of the `everlong.Sweeper` workflow."""

    retention: Retention = Retention()
    dry_run: bool = False
    """Tell what would go, and change nothing."""
    whole_store: bool = False
    """Nobody else writes to this store: no other namespace and no other cluster. Then also threads go
    that no sweep of this namespace has ever seen alive."""
    encodings: Annotated[tuple[str, ...], Field(max_length=32)] = ()
    """Encodings of a team's own converter, in which a name can be read as it stands."""
    by: _Who = ""
    """Who asks for it, for the report, where that is known."""
    reason: _Why = ""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """A number of objects, and what they take."""

    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class SweptThread:
    """What went of one thread, or would go."""

    thread: str
    """Its key in the store."""
    workflow_id: str = ""
    """Empty where it is not known any more."""
    quarantined: Tally = Tally()


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """Result of a sweep."""

    id: str
    started_ms: int
    seconds: float = 0.0
    dry_run: bool = False
    by: str = ""
    """Who asked for it, or for the schedule by which it ran; empty where that is not known."""
    reason: str = ""
    clock_ahead_seconds: float = 0.0
    """How far the sweeper's clock was ahead of the store's, if by more than a minute. Then the store's
    counted, but that clock should be set."""
    runs: int = 0
    """Runs that Temporal keeps."""
    runs_read: int = 0
    """Runs of whose history something was read; the others have not changed."""
    packs_read: int = 0
    stored: Tally = Tally()
    """All objects of threads and archives that were listed."""
    reachable: Tally = Tally()
    archives: Tally = Tally()
    """Of what is stored: archives, with their manifests. Only their age counts."""
    foreign: Tally = Tally()
    """In places of threads that no sweep of this namespace has seen: they may be another one's."""
    young: Tally = Tally()
    """Not reachable, and kept since it is not old enough."""
    quarantined: Tally = Tally()
    restored: Tally = Tally()
    purged: Tally = Tally()
    in_quarantine: Tally = Tally()
    """What lies there afterwards, with what this sweep has put there."""
    classes: dict[SweepClass, Tally] = Field(default_factory=dict)
    """What was quarantined, by class."""
    threads: tuple[SweptThread, ...] = ()
    incomplete: tuple[str, ...] = ()
    """Why nothing was deleted for good: what could not be read, of what, and what to do. What was found
    before that is in the other counts."""
    archived: int = 0
    """Threads that a limit had ended to be archived, and that were archived first."""
    not_archived: tuple[str, ...] = ()
    """Those that could not be, and why. They are due again the next time."""
    is_unfinished: bool = False
    """Whether the activity ended before the sweep did. The next activity goes on."""


def add_reports(first: SweepReport, then: SweepReport) -> SweepReport:
    """Return the report of a sweep that a second activity went on with."""
    return dataclasses.replace(
        then,
        started_ms=first.started_ms,
        seconds=round(first.seconds + then.seconds, 3),
        runs_read=first.runs_read + then.runs_read,
        packs_read=first.packs_read + then.packs_read,
        quarantined=_add(first.quarantined, then.quarantined),
        restored=_add(first.restored, then.restored),
        purged=_add(first.purged, then.purged),
        classes={
            each: _add(first.classes.get(each, Tally()), then.classes.get(each, Tally()))
            for each in {**first.classes, **then.classes}
        },
        archived=first.archived + then.archived,
    )


def _add(one: Tally, other: Tally) -> Tally:
    return Tally(objects=one.objects + other.objects, bytes=one.bytes + other.bytes)
