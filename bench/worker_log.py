"""What a worker of the benchmark tells the process that started it: lines in its log."""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from typing import Final

_MARK: Final = "bench: "


@dataclasses.dataclass(frozen=True)
class Event:
    """One line."""

    at: float
    """Seconds of the machine's clock, which both processes share."""
    what: str
    """`ready`; `live` and `done` of a step; `put`, `get` and `head` of the store."""
    size: int
    """The step, or bytes."""


def write(what: str, size: int = 0) -> None:
    """Say that something has happened just now."""
    line = _MARK + json.dumps({"at": time.time(), "what": what, "size": size})
    # One write: lines of several threads do not mix.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def line_ending(what: str, size: int = 0) -> str:
    """Return the end of the line that `tell` writes, to wait for it."""
    return f'"what": "{what}", "size": {size}}}'


def parse_events(log: str) -> Iterator[Event]:
    """Yield what a worker has told, in order. Other lines of the log are passed over."""
    for line in log.splitlines():
        if line.startswith(_MARK):
            yield Event(**json.loads(line.removeprefix(_MARK)))
