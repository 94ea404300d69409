"""Many threads at once on one worker, against a plain list-passing loop, and a storm of resumes.

`make bench-load`. Both kinds take turns on the same server, each on its own worker process. Then the
worker of the threads is killed, a new one starts, and each thread gets one message at the same moment.
At the end both kinds run at the same time, with half of the threads each: a machine whose speed changes
from minute to minute slows both down alike, so the ratio of their CPU times varies little.
"""

import argparse
import asyncio
import dataclasses
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from temporalio.api.enums.v1 import TimeoutType
from temporalio.client import Client

from bench import worker_log
from bench.load_worker import AGENT, PLAIN_LOOP
from bench.report import Report, Series, finish, machine
from everlong import EverlongPlugin
from everlong.client.wait import ask as ask_thread
from everlong.config import drop_temporal_variables
from everlong.embedded import ManagedProcess, TemporalServer, start_server

_ROOT: Final = Path(__file__).parents[1]
_READY_SECONDS_MAX: Final = 60.0
_TURN_SECONDS_MAX: Final = 900.0
# Number of storms, and of runs of both kinds at once, which vary less than turns do.
_REPEATS_MAX: Final = 2
_TASK_SECONDS: Final = 10.0
"""The server's default workflow task timeout."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Load:
    """Figures of one kind of worker in one turn."""

    seconds: float
    cpu_seconds: float
    """CPU of the worker process."""
    caller_seconds: float
    """CPU of the calling process."""
    server_seconds: float
    """CPU of the server; for both kinds together where they run at the same time."""
    memory_bytes: int
    """The worker's largest resident size."""
    calls: int
    """Model calls."""
    failed: int = 0
    """Callers that got an error."""

    @property
    def calls_per_second(self) -> float:
        """Model calls a second, over all threads."""
        return self.calls / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU of the worker for each model call, in milliseconds."""
        return 1000 * self.cpu_seconds / self.calls

    @property
    def all_cpu_ms(self) -> float:
        """CPU of worker, caller and server for each model call, in milliseconds."""
        return 1000 * (self.cpu_seconds + self.caller_seconds + self.server_seconds) / self.calls


@dataclasses.dataclass(frozen=True)
class Tasks:
    """The workflow tasks of a storm, from histories."""

    count: int
    timed_out: int
    """Tasks that a worker took but did not complete in time."""
    sticky: int
    """Tasks that timed out waiting for the killed worker, or for a slot."""
    slowest_seconds: float


class ThreadHarness:
    """A server, a store and the workers of one benchmark."""

    def __init__(self, server: TemporalServer, folder: Path, options: Sequence[str] = ()) -> None:
        self.address = server.address
        self.server_pid = server.process.pid
        self.options = options
        self.folder = folder
        self.store_url = (folder / "blobs").as_uri()
        self.workers: list[ManagedProcess] = []

    async def start_worker(self, kind: str, queue: str) -> ManagedProcess:
        """Start a worker process; return once it polls."""
        name = f"{kind}-{len(self.workers)}"
        worker = ManagedProcess(
            name,
            [
                *(sys.executable, "-m", "bench.load_worker"),
                *(self.address, queue, kind, self.store_url, *self.options),
            ],
            env={**drop_temporal_variables(), "PYTHONPATH": str(_ROOT)},
            log=self.folder / f"{name}.log",
        )
        self.workers.append(worker)
        await worker.wait_for_output(worker_log.format_line_end("ready"), _READY_SECONDS_MAX)
        return worker

    def stop(self) -> None:
        """Stop all workers."""
        for worker in self.workers:
            worker.stop()


async def measure_load(
    harness: ThreadHarness,
    worker: ManagedProcess,
    ask: Callable[[int], Awaitable[object]],
    threads: int,
    calls: int,
) -> Load:
    """Send a message to all threads at once; return the figures."""
    cpu_seconds, caller_seconds = _read_cpu_seconds(worker.pid), time.process_time()
    server_seconds = _read_cpu_seconds(harness.server_pid)
    started = time.monotonic()
    async with asyncio.timeout(_TURN_SECONDS_MAX):
        answers = await asyncio.gather(*map(ask, range(threads)), return_exceptions=True)
    seconds = time.monotonic() - started
    failures = [each for each in answers if isinstance(each, BaseException)]
    for each in failures[:3]:
        print(f"failed: {type(each).__name__}: {each}", file=sys.stderr)  # noqa: T201
    return Load(
        seconds=seconds,
        cpu_seconds=_read_cpu_seconds(worker.pid) - cpu_seconds,
        caller_seconds=time.process_time() - caller_seconds,
        server_seconds=_read_cpu_seconds(harness.server_pid) - server_seconds,
        memory_bytes=_read_memory_bytes(worker.pid),
        calls=calls * threads,
        failed=len(failures),
    )


async def measure(
    server: TemporalServer,
    folder: Path,
    *,
    threads: int,
    steps: int,
    turns: int,
    options: Sequence[str] = (),
) -> list[Report]:
    """Measure both kinds in turns, then the storm."""
    harness = ThreadHarness(server, folder, options)
    plain = await Client.connect(server.address)
    plugin = EverlongPlugin(store=harness.store_url)
    client = await Client.connect(server.address, plugins=[plugin])
    loads: dict[str, list[Load]] = {"plain": [], "everlong": []}
    storms: list[tuple[Load, Tasks]] = []
    tasks: dict[str, list[Tasks]] = {"plain": [], "everlong": []}
    try:
        for turn in range(turns):
            kinds = ("plain", "everlong") if turn % 2 == 0 else ("everlong", "plain")
            for kind in kinds:
                queue = f"load-{kind}-{uuid.uuid4().hex[:8]}"
                worker = await harness.start_worker(kind, queue)
                if kind == "plain":
                    ask = _make_plain_caller(plain, queue, steps)
                else:
                    ask = _make_caller(client, plugin, queue, f"read {steps}")
                begun_ms = time.time_ns() // 1_000_000
                loads[kind].append(await measure_load(harness, worker, ask, threads, steps + 1))
                worker.kill()
                ids = [f"{queue}-{each}" for each in range(threads)]
                tasks[kind].append(await _read_tasks(client, ids, begun_ms))
                if kind == "everlong" and turn < _REPEATS_MAX:
                    storms.append(await _run_storm(harness, client, plugin, queue, threads))
                harness.stop()
        pairs = [
            await _run_side_by_side(harness, plain, client, plugin, threads // 2, steps)
            for _ in range(min(turns, _REPEATS_MAX))
        ]
    finally:
        harness.stop()
    return [
        _load_report(threads, steps, loads, tasks),
        _report_side_by_side(threads // 2, pairs),
        _report_storm(threads, storms),
    ]


async def _run_side_by_side(
    harness: ThreadHarness,
    plain: Client,
    client: Client,
    plugin: EverlongPlugin,
    threads: int,
    steps: int,
) -> tuple[Load, Load]:
    """Run both kinds at the same time; return the figures of each."""
    queue = f"load-pair-{uuid.uuid4().hex[:8]}"
    queues = f"{queue}-plain", f"{queue}-everlong"
    workers = [
        await harness.start_worker(kind, each)
        for kind, each in zip(("plain", "everlong"), queues, strict=True)
    ]
    pair = await asyncio.gather(
        measure_load(
            harness, workers[0], _make_plain_caller(plain, queues[0], steps), threads, steps + 1
        ),
        measure_load(
            harness,
            workers[1],
            _make_caller(client, plugin, queues[1], f"read {steps}"),
            threads,
            steps + 1,
        ),
    )
    harness.stop()
    return pair


def _make_plain_caller(
    client: Client, queue: str, steps: int
) -> Callable[[int], Awaitable[object]]:
    async def ask(number: int) -> object:
        return await client.execute_workflow(
            PLAIN_LOOP, f"read {steps}", id=f"{queue}-{number}", task_queue=queue
        )

    return ask


def _make_caller(
    client: Client, plugin: EverlongPlugin, queue: str, text: str
) -> Callable[[int], Awaitable[object]]:
    async def ask(number: int) -> object:
        return await ask_thread(
            client,
            plugin.packs,
            f"{queue}-{number}",
            text,
            task_queue=queue,
            agent=AGENT,
            on_wait=lambda _: None,  # The worker is busy on purpose.
        )

    return ask


async def _run_storm(
    harness: ThreadHarness, client: Client, plugin: EverlongPlugin, queue: str, threads: int
) -> tuple[Load, Tasks]:
    """Start a worker with empty caches, and send one message to each thread at once."""
    begun_ms = time.time_ns() // 1_000_000
    worker = await harness.start_worker("everlong", queue)
    load = await measure_load(
        harness, worker, _make_caller(client, plugin, queue, "read 0"), threads, 1
    )
    found = await _read_tasks(client, [f"{queue}-{each}" for each in range(threads)], begun_ms)
    return load, found


async def _read_tasks(client: Client, thread_ids: Sequence[str], since_ms: int) -> Tasks:
    """Read the outcomes of workflow tasks from the newest runs."""
    count = timed_out = sticky = 0
    slowest_ms = 0
    for thread_id in thread_ids:
        started_ms: dict[int, int] = {}
        async for event in client.get_workflow_handle(thread_id).fetch_history_events():
            at_ms = event.event_time.ToMilliseconds()
            if at_ms < since_ms:
                continue
            if event.HasField("workflow_task_started_event_attributes"):
                count += 1
                started_ms[event.event_id] = at_ms
            elif event.HasField("workflow_task_timed_out_event_attributes"):
                timeout = event.workflow_task_timed_out_event_attributes.timeout_type
                is_sticky = timeout == TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START
                sticky += is_sticky
                timed_out += not is_sticky
            elif event.HasField("workflow_task_completed_event_attributes"):
                begun = event.workflow_task_completed_event_attributes.started_event_id
                slowest_ms = max(slowest_ms, at_ms - started_ms.get(begun, at_ms))
    return Tasks(count, timed_out, sticky, slowest_ms / 1000)


def _load_report(
    threads: int, steps: int, loads: dict[str, list[Load]], tasks: dict[str, list[Tasks]]
) -> Report:
    report = Report(f"{threads} threads at once, {steps} steps of 2 KB each, against a plain loop")
    columns = ("turn", "calls/s", "CPU ms/call", "worker MiB", "CPU of all ms/call", "failed")
    for kind, found in loads.items():
        rows = [
            (
                f"{kind} {turn + 1}",
                load.calls_per_second,
                load.cpu_ms,
                load.memory_bytes / 2**20,
                load.all_cpu_ms,
                load.failed,
            )
            for turn, load in enumerate(found)
        ]
        report.series.append(Series(f"{threads} threads, {kind}", columns, rows))
    ours, plain = loads["everlong"], loads["plain"]
    pairs = list(zip(plain, ours, strict=True))
    # Both kinds make the same number of calls, so this is the ratio of rates over all turns.
    report.add(
        "model calls a second, of the plain loop's, over all turns",
        sum(each.seconds for each in plain) / sum(each.seconds for each in ours),
        least=0.9,
    )
    report.add(
        "the same, median of the turns",
        statistics.median(our.calls_per_second / each.calls_per_second for each, our in pairs),
    )
    report.add(
        "CPU of worker, caller and server a model call, of the plain loop's",
        statistics.median(our.all_cpu_ms / each.all_cpu_ms for each, our in pairs),
    )
    report.add(
        "worker CPU a model call, of the plain loop's, median of the turns",
        statistics.median(our.cpu_ms / each.cpu_ms for each, our in pairs),
        most=1.3,
    )
    report.add("callers that failed", sum(each.failed for each in ours), most=0)
    for kind, found_tasks in tasks.items():
        # No bound: at 1,000 threads one task in 10,000 times out, in the first seconds, while the server
        # accepts all messages.
        report.add(f"{kind}: workflow tasks", max(each.count for each in found_tasks))
        report.add(f"{kind}: sticky time-outs", max(each.sticky for each in found_tasks))
        report.add(f"{kind}: tasks timed out", max(each.timed_out for each in found_tasks))
        slowest = max(each.slowest_seconds for each in found_tasks)
        report.add(f"{kind}: slowest workflow task", slowest, "s")
        memory_bytes = max(each.memory_bytes for each in loads[kind])
        report.add(f"{kind}: worker's memory", memory_bytes / 2**20, "MiB")
    return report


def _report_side_by_side(threads: int, pairs: Sequence[tuple[Load, Load]]) -> Report:
    report = Report(f"Both kinds at the same time, {threads} threads each")
    rows = [
        (number, plain.cpu_ms, ours.cpu_ms, plain.calls_per_second, ours.calls_per_second)
        for number, (plain, ours) in enumerate(pairs, 1)
    ]
    columns = ("turn", "plain CPU ms/call", "CPU ms/call", "plain calls/s", "calls/s")
    report.series.append(Series(f"{threads} threads of each kind at once", columns, rows))
    report.add(
        "worker CPU a model call, of the plain loop's",
        statistics.median(ours.cpu_ms / plain.cpu_ms for plain, ours in pairs),
        most=1.3,
    )
    report.add("callers that failed", sum(ours.failed for _, ours in pairs), most=0)
    return report


def _report_storm(threads: int, storms: Sequence[tuple[Load, Tasks]]) -> Report:
    report = Report(f"SIGKILL, a new worker, and one message to each of {threads} threads")
    report.add("not answered", sum(load.failed for load, _ in storms), most=0)
    report.add("until the last answer", max(load.seconds for load, _ in storms), "s")
    report.add("workflow tasks", max(tasks.count for _, tasks in storms))
    report.add("workflow tasks timed out", sum(tasks.timed_out for _, tasks in storms), most=0)
    report.add("sticky time-outs", max(tasks.sticky for _, tasks in storms))
    slowest = max(tasks.slowest_seconds for _, tasks in storms)
    report.add("slowest workflow task", slowest, "s", most=_TASK_SECONDS / 2)
    report.add("CPU an answer", max(load.cpu_ms for load, _ in storms), "ms")
    return report


def _read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _read_memory_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("--threads", type=int, default=200, help="threads at once (200)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a turn (5)")
    parser.add_argument("--turns", type=int, default=8, help="turns of each kind (8)")
    parser.add_argument("--sticky", default="", help="sticky timeout in seconds, to try another")
    parser.add_argument("--slots", default="", help="workflow tasks at a time, to try another")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="and as tables in Markdown")
    asked = parser.parse_args(arguments)
    about = machine()
    with tempfile.TemporaryDirectory(prefix="everlong-bench-") as folder:
        options = (asked.sticky, asked.slots)
        reports = asyncio.run(_run(Path(folder), asked.threads, asked.steps, asked.turns, options))
    return finish(about, reports, asked.json, asked.markdown)


async def _run(
    folder: Path, threads: int, steps: int, turns: int, options: Sequence[str]
) -> list[Report]:
    # The server does not sync its disk: the benchmark measures CPU.
    server = await start_server(folder, durable=False)
    with server.process:
        return await measure(
            server, folder, threads=threads, steps=steps, turns=turns, options=options
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
