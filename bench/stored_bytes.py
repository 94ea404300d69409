"""Bytes that a list-passing loop stores through a real worker with the plugin.

Each step sends the list, the model's reply and the tool's result, of 2, 32 or 512 KiB. The floor is
zstd-3 of all messages as one stream: a store that holds every message once.
"""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from temporalio.client import Client

from bench import measure
from bench.amplification import show_progress
from bench.conversation import build_mixed_turns, list_data
from bench.loop import AGENT_LOOP
from bench.loop_runner import LoopRunner
from bench.objects import Place, count_stored
from bench.report import Cell, Report, Series
from bench.worker import EVERLONG
from everlong.errors import ProcessFailed
from everlong.testing import workload

FLOOR_MAX: Final = 2.2


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of the measurement."""

    steps: Sequence[int] = (200,)
    round_steps: int = 20
    seconds_max: float = 600.0
    """Seconds after which the loop is measured at its current step, without the remaining ones."""
    judged: bool = True


LONG: Final = Size(steps=(200, 500), seconds_max=1200.0)
QUICK: Final = Size(steps=(40,), seconds_max=240.0, judged=False)


async def measure_stored(address: str, folder: Path, size: Size) -> Report:
    """Run the loop, and measure what is stored at each of the step counts."""
    report = Report("Through a worker with the plugin: list, reply and result, mixed sizes")
    client = await Client.connect(address)
    place = Place((folder / "stored").as_uri())
    runner = LoopRunner(EVERLONG, client, address, place, folder, AGENT_LOOP)
    rows: list[Sequence[Cell]] = []
    began = time.monotonic()
    try:
        await runner.begin()
        for steps in size.steps:
            is_whole = await _advance(runner, steps, began, size)
            if not is_whole:
                report.notes.append(f"stopped at step {runner.step} after {size.seconds_max:.0f} s")
            rows.append(await _measure_step(report, runner, size, steps))
            if not is_whole:
                break
    finally:
        await runner.end()
    columns = (
        "steps",
        "list bytes",
        "floor bytes",
        "stored bytes",
        "over floor",
        "objects",
        "history bytes",
        "step, ms",
        "last 10, ms",
    )
    report.series.append(Series("Stored by steps, in a directory", columns, rows))
    return report


async def _advance(runner: LoopRunner, steps: int, began: float, size: Size) -> bool:
    """Advance the loop to `steps`; return whether it got there in time."""
    while runner.step < steps:
        try:
            await runner.advance(min(steps, runner.step + size.round_steps))
        except ProcessFailed as error:
            error.add_note(f"the loop was at step {runner.step} of {steps}")
            raise
        show_progress(f"step {runner.step} of {steps}", began)
        if time.monotonic() - began > size.seconds_max:
            return runner.step == steps
    return True


async def _measure_step(report: Report, runner: LoopRunner, size: Size, wanted: int) -> list[Cell]:
    turns = build_mixed_turns(workload.SEED, runner.step)
    unique = list_data([message for turn in turns for message in turn.messages])
    floor_bytes = len(measure.compress(unique))
    objects, stored_bytes = await count_stored(runner.place)
    taken = [runner.step_seconds[step] for step in sorted(runner.step_seconds)]
    ratio = stored_bytes / floor_bytes
    report.add(
        f"stored over the floor at {wanted} steps",
        ratio if runner.step == wanted else None,
        "times",
        most=FLOOR_MAX if size.judged else None,
    )
    return [
        runner.step,
        len(unique),
        floor_bytes,
        stored_bytes,
        round(ratio, 2),
        objects,
        await runner.history_bytes(),
        round(statistics.median(taken) * 1000),
        round(statistics.median(taken[-10:]) * 1000),
    ]
