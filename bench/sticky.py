"""`python -m bench.sticky`: both costs of the sticky timeout, and concurrent workflow tasks.

A workflow task waits for the worker that has its thread in memory, for at most the sticky timeout. Then
any worker may take it. A long timeout delays threads whose worker was killed. With a short one, a busy
worker is treated as dead: the task goes to a worker that has to replay the run.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from temporalio.api.enums.v1 import EventType, TimeoutType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowUpdateRPCTimeoutOrCancelledError

from bench import worker_log
from bench.amplification import show_progress
from bench.report import Cell, Report, Series, finish, machine
from bench.telemetry_harness import build_child_environment, cpu_seconds
from bench.thread_agent import GATE
from bench.thread_harness import AGENT, Run, ThreadHarness, count_model_calls
from everlong import EverlongPlugin, ThreadStart, limits
from everlong.embedded import ManagedProcess, start_server
from everlong.models import AGENT_WORKFLOW, SEND_UPDATE, SendMessage

_READY_SECONDS_MAX: Final = 120.0
_BURST_SECONDS_MAX: Final = 300.0
_CALL_SECONDS_MAX: Final = 60.0
_POLL_SECONDS: Final = 0.2
_SCHEDULED: Final = EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED
_STARTED: Final = EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED
_COMPLETED: Final = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
_TIMED_OUT: Final = EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of the measurement."""

    seconds: Sequence[float] = (0.5, 1, 2, 3, 5, 10)
    """Sticky timeouts, in seconds."""
    killed: int = 3
    """Threads for each timeout on the worker that is killed."""
    threads: int = 200
    """Threads of a burst."""
    steps: int = 5
    """Steps of each thread: a model call and a tool. A last model call answers."""
    slots: int = limits.WORKFLOW_TASKS
    """Concurrent workflow tasks of each of the two workers while timeouts are compared."""
    slot_counts: Sequence[int] = (5, 10, 20, 100)
    """Numbers of concurrent workflow tasks to compare, with the default sticky timeout."""
    abandoned_seconds: float | None = 12.0
    """Seconds after the kill at which a message need not wait, with the longest timeout: the server
    abandons a sticky queue without a new poll for 10 s."""


QUICK: Final = Size(
    seconds=(0.5, 3), killed=1, threads=4, steps=1, slot_counts=(5,), abandoned_seconds=None
)


@dataclasses.dataclass(frozen=True)
class Case:
    """Options of a worker. Empty: the default."""

    sticky_seconds: str
    workflow_tasks: str = ""
    queue: str = dataclasses.field(default_factory=lambda: f"bench-{uuid.uuid4().hex[:8]}")

    def __str__(self) -> str:
        return f"{self.queue}={self.sticky_seconds}={self.workflow_tasks}"


@dataclasses.dataclass(frozen=True)
class Burst:
    """Many threads at once on two workers."""

    seconds: float
    worker_cpu_seconds: float
    tasks: int
    sticky_timeouts: int
    """Tasks that the worker with the thread in memory did not start in time."""
    task_timeouts: int
    """Tasks that a worker started but did not complete in time."""
    resumes: int
    """Replays from the start of a run."""
    replayed_events: int
    waits_seconds: Sequence[float] = dataclasses.field(repr=False)
    """Seconds from a task's schedule to its start."""
    takes_seconds: Sequence[float] = dataclasses.field(repr=False)
    """Seconds from a task's start to its completion."""


class Machines:
    """A server, a store, and processes with a worker for each case."""

    def __init__(self, address: str, folder: Path, client: Client, store_url: str) -> None:
        self._address = address
        self._folder = folder
        self._client = client
        self._store_url = store_url
        self.processes: list[ManagedProcess] = []

    async def start(self, cases: Sequence[Case]) -> ManagedProcess:
        """Start a process; return once its workers poll."""
        arguments = [sys.executable, "-m", "bench.sticky_worker", self._address, self._store_url]
        name = f"sticky-{uuid.uuid4().hex[:8]}"
        process = ManagedProcess(
            name,
            [*arguments, *map(str, cases)],
            env={**build_child_environment(), GATE: str(self._folder / "open")},
            log=self._folder / f"{name}.log",
        )
        self.processes.append(process)
        await process.wait_for_output(worker_log.format_line_end("ready"), _READY_SECONDS_MAX)
        return process

    def harness(self, case: Case) -> ThreadHarness:
        """Return the harness that sends messages to the threads of a case."""
        harness = ThreadHarness(self._client, self._address, self._store_url, self._folder)
        harness.queue = case.queue
        return harness


@contextlib.asynccontextmanager
async def open_machines(address: str, folder: Path) -> AsyncIterator[Machines]:
    """Open machines with their own store; the processes are stopped on exit."""
    url = (folder / f"blobs-{uuid.uuid4().hex[:8]}").as_uri()
    client = await Client.connect(address, plugins=[EverlongPlugin(store=url)])
    machines = Machines(address, folder, client, url)
    try:
        yield machines
    finally:
        for process in machines.processes:
            process.stop()


async def measure_kills(
    address: str, folder: Path, size: Size, after_seconds: float = 0.0
) -> dict[float, list[float]]:
    """Kill a process that has threads in memory, while another one is running.

    Return, for each timeout, the seconds from a message after the kill to its model call.
    """
    cases = [Case(f"{seconds:g}") for seconds in size.seconds]
    async with open_machines(address, folder) as machines:
        keeper = await machines.start(cases)
        threads = [
            (machines.harness(case), f"{case.queue}-{number}")
            for case in cases
            for number in range(size.killed)
        ]
        await asyncio.gather(*(harness.ask(name, "say 1") for harness, name in threads))
        other = await machines.start(cases)
        # The process to be killed has them in memory, and polls again after this.
        await asyncio.gather(*(harness.ask(name, "say 2") for harness, name in threads))
        keeper.kill()
        await asyncio.sleep(after_seconds)
        sent = time.time()
        numbered = [(harness, name, 100 + number) for number, (harness, name) in enumerate(threads)]
        sending = [harness.send(name, f"say {number}") for harness, name, number in numbered]
        calls = [_find_model_call(other, number) for _, _, number in numbered]
        _, called = await asyncio.gather(asyncio.gather(*sending), asyncio.gather(*calls))
    took = [at - sent for at in called]
    count = size.killed
    return {each: took[i * count : (i + 1) * count] for i, each in enumerate(size.seconds)}


async def _find_model_call(process: ManagedProcess, number: int) -> float:
    await process.wait_for_output(worker_log.format_line_end("model", number), _CALL_SECONDS_MAX)
    return next(event.at for event in _read_log_events(process, "model") if event.size == number)


async def measure_bursts(
    address: str, folder: Path, size: Size, cases: Sequence[Case]
) -> list[Burst]:
    """Measure a burst for each case, one after the other, on the same two processes."""
    found = []
    began = time.monotonic()
    async with open_machines(address, folder) as machines:
        pair = await asyncio.gather(machines.start(cases), machines.start(cases))
        for case in cases:
            found.append(await _measure_burst(machines.harness(case), pair, size))
            show_progress(f"burst, {case}: {found[-1]}", began)
    return found


async def _measure_burst(
    harness: ThreadHarness, pair: Sequence[ManagedProcess], size: Size
) -> Burst:
    """Start all threads at once, and wait until all have answered."""
    used = sum(map(cpu_seconds, pair))
    before = [_log_chars(process) for process in pair]
    names = [f"{harness.queue}-{number}" for number in range(size.threads)]
    began = time.time()
    message = f"read 0 to {size.steps - 1}"
    await asyncio.gather(*(_send(harness, name, message) for name in names))
    calls = size.steps + 1

    def read_events(what: str) -> list[worker_log.Event]:
        each = zip(pair, before, strict=True)
        return [
            event for process, start in each for event in _read_log_events(process, what, start)
        ]

    async with asyncio.timeout(_BURST_SECONDS_MAX):
        # Read logs instead of sending queries, which would take slots of workflow tasks.
        while len(read_events("model")) < calls * size.threads:  # noqa: ASYNC110 - other processes write them
            await asyncio.sleep(_POLL_SECONDS)
        histories = [await _wait_until_idle(harness, name, calls) for name in names]
    used = sum(map(cpu_seconds, pair)) - used
    # Idle threads continue as new after a while, which would add work to the next burst.
    await asyncio.gather(*(harness.client.get_workflow_handle(name).terminate() for name in names))
    replayed = [event.size for event in read_events("replayed")]
    return _summarise(histories, began, used, replayed)


async def _send(harness: ThreadHarness, name: str, message: str) -> None:
    """Start a thread with a message. A busy worker may take long to accept it."""
    await harness.client.start_workflow(
        AGENT_WORKFLOW, ThreadStart(agent=AGENT), id=name, task_queue=harness.queue
    )
    handle = harness.client.get_workflow_handle(name)
    deadline = time.monotonic() + _BURST_SECONDS_MAX
    while True:
        try:
            # The id makes retries idempotent.
            await handle.execute_update(SEND_UPDATE, SendMessage(text=message), id=f"{name}-first")
            return
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            if time.monotonic() > deadline:
                raise


def _summarise(
    histories: Sequence[Sequence[Run]], began: float, used: float, replayed: Sequence[int]
) -> Burst:
    events = [event for runs in histories for run in runs for event in run.events]
    ended = max(event.event_time.ToMilliseconds() for event in events) / 1000
    waits, takes = _read_task_seconds(histories)
    timeouts = [
        event.workflow_task_timed_out_event_attributes.timeout_type
        for event in events
        if event.event_type == _TIMED_OUT
    ]
    return Burst(
        ended - began,
        used,
        sum(event.event_type == _SCHEDULED for event in events),
        timeouts.count(TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START),
        timeouts.count(TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE),
        len(replayed),
        sum(replayed),
        waits,
        takes,
    )


def _read_log_events(process: ManagedProcess, what: str, start: int = 0) -> list[worker_log.Event]:
    events = worker_log.parse_events(process.output()[start:])
    return [event for event in events if event.what == what]


def _log_chars(process: ManagedProcess) -> int:
    """Return the length of the log up to its last complete line."""
    return process.output().rfind("\n") + 1


async def _wait_until_idle(harness: ThreadHarness, name: str, calls: int) -> list[Run]:
    """Return a thread's runs once its model calls have ended and no workflow task is under way."""
    while True:
        runs = await harness.runs(name)
        ended = max(ended for _, ended in count_model_calls(runs))
        last = runs[-1].events[-1]
        if ended >= calls and last.event_type not in (_SCHEDULED, _STARTED, _TIMED_OUT):
            return runs
        await asyncio.sleep(_POLL_SECONDS)


def _read_task_seconds(histories: Sequence[Sequence[Run]]) -> tuple[list[float], list[float]]:
    """Return the wait times of tasks, and their execution times."""
    waits: list[float] = []
    takes: list[float] = []
    for run in (run for runs in histories for run in runs):
        by_id: dict[int, HistoryEvent] = {event.event_id: event for event in run.events}
        for event in run.events:
            started = event.workflow_task_started_event_attributes
            completed = event.workflow_task_completed_event_attributes
            if event.event_type == _STARTED:
                waits.append(_count_between(by_id[started.scheduled_event_id], event))
            elif event.event_type == _COMPLETED:
                takes.append(_count_between(by_id[completed.started_event_id], event))
    return waits, takes


def _count_between(earlier: HistoryEvent, later: HistoryEvent) -> float:
    return (later.event_time.ToNanoseconds() - earlier.event_time.ToNanoseconds()) / 1e9


async def measure(address: str, folder: Path, size: Size) -> list[Report]:
    """Measure both costs of the sticky timeout, then numbers of concurrent workflow tasks."""
    kills = await measure_kills(address, folder, size)
    by_timeout = [Case(f"{seconds:g}", str(size.slots)) for seconds in size.seconds]
    by_slots = [Case("", str(count)) for count in size.slot_counts]
    bursts = await measure_bursts(address, folder, size, [*by_timeout, *by_slots])
    timeouts = _report_timeouts(kills, bursts[: len(by_timeout)], size)
    if size.abandoned_seconds is not None:
        longest = max(size.seconds)
        alone = dataclasses.replace(size, seconds=[longest])
        [later] = (await measure_kills(address, folder, alone, size.abandoned_seconds)).values()
        what = f"timeout {longest:g} s, message {size.abandoned_seconds:g} s after the kill"
        timeouts.add(f"{what}: to the model call", statistics.median(later), "s")
    return [timeouts, _report_slots(bursts[len(by_timeout) :], size)]


def _report_timeouts(
    kills: Mapping[float, Sequence[float]], bursts: Sequence[Burst], size: Size
) -> Report:
    report = Report("The sticky timeout")
    rows: list[Sequence[Cell]] = [
        (f"{seconds:g}", statistics.median(killed), max(killed), *_build_cells(burst))
        for (seconds, killed), burst in zip(kills.items(), bursts, strict=True)
    ]
    columns = ("sticky timeout, s", "killed: to the model call, s", "... slowest", *_CELLS)
    title = (
        f"SIGKILL of a worker with {size.killed} threads; burst of {size.threads} threads, "
        f"{size.steps} steps each, on two workers with {size.slots} workflow tasks at a time"
    )
    report.series.append(Series(title, columns, rows))
    return report


def _report_slots(bursts: Sequence[Burst], size: Size) -> Report:
    report = Report("Workflow tasks at a time")
    rows: list[Sequence[Cell]] = [
        (slots, *_build_cells(burst)) for slots, burst in zip(size.slot_counts, bursts, strict=True)
    ]
    title = (
        f"Burst of {size.threads} threads, {size.steps} steps each, on two workers, sticky timeout "
        f"{limits.STICKY_SECONDS:g} s"
    )
    report.series.append(Series(title, ("workflow tasks at a time", *_CELLS), rows))
    return report


_CELLS: Final = (
    "burst, s",
    "worker CPU, s",
    "tasks",
    "sticky time-outs",
    "task time-outs",
    "replays",
    "events replayed",
    "task waits, p95, s",
    "task takes, p95, s",
    "... slowest, s",
)


def _build_cells(burst: Burst) -> tuple[Cell, ...]:
    return (
        burst.seconds,
        burst.worker_cpu_seconds,
        burst.tasks,
        burst.sticky_timeouts,
        burst.task_timeouts,
        burst.resumes,
        burst.replayed_events,
        _p95(burst.waits_seconds),
        _p95(burst.takes_seconds),
        max(burst.takes_seconds),
    )


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.sticky", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="and as tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a short run")
    asked = parser.parse_args(arguments)
    about = machine()
    with tempfile.TemporaryDirectory(prefix="everlong-bench-") as folder:
        size = QUICK if asked.quick else Size()
        reports = asyncio.run(_measure(Path(folder), size))
    return finish(about, reports, asked.json, asked.markdown)


async def _measure(folder: Path, size: Size) -> list[Report]:
    # The benchmark does not measure the server's disk.
    server = await start_server(folder, durable=False)
    with server.process:
        return await measure(server.address, folder, size)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
