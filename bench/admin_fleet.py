"""The list of threads, of a fleet and one a hundred times as large: latency, memory, server requests.

A fake frontend that only lists replaces the server: a real server's query time comes on top.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.contrib.pydantic import pydantic_data_converter

from bench.fake_frontend import FakeFrontend, Row, serialize_row
from bench.report import Report
from bench.report import Series as Table
from bench.synthetic_threads import attributes, card
from everlong import EverlongPlugin
from everlong.client.thread_list import ROWS_MAX
from everlong.config import load_settings, point_to_embedded
from everlong.embedded import start_codec_server
from everlong.embedded.server import LOOPBACK, find_free_port
from everlong.models import AGENT_WORKFLOW, CARD_MEMO
from everlong.models.search_attributes import SEARCH_ATTRIBUTES
from everlong.storage.memory import MemoryBlobStore

FIRST_BYTE_MS_MAX: Final = 500.0
RSS_MIB_MAX: Final = 300.0
# A page needs a list, a count of the matches and a count of all threads. An id also needs a description,
# and a list with ended threads a second query for newer runs.
REQUESTS_MAX: Final = 5
_CARDS: Final = 997
_ENDED_EVERY: Final = 10
_FIRST_MS: Final = 1_700_000_000_000
_READY: Final = "Uvicorn running on"
_COMPLETE_SECONDS_MAX: Final = 600.0
_POLL_SECONDS: Final = 1.0
_HTML: Final = {"accept": "text/html"}


@dataclasses.dataclass(frozen=True)
class Measured:
    """Costs of one kind of request."""

    median_ms: float
    slowest_ms: float
    cpu_ms: float
    """CPU time of `everlong serve` for one request."""
    requests: float
    """Requests to the Temporal server for one request."""


# Each request uses a different number, so that no response comes from a cache.
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
    "API list, ended": (lambda number: f"/api/v1/threads?status=done&limit={100 - number}", {}),
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


async def measure_fleets(folder: Path, sizes: Sequence[int], asked: int) -> Report:
    """Measure the list for each fleet size."""
    report = Report("a list of " + " and of ".join(f"{each:,}" for each in sizes) + " threads")
    found: dict[int, dict[str, Measured]] = {}
    for size in sizes:
        place = folder / f"fleet-{size}"
        place.mkdir()
        found[size] = await _measure(report, place, size, asked)
    columns = ["what"]
    for size in sizes:
        columns += [f"{size:,}: ms", "slowest", "CPU ms", "requests"]
    rows: list[list[str | float]] = []
    for what in _ASKED:
        row: list[str | float] = [what]
        for size in sizes:
            each = found[size][what]
            row += [round(each.median_ms, 1), round(each.slowest_ms, 1)]
            row += [round(each.cpu_ms, 1), round(each.requests, 1)]
        rows.append(row)
    report.series.append(
        Table("first byte, median and slowest, and requests to the server", columns, rows)
    )
    return report


async def _measure(report: Report, folder: Path, size: int, asked: int) -> dict[str, Measured]:
    server = FakeFrontend(await _build_rows(size))
    with server.serve(LOOPBACK) as address:
        async with _open_admin(address, folder) as (browser, pid):
            cold_ms = await _measure_first_byte_ms(browser, "/", _HTML)
            what = f"{size:,}: threads page, the first request"
            report.add(what, cold_ms, "ms", most=FIRST_BYTE_MS_MAX)
            before = server.calls["ListWorkflowExecutions"]
            seconds = await _wait_until_complete(browser, size)
            report.add(f"{size:,}: all threads are known after", seconds, "s")
            read = server.calls["ListWorkflowExecutions"] - before
            report.add(f"{size:,}: lists of the server until then", read)
            oldest = (await browser.get("/api/v1/threads?text=thread-000000")).json()["rows"]
            is_found = [row["thread_id"] for row in oldest] == ["thread-000000"]
            report.add(f"{size:,}: the oldest thread is found by its id", is_found, least=1)
            found = {}
            for what, (path, headers) in _ASKED.items():
                found[what] = await _ask(browser, pid, server, path, headers, asked)
                slowest = found[what].slowest_ms
                report.add(f"{size:,}: {what}, slowest", slowest, "ms", most=FIRST_BYTE_MS_MAX)
                if size > ROWS_MAX:  # A small fleet is listed from memory.
                    made = found[what].requests
                    report.add(f"{size:,}: {what}, requests", made, most=REQUESTS_MAX)
            for name in ("VmRSS", "VmHWM"):
                what = {"VmRSS": "memory", "VmHWM": "peak memory"}[name]
                report.add(f"{size:,}: {what}", read_memory_mib(pid, name), "MiB", most=RSS_MIB_MAX)
    return found


async def _build_rows(size: int) -> list[Row]:
    """Return executions, oldest first. One in ten has ended."""
    codec = EverlongPlugin(store=MemoryBlobStore()).codec
    converter = pydantic_data_converter.payload_converter
    memos = await codec.encode([converter.to_payload(card(number)) for number in range(_CARDS)])
    found: list[Row] = []
    for number in range(size):
        info = WorkflowExecutionInfo(
            status=WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
            task_queue="bench",
            history_length=40,
        )
        thread_id, run_id = f"thread-{number:06}", str(uuid.UUID(int=number + 1))
        info.execution.workflow_id, info.execution.run_id = thread_id, run_id
        info.type.name = AGENT_WORKFLOW
        started_ms, closed_ms = _FIRST_MS + 1000 * number, None
        info.start_time.FromMilliseconds(started_ms)
        if number % _ENDED_EVERY == 1:
            closed_ms = started_ms + 500
            info.status = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED
            info.close_time.FromMilliseconds(closed_ms)
        info.memo.fields[CARD_MEMO].CopyFrom(memos[number % _CARDS])
        values = {pair.key.name: pair.value for pair in attributes(number)}
        for name, value in values.items():
            payload = info.search_attributes.indexed_fields[name]
            payload.metadata["encoding"] = b"json/plain"
            payload.metadata["type"] = SEARCH_ATTRIBUTES[name].encode()
            payload.data = json.dumps(value, default=str).encode()
        found.append(
            (
                thread_id,
                run_id,
                AGENT_WORKFLOW,
                "Running" if closed_ms is None else "Completed",
                started_ms,
                closed_ms,
                values["EverlongStatus"],
                values["EverlongAgent"],
                serialize_row(info),
            )
        )
    return found


@contextlib.asynccontextmanager
async def _open_admin(address: str, folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, int]]:
    (folder / "blobs").mkdir()
    settings = point_to_embedded(load_settings({"EVERLONG_DATA_DIR": str(folder)}), address)
    port = find_free_port()
    with start_codec_server(settings, port, ui_port=port) as admin:
        await admin.wait_for_output(_READY, 60.0)
        async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=60) as client:
            yield client, admin.pid


async def _ask(
    browser: httpx.AsyncClient,
    pid: int,
    server: FakeFrontend,
    path: Callable[[int], str],
    headers: dict[str, str],
    asked: int,
) -> Measured:
    before, cpu_before = server.calls.total(), read_cpu_seconds(pid)
    took = [await _measure_first_byte_ms(browser, path(number), headers) for number in range(asked)]
    made, cpu = server.calls.total() - before, read_cpu_seconds(pid) - cpu_before
    return Measured(statistics.median(took), max(took), 1000 * cpu / asked, made / asked)


async def _measure_first_byte_ms(
    browser: httpx.AsyncClient, path: str, headers: dict[str, str]
) -> float:
    began = time.perf_counter()
    async with browser.stream("GET", path, headers=headers) as answer:
        took = 1000 * (time.perf_counter() - began)
        await answer.aread()
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(
                f"{path} was answered with {answer.status_code}: {answer.text[:300]}"
            )
    return took


async def _wait_until_complete(browser: httpx.AsyncClient, threads: int) -> float:
    began = time.monotonic()
    while time.monotonic() - began < _COMPLETE_SECONDS_MAX:
        page = (await browser.get("/api/v1/threads?sort=-stored&limit=1")).json()
        if page["is_complete"] and page["total"] >= threads:
            return time.monotonic() - began
        if page["read_ms"] and page["total"] < threads:  # The list has read all that it will.
            return time.monotonic() - began
        await asyncio.sleep(_POLL_SECONDS)
    raise TimeoutError(f"the list is not complete after {_COMPLETE_SECONDS_MAX:.0f} s")


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_memory_mib(pid: int, name: str) -> float:
    """Return a size from a process's status: `VmRSS` now, `VmHWM` at most so far."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc does not say {name}")
    return int(found[1]) / 1024
