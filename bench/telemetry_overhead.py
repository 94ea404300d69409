"""Overhead of spans and metrics: one worker that exports, against two that do not, in turns.

Three threads do the same work, a block of steps each in turn, on three worker processes that differ only
in the export. A step lasts from one model call to the next, by the times of the server's events. Two
equal processes differ by some percent for their whole life, so several sets of processes are used; the
second worker without export shows the size of that noise.
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

from bench import otlp_receiver
from bench.report import Cell, Report, Series
from bench.telemetry_harness import (
    TelemetryHarness,
    build_child_environment,
    cpu_seconds,
    open_telemetry_harness,
)
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
class Variant:
    """One of the workers, and its thread."""

    name: str
    harness: TelemetryHarness
    worker: ManagedProcess
    block: int
    """Steps in each turn."""
    calls: int = 0

    @property
    def thread_id(self) -> str:
        """The thread of this variant."""
        return f"{self.harness.queue}-thread"

    async def take(self, turn: int) -> None:
        """Run a block of steps. The thread is not queried meanwhile."""
        first = turn * self.block
        number = await self.harness.send(
            self.thread_id, f"read {first} to {first + self.block - 1}"
        )
        self.calls += self.block + 1
        async with asyncio.timeout(_BLOCK_SECONDS_MAX):
            while self.worker.output().count(_MODEL_LINE) < self.calls:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
        await self.harness.wait_for_answer(self.thread_id, number)

    async def step_seconds(self) -> list[float]:
        """Return the duration of each step, without the first block."""
        called = [
            event.event_time.ToNanoseconds()
            for run in await self.harness.runs(self.thread_id)
            for event in run.events
            if event.activity_task_scheduled_event_attributes.activity_type.name == CALL_MODEL
        ]
        size = self.block + 1  # The last model call of a block calls no tool.
        return [
            (after - before) / 1e9
            for start in range(size, len(called), size)
            for before, after in itertools.pairwise(called[start : start + size])
        ]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Durations and CPU times of the steps of one run, with and without the export."""

    on: Sequence[float]
    off: Sequence[float]
    again: Sequence[float]
    """Steps without the export, on the second such worker."""
    on_cpu_seconds: float
    """CPU time of the worker process for each step."""
    off_cpu_seconds: float
    spans: int
    metrics: Sequence[str]

    @property
    def ratio(self) -> float:
        """Ratio of the median step with the export to the median step without."""
        return statistics.median(self.on) / statistics.median([*self.off, *self.again])

    @property
    def noise(self) -> float:
        """The same ratio for the two equal workers."""
        return statistics.median(self.again) / statistics.median(self.off)


async def measure_cost(
    address: str, folder: Path, steps: int, block: int = BLOCK, sets: int = SETS
) -> Cost:
    """Run new threads on several sets of new workers."""
    seconds: dict[str, list[float]] = {name: [] for name in _ARMS}
    used: dict[str, float] = dict.fromkeys(_ARMS, 0.0)
    async with _open_receiver(folder) as (receiver, url):
        for number in range(sets):
            async with contextlib.AsyncExitStack() as stack:
                # The order changes: the process that starts first may have an advantage.
                names = [_ARMS[(number + i) % len(_ARMS)] for i in range(len(_ARMS))]
                variants = [
                    await stack.enter_async_context(
                        _start_variant(
                            name, address, folder, exports_to(url) if name == "on" else {}, block
                        )
                    )
                    for name in names
                ]
                for name, cpu in (await _run_in_turns(variants, steps // sets // block)).items():
                    used[name] += cpu
                for variant in variants:
                    seconds[variant.name] += await variant.step_seconds()
        receiver.stop()
        received = _read_received(receiver)
    return Cost(
        on=seconds["on"],
        off=seconds["off"],
        again=seconds["again"],
        on_cpu_seconds=used["on"] / steps,
        off_cpu_seconds=(used["off"] + used["again"]) / (2 * steps),
        spans=received["spans"],
        metrics=received["metrics"],
    )


async def _run_in_turns(variants: Sequence[Variant], turns: int) -> dict[str, float]:
    """Run the variants in turns; return the CPU seconds of each, without the first block."""
    before: dict[str, float] = {}
    for turn in range(turns + 1):
        if turn == 1:
            before = {variant.name: cpu_seconds(variant.worker) for variant in variants}
        for i in range(len(variants)):
            await variants[(turn + i) % len(variants)].take(turn)
    return {
        variant.name: cpu_seconds(variant.worker) - before[variant.name] for variant in variants
    }


def exports_to(url: str) -> dict[str, str]:
    """Return the variables that make a worker export all telemetry, at default intervals."""
    return {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
    }


@contextlib.asynccontextmanager
async def _start_variant(
    name: str, address: str, folder: Path, exports: dict[str, str], block: int
) -> AsyncIterator[Variant]:
    async with open_telemetry_harness(address, folder, exports) as harness:
        yield Variant(name, harness, await harness.start_worker(), block)


@contextlib.asynccontextmanager
async def _open_receiver(folder: Path) -> AsyncIterator[tuple[ManagedProcess, str]]:
    arguments = [sys.executable, "-m", "bench.otlp_receiver"]
    log = folder / "receiver.log"
    with ManagedProcess("receiver", arguments, env=build_child_environment(), log=log) as process:
        line = await process.wait_for_output(otlp_receiver.URL, _READY_SECONDS_MAX)
        yield process, line.removeprefix(otlp_receiver.URL)


def _read_received(receiver: ManagedProcess) -> dict[str, Any]:
    [line] = [
        line for line in receiver.output().splitlines() if line.startswith(otlp_receiver.RECEIVED)
    ]
    received: dict[str, Any] = json.loads(line.removeprefix(otlp_receiver.RECEIVED))
    return received


def report_costs(costs: Sequence[Cost], *, judged: bool = True) -> Report:
    """Return the report of all runs."""
    steps = len(costs[0].on)
    report = Report(f"Spans and metrics on, over off; {steps} steps each")
    report.series.append(_build_table(costs))
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


def _build_table(costs: Sequence[Cost]) -> Series:
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
