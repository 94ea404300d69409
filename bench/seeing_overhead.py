"""What spans and metrics cost: a worker that exports beside two that do not, in turns.

Three threads live the same life, a block of steps each in turn, on three worker processes that differ
in nothing but the export. A step is from a model call to the next, by the times of the server's events.
Two equal processes differ by some percent for as long as they live, so there are several sets of them,
and the second that does not export says how large that noise is.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench import seeing_receiver
from bench.report import Cell, Report, Series
from bench.seeing_bed import SeenBed, cpu_seconds, environment_without_otel, open_seen_bed
from everlong.embedded import ManagedProcess
from everlong.models import CALL_MODEL

RATIO_MAX: Final = 1.03
BLOCK: Final = 10
SETS: Final = 6
_READY_SECONDS_MAX: Final = 60.0
_BLOCK_SECONDS_MAX: Final = 120.0
_POLL_SECONDS: Final = 0.05
_ARMS: Final = ("on", "off", "again")
_MODEL_LINE: Final = '"what": "model"'


@dataclasses.dataclass
class Arm:
    """One of the workers, and the thread on it."""

    name: str
    bed: SeenBed
    worker: ManagedProcess
    block: int
    """Steps that it takes in its turn."""
    calls: int = 0

    @property
    def thread_id(self) -> str:
        """The thread of this arm."""
        return f"{self.bed.queue}-thread"

    async def take(self, turn: int) -> None:
        """Take the thread through a block of steps. Nothing is asked of it meanwhile."""
        first = turn * self.block
        number = await self.bed.send(self.thread_id, f"read {first} to {first + self.block - 1}")
        self.calls += self.block + 1
        async with asyncio.timeout(_BLOCK_SECONDS_MAX):
            while self.worker.output().count(_MODEL_LINE) < self.calls:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
        await self.bed.answered(self.thread_id, number)

    async def step_seconds(self) -> list[float]:
        """Return how long each step took, but for those of the first block."""
        called = [
            event.event_time.ToNanoseconds()
            for run in await self.bed.runs(self.thread_id)
            for event in run.events
            if event.activity_task_scheduled_event_attributes.activity_type.name == CALL_MODEL
        ]
        size = self.block + 1  # The last call of a block asks for no tool.
        return [
            (after - before) / 1e9
            for start in range(size, len(called), size)
            for before, after in itertools.pairwise(called[start : start + size])
        ]


@dataclasses.dataclass(frozen=True)
class Cost:
    """What the steps of one run took, with the export and without."""

    on: Sequence[float]
    off: Sequence[float]
    again: Sequence[float]
    """Without, on the other worker."""
    on_cpu_seconds: float
    """Of the worker process, for a step."""
    off_cpu_seconds: float
    spans: int
    metrics: Sequence[str]

    @property
    def ratio(self) -> float:
        """The median step with the export over the median step without."""
        return statistics.median(self.on) / statistics.median([*self.off, *self.again])

    @property
    def noise(self) -> float:
        """The same of two workers that do not differ."""
        return statistics.median(self.again) / statistics.median(self.off)


async def measure_cost(
    address: str, folder: Path, steps: int, block: int = BLOCK, sets: int = SETS
) -> Cost:
    """Take new threads through so many steps, on several sets of new workers."""
    seconds: dict[str, list[float]] = {name: [] for name in _ARMS}
    used: dict[str, float] = dict.fromkeys(_ARMS, 0.0)
    async with _receiver(folder) as (receiver, url):
        for number in range(sets):
            async with contextlib.AsyncExitStack() as stack:
                # Not always the same first: what starts first may have the better place.
                names = [_ARMS[(number + i) % len(_ARMS)] for i in range(len(_ARMS))]
                arms = [
                    await stack.enter_async_context(
                        _arm(name, address, folder, exports_to(url) if name == "on" else {}, block)
                    )
                    for name in names
                ]
                for name, cpu in (await _alternate(arms, steps // sets // block)).items():
                    used[name] += cpu
                for arm in arms:
                    seconds[arm.name] += await arm.step_seconds()
        receiver.stop()
        told = _told(receiver)
    return Cost(
        on=seconds["on"],
        off=seconds["off"],
        again=seconds["again"],
        on_cpu_seconds=used["on"] / steps,
        off_cpu_seconds=(used["off"] + used["again"]) / (2 * steps),
        spans=told["spans"],
        metrics=told["metrics"],
    )


async def _alternate(arms: Sequence[Arm], turns: int) -> dict[str, float]:
    """Let the arms go on in turns; return what each used of the processors, the first block aside."""
    before: dict[str, float] = {}
    for turn in range(turns + 1):
        if turn == 1:
            before = {arm.name: cpu_seconds(arm.worker) for arm in arms}
        for i in range(len(arms)):
            await arms[(turn + i) % len(arms)].take(turn)
    return {arm.name: cpu_seconds(arm.worker) - before[arm.name] for arm in arms}


def exports_to(url: str) -> dict[str, str]:
    """Return what makes a worker send all that it measures, as often as it does by default."""
    return {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
    }


@contextlib.asynccontextmanager
async def _arm(
    name: str, address: str, folder: Path, exports: dict[str, str], block: int
) -> AsyncIterator[Arm]:
    async with open_seen_bed(address, folder, exports) as bed:
        yield Arm(name, bed, await bed.start_worker(), block)


@contextlib.asynccontextmanager
async def _receiver(folder: Path) -> AsyncIterator[tuple[ManagedProcess, str]]:
    arguments = [sys.executable, "-m", "bench.seeing_receiver"]
    log = folder / "receiver.log"
    with ManagedProcess("receiver", arguments, env=environment_without_otel(), log=log) as process:
        line = await process.wait_for_output(seeing_receiver.URL, _READY_SECONDS_MAX)
        yield process, line.removeprefix(seeing_receiver.URL)


def _told(receiver: ManagedProcess) -> dict[str, Any]:
    [line] = [
        line for line in receiver.output().splitlines() if line.startswith(seeing_receiver.RECEIVED)
    ]
    told: dict[str, Any] = json.loads(line.removeprefix(seeing_receiver.RECEIVED))
    return told


def report_costs(costs: Sequence[Cost], *, judged: bool = True) -> Report:
    """Return what the runs have shown."""
    steps = len(costs[0].on)
    report = Report(f"Spans and metrics on, over off; {steps} steps each")
    report.series.append(_table(costs))
    for number, cost in enumerate(costs, 1):
        most = RATIO_MAX if judged else None
        report.add(
            f"a step with the export over one without, run {number}", cost.ratio, "times", most=most
        )
        report.add("... of two without it, one over the other", cost.noise, "times")
    fewest = min(cost.spans for cost in costs)
    report.add("spans that arrived, fewest", fewest, "", least=2 * steps)
    for prefix in ("everlong.", "gen_ai.", "temporal_"):
        count = min(sum(name.startswith(prefix) for name in cost.metrics) for cost in costs)
        report.add(f"metrics that arrived, {prefix}*, fewest", count, "", least=1)
    return report


def _table(costs: Sequence[Cost]) -> Series:
    rows: list[tuple[Cell, ...]] = [
        (
            str(number),
            1000 * statistics.median(cost.on),
            1000 * statistics.median([*cost.off, *cost.again]),
            1000 * statistics.fmean(cost.on),
            1000 * statistics.fmean([*cost.off, *cost.again]),
            1000 * cost.on_cpu_seconds,
            1000 * cost.off_cpu_seconds,
            cost.spans,
        )
        for number, cost in enumerate(costs, 1)
    ]
    columns = (
        "run",
        "step on, ms",
        "step off, ms",
        "mean on, ms",
        "mean off, ms",
        "worker's CPU on, ms a step",
        "off",
        "spans",
    )
    return Series("Runs, medians unless it says otherwise", columns, rows)
