"""Recent resumes by run: a bounded map, since a process sees new runs for as long as it lives."""

import collections
import dataclasses
import threading
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_RUNS_MAX: Final = 10_000


@dataclasses.dataclass(frozen=True)
class ResumeSummary:
    """Duration, cause and replayed events of a run's last resume."""

    ms: float = 0.0
    cause: str = ""
    events: int = 0


class RecentRuns(Generic[T]):
    """One value for each of the most recent runs. Safe to use from any OS thread."""

    def __init__(self, runs_max: int = _RUNS_MAX) -> None:
        self._runs_max = runs_max
        self._notes: collections.OrderedDict[str, T] = collections.OrderedDict()
        self._lock = threading.Lock()

    def put(self, run_id: str, value: T) -> None:
        """Set the value of a run. The least recently set run is dropped if the map is full."""
        with self._lock:
            self._notes[run_id] = value
            self._notes.move_to_end(run_id)
            if len(self._notes) > self._runs_max:
                self._notes.popitem(last=False)

    def pop(self, run_id: str) -> T | None:
        """Remove and return the value of a run; None if it has none."""
        with self._lock:
            return self._notes.pop(run_id, None)
