"""Options and report of a sweep."""

import dataclasses
from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from everlong.policy import Retention

SWEEP_REASONS_MAX: Final = 20
"""Reasons that a report gives for being incomplete; each has at most 400 characters."""
SWEEP_THREADS_MAX: Final = 50
"""Threads that a report names: those with the most bytes quarantined."""

_Who = Annotated[str, Field(max_length=64)]
_Why = Annotated[str, Field(max_length=300)]

SweepClass = Literal["payload", "journal", "archive", "unknown"]
"""Class of a stored object. An unknown object cannot be read; it is kept for the longest retention."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Argument of the `everlong.Sweeper` workflow."""

    retention: Retention = Retention()
    dry_run: bool = False
    """Report what would be deleted, and change nothing."""
    whole_store: bool = False
    """No other namespace and no other cluster writes to this store. Then threads that no sweep of this
    namespace has ever seen are swept too."""
    encodings: Annotated[tuple[str, ...], Field(max_length=32)] = ()
    """Encodings of a team's own converter that leave names in plain text."""
    by: _Who = ""
    """The requester, for the report; empty if unknown."""
    reason: _Why = ""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """A number of objects and their bytes."""

    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class SweptThread:
    """Objects of one thread that were quarantined, or would be."""

    thread: str
    """Its key in the store."""
    workflow_id: str = ""
    """Empty if it is no longer known."""
    quarantined: Tally = Tally()


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """Result of a sweep."""

    id: str
    started_ms: int
    seconds: float = 0.0
    dry_run: bool = False
    by: str = ""
    """The requester of the sweep or of its schedule; empty if unknown."""
    reason: str = ""
    clock_ahead_seconds: float = 0.0
    """How far the sweeper's clock was ahead of the store's, if by more than a minute. The sweep then
    used the store's clock, but the sweeper's should be corrected."""
    runs: int = 0
    """Runs that Temporal retains."""
    runs_read: int = 0
    """Runs whose history was read; the others have not changed."""
    packs_read: int = 0
    stored: Tally = Tally()
    """All objects of threads and archives that were listed."""
    reachable: Tally = Tally()
    archives: Tally = Tally()
    """Archives with their manifests, included in `stored`. Only their age counts."""
    foreign: Tally = Tally()
    """Objects of threads that no sweep of this namespace has seen: they may be another namespace's."""
    young: Tally = Tally()
    """Unreachable objects that are kept because they are not old enough."""
    quarantined: Tally = Tally()
    restored: Tally = Tally()
    purged: Tally = Tally()
    in_quarantine: Tally = Tally()
    """Copies in quarantine after the sweep, including those of this sweep."""
    classes: dict[SweepClass, Tally] = Field(default_factory=dict)
    """Quarantined objects by class."""
    threads: tuple[SweptThread, ...] = ()
    incomplete: tuple[str, ...] = ()
    """Reasons why nothing was deleted permanently: what could not be read, where, and what to do. The
    other counts have what was found before."""
    archived: int = 0
    """Threads that a limit had ended in order to be archived, and that this sweep archived first."""
    not_archived: tuple[str, ...] = ()
    """Threads that could not be archived, each with the reason. The next sweep tries again."""
    is_unfinished: bool = False
    """Whether the activity ended before the sweep did. The next activity continues it."""


def add_reports(first: SweepReport, then: SweepReport) -> SweepReport:
    """Return the report of a sweep that a second activity continued."""
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
