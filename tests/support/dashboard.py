"""Dashboard under test: a real Temporal server, a worker, a file store and a Chromium browser."""

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from playwright.async_api import Browser, Page, Playwright, async_playwright
from temporalio.client import Client

from everlong import Policy
from everlong.admin.web import Access, AppContext, create_admin_app
from everlong.client.thread_list import ThreadList
from everlong.embedded.server import find_free_port
from everlong.live import LiveServer
from everlong.models import ThreadStatus
from everlong.storage import open_store
from tests.support.dashboard_agent import agent
from tests.support.temporal_server import start_test_server
from tests.support.threads import Threads, open_threads

# The shell has the same engine without windows, for a third of the CPU.
SHELL = Path("/usr/bin/chromium-headless-shell")
CHROMIUM = SHELL if SHELL.exists() else Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]
WAIT_MS = 30_000


@dataclasses.dataclass
class Stage:
    """Running dashboard with its server, worker and store."""

    url: str
    threads: Threads
    context: AppContext
    browser: Browser

    @property
    def client(self) -> Client:
        return self.threads.client

    def make_context(self, thread_list: ThreadList | None = None) -> AppContext:
        """Return another context of the same server, with its own thread list."""

        async def connect() -> Client:
            return self.client

        context = AppContext(connect, self.context.packs, task_queue=self.threads.task_queue)
        context.thread_list = thread_list or context.thread_list
        return context

    async def send(self, thread_id: str, text: str, name: str = "ops") -> int:
        return await self.threads.send(thread_id, text, name)

    async def send_and_wait(self, thread_id: str, text: str) -> ThreadStatus:
        """Send a message and wait for the answer."""
        return await self.threads.wait_for_answers(thread_id, await self.send(thread_id, text))

    async def wait_until_listed(
        self, thread_id: str, status: str = "", seconds: float = 60
    ) -> None:
        """Wait until visibility, and so the list, shows a thread."""

        async def is_listed() -> bool:
            await self.context.thread_list.read()
            row = self.context.thread_list.row(thread_id)
            return row is not None and status in ("", row.status)

        await wait_until(is_listed, seconds)


async def wait_until(is_so: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    """Poll a condition until it holds, or fail at the deadline."""
    deadline = time.monotonic() + seconds
    while not await is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def open_stage(folder: Path) -> AsyncIterator[Stage]:
    """Start server, worker and dashboard; all tests of a process share them."""
    server = await start_test_server(folder)
    agents = [agent(), agent("tight", Policy(failed_turns_max=1)), agent("slow", seconds=1.5)]
    port = find_free_port()
    live = LiveServer(url=f"http://127.0.0.1:{port}")
    store = open_store((folder / "blobs").as_uri())
    try:
        async with (
            open_threads(server.address, store, *agents, live=live) as threads,
            threads.worker(),
            async_playwright() as playwright,
        ):

            async def connect() -> Client:
                return threads.client

            context = AppContext(
                connect,
                threads.plugin.packs,
                task_queue=threads.task_queue,
                temporal_ui=server.ui_url,
            )
            browser = await _launch(playwright)
            try:
                async with serve(create_admin_app(context, Access()), port) as url:
                    yield Stage(url, threads, context, browser)
            finally:
                await browser.close()
    finally:
        server.process.kill()


@contextlib.asynccontextmanager
async def serve(app: FastAPI, port: int = 0) -> AsyncIterator[str]:
    """Serve an application on loopback, on a free port by default; yield its address."""
    port = port or find_free_port()
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    try:

        async def is_up() -> bool:
            return server.started

        await wait_until(is_up)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def open_page(
    stage: Stage, *, url: str = "", width: int = 1360, height: int = 900, dark: bool = False
) -> AsyncIterator[Page]:
    """Open a page in its own browser. Fails on script errors and on requests to other servers."""
    url = url or stage.url
    context = await stage.browser.new_context(
        base_url=url,
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        locale="en-GB",
        timezone_id="Europe/Berlin",
    )
    context.set_default_timeout(WAIT_MS)
    page = await context.new_page()
    troubles: list[str] = []
    page.on(
        "console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on(
        "request",
        lambda r: None if r.url.startswith((url, "blob:", "data:")) else troubles.append(r.url),
    )
    try:
        yield page
        expected = getattr(page, "expected_troubles", ())
        left = [each for each in troubles if not any(part in each for part in expected)]
        assert not left, left
    finally:
        await context.close()


def screenshot(name: str) -> Path:
    """Return the path of a screenshot."""
    root = Path(__file__).parents[2]
    folder = Path(os.environ.get("EVERLONG_SCREENSHOTS", root / "build" / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.png"


async def shoot(page: Page, name: str, *, whole: bool = True) -> None:
    """Take a screenshot of a page."""
    if whole:  # The bar is sticky, so scroll to the top first.
        await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=screenshot(name), full_page=whole, animations="disabled")


async def _launch(playwright: Playwright) -> Browser:
    return await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
