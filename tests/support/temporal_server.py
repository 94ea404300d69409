"""Temporal dev server of the tests: without disk syncs, with settings that take less CPU."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from everlong.embedded import TemporalServer, start_server
from everlong.testing.time_skip import SERVER_SETTINGS

QUICK_DELETES: Final = {
    "history.transferProcessorEnsureCloseBeforeDelete": "false",
    "history.visibilityProcessorEnsureCloseBeforeDelete": "false",
}
"""Server settings that delete a workflow within a second instead of half a minute."""
SINGLE_PARTITIONS: Final = {
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
}
"""Server settings for task queues of one partition: each worker of a test polls queues of its own, and
four partitions of each would be loaded, polled and unloaded for a few tasks."""
PAUSES: Final = {"frontend.WorkflowPauseEnabled": "true"}
"""Server settings that let an operator pause a workflow in Temporal itself."""
_SETTINGS: Final = {**QUICK_DELETES, **SINGLE_PARTITIONS, **PAUSES, **SERVER_SETTINGS}
# A garbage collection at five times the live heap, not twice; the limit bounds the heap of a server. One
# core: several servers share two, and a Go program spends CPU on looking for work on each of its cores.
_GO_RUNTIME: Final = {"GOGC": "400", "GOMEMLIMIT": "700MiB", "GOMAXPROCS": "1"}


def save_go_cpu() -> None:
    """Let the servers that this process starts, which are Go programs, take less CPU."""
    for name, value in _GO_RUNTIME.items():
        os.environ.setdefault(name, value)


async def start_test_server(folder: Path) -> TemporalServer:
    """Start a server with its data in a folder. The data is unreadable after a kill."""
    return await start_server(folder, dynamic_config=_SETTINGS, durable=False)


@contextlib.contextmanager
def run_test_server(folder: Path) -> Iterator[TemporalServer]:
    server = asyncio.run(start_test_server(folder))
    try:
        yield server
    finally:
        server.process.kill()  # Its data is not needed; an orderly stop takes over a second.
