"""Sweeps: finding what nothing reaches any more, and taking it away without haste.

The invariant: what any retained history, fork or schedule reaches is never deleted for good.
Marks may be wrong for a while, since others write meanwhile; what is deleted for good was found
unreachable twice, by an exact look the second time, with the time of the quarantine in between.
"""

from everlong.sweep.history_reader import Histories
from everlong.sweep.records import Records, record_seen
from everlong.sweep.sweep import ArchivedThreads, ArchiveHook, Progress, Sweep

__all__ = [
    "ArchiveHook",
    "ArchivedThreads",
    "Histories",
    "Progress",
    "Records",
    "Sweep",
    "record_seen",
]
