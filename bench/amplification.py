"""Write amplification: bytes that the codec writes for the list, reply and result of each step.

The bounds hold for a loop of 400 steps: written bytes are proportional to new bytes, and a cold read of
the last list takes few GETs and little more than the list's own compressed bytes.
"""

import dataclasses
import gc
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from bench.conversation import Turn, build_mixed_turns, build_session_turns
from bench.exchange import ColdRead, Loop, Sides, Tally, read_cold
from bench.report import Cell, Report, Series
from bench.stores import CountingStore
from everlong.storage.memory import MemoryBlobStore

WRITTEN_MAX: Final = 2.0
GROWTH_MAX: Final = 1.35
READ_BYTES_MAX: Final = 1.25

Turns = Callable[[int, int], list[Turn]]
Setup = Callable[[CountingStore], Sides]

_SETUPS: Final[dict[int, Setup]] = {1: Sides.of_one_worker, 2: Sides.of_two_workers}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Loops that run in turns under one workflow id."""

    name: str
    turns: Turns
    lists: int = 1
    steps_times: int = 1
    """Steps of all lists together, as a multiple of the measured step counts."""


MIXED: Final = Scenario("mixed sizes", build_mixed_turns)
SESSION: Final = Scenario("session's sizes", build_session_turns)
INTERLEAVED: Final = Scenario("8 lists", build_mixed_turns, lists=8)
# 400 steps of each list, not of all together.
INTERLEAVED_SESSIONS: Final = Scenario("8 sessions", build_session_turns, lists=8, steps_times=8)
INTERLEAVED_LONG: Final = Scenario("8 long lists", build_mixed_turns, lists=8, steps_times=8)


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of the measurement."""

    steps: Sequence[int] = (100, 200, 400)
    seeds: Sequence[int] = (7, 8)
    scenarios: Sequence[Scenario] = (MIXED, SESSION, INTERLEAVED, INTERLEAVED_SESSIONS)
    judged: bool = True


LONG: Final = Size(scenarios=(*Size.scenarios, INTERLEAVED_LONG))
QUICK: Final = Size(steps=(10, 20, 40), judged=False)


@dataclasses.dataclass(frozen=True)
class Point:
    """The figures at one step of a run."""

    scenario: str
    workers: int
    seed: int
    steps: int
    tally: Tally
    written_bytes: int
    objects: int
    cold: ColdRead

    @property
    def written_over_unique(self) -> float:
        """Ratio of the bytes written to the store to the new bytes."""
        return self.written_bytes / self.tally.unique_bytes


async def measure_amplification(size: Size) -> Report:
    """Measure all scenarios, with all seeds, with one worker and with two."""
    report = Report("The codec on the payloads of a loop: list, reply and result of each step")
    points: list[Point] = []
    for scenario in size.scenarios:
        for seed in size.seeds:
            conversations = _build_conversations(scenario, seed, size.steps[-1])
            for workers in _SETUPS:
                began = time.monotonic()
                points += await run_scenario(scenario, workers, seed, size.steps, conversations)
                show_progress(f"{scenario.name}, {workers} worker(s), seed {seed}", began)
    report.series.append(_build_table(points))
    for scenario in size.scenarios:
        for workers in _SETUPS:
            chosen = [p for p in points if (p.scenario, p.workers) == (scenario.name, workers)]
            _judge(report, f"{scenario.name}, {workers} worker(s)", chosen, size)
    changed = sum(point.tally.changed for point in points)
    report.add("payloads that decode to other bytes", changed, most=0)
    return report


async def run_scenario(
    scenario: Scenario,
    workers: int,
    seed: int,
    steps: Sequence[int],
    conversations: Sequence[Sequence[Turn]],
) -> list[Point]:
    """Run the loops in turns, and measure at each of the step counts."""
    store = CountingStore(MemoryBlobStore())
    tally = Tally()
    sides = _SETUPS[workers](store)
    # One tally and one workflow id: the loops are sub-conversations of one thread.
    loops = [Loop(sides, tally) for _ in conversations]
    points = []
    for number in range(steps[-1] * scenario.steps_times):
        lane = number % len(loops)
        await loops[lane].take(conversations[lane][number // len(loops)])
        done, part = divmod(number + 1, scenario.steps_times)
        if not part and done in steps:
            points.append(
                Point(
                    scenario=scenario.name,
                    workers=workers,
                    seed=seed,
                    steps=done,
                    tally=dataclasses.replace(tally),
                    written_bytes=store.put_bytes,
                    objects=store.puts,
                    cold=await read_cold(store, loops),
                )
            )
    gc.collect()
    return points


def show_progress(what: str, began: float) -> None:
    """Report the progress of a long run on stderr."""
    sys.stderr.write(f"{what}: {time.monotonic() - began:.1f} s\n")
    sys.stderr.flush()


def _build_conversations(scenario: Scenario, seed: int, steps: int) -> list[list[Turn]]:
    if scenario.lists == 1:
        return [scenario.turns(seed, steps)]
    each = -(-steps * scenario.steps_times // scenario.lists)
    return [scenario.turns(1000 * seed + lane, each) for lane in range(scenario.lists)]


def _judge(report: Report, what: str, points: Sequence[Point], size: Size) -> None:
    """Add the figures of one scenario, the worst of all seeds."""
    first, last = size.steps[0], size.steps[-1]
    ends = [point for point in points if point.steps == last]
    starts = {point.seed: point for point in points if point.steps == first}
    growth = [
        end.written_over_unique / starts[end.seed].written_over_unique
        for end in ends
        if starts[end.seed].written_bytes
    ]

    def most(bound: float) -> float | None:
        return bound if size.judged else None

    report.add(
        f"{what}: written over unique at {last} steps",
        max(end.written_over_unique for end in ends),
        "times",
        most=most(WRITTEN_MAX),
    )
    report.add(
        f"{what}: ... over its value at {first}",
        max(growth, default=None),  # In a few small steps nothing is written.
        "times",
        most=most(GROWTH_MAX),
    )
    # The bound depends on the list's size, so the figure is the share of the bound.
    report.add(
        f"{what}: cold read of the last list, GETs over (24 + 3 per MiB)",
        max(point.cold.gets / point.cold.gets_max for point in points),
        "times",
        most=1,
    )
    report.add(
        f"{what}: cold read of the last list, bytes over zstd-3",
        max(end.cold.over_compressed for end in ends),
        "times",
        most=most(READ_BYTES_MAX),
    )


def _build_table(points: Sequence[Point]) -> Series:
    columns = (
        "loop",
        "workers",
        "seed",
        "steps",
        "list MB",
        "unique KB",
        "written KB",
        "ratio",
        "objects",
        "inline KB",
        "refs KB",
        "GETs",
        "at most",
        "read/zstd",
    )
    rows: list[Sequence[Cell]] = [
        (
            point.scenario,
            point.workers,
            point.seed,
            point.steps,
            point.cold.payload_bytes / 1e6,
            round(point.tally.unique_bytes / 1e3),
            round(point.written_bytes / 1e3),
            round(point.written_over_unique, 2),
            point.objects,
            round(point.tally.inline_bytes / 1e3),
            round(point.tally.ref_bytes / 1e3),
            point.cold.gets,
            point.cold.gets_max,
            round(point.cold.over_compressed, 2),
        )
        for point in points
    ]
    title = (
        "Bytes by steps; ratio: written over unique; GETs and read/zstd: cold read of the last list"
    )
    return Series(title, columns, rows)
