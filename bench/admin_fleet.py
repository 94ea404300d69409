"""The list of threads beside one a hundred times as large: first bytes, memory, requests to the server.

The threads of a large fleet are rows of the dev server's own visibility, copied from some real ones
while the server is down. It answers real queries over all of them, and nothing waits for their starts.
"""

import asyncio
import contextlib
import dataclasses
import re
import sqlite3
import statistics
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx
from temporalio.client import Client

from bench.admin_bed import populate, until_listed
from bench.cost_actions import requests
from bench.report import Report
from bench.report import Series as Table
from everlong import EverlongPlugin
from everlong.admin.service.directory import ROWS_MAX
from everlong.config import EMBEDDED_NAMESPACE, embedded, load_settings, store_url
from everlong.embedded import TemporalServer, start_codec_server, start_server
from everlong.embedded.server import LOOPBACK, free_port

FIRST_BYTE_MS_MAX: Final = 500.0
RSS_MIB_MAX: Final = 300.0
# A page takes a list, a count of what fits and one of all threads; an id takes a description too, and a
# list with ended threads a second query for newer runs.
REQUESTS_MAX: Final = 5
_TEMPLATES: Final = 400
_ENDED_EVERY: Final = 10
_READY: Final = "Uvicorn running on"
_COMPLETE_SECONDS_MAX: Final = 300.0
_HTML: Final = {"accept": "text/html"}
# The server publishes its metrics about once a second.
_METRICS_SECONDS: Final = 2.0
_COUNTED: Final = (
    "ListWorkflowExecutions",
    "CountWorkflowExecutions",
    "DescribeWorkflowExecution",
)


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one kind of request took."""

    median_ms: float
    slowest_ms: float
    requests: float
    """To the server, for one of them."""


# Each is asked for with different numbers, so that no answer is one that the server gave before.
_ASKED: Final[Mapping[str, tuple[Callable[[int], str], dict[str, str]]]] = {
    "threads page": (lambda number: f"/?agent=ops&text=thread-00{number:03}", _HTML),
    "API list": (lambda number: f"/api/v1/threads?limit={100 - number}", {}),
    "API list, the id of the oldest": (
        lambda number: f"/api/v1/threads?text=thread-{number:06}",
        {},
    ),
    "API list, the beginning of ids": (
        lambda number: f"/api/v1/threads?text=thread-0{number:02}",
        {},
    ),
    "API list, by status": (
        lambda number: f"/api/v1/threads?status=paused&limit={100 - number}",
        {},
    ),
    "API list, ended": (lambda number: f"/api/v1/threads?status=stopped&limit={100 - number}", {}),
    "API list, by agent": (lambda number: f"/api/v1/threads?agent=ops&limit={100 - number}", {}),
    "API list, largest first": (
        lambda number: f"/api/v1/threads?sort=-stored&limit={100 - number}",
        {},
    ),
    "API list, inside ids": (
        lambda number: f"/api/v1/threads?text=00{number:02}&sort=-growth",
        {},
    ),
    "API fleet": (lambda _: "/api/v1/fleet", {}),
}


async def fleets(folder: Path, sizes: Sequence[int], asked: int) -> Report:
    """Measure the list with each number of threads."""
    report = Report("a list of " + " and of ".join(f"{each:,}" for each in sizes) + " threads")
    found: dict[int, dict[str, Measured]] = {}
    for size in sizes:
        place = folder / f"fleet-{size}"
        place.mkdir()
        found[size] = await _measure(report, place, size, asked)
    columns = ["what"]
    for size in sizes:
        columns += [f"{size:,}: ms", "slowest", "requests"]
    rows: list[list[str | float]] = []
    for what in _ASKED:
        row: list[str | float] = [what]
        for size in sizes:
            each = found[size][what]
            row += [round(each.median_ms, 1), round(each.slowest_ms, 1), round(each.requests, 1)]
        rows.append(row)
    report.series.append(
        Table("first byte, median and slowest, and requests to the server", columns, rows)
    )
    return report


async def _measure(report: Report, folder: Path, size: int, asked: int) -> dict[str, Measured]:
    await _fill(folder, size)
    metrics_port = free_port()
    server = await start_server(folder, metrics_port=metrics_port)
    with server.process:
        async with _serving(server, folder) as (browser, pid):
            meter = _Meter(metrics_port)
            cold_ms = await _first_byte_ms(browser, "/", _HTML)
            report.add(
                f"{size:,}: threads page, the first request", cold_ms, "ms", most=FIRST_BYTE_MS_MAX
            )
            before = await meter.read()
            seconds = await _until_complete(browser, size)
            read = (await meter.read() - before).total()
            report.add(f"{size:,}: all threads are known after", seconds, "s")
            report.add(f"{size:,}: requests until then", read)
            oldest = (await browser.get("/api/v1/threads?text=thread-000000")).json()["rows"]
            is_found = [row["thread_id"] for row in oldest] == ["thread-000000"]
            report.add(f"{size:,}: the oldest thread is found by its id", is_found, least=1)
            found = {}
            for what, (path, headers) in _ASKED.items():
                found[what] = await _ask(browser, meter, path, headers, asked)
                slowest = found[what].slowest_ms
                report.add(f"{size:,}: {what}, slowest", slowest, "ms", most=FIRST_BYTE_MS_MAX)
                if size > ROWS_MAX:  # Of fewer threads nothing is asked, but in the background.
                    made = found[what].requests
                    report.add(f"{size:,}: {what}, requests", made, most=REQUESTS_MAX)
            for name in ("VmRSS", "VmHWM"):
                what = {"VmRSS": "memory", "VmHWM": "peak memory"}[name]
                report.add(f"{size:,}: {what}", _memory_mib(pid, name), "MiB", most=RSS_MIB_MAX)
    return found


async def _fill(folder: Path, size: int) -> None:
    """Make a server's database with that many threads. The ids of the real ones are the first."""
    (folder / "blobs").mkdir()
    templates = min(size, _TEMPLATES)
    server = await start_server(folder)
    with server.process:
        plugin = EverlongPlugin(store=store_url(folder))
        client = await Client.connect(server.address, plugins=[plugin])
        await populate(client, templates, digits=6)
        await until_listed(client, templates)
    with contextlib.closing(sqlite3.connect(folder / "temporal.db")) as db, db:
        copy_threads(db, templates, size)


def copy_threads(db: sqlite3.Connection, templates: int, size: int) -> None:
    """Copy rows of visibility until there are so many. One copy in ten has ended."""
    table = "executions_visibility"
    listed = db.execute(f"PRAGMA table_xinfo({table})").fetchall()
    columns = [name for _, name, _, _, _, _, hidden in listed if not hidden]
    names = ", ".join(columns)
    found = db.execute(
        f"SELECT {names} FROM {table} WHERE workflow_type_name = 'everlong.Agent' "  # noqa: S608 - ours
        "ORDER BY workflow_id"
    ).fetchall()
    if len(found) != templates:
        raise RuntimeError(f"visibility has {len(found)} rows of {templates} threads")
    rows = []
    for number in range(templates, size):
        row = dict(zip(columns, found[number % templates], strict=True))
        row |= {
            "workflow_id": f"thread-{number:06}",
            "run_id": str(uuid.UUID(int=number + 1)),
            "start_time": f"2030-01-{number % 28 + 1:02} 00:00:00.{number:06}+00:00",
        }
        if number % _ENDED_EVERY == 0:
            row |= {"status": 2, "close_time": f"2031-01-01 00:00:00.{number:06}+00:00"}
        rows.append([row[name] for name in columns])
    marks = ", ".join("?" * len(columns))
    db.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)  # noqa: S608 - ours


@contextlib.asynccontextmanager
async def _serving(
    server: TemporalServer, folder: Path
) -> AsyncIterator[tuple[httpx.AsyncClient, int]]:
    settings = embedded(load_settings({"EVERLONG_DATA_DIR": str(folder)}), server.address)
    port = free_port()
    with start_codec_server(settings, port, server.ui_port) as admin:
        await admin.wait_for_output(_READY, 60.0)
        async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=60) as client:
            yield client, admin.pid


async def _ask(
    browser: httpx.AsyncClient,
    meter: "_Meter",
    path: Callable[[int], str],
    headers: dict[str, str],
    asked: int,
) -> Measured:
    before = await meter.read()
    took = [await _first_byte_ms(browser, path(number), headers) for number in range(asked)]
    made = (await meter.read() - before).total()
    return Measured(statistics.median(took), max(took), made / asked)


async def _first_byte_ms(browser: httpx.AsyncClient, path: str, headers: dict[str, str]) -> float:
    began = time.perf_counter()
    async with browser.stream("GET", path, headers=headers) as answer:
        took = 1000 * (time.perf_counter() - began)
        await answer.aread()
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(
                f"{path} was answered with {answer.status_code}: {answer.text[:300]}"
            )
    return took


async def _until_complete(browser: httpx.AsyncClient, threads: int) -> float:
    began = time.monotonic()
    while time.monotonic() - began < _COMPLETE_SECONDS_MAX:
        page = (await browser.get("/api/v1/threads?sort=-stored&limit=1")).json()
        if page["is_complete"] and page["total"] >= threads:
            return time.monotonic() - began
        if page["read_ms"] and page["total"] < threads:  # It has read all that it will.
            return time.monotonic() - began
        await asyncio.sleep(0.25)
    raise TimeoutError(f"the list is not complete after {_COMPLETE_SECONDS_MAX:.0f} s")


class _Meter:
    """Counts the requests that a dev server was asked, by its own metrics."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def read(self) -> Counter[str]:
        await asyncio.sleep(_METRICS_SECONDS)
        found = await asyncio.to_thread(requests, self._port, EMBEDDED_NAMESPACE)
        return Counter({name: found[name] for name in _COUNTED})


def _memory_mib(pid: int, name: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc does not say {name}")
    return int(found[1]) / 1024
