"""`python -m bench.live`: live output from a worker to a page, under load, and what it costs.

Three parts. `page`: the time from a word in the worker until it is in a page's document in Chromium.
`load`: 200 threads that stream at once, each with a listener: time to the listener, CPU and memory of
the admin server. `requests`: the same turns with live output on and off, by the Temporal server's own
count. Replies are words that say when they were written; all processes share one clock.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client

from bench.admin_fleet import read_cpu_seconds, read_memory_mib
from bench.cost_actions import requests
from bench.live_agent import NAME
from bench.report import Report, Series, finish, machine
from everlong import EverlongPlugin, thread
from everlong.config import (
    EMBEDDED_NAMESPACE,
    Settings,
    build_embedded_environment,
    load_settings,
    point_to_embedded,
)
from everlong.embedded import ManagedProcess, TemporalServer, start_server
from everlong.embedded.server import LOOPBACK, find_free_port
from everlong.worker_options import READY

_PARTS: Final = ("page", "load", "requests")
_CHROMIUM: Final = (Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium"))
_FLAGS: Final = ("--no-sandbox", "--disable-gpu")
_ROOT: Final = Path(__file__).parents[1]
_READY_SECONDS_MAX: Final = 60.0
_TURN_SECONDS_MAX: Final = 300.0
_PAGE_MS_MAX: Final = 250.0
"""Bound on the median: 50 ms in the worker, and what two busy cores add."""
_SERVED: Final = "Uvicorn running on"
# A user may have 64 listeners.
_LISTENERS_PER_USER: Final = 50
# Long polls and lists are made by time, and not by what threads do.
_BY_TIME: Final = ("Poll", "List", "Get", "Describe", "Count", "Operator")
# The server counts a request when it has answered it.
_SETTLE_SECONDS: Final = 2.0


@dataclasses.dataclass(frozen=True)
class Size:
    """Size of the measurement."""

    threads: int = 200
    words: int = 400
    pause_ms: int = 50
    turns: int = 20


QUICK: Final = Size(threads=5, words=30, turns=2)


def main(arguments: Sequence[str]) -> int:
    """Run the requested parts; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.live", description=__doc__)
    parser.add_argument("--only", choices=_PARTS, help="one part")
    parser.add_argument("--threads", type=int, help="threads that stream at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="and as tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a short run")
    asked = parser.parse_args(arguments)
    about = machine()
    size = QUICK if asked.quick else Size()
    if asked.threads:
        size = dataclasses.replace(size, threads=asked.threads)
    parts = [asked.only] if asked.only else list(_PARTS)
    with tempfile.TemporaryDirectory(prefix="everlong-bench-") as folder:
        reports = asyncio.run(measure(Path(folder), parts, size))
    return finish(about, reports, asked.json, asked.markdown)


async def measure(folder: Path, parts: Sequence[str], size: Size) -> list[Report]:
    """Return the reports of some parts."""
    metrics_port = find_free_port()
    server = await start_server(folder, metrics_port=metrics_port, durable=False)
    with server.process:
        reports = []
        if "page" in parts:
            reports.append(await _measure_page(server, folder, size))
        if "load" in parts:
            reports.append(await _measure_load(server, folder, size))
        if "requests" in parts:
            reports.append(await _measure_requests(server, folder, size, metrics_port))
    return reports


@dataclasses.dataclass(frozen=True)
class _Bench:
    """An admin server and a worker, as separate processes, and a client."""

    client: Client
    url: str
    queue: str
    tokens: Sequence[str]
    admin: ManagedProcess
    worker: ManagedProcess

    async def ask(self, thread_id: str, size: Size) -> str:
        """Have a thread stream a reply, and return it."""
        text = f"stream {size.words} {size.pause_ms}"
        handle = thread(self.client, thread_id, task_queue=self.queue)
        return await handle.ask(
            text, agent=NAME, seconds_max=_TURN_SECONDS_MAX, on_wait=lambda _: None
        )


@contextlib.asynccontextmanager
async def _open_bench(
    server: TemporalServer, folder: Path, *, users: int = 0, live: bool = True
) -> AsyncIterator[_Bench]:
    """Start an admin server and a worker. Without users, the admin server has no tokens."""
    queue = f"live-{uuid.uuid4().hex[:8]}"
    (folder / "blobs").mkdir(exist_ok=True)
    environ = {"EVERLONG_DATA_DIR": str(folder), "EVERLONG_TASK_QUEUE": queue}
    settings = point_to_embedded(load_settings(environ), server.address)
    port = find_free_port()
    url = f"http://{LOOPBACK}:{port}"
    tokens = [f"listener-token-{number:04}" for number in range(users)]
    grants = [f"user{number}:viewer:{token}" for number, token in enumerate(tokens)]
    worker_token = "worker-token-0000" if users else ""
    grants += [f"workers:worker:{worker_token}"] if users else []
    admin = _start(settings, f"admin-{queue}", ["serve", "--port", str(port)], ",".join(grants))
    with admin:
        await admin.wait_for_output(_SERVED, _READY_SECONDS_MAX)
        told = dataclasses.replace(settings, live_url=url if live else "")
        arguments = ["worker", "bench.live_agent:agent"]
        with _start(told, f"worker-{queue}", arguments, token=worker_token) as worker:
            await worker.wait_for_output(READY, _READY_SECONDS_MAX)
            client = await Client.connect(
                server.address, plugins=[EverlongPlugin(store=settings.store)]
            )
            yield _Bench(client, url, queue, tokens, admin, worker)


def _start(
    settings: Settings, name: str, arguments: Sequence[str], tokens: str = "", token: str = ""
) -> ManagedProcess:
    return ManagedProcess(
        name,
        [sys.executable, "-m", "everlong", *arguments],
        env={
            **build_embedded_environment(settings),
            "EVERLONG_TOKENS": tokens,
            "EVERLONG_LIVE_TOKEN": token,
            "EVERLONG_ACTIVITIES": "300",
            "PYTHONPATH": str(_ROOT),
        },
        log=settings.data_dir / f"{name}.log",
    )


# In a page.

_WATCH: Final = """
window.ages = [];
let seen = 0;
new MutationObserver(() => {
  const text = document.querySelector(".live-text")?.textContent || "";
  const words = text.trim().split(" ");
  const now = performance.timeOrigin + performance.now();
  for (; seen < words.length; seen += 1) {
    if (words[seen]) window.ages.push(now - Number(words[seen]) / 1000);
  }
}).observe(document, {subtree: true, childList: true, characterData: true});
"""


async def _measure_page(server: TemporalServer, folder: Path, size: Size) -> Report:
    # Imported here: the other parts need no browser.
    from playwright.async_api import async_playwright

    report = Report("from a word in the worker to the page, in Chromium")
    chromium = next((each for each in _CHROMIUM if each.exists()), None)
    if chromium is None:
        report.notes.append(f"skipped: there is no {_CHROMIUM[0]}")
        return report
    async with _open_bench(server, folder) as bench, async_playwright() as playwright:
        thread_id = f"page-{uuid.uuid4().hex[:8]}"
        await bench.ask(thread_id, dataclasses.replace(size, words=1))
        browser = await playwright.chromium.launch(executable_path=chromium, args=list(_FLAGS))
        try:
            page = await browser.new_page()
            await page.add_init_script(_WATCH)
            await page.goto(f"{bench.url}/threads/{thread_id}")
            await page.wait_for_function("document.documentElement.dataset.ready !== undefined")
            await bench.ask(thread_id, size)
            ages: list[float] = await page.evaluate("window.ages")
        finally:
            await browser.close()
    report.add("words", len(ages), least=size.words * 0.9)
    _add_ages(report, "word to page", ages, p50_ms_max=_PAGE_MS_MAX)
    report.notes.append(
        f"one thread, a word each {size.pause_ms} ms; until the word is in the document, before it is "
        "painted"
    )
    return report


def _add_ages(
    report: Report, what: str, ages: Sequence[float], p50_ms_max: float | None = None
) -> None:
    if len(ages) < 2:
        report.add(f"{what}, p50", None, "ms", most=p50_ms_max)
        return
    report.add(f"{what}, p50", round(statistics.median(ages), 1), "ms", most=p50_ms_max)
    report.add(f"{what}, p95", round(statistics.quantiles(ages, n=20)[18], 1), "ms")
    report.add(f"{what}, largest", round(max(ages), 1), "ms")


# Many threads.


class _Listener:
    """Reads the stream of one thread, and notes the age of each word."""

    def __init__(self, url: str, thread_id: str, token: str) -> None:
        self._address = url.removeprefix("http://")
        self._thread_id = thread_id
        self._token = token
        self.ages: list[float] = []
        self.is_open = asyncio.Event()
        self.has_words = asyncio.Event()
        self.is_done = asyncio.Event()

    async def read(self) -> None:
        host, _, port = self._address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(
                f"GET /api/v1/threads/{self._thread_id}/live HTTP/1.1\r\nHost: {self._address}\r\n"
                f"Authorization: Bearer {self._token}\r\n\r\n".encode()
            )
            name, rest = "", ""
            while (await reader.readline()).strip():
                pass  # The head.
            while raw := await reader.readline():
                line = raw.decode().rstrip()
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    rest = self._take(name, json.loads(line.removeprefix("data: ")), rest)
        finally:
            writer.close()

    def _take(self, name: str, data: dict[str, Any], rest: str) -> str:
        """Take an event; return the beginning of a word that is not complete."""
        if name == "open":
            self.is_open.set()
        elif name == "done":
            self.is_done.set()
        if name != "delta":
            return rest
        *words, rest = (rest + data["text"]).split(" ")
        now = time.time_ns() / 1_000_000
        self.ages += [now - int(word) / 1000 for word in words if word]
        self.has_words.set()
        return rest


@contextlib.contextmanager
def _run(listeners: Sequence[_Listener]) -> Iterator[None]:
    tasks = [asyncio.ensure_future(each.read()) for each in listeners]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def _measure_load(server: TemporalServer, folder: Path, size: Size) -> Report:
    report = Report(f"{size.threads} threads that stream at once, each with a listener")
    users = -(-size.threads // _LISTENERS_PER_USER)
    async with _open_bench(server, folder, users=users) as bench:
        ids = [f"load-{uuid.uuid4().hex[:8]}" for _ in range(size.threads)]
        short = dataclasses.replace(size, words=1)
        await asyncio.gather(*(bench.ask(each, short) for each in ids))
        idle_mib = read_memory_mib(bench.admin.pid, "VmRSS")
        listeners = [
            _Listener(bench.url, each, bench.tokens[number // _LISTENERS_PER_USER])
            for number, each in enumerate(ids)
        ]
        with _run(listeners):
            async with asyncio.timeout(_READY_SECONDS_MAX):
                await asyncio.gather(*(each.is_open.wait() for each in listeners))
            asking = asyncio.gather(*(bench.ask(each, size) for each in ids))
            # All of them stream during the middle half of the time.
            whole_seconds = size.words * size.pause_ms / 1000
            await asyncio.gather(*(each.has_words.wait() for each in listeners))
            cpu = [read_cpu_seconds(each.pid) for each in (bench.admin, bench.worker)]
            began, before = time.monotonic(), sum(len(each.ages) for each in listeners)
            await asyncio.sleep(whole_seconds / 2)
            seconds = time.monotonic() - began
            words = sum(len(each.ages) for each in listeners) - before
            used = [
                (read_cpu_seconds(each.pid) - earlier) / seconds
                for each, earlier in zip((bench.admin, bench.worker), cpu, strict=True)
            ]
            answers = await asking
            async with asyncio.timeout(_READY_SECONDS_MAX):
                await asyncio.gather(*(each.is_done.wait() for each in listeners))
        ages = [age for each in listeners for age in each.ages]
        wanted = sum(len(each.split()) for each in answers)
        report.add("words that reached their listener", len(ages) / wanted * 100, "%", least=99.0)
        report.add("words", round(words / seconds), "a second")
        _add_ages(report, "word to listener", ages)
        report.add("CPU of the admin server", round(100 * used[0]), "% of a core", most=100)
        report.add("CPU of the worker", round(100 * used[1]), "% of a core")
        peak_mib = read_memory_mib(bench.admin.pid, "VmHWM")
        report.add("memory of the admin server before", round(idle_mib), "MiB")
        report.add("memory of the admin server, peak", round(peak_mib), "MiB")
    report.notes.append(
        "the listeners, the worker, the admin server and the Temporal server share this machine"
    )
    return report


# Requests.


async def _measure_requests(
    server: TemporalServer, folder: Path, size: Size, metrics_port: int
) -> Report:
    report = Report(f"requests to the Temporal server for {size.turns} turns of one thread")
    short = dataclasses.replace(size, words=10)
    made: dict[bool, Counter[str]] = {}
    for live in (False, True):
        async with _open_bench(server, folder, users=1, live=live) as bench:
            thread_id = f"requests-{uuid.uuid4().hex[:8]}"
            await bench.ask(thread_id, short)  # Connections and caches.
            listener = _Listener(bench.url, thread_id, bench.tokens[0])
            with _run([listener]):
                await listener.is_open.wait()
                await asyncio.sleep(_SETTLE_SECONDS)
                before = requests(metrics_port, EMBEDDED_NAMESPACE)
                for _ in range(size.turns):
                    await bench.ask(thread_id, short)
                await asyncio.sleep(_SETTLE_SECONDS)
                made[live] = requests(metrics_port, EMBEDDED_NAMESPACE)
                made[live].subtract(before)
            report.add(f"words that a listener got, {'on' if live else 'off'}", len(listener.ages))
    names = sorted(
        name for name in made[True] | made[False] if made[True][name] or made[False][name]
    )
    rows = [(name, made[False][name], made[True][name]) for name in names]
    report.series.append(Series("requests by operation", ("operation", "off", "on"), rows))
    counted = [row for row in rows if not row[0].startswith(_BY_TIME)]
    extra = sum(on - off for _, off, on in counted)
    report.add("requests without polls, off", sum(off for _, off, _ in counted))
    report.add("requests without polls, on", sum(on for _, _, on in counted))
    report.add("extra requests with live output on", extra, most=0)
    return report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
