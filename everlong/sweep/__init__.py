"""Sweeps: garbage collection of stored objects that nothing reaches any more.

Invariant: an object that any retained history, fork or schedule reaches is never deleted permanently.
Marks may be wrong for a while, since workers write during a sweep. So an object is deleted permanently
only after it was found unreachable twice, the second time by an exact mark, with the quarantine period
in between.
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
