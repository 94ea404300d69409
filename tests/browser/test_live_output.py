"""Live output in the conversation: replies word by word, progress of tools, what is cut off."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from everlong.client.thread import ThreadHandle
from everlong.config import load_settings, point_to_embedded
from everlong.embedded import start_worker
from everlong.live import LiveSender, LiveServer
from everlong.live import hub as hub_module
from everlong.live.sender import StepOutput
from everlong.worker_options import READY
from tests.support.dashboard import Stage, open_page, shoot, wait_until
from tests.support.live_agent import ANSWER as WHOLE
from tests.support.page_checks import check_page

TEXT = "hello, tell me in many words what has happened"
ANSWER = "you said hello, tell me in many words what has h"


@pytest_asyncio.fixture(loop_scope="session")
async def sender(stage: Stage) -> AsyncIterator[LiveSender]:
    """Return what a worker would report its steps with."""
    made = LiveSender(LiveServer(url=stage.url))
    yield made
    await asyncio.to_thread(made.close)


async def open_thread(stage: Stage, page: Page, thread_id: str, agent: str = "ops") -> None:
    """Open the page of a thread with one answer, and wait until it listens."""
    number = await stage.send(thread_id, "hello", agent)
    await stage.threads.wait_for_answers(thread_id, number)
    before = stage.context.live.listeners
    await page.goto(f"/threads/{thread_id}")

    async def listens() -> bool:
        return stage.context.live.listeners > before

    await wait_until(listens)


def open_step(sender: LiveSender, thread_id: str, attempt: int = 1, **fields: Any) -> StepOutput:
    defaults = {"kind": "reply", "seq": 4, "order": attempt}
    return sender.open_step("default", thread_id=thread_id, attempt=attempt, **(defaults | fields))


async def test_a_reply_appears_word_by_word_until_its_entry_is_there(
    stage: Stage, page: Page
) -> None:
    await open_thread(stage, page, "live-1", "slow")
    await stage.send("live-1", TEXT, "slow")
    step = page.locator("[data-live-output] .live-step")
    await expect(step).to_contain_text("Writing a reply")
    await expect(step).to_contain_text("you said")
    assert ANSWER not in await step.inner_text()
    await expect(page.locator("#entry-4")).to_contain_text(ANSWER)
    await expect(step).to_have_count(0)
    await expect(page.get_by_text(ANSWER)).to_have_count(1)


async def test_a_killed_workers_half_reply_is_cut_off_and_replaced_by_the_retrys(
    stage: Stage, page: Page, sender: LiveSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    await open_thread(stage, page, "live-2")
    first = open_step(sender, "live-2")
    first.add("The log of the night <b>shows</b> that the")
    step = page.locator("[data-live-output] .live-step")
    await expect(step).to_contain_text("The log of the night <b>shows</b> that the")
    # Nothing is heard of the worker again.
    await asyncio.to_thread(sender.close)
    monkeypatch.setattr(hub_module, "SILENT_SECONDS", 0.0)
    stage.context.live.end_silent()
    monkeypatch.undo()
    await expect(step).to_have_attribute("data-state", "cut")
    await expect(step).to_contain_text("Cut off: its worker does not answer")
    await check_page(page)
    await shoot(page, "live-cut-off", whole=False)
    second = open_step(sender, "live-2", attempt=2)
    second.add("The log shows nothing.")
    await expect(step).to_have_count(1)
    await expect(step).to_contain_text("Writing a reply, attempt 2")
    await expect(step.locator(".live-text")).to_have_text("The log shows nothing.")
    second.end("done")


@pytest.mark.parametrize("dark", [False, True])
async def test_tools_show_their_newest_progress(
    stage: Stage, sender: LiveSender, dark: bool
) -> None:
    thread_id = f"live-3-{dark}"
    async with open_page(stage, width=390, height=800, dark=dark) as page:
        await open_thread(stage, page, thread_id)
        calls = [
            open_step(sender, thread_id, kind="tool", call_id=f"c{number}", tool=f"scan_{number}")
            for number in (1, 2)
        ]
        for number in range(200):
            calls[0].show(f"{number} of 200 files")
        steps = page.locator("[data-live-output] .live-step")
        await expect(steps.nth(0)).to_have_text("Running scan_1199 of 200 files")
        await expect(steps.nth(1)).to_have_text("Running scan_2")
        await check_page(page)
        await shoot(page, f"live-tools-{'dark' if dark else 'light'}", whole=False)
        calls[0].end("done")
        await expect(steps.nth(0)).to_have_attribute("data-state", "done")
        calls[1].end("cut")
        await expect(steps.nth(1)).to_contain_text("this attempt failed")


async def test_a_lost_stream_is_opened_again_and_what_was_missed_is_read(
    stage: Stage, page: Page, sender: LiveSender
) -> None:
    await open_thread(stage, page, "live-4")
    output = open_step(sender, "live-4")
    output.add("before ")
    step = page.locator("[data-live-output] .live-step")
    await expect(step).to_contain_text("before")
    for listener in list(stage.context.live._listeners):
        listener.close("slow")
    output.add("and after")
    await expect(step.locator(".live-text")).to_have_text("before and after")
    output.end("done")


@pytest.mark.full
async def test_a_hidden_page_gives_its_connection_back(stage: Stage, page: Page) -> None:
    await open_thread(stage, page, "live-5")
    before = stage.context.live.listeners
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    await page.evaluate(hide % "true" + tell)

    async def gave_back() -> bool:
        return stage.context.live.listeners == before - 1

    await wait_until(gave_back)
    await page.evaluate(hide % "false" + tell)

    async def listens() -> bool:
        return stage.context.live.listeners == before

    await wait_until(listens)


@pytest.mark.full
async def test_a_kill_in_mid_reply_is_seen_and_the_retry_of_another_worker_too(
    stage: Stage, page: Page, tmp_path: Path
) -> None:
    address = stage.client.service_client.config.target_host
    base = load_settings({"EVERLONG_DATA_DIR": str(tmp_path), "EVERLONG_TASK_QUEUE": "writers"})
    settings = dataclasses.replace(
        point_to_embedded(base, address), store=repr(stage.threads.store), live_url=stage.url
    )
    agents = ["tests.support.live_agent:writer"]
    handle = ThreadHandle(
        stage.client, "live-6", packs=stage.context.packs, task_queue=settings.task_queue
    )
    step = page.locator("[data-live-output] .live-step")
    with start_worker(settings, agents, name="first") as first:
        await first.wait_for_output(READY, 60)
        await handle.send("write", agent="writer")
        await page.goto("/threads/live-6")
        await expect(step).to_contain_text("word-5")
        first.kill()
        await expect(step).to_have_attribute("data-state", "cut")
        await expect(step).to_contain_text("Cut off: its worker does not answer")
        shown = await step.locator(".live-text").inner_text()
        assert WHOLE.startswith(shown.strip())
        assert len(shown) < len(WHOLE)
        await shoot(page, "live-killed", whole=False)
    with start_worker(settings, agents, name="second") as second:
        await second.wait_for_output(READY, 60)
        await expect(step).to_contain_text("Writing a reply, attempt 2")
        await expect(step).to_contain_text("word-5")
        await shoot(page, "live-retried", whole=False)
        await expect(page.locator("#entry-2")).to_contain_text("word-59")
        await expect(step).to_have_count(0)
