"""What was noted of a run last: bounded, since runs come and go for as long as a process lives."""

import collections
import dataclasses
import threading
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_RUNS_MAX: Final = 10_000


@dataclasses.dataclass(frozen=True)
class ResumeSummary:
    """What a worker knows of the last resume of a run."""

    ms: float = 0.0
    cause: str = ""
    events: int = 0


class RecentRuns(Generic[T]):
    """The newest note of each of the runs that were noted last. Any OS thread may use it."""

    def __init__(self, runs_max: int = _RUNS_MAX) -> None:
        self._runs_max = runs_max
        self._notes: collections.OrderedDict[str, T] = collections.OrderedDict()
        self._lock = threading.Lock()

    def put(self, run_id: str, value: T) -> None:
        """Take note of something about a run."""
        with self._lock:
            self._notes[run_id] = value
            self._notes.move_to_end(run_id)
            if len(self._notes) > self._runs_max:
                self._notes.popitem(last=False)

    def pop(self, run_id: str) -> T | None:
        """Return what was noted of a run, once."""
        with self._lock:
            return self._notes.pop(run_id, None)
