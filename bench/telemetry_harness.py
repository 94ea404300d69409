"""A harness with the workers of `everlong worker`, which export telemetry by their environment."""

import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from temporalio.client import Client

from bench.thread_agent import GATE
from bench.thread_harness import ThreadHarness
from everlong import EverlongPlugin
from everlong.config import drop_temporal_variables
from everlong.embedded import ManagedProcess
from everlong.worker_options import READY

ROOT: Final = Path(__file__).parents[1]
_READY_SECONDS_MAX: Final = 60.0


class TelemetryHarness(ThreadHarness):
    """One task queue, whose workers get the variables of `exports`."""

    exports: Mapping[str, str] = {}

    async def start_worker(self, sticky_seconds: str = "") -> ManagedProcess:
        """Start another worker, as `everlong worker` does; return once it polls."""
        if sticky_seconds:
            raise ValueError("workers of this harness use the plugin's sticky timeout")
        environment = {
            **build_child_environment(),
            "TEMPORAL_ADDRESS": self._address,
            "EVERLONG_STORE": self._store_url,
            "EVERLONG_TASK_QUEUE": self.queue,
            GATE: str(self.gate),
            **self.exports,
        }
        name = f"{self.queue}-{len(self.workers)}"
        arguments = [sys.executable, "-m", "bench.telemetry_worker"]
        worker = ManagedProcess(name, arguments, env=environment, log=self._folder / f"{name}.log")
        self.workers.append(worker)
        await worker.wait_for_output(READY, _READY_SECONDS_MAX)
        return worker


def build_child_environment() -> dict[str, str]:
    """Return the environment for a child process, without variables of OpenTelemetry and Everlong."""
    kept = {
        key: value
        for key, value in drop_temporal_variables().items()
        if not key.startswith(("OTEL_", "EVERLONG_"))
    }
    return {**kept, "PYTHONPATH": str(ROOT)}


@contextlib.asynccontextmanager
async def open_telemetry_harness(
    address: str, folder: Path, exports: Mapping[str, str]
) -> AsyncIterator[TelemetryHarness]:
    """Open a harness with its own store; its workers are stopped on exit."""
    url = (folder / f"blobs-{uuid.uuid4().hex[:8]}").as_uri()
    client = await Client.connect(address, plugins=[EverlongPlugin(store=url)])
    harness = TelemetryHarness(client, address, url, folder)
    harness.exports = exports
    try:
        yield harness
    finally:
        harness.stop_workers()


def cpu_seconds(process: ManagedProcess) -> float:
    """Return the CPU time of a process, user and system."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
