"""Candidates: which objects a sweep may quarantine, restore, and delete, by the marks in its index.

- **Quarantine:** an unreachable object of a thread that the namespace owns, once it is older than the
  time that its class is kept (`Retention`). While its class is not known, it is a candidate after
  the shortest time, and `is_old_enough` decides once it was read.
- **Restore:** a reachable object that is in quarantine only.
- **Delete:** a copy whose quarantine period is over. A copy of an unreachable object is deleted
  only after an exact mark; a copy of a reachable one, when the object is in its place.
"""

from typing import Final, NamedTuple

from everlong import limits
from everlong.policy import Retention
from everlong.storage import quarantine
from everlong.sweep.index import SweepIndex

# A plus keeps SQLite from using the column's index: these statements go by key, batch after batch, and
# would otherwise sort the whole table for each batch.
_UNREACHED: Final = (
    "+name NOT IN (SELECT name FROM marked) AND +thread IN (SELECT thread FROM owned)"
)
# Copies of reachable objects: the newest copy of each object that is not in its place, and copies whose
# quarantine period is over.
_NEEDED: Final = """
SELECT key, original, quarantined_ms, size_bytes, thread, name, quarantined_ms <= :oldest AS is_old
FROM copies WHERE key > :after AND +name IN (SELECT name FROM marked) AND (is_old OR (
    original NOT IN (SELECT key FROM objects)
    AND key = (SELECT MAX(each.key) FROM copies AS each WHERE each.original = copies.original)))
ORDER BY key LIMIT :count
"""
_CANDIDATES: Final = f"""
SELECT key, thread, name, size_bytes, modified_ms, class FROM objects
WHERE key > :after AND {_UNREACHED} AND modified_ms <= CASE class
    WHEN 'payload' THEN :payload WHEN 'journal' THEN :journal WHEN 'archive' THEN :archive
    WHEN 'unknown' THEN :unknown ELSE :first END
ORDER BY key LIMIT :count
"""  # noqa: S608 - of constants
# Without copies of trees in which an activity has been running since before the copy was made: the
# activity may still return the name of an object that it wrote.
_OLD_COPIES: Final = f"""
SELECT key, size_bytes FROM copies WHERE key > ? AND {_UNREACHED} AND quarantined_ms <= ?
AND NOT EXISTS (
    SELECT 1 FROM held WHERE since_ms <= quarantined_ms AND root IN (
        SELECT root FROM runs WHERE runs.thread = copies.thread
        UNION SELECT root FROM threads WHERE threads.thread = copies.thread))
ORDER BY key LIMIT ?
"""  # noqa: S608 - of constants


class Candidate(NamedTuple):
    """An unreachable object that may be old enough for quarantine."""

    key: str
    thread: str
    name: bytes
    size_bytes: int
    modified_ms: int
    kind: str
    """Class of the object; empty if it is not known yet."""


class Needed(NamedTuple):
    """A copy of a reachable object."""

    copy: quarantine.Copy
    thread: str
    name: bytes
    is_old: bool

    @property
    def size_bytes(self) -> int:
        """Size of the copy."""
        return self.copy.size_bytes


class CandidateFinder:
    """Finds the candidates in the index, batch after batch in the order of their keys."""

    def __init__(self, index: SweepIndex, retention: Retention) -> None:
        self._index = index
        self._retention = retention

    def find_unreachable(self, after: str, now_ms: int) -> list[Candidate]:
        """Return the next objects to quarantine, after a key."""
        kept = self._retention
        both = (kept.payload_seconds, kept.journal_seconds)
        values = {
            "after": after,
            "payload": _compute_limit_ms(now_ms, kept.payload_seconds),
            "journal": _compute_limit_ms(now_ms, kept.journal_seconds),
            "archive": _compute_limit_ms(now_ms, kept.archive_seconds),
            "unknown": _compute_limit_ms(now_ms, max(both)),
            "first": _compute_limit_ms(now_ms, min(both)),
            "count": limits.SWEEP_BATCH,
        }
        return [Candidate(*row) for row in self._index.run_named(_CANDIDATES, values)]

    def is_old_enough(self, candidate: Candidate, kind: str, now_ms: int) -> bool:
        """Return whether an object of this class may be quarantined now."""
        return self._find_written_ms(candidate) <= self._find_limit_ms(kind, now_ms)

    def _find_written_ms(self, candidate: Candidate) -> int:
        """Return when an object was written. The age of an archive's file counts from its manifest."""
        stem, _, end = candidate.key.rpartition(".")
        manifest_ms = None
        if end == "parquet":
            statement = "SELECT modified_ms FROM objects WHERE key = ?"
            manifest_ms = self._index.scalar(statement, f"{stem}.json")
        return max(candidate.modified_ms, manifest_ms or 0)

    def _find_limit_ms(self, kind: str, now_ms: int) -> int:
        kept = self._retention
        by_class: dict[str, float | None] = {
            "payload": kept.payload_seconds,
            "journal": kept.journal_seconds,
            "archive": kept.archive_seconds,
        }
        longest = max(kept.payload_seconds, kept.journal_seconds)
        return _compute_limit_ms(now_ms, by_class.get(kind, longest))

    def find_needed(self, after: str, now_ms: int) -> list[Needed]:
        """Return the next copies of reachable objects, after a key: missing objects, and old copies."""
        values = {"oldest": self.get_oldest_ms(now_ms), "after": after, "count": limits.SWEEP_BATCH}
        rows = self._index.run_named(_NEEDED, values)
        return [Needed(quarantine.Copy(*row[:4]), *row[4:]) for row in rows]

    def find_old_copies(self, after: str, now_ms: int, count: int) -> list[tuple[str, int]]:
        """Return the next copies of unreachable objects to delete, after a key: keys and sizes."""
        return self._index.run(_OLD_COPIES, after, self.get_oldest_ms(now_ms), count)

    def has_old_copies(self, now_ms: int) -> bool:
        """Return whether there is a copy to delete permanently, by the current marks."""
        return bool(self.find_old_copies("", now_ms, 1))

    def get_oldest_ms(self, now_ms: int) -> int:
        """Return the newest quarantine time of copies whose period is over."""
        return _compute_limit_ms(now_ms, self._retention.quarantine_seconds)


def _compute_limit_ms(now_ms: int, seconds: float | None) -> int:
    """Return the newest time of an object that is old enough; -1 if objects are kept forever."""
    return -1 if seconds is None else int(now_ms - 1000 * seconds)
