"""`python -m bench.thread`: measures threads, and fails if a bound does not hold."""

import argparse
import asyncio
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.report import Report, finish, machine
from bench.thread_growth import measure_growth
from bench.thread_harness import open_harness
from bench.thread_idle import measure_idle
from bench.thread_kills import measure_kills
from bench.thread_resume import level, measure_resumes
from bench.thread_stored import measure_stored
from everlong.embedded import start_server

_PARTS: Final = ("growth", "kills", "idle", "stored")


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of the measurement."""

    steps: int = 2000
    turns: int = 5
    idle_pages: int = 40
    stored_steps: int = 500
    judged: bool = True


QUICK: Final = Size(steps=200, turns=1, idle_pages=8, stored_steps=40, judged=False)


def main(arguments: Sequence[str]) -> int:
    """Run the requested parts; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.thread", description=__doc__)
    parser.add_argument("--only", choices=_PARTS, help="one part; growth includes the resumes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="and as tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a short run; few bounds are judged")
    asked = parser.parse_args(arguments)
    about = machine()
    parts = [asked.only] if asked.only else list(_PARTS)
    with tempfile.TemporaryDirectory(prefix="everlong-bench-") as folder:
        size = QUICK if asked.quick else Size()
        reports = asyncio.run(_measure(Path(folder), parts, size))
    return finish(about, reports, asked.json, asked.markdown)


async def _measure(folder: Path, parts: Sequence[str], size: Size) -> list[Report]:
    server = await start_server(folder)
    with server.process:
        return await measure(server.address, folder, parts, size)


async def measure(address: str, folder: Path, parts: Sequence[str], size: Size) -> list[Report]:
    """Measure the parts, each on its own task queue."""
    reports: list[Report] = []
    if "growth" in parts:
        async with open_harness(address, folder) as harness:
            await harness.start_worker()
            old, young = f"step {size.steps}", "step 50"
            reports.append(await measure_growth(harness, old, size.steps))
            await harness.ask(young, "read 0 to 48")
            await level(harness, old, young, size.steps)
            reports.append(
                await measure_resumes(harness, old, young, turns=size.turns, judged=size.judged)
            )
    if "kills" in parts:
        async with open_harness(address, folder) as harness:
            reports.append(await measure_kills(harness, turns=size.turns))
    if "idle" in parts:
        async with open_harness(address, folder) as harness:
            reports.append(await measure_idle(harness, pages=size.idle_pages))
    if "stored" in parts:
        reports.append(await measure_stored(address, folder, size.stored_steps, judged=size.judged))
    return reports


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
