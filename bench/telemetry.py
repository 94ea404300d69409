"""`python -m bench.telemetry`: compares resume spans with an external clock, and measures overhead."""

import argparse
import asyncio
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.report import Report, finish, machine
from bench.telemetry_harness import open_telemetry_harness
from bench.telemetry_overhead import measure_cost, report_costs
from bench.telemetry_resume import measure_spans, prepare
from bench.telemetry_waterfall import measure_slow_store
from everlong.embedded import start_server
from tests.support.otlp_receiver import http_receiver

_PARTS: Final = ("resumes", "overhead")


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of the measurement."""

    turns: int = 20
    history_steps: int = 8
    messages: int = 6
    steps: int = 300
    judged: bool = True


QUICK: Final = Size(turns=2, history_steps=3, messages=2, steps=10, judged=False)


def main(arguments: Sequence[str]) -> int:
    """Run the requested parts; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry", description=__doc__)
    parser.add_argument("--only", choices=_PARTS, help="one part")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of the overhead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="and as tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a short run; few bounds are judged")
    asked = parser.parse_args(arguments)
    about = machine()
    parts = [asked.only] if asked.only else list(_PARTS)
    with tempfile.TemporaryDirectory(prefix="everlong-bench-") as folder:
        size = QUICK if asked.quick else Size()
        reports = asyncio.run(_measure(Path(folder), parts, size, asked.repeat))
    return finish(about, reports, asked.json, asked.markdown)


async def _measure(folder: Path, parts: Sequence[str], size: Size, repeat: int) -> list[Report]:
    server = await start_server(folder)
    with server.process:
        reports: list[Report] = []
        if "resumes" in parts:
            reports += await resumes(server.address, folder, size)
        if "overhead" in parts:
            costs = [await measure_cost(server.address, folder, size.steps) for _ in range(repeat)]
            reports.append(report_costs(costs, judged=size.judged))
        return reports


async def resumes(address: str, folder: Path, size: Size) -> list[Report]:
    """Compare the spans of resumes with an external clock, then draw one with a slow store."""
    with http_receiver() as received:
        exports = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": received.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",  # The worker is killed soon after.
        }
        async with open_telemetry_harness(address, folder, exports) as harness:
            thread_id = f"{harness.queue}-thread"
            await prepare(harness, thread_id, size.history_steps, size.messages)
            spans = await measure_spans(
                harness, thread_id, received, turns=size.turns, judged=size.judged
            )
            slow = await measure_slow_store(harness, thread_id, received, judged=size.judged)
            return [spans, slow]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
