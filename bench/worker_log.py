"""Events in a worker's log, by which a benchmark's worker process reports to its parent."""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from typing import Final

_MARK: Final = "bench: "


@dataclasses.dataclass(frozen=True)
class Event:
    """One event, on one line of the log."""

    at: float
    """Unix time in seconds, by the clock that both processes share."""
    what: str
    """`ready`; `live` and `done` of a step; `put`, `get` and `head` of the store."""
    size: int
    """The step, or bytes."""


def write(what: str, size: int = 0) -> None:
    """Write an event with the current time."""
    line = _MARK + json.dumps({"at": time.time(), "what": what, "size": size})
    # One write, so that lines of several OS threads do not mix.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def format_line_end(what: str, size: int = 0) -> str:
    """Return the end of the line that `write` writes, to wait for it."""
    return f'"what": "{what}", "size": {size}}}'


def parse_events(log: str) -> Iterator[Event]:
    """Yield the events in a log, in order. Other lines are ignored."""
    for line in log.splitlines():
        if line.startswith(_MARK):
            yield Event(**json.loads(line.removeprefix(_MARK)))
