"""Every button of a thread: its preview, its reason, and its effect."""

import asyncio
import contextlib
import re

import pytest
from playwright.async_api import Error, Locator, Page, Route, expect

from everlong.client.status import read_status
from everlong.models import Kind
from tests.support.dashboard import Stage, shoot, wait_until
from tests.support.page_checks import check_page
from tests.support.threads import read_journal


async def open_dialog(page: Page, thread_id: str, button: str) -> Locator:
    """Open the dialog of a button, and wait for its preview."""
    await page.goto(f"/threads/{thread_id}")
    await page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator(".preview")).not_to_contain_text("Loading the preview")
    await expect(dialog.locator(".preview")).to_contain_text(re.compile("undone|Nothing is lost"))
    return dialog


async def done(page: Page, dialog: Locator, button: str, toast: str) -> None:
    """Confirm a dialog, and see that it says so."""
    await dialog.get_by_label("Reason").fill("the test wants it")
    await dialog.get_by_role("button", name=button, exact=True).click()
    await expect(dialog).to_be_hidden()
    await expect(page.get_by_role("status").filter(has_text=re.compile(toast))).to_be_visible()


async def controls(stage: Stage, thread_id: str) -> list[tuple[str, str, str]]:
    """Return what the journal says was done: action, by whom, why."""
    packs = stage.threads.plugin.packs
    entries = await read_journal(stage.client, packs, thread_id)
    notes = [entry.data or {} for entry in entries if entry.kind == Kind.CONTROL]
    return [(each["action"], each.get("by", ""), each.get("reason", "")) for each in notes]


async def test_the_compact_dialog_shows_the_saving_and_compacts(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("compact-1", "read 14")
    dialog = await open_dialog(page, "compact-1", "Compact …")
    await expect(dialog.locator(".preview .bytes")).to_have_text(
        re.compile(r"\d+\.\d KiB → \d+\.\d KiB\s*\d+% remains")
    )
    await check_page(page)
    await shoot(page, "act-compact", whole=False)
    await dialog.get_by_label("Your name").fill("ann")
    await done(page, dialog, "Compact", "compact")
    await expect(page.locator("[data-turns]")).to_contain_text("compact by ann: the test wants it")

    async def is_compacted() -> bool:
        return (await read_status(stage.client, "compact-1")).counters.compactions == 1

    await wait_until(is_compacted)


async def test_the_pause_button_pauses_and_unpauses(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("pause-1", "hello")
    dialog = await open_dialog(page, "pause-1", "Pause …")
    await dialog.get_by_label("Your name").fill("ann")
    await done(page, dialog, "Pause", "takes no more steps")
    await expect(page.get_by_text("Paused by ann: the test wants it")).to_be_visible()
    await page.get_by_role("button", name="Unpause …").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator(".preview")).to_contain_text("continues")
    await done(page, dialog, "Unpause", "continues")
    await expect(page.get_by_text("Waiting for a message.")).to_be_visible()
    await stage.send_and_wait("pause-1", "hello")
    assert ("pause", "ann", "the test wants it") in await controls(stage, "pause-1")


async def test_the_limits_dialog_names_limits_that_would_be_reached_at_once(
    stage: Stage, page: Page
) -> None:
    await stage.send_and_wait("limits-1", "read 3")
    dialog = await open_dialog(page, "limits-1", "Set limits …")
    await dialog.get_by_label("Steps", exact=True).fill("2")
    await expect(dialog.locator(".preview")).to_contain_text("would be reached at once")
    await check_page(page)
    await shoot(page, "act-limits", whole=False)
    await dialog.get_by_label("Steps", exact=True).fill("1234")
    await expect(dialog.locator(".preview")).to_contain_text("steps_max from 100,000 to 1,234")
    await done(page, dialog, "Set limits", "steps_max")
    await page.get_by_role("link", name="State", exact=True).click()
    await expect(page.get_by_role("img", name="Steps: 4 of 1,234")).to_be_visible()
    assert (await read_status(stage.client, "limits-1")).policy.steps_max == 1234


@pytest.mark.full
async def test_the_dialog_refuses_invalid_values(stage: Stage, page: Page) -> None:
    page.expected_troubles = ("status of 422",)  # type: ignore[attr-defined]
    await stage.send_and_wait("limits-2", "hello")
    dialog = await open_dialog(page, "limits-2", "Set limits …")
    await dialog.get_by_label("Context", exact=True).fill("7")
    await expect(dialog.locator(".preview .error-text")).to_contain_text("does not fit")


@pytest.mark.full
async def test_a_fork_begins_at_the_entry_of_the_slider(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("fork-1", "remember blue")
    await stage.send_and_wait("fork-1", "hello")
    await page.goto("/threads/fork-1?tab=time-travel")
    await page.get_by_label("Entry", exact=True).fill("2")
    await page.get_by_role("button", name="Fork here …").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_label("At entry")).to_have_value("2")
    await expect(dialog.locator(".preview")).to_contain_text("after entry 2")
    await shoot(page, "act-fork", whole=False)
    await dialog.get_by_label("Id of the new thread").fill("fork-1-b")
    await dialog.get_by_role("button", name="Fork", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("fork-1-b")
    await expect(page.locator("[data-turns]")).to_contain_text("of thread fork-1 at 2")


async def test_a_message_is_edited_and_rerun_in_a_fork_that_is_linked_both_ways(
    stage: Stage, page: Page
) -> None:
    await stage.send_and_wait("misstep-1", "read 2")
    await stage.send_and_wait("misstep-1", "hello wrld")
    await page.goto("/threads/misstep-1")
    await page.get_by_role("button", name=re.compile("Edit and rerun … from entry 1$")).click()
    dialog = page.get_by_role("dialog", name="Edit and rerun from here")
    await expect(dialog.get_by_label("Changed message")).to_have_value("read 2")
    await expect(dialog.locator(".preview")).to_contain_text("2 tool calls ran after that message")
    await dialog.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name=re.compile("Edit and rerun … from entry")).last.click()
    text = dialog.get_by_label("Changed message")
    await expect(text).to_have_value("hello wrld")
    await check_page(page)
    await shoot(page, "act-rerun", whole=False)
    await text.fill("hello world")
    await dialog.get_by_label("Reason").fill("a typo")
    await dialog.get_by_role("button", name="Rerun", exact=True).click()
    await expect(page).to_have_url(re.compile("misstep-1-rerun"))
    await expect(page.locator("[data-turns]")).to_contain_text("you said hello world")
    await expect(page.locator("[data-turns]")).not_to_contain_text("wrld")
    await expect(page.locator("[data-origin]")).to_contain_text("Forked from misstep-1 after entry")
    await stage.wait_until_listed("misstep-1-rerun")
    await page.get_by_role("link", name="misstep-1", exact=True).first.click()
    await page.locator("[data-forks] summary").click()
    await expect(page.get_by_role("link", name="misstep-1-rerun")).to_be_visible()
    await check_page(page)
    await shoot(page, "thread-forks", whole=False)


@pytest.mark.guarantee(105)
async def test_a_stop_requires_the_thread_id_to_be_typed(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("stop-1", "hello")
    dialog = await open_dialog(page, "stop-1", "Stop …")
    await expect(dialog.locator(".preview")).to_contain_text("cannot be undone")
    button = dialog.get_by_role("button", name="Stop", exact=True)
    await expect(button).to_be_disabled()
    await dialog.get_by_label("to confirm").fill("stop-")
    await expect(button).to_be_disabled()
    await check_page(page)
    await shoot(page, "act-stop", whole=False)
    await dialog.get_by_label("to confirm").fill("stop-1")
    await expect(button).to_be_enabled()
    await done(page, dialog, "Stop", "will stop")
    await expect(page.get_by_text("It has ended, and its journal is complete.")).to_be_visible()
    # An action that is no longer possible has no button.
    await expect(page.get_by_role("button", name="Pause …")).to_have_count(0)
    await expect(page.get_by_role("button", name="Fork …")).to_be_visible()


@pytest.mark.guarantee(105)
async def test_no_action_runs_before_its_preview_is_shown(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("unseen-1", "hello")
    dialog = await open_dialog(page, "unseen-1", "Archive …")
    button = dialog.get_by_role("button", name="Archive", exact=True)
    await expect(button).to_be_enabled()
    go = asyncio.Event()

    async def slow(route: Route) -> None:
        await go.wait()
        await route.continue_()

    await page.route("**/preview", slow)
    await dialog.get_by_label("Close and free").check()
    # At once: before the preview is asked for, and while it is read, whatever else is typed.
    assert await button.is_disabled()
    await expect(dialog.locator(".preview")).to_have_attribute("aria-busy", "true")
    await dialog.get_by_label("Reason").press_sequentially("x")
    await dialog.get_by_label("Reason").press("Enter")
    await dialog.locator("form").evaluate(
        "form => form.dispatchEvent(new SubmitEvent('submit', { cancelable: true }))"
    )
    await expect(button).to_be_disabled()
    go.set()
    await expect(dialog.get_by_label("to confirm")).to_be_visible()
    await expect(button).to_be_disabled()
    await dialog.get_by_label("to confirm").fill("unseen-1")
    await expect(button).to_be_enabled()
    # Another choice is another thing to be seen; what was typed for the one counts for no other.
    await dialog.get_by_label("Keep the thread").check()
    assert await button.is_disabled()
    await expect(button).to_be_enabled()
    assert (await read_status(stage.client, "unseen-1")).status == "waiting"


@pytest.mark.full
async def test_a_late_preview_does_not_replace_a_newer_one(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("late-1", "hello")
    dialog = await open_dialog(page, "late-1", "Archive …")
    asked = 0

    async def slow_first(route: Route) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.sleep(0.5)
        with contextlib.suppress(Error):  # The page has given it up by then.
            await route.continue_()

    await page.route("**/preview", slow_first)
    await dialog.get_by_label("Close it").check()
    await page.wait_for_timeout(400)
    await dialog.get_by_label("Close and free").check()
    await expect(dialog.locator(".preview")).to_contain_text("cannot be undone")
    await page.wait_for_timeout(800)
    await expect(dialog.get_by_label("to confirm")).to_be_visible()
    await expect(dialog.get_by_role("button", name="Archive", exact=True)).to_be_disabled()


@pytest.mark.full
@pytest.mark.guarantee(105)
async def test_no_action_runs_if_its_preview_fails(stage: Stage, page: Page) -> None:
    page.expected_troubles = ("status of 503",)  # type: ignore[attr-defined]
    await stage.send_and_wait("failing-1", "hello")
    await page.goto("/threads/failing-1")
    error = {"error": {"type": "NoWorker", "message": "no worker answers"}}
    await page.route("**/preview", lambda route: route.fulfill(status=503, json=error))
    await page.get_by_role("button", name="Stop …", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator(".preview")).to_contain_text("no worker answers")
    button = dialog.get_by_role("button", name="Stop", exact=True)
    await expect(button).to_be_disabled()
    await dialog.get_by_label("Reason").press_sequentially("x")
    await expect(button).to_be_disabled()
    await check_page(page)
    # Opened again, it looks again.
    await page.unroute("**/preview")
    await dialog.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Stop …", exact=True).click()
    await expect(dialog.locator(".preview")).to_contain_text("cannot be undone")
    await dialog.get_by_label("to confirm").fill("failing-1")
    await expect(button).to_be_enabled()
    assert (await read_status(stage.client, "failing-1")).status == "waiting"


async def test_escape_closes_a_dialog_without_an_action(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("escape-1", "hello")
    dialog = await open_dialog(page, "escape-1", "Pause …")
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await expect(page.get_by_role("button", name="Pause …")).to_be_focused()
    assert (await read_status(stage.client, "escape-1")).status == "waiting"
