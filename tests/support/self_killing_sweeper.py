"""Sweeper process that kills itself.

It dies at the n-th call of a phase, before or after the call, and records which one it was. If it
survives the sweep, it records how many calls each phase had.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from everlong import EverlongPlugin
from everlong.errors import ServerUnreachable
from everlong.models import SweepOptions
from everlong.policy import Retention
from everlong.storage.base import BlobInfo
from everlong.storage.file import FileBlobStore
from everlong.storage.pack_store import open_packs
from everlong.sweep import Histories, Sweep
from everlong.sweep.history_reader import Run, RunDescription

# Encoders forget within 3 s, and a quarantine is longer than that and than any call takes.
QUARANTINE_SECONDS = 12.0
SHORT = Retention(payload_seconds=0, journal_seconds=0, quarantine_seconds=QUARANTINE_SECONDS)
CUT_OFF = 3
"""Exit code if the server did not answer in time."""
PHASES = (
    *("listing", "marking", "restore", "log", "read", "copy", "read back", "delete"),
    *("exact mark", "purge", "records"),
)
"""Steps of a sweep. Records are which threads are whose, and reports."""


class KillSwitch:
    """Counts calls by phase, and kills the process at one of them."""

    def __init__(self, record: Path, phase: str, number: int, *, after: bool) -> None:
        self._record = record
        self.calls: Counter[str] = Counter()
        self._end = (phase, number)
        self._after = after
        self._marks = 0
        self._action = ""
        self._copied: set[str] = set()

    def marks(self) -> None:
        """Note that a mark begins: the runs are listed."""
        self._marks += 1

    def before(self, phase: str) -> bool:
        """Count a call; return whether the process dies after it."""
        self.calls[phase] += 1
        if (phase, self.calls[phase]) != self._end:
            return False
        if not self._after:
            self.die()
        return True

    def die(self) -> None:
        self.write_record({"died": self._end[0]})
        os.kill(os.getpid(), signal.SIGKILL)

    def write_record(self, what: object) -> None:
        self._record.write_text(json.dumps(what))

    @property
    def mark(self) -> str:
        return "marking" if self._marks <= 1 else "exact mark"

    def phase_of(self, call: str, key: str, data: bytes = b"") -> str:
        """Return the phase of a call to the store."""
        if key.startswith("sweep/"):
            if "/log/" in key and call == "put":
                self._action = json.loads(data)["action"]
                return "log"
            return "records"
        if call == "put":
            if not key.startswith("quarantine/"):
                return "restore"
            self._copied.add(key)
            return "copy"
        if call == "delete":
            is_copy = key.startswith("quarantine/")
            return ("purge" if self._action == "purge" else "restore") if is_copy else "delete"
        if key.startswith("quarantine/"):
            return "read back" if key in self._copied else "restore"
        return {"quarantine": "read", "restore": "restore"}.get(self._action, self.mark)


class MortalStore(FileBlobStore):
    """File store whose calls are counted."""

    kill_switch: KillSwitch | None = None

    def _begin(self, call: str, key: str, data: bytes = b"") -> bool:
        if self.kill_switch is None:
            return False
        return self.kill_switch.before(self.kill_switch.phase_of(call, key, data))

    def _end(self, is_last: bool) -> None:
        if is_last and self.kill_switch is not None:
            self.kill_switch.die()

    async def put(self, key: str, data: bytes) -> None:
        is_last = self._begin("put", key, data)
        await super().put(key, data)
        self._end(is_last)

    async def get(self, key: str) -> bytes:
        is_last = self._begin("get", key)
        data = await super().get(key)
        self._end(is_last)
        return data

    async def get_bounded(self, key: str, bytes_max: int) -> bytes:
        is_last = self._begin("get", key)
        data = await super().get_bounded(key, bytes_max)
        self._end(is_last)
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        is_last = self._begin("get", key)
        data = await super().get_range(key, start, length)
        self._end(is_last)
        return data

    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:  # One by one: a bulk delete may be cut off as well.
            is_last = self._begin("delete", key)
            await super().delete([key])
            self._end(is_last)

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        async for info in super().list(prefix):
            if self.kill_switch is not None and prefix in ("v1/", "archive/", "quarantine/"):
                self._end(self.kill_switch.before("listing"))
            yield info


class MortalHistories(Histories):
    """Histories whose calls are counted."""

    def __init__(self, client: Client, kill_switch: KillSwitch) -> None:
        super().__init__(client)
        self._kill_switch = kill_switch

    async def list_runs(self) -> AsyncIterator[list[Run]]:
        self._kill_switch.marks()
        async for page in super().list_runs():
            self._call()
            yield page

    async def describe_run(self, workflow_id: str, run_id: str) -> RunDescription | None:
        self._call()
        return await super().describe_run(workflow_id, run_id)

    async def read_events(
        self, workflow_id: str, run_id: str, after: int
    ) -> AsyncIterator[list[HistoryEvent]]:
        async for page in super().read_events(workflow_id, run_id, after):
            self._call()
            yield page

    def _call(self) -> None:
        if self._kill_switch.before(self._kill_switch.mark):
            self._kill_switch.die()


async def _sweep(address: str, root: Path, index_dir: Path, kill_switch: KillSwitch) -> None:
    store = MortalStore(root / "blobs")
    client = await Client.connect(address, plugins=[EverlongPlugin(store=store)])
    store.kill_switch = kill_switch
    await Sweep(
        MortalHistories(client, kill_switch),
        client.data_converter.payload_codec,
        open_packs(store),
        SweepOptions(retention=SHORT, whole_store=True),
        index_dir=index_dir,
        allow_short_quarantine=True,
    ).run()
    kill_switch.write_record({"calls": kill_switch.calls})


def sweep_once(
    address: str, root: Path, index_dir: Path, record: Path, phase: str, number: int, after: bool
) -> None:
    """Sweep once; die at the given call of a phase, if the sweep makes that many."""
    kill_switch = KillSwitch(record, phase, number, after=after)
    try:
        asyncio.run(_sweep(address, root, index_dir, kill_switch))
    except ServerUnreachable:
        sys.exit(CUT_OFF)
