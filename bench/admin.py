"""`python -m bench.admin`: latency of the dashboard's lists and pages with 10,000 threads.

It also compares lists of 1,000 and 100,000 threads, and one thread's endpoints with journals of 200 and
20,000 entries.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import httpx
from temporalio.client import Client
from temporalio.worker import Worker

from bench.admin_fleet import measure_fleets
from bench.report import Report, finish, machine
from bench.report import Series as Table
from bench.synthetic_threads import populate, start_with_journal, wait_until_listed
from everlong import Agent, EverlongPlugin, Reply
from everlong.config import build_store_url, load_settings, point_to_embedded
from everlong.embedded import TemporalServer, start_codec_server, start_server
from everlong.embedded.server import LOOPBACK, find_free_port
from everlong.storage.pack_store import open_packs
from everlong.testing import ScriptedModel

_PARTS: Final = ("lists", "journals", "fleet")
_READY: Final = "Uvicorn running on"
_FIRST_BYTE_MS_MAX: Final = 500.0
# Finding a page of a long journal reads more folds; nothing else grows with the journal.
_RATIO_MAX: Final = 2.0
_HTML: Final = {"accept": "text/html"}


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of the measurement."""

    threads: int = 10_000
    requests: int = 40
    short: int = 200
    long: int = 20_000
    fleets: tuple[int, ...] = (1_000, 100_000)


QUICK: Final = Size(threads=300, requests=5, short=100, long=1_000, fleets=(300, 25_000))


def main(arguments: Sequence[str]) -> int:
    """Run the requested parts; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.admin", description=__doc__)
    parser.add_argument("--only", choices=_PARTS, help="one part")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="and as tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a short run")
    asked = parser.parse_args(arguments)
    about = machine()
    parts = [asked.only] if asked.only else list(_PARTS)
    size = QUICK if asked.quick else Size()
    with tempfile.TemporaryDirectory(prefix="everlong-bench-") as folder:
        reports = asyncio.run(_measure(Path(folder), parts, size))
    return finish(about, reports, asked.json, asked.markdown)


async def _measure(folder: Path, parts: Sequence[str], size: Size) -> list[Report]:
    reports = []
    if "journals" in parts or "lists" in parts:
        server = await start_server(folder)
        with server.process:
            if "journals" in parts:
                reports.append(await measure_journals(server, folder, size))
            if "lists" in parts:
                reports.append(await measure_lists(server, folder, size))
    if "fleet" in parts:
        reports.append(await measure_fleets(folder, size.fleets, size.requests))
    return reports


@contextlib.asynccontextmanager
async def open_admin(server: TemporalServer, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Start `everlong serve` with a store in `folder`; yield an HTTP client once it listens."""
    (folder / "blobs").mkdir(exist_ok=True)
    settings = point_to_embedded(load_settings({"EVERLONG_DATA_DIR": str(folder)}), server.address)
    port = find_free_port()
    with start_codec_server(settings, port, server.ui_port) as admin:
        await admin.wait_for_output(_READY, 60.0)
        async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=60) as client:
            yield client


async def measure_lists(server: TemporalServer, folder: Path, size: Size) -> Report:
    """Measure the list of threads, right after the start and later."""
    report = Report(f"a list of {size.threads:,} threads")
    client = await connect_client(server, folder)
    began = time.monotonic()
    before = (await client.count_workflows("WorkflowType = 'everlong.Agent'")).count
    await populate(client, size.threads)
    await wait_until_listed(client, before + size.threads)
    report.notes.append(f"the threads were started in {time.monotonic() - began:.0f} s")
    async with open_admin(server, folder) as browser:
        cold_ms = await first_byte_ms(browser, "/api/v1/threads?limit=100")
        report.add("API list, the first request", cold_ms, "ms", most=_FIRST_BYTE_MS_MAX)
        complete = await _wait_until_complete(browser, size.threads)
        report.add("all threads are known after", complete, "s")
        await _measure_paths(report, browser, size)
    async with open_admin(server, folder) as browser:
        cold_ms = await first_byte_ms(browser, "/", _HTML)
        report.add("threads page, the first request", cold_ms, "ms", most=_FIRST_BYTE_MS_MAX)
        await _wait_until_complete(browser, size.threads)
        took = [await first_byte_ms(browser, "/", _HTML) for _ in range(size.requests)]
        _add(report, "threads page", took)
    return report


async def _measure_paths(report: Report, browser: httpx.AsyncClient, size: Size) -> None:
    for what, path in (
        ("API list", "/api/v1/threads?limit=100"),
        ("API list by size, last page", f"/api/v1/threads?sort=stored&offset={size.threads - 100}"),
        ("API list, a search", "/api/v1/threads?text=0099&sort=-growth"),
        ("API fleet", "/api/v1/fleet"),
    ):
        _add(report, what, [await first_byte_ms(browser, path) for _ in range(size.requests)])
    page = await browser.get("/api/v1/threads?limit=100")
    headers = {"if-none-match": page.headers["etag"]}
    took = [
        await first_byte_ms(browser, "/api/v1/threads?limit=100", headers)
        for _ in range(size.requests)
    ]
    _add(report, "API list, nothing changed", took)
    report.add("API list of 100 threads", len(page.content) / 1024, "KiB")


def _add(report: Report, what: str, took_ms: Sequence[float]) -> None:
    report.add(f"{what}, median first byte", statistics.median(took_ms), "ms")
    report.add(f"{what}, slowest first byte", max(took_ms), "ms", most=_FIRST_BYTE_MS_MAX)


async def _wait_until_complete(browser: httpx.AsyncClient, threads: int) -> float:
    began = time.monotonic()
    while time.monotonic() - began < 60:
        page = (await browser.get("/api/v1/threads?limit=1")).json()
        if page["is_complete"] and page["all_threads"] >= threads:
            return time.monotonic() - began
        await asyncio.sleep(0.05)
    raise TimeoutError("the list is not complete after 60 s")


async def measure_journals(server: TemporalServer, folder: Path, size: Size) -> Report:
    """Measure the endpoints of one thread, with a short journal and a long one, in turns."""
    report = Report(f"one thread with {size.short:,} and with {size.long:,} entries")
    client = await connect_client(server, folder)
    packs = open_packs(build_store_url(folder))
    agent = Agent(name="ops", model=ScriptedModel(lambda _: Reply(text="ok")))
    plugin = EverlongPlugin(store=packs.store, agents=[agent])
    own = await Client.connect(server.address, plugins=[plugin])
    lengths = {"short": size.short, "long": size.long}
    for thread_id, entries in lengths.items():
        await start_with_journal(
            client, packs, thread_id, entries, task_queue="bench-admin", agent="ops"
        )
    rows = []
    async with Worker(own, task_queue="bench-admin"), open_admin(server, folder) as browser:
        for what, path in _list_thread_paths().items():
            took: dict[str, list[float]] = {"short": [], "long": []}
            for _ in range(size.requests):
                for thread_id, entries in lengths.items():
                    place = path.format(id=thread_id, last=entries, middle=entries // 2)
                    took[thread_id].append(await first_byte_ms(browser, place))
            short, long = (statistics.median(took[each]) for each in lengths)
            rows.append((what, round(short, 1), round(long, 1), round(long / short, 2)))
            if what == "series":  # A short journal has fewer samples, so a ratio would mean little.
                report.add("series of the long one", long, "ms", most=_FIRST_BYTE_MS_MAX)
            else:
                report.add(f"{what}, long against short", long / short, "times", most=_RATIO_MAX)
    report.series.append(_add_series(rows))
    return report


def _list_thread_paths() -> dict[str, str]:
    base = "/api/v1/threads/{id}"
    return {
        "conversation page": "/threads/{id}",
        "conversation page in the middle": "/threads/{id}?before={middle}",
        "State tab": "/threads/{id}?tab=state",
        "Size tab": "/threads/{id}?tab=size",
        "overview": base,
        "newest entries": f"{base}/entries?limit=50",
        "entries in the middle": f"{base}/entries?before={{middle}}&limit=50",
        "one body": f"{base}/entries/{{middle}}",
        "state at an entry": f"{base}/at/{{middle}}",
        "diff to now": f"{base}/diff?first={{middle}}",
        "series": f"{base}/series",
        "runs": f"{base}/runs",
    }


def _add_series(rows: Sequence[tuple[str, float, float, float]]) -> "Table":
    return Table("median of a request", ("what", "short, ms", "long, ms", "long / short"), rows)


async def first_byte_ms(
    browser: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None
) -> float:
    """Return the time to the first byte of a response; raise if its status is not 200."""
    began = time.perf_counter()
    async with browser.stream("GET", path, headers=headers) as answer:
        took = 1000 * (time.perf_counter() - began)
        await answer.aread()
        if answer.status_code not in (200, 304):
            raise RuntimeError(
                f"{path} was answered with {answer.status_code}: {answer.text[:300]}"
            )
    return took


async def connect_client(server: TemporalServer, folder: Path) -> Client:
    """Return a Temporal client with a store in `folder`."""
    (folder / "blobs").mkdir(exist_ok=True)
    return await Client.connect(
        server.address, plugins=[EverlongPlugin(store=build_store_url(folder))]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
