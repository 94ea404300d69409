"""The same loop through a real Temporal server, with three ways to keep its payloads.

The runners take a few steps each in turn, so that other load on the machine affects all alike.
"""

import contextlib
import dataclasses
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from temporalio.client import Client

from bench.loop import RESULT_BYTES
from bench.loop_runner import LoopRunner, Resume
from bench.objects import Place, count_stored
from bench.report import Cell, Report, Series
from bench.worker import EVERLONG, PLAIN, SDK, VARIANTS


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of the measurement."""

    steps: int = 60
    """Steps of every runner. A plain loop is terminated near 70."""
    steps_long: int = 0
    """Steps of the runners with a store; then the plain loop runs until it is terminated. 0: neither."""
    round_steps: int = 10
    resumes: int = 3
    judged: bool = True


LONG: Final = Size(steps_long=200)
QUICK: Final = Size(steps=16, round_steps=8, resumes=1, judged=False)


async def measure_server(
    address: str, places: Mapping[str, Place], folder: Path, size: Size
) -> Report:
    """Measure all runners. Logs of the workers are left in the folder."""
    report = Report(f"Through a server: a list of results of {RESULT_BYTES:,} bytes, passed whole")
    client = await Client.connect(address)
    async with _start_loops(client, address, places, folder) as runners:
        await _measure_to(report, runners, size.steps, size)
        if size.steps_long:
            plain, *others = runners
            step, reason = await plain.run_until_terminated()
            report.add(f"{PLAIN}: terminated in step", step)
            report.notes.append(f"{PLAIN}: the server reported: {reason}")
            await _measure_to(report, others, size.steps_long, size)
    kinds = sorted({place.url.split(":")[0] for place in places.values()})
    report.notes.append(
        f"Stores: {', '.join(kinds)}. {SDK} keeps its default threshold of 256 KiB and uses the SDK's "
        "S3StorageDriver, with a client over obstore in place of aioboto3."
    )
    return report


@contextlib.asynccontextmanager
async def _start_loops(
    client: Client, address: str, places: Mapping[str, Place], folder: Path
) -> AsyncIterator[Sequence[LoopRunner]]:
    """Start all runners, and stop them on exit."""
    async with contextlib.AsyncExitStack() as stack:
        runners = []
        for name in VARIANTS:
            runner = LoopRunner(name, client, address, places[name], folder)
            stack.push_async_callback(runner.end)
            await runner.begin()
            runners.append(runner)
        yield runners


async def _measure_to(
    report: Report, runners: Sequence[LoopRunner], steps: int, size: Size
) -> None:
    """Advance the runners to `steps`, then resume each of them a few times."""
    order = list(runners)
    for end in [*range(runners[0].step + size.round_steps, steps, size.round_steps), steps]:
        for runner in order:
            await runner.advance(max(end, runner.step))
        order = order[1:] + order[:1]
    rows = [await _build_growth_row(runner) for runner in runners]
    report.series.append(Series(f"To step {steps}", _GROWTH_COLUMNS, rows))
    resumes: dict[str, list[Resume]] = {runner.name: [] for runner in runners}
    for _ in range(size.resumes):
        for runner in order:
            found = resumes[runner.name]
            if not found or found[-1].seconds is not None:
                found.append(await runner.resume())
    rows = [_resume_row(name, found) for name, found in resumes.items()]
    report.series.append(Series(f"Cold resume at step {steps}", _RESUME_COLUMNS, rows))
    report.add(
        f"{EVERLONG}: PUTs of a replay of {steps} steps, before the first live command",
        max(resume.replay_puts for resume in resumes[EVERLONG]),
        most=0 if size.judged else None,
    )


_GROWTH_COLUMNS: Final = (
    "variant",
    "step, ms",
    "last 10, ms",
    "steps/s",
    "history bytes",
    "objects",
    "bytes stored",
    "PUTs",
    "bytes written",
)
_RESUME_COLUMNS: Final = (
    "variant",
    "to the end of the next step, ms",
    "PUTs in the replay",
    "PUTs",
    "GETs",
    "bytes read",
    "HEADs",
)


async def _build_growth_row(runner: LoopRunner) -> list[Cell]:
    taken = [runner.step_seconds[step] for step in sorted(runner.step_seconds)]
    objects, size_bytes = (0, 0) if runner.name == PLAIN else await count_stored(runner.place)
    puts = [event.size for event in runner.events() if event.what == "put"]
    return [
        runner.name,
        round(statistics.median(taken) * 1000, 1),
        round(statistics.median(taken[-10:]) * 1000, 1),
        round(1 / statistics.mean(taken), 1),
        await runner.history_bytes(),
        objects,
        size_bytes,
        len(puts),
        sum(puts),
    ]


def _resume_row(name: str, resumes: Sequence[Resume]) -> list[Cell]:
    seconds = [resume.seconds for resume in resumes if resume.seconds is not None]
    last = resumes[-1]
    return [
        name,
        round(statistics.median(seconds) * 1000) if seconds else None,
        last.replay_puts,
        last.puts,
        last.gets,
        last.get_bytes,
        last.heads,
    ]
