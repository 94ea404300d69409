"""Open pages follow their thread: the actions offered match its current state."""

import asyncio
import contextlib

import pytest
from playwright.async_api import Error, Page, Route, expect

from tests.support.dashboard import Stage


@pytest.mark.full
async def test_a_fork_of_a_grown_thread_begins_at_its_current_end(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("grown-1", "hello")
    await page.goto("/threads/grown-1")
    await expect(page.locator("[data-turns]")).to_have_attribute("data-last", "2")
    await stage.send_and_wait("grown-1", "hello")
    await expect(page.locator("[data-turns]")).to_have_attribute("data-last", "4")
    await page.get_by_role("button", name="Fork …").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_label("At entry")).to_have_value("4")
    await dialog.get_by_role("button", name="Fork", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("grown-1-fork")


@pytest.mark.full
async def test_the_limits_dialog_shows_current_limits(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("bounded-1", "hello")
    await page.goto("/threads/bounded-1?tab=state")
    dialog = page.get_by_role("dialog")
    for wanted, hint in (("50", "now 100,000"), ("60", "now 50")):
        await page.get_by_role("button", name="Set limits …").click()
        await expect(dialog.locator("[data-hint=steps_max]")).to_have_text(hint)
        await dialog.get_by_label("Steps", exact=True).fill(wanted)
        await dialog.get_by_role("button", name="Set limits", exact=True).click()
        await expect(dialog).to_be_hidden()
        await expect(page.get_by_role("img", name=f"Steps: 1 of {wanted}")).to_be_visible()


@pytest.mark.full
async def test_a_page_opened_before_the_first_entry_fills(stage: Stage, page: Page) -> None:
    await stage.threads.start("early-1")
    await page.goto("/threads/early-1")
    await expect(page.get_by_text("Nothing has been said yet")).to_be_visible()
    await stage.send_and_wait("early-1", "hello")
    await expect(page.locator("[data-turns]")).to_contain_text("you said hello")
    await expect(page.get_by_text("Nothing has been said yet")).to_have_count(0)
    await page.get_by_role("link", name="Time travel").click()
    await expect(page.get_by_role("heading", name="After entry")).to_be_visible()
    await page.get_by_role("button", name="Fork …").click()
    await expect(page.get_by_role("dialog").get_by_label("At entry")).to_have_value("2")


@pytest.mark.full
@pytest.mark.guarantee(105)
async def test_late_rows_of_one_statement_are_not_shown_for_another(
    stage: Stage, page: Page
) -> None:
    go = asyncio.Event()

    async def slow_first(route: Route) -> None:
        if "the first" in (route.request.post_data or ""):
            await go.wait()
        with contextlib.suppress(Error):  # The page has given it up by then.
            await route.continue_()

    await page.route("**/api/v1/query", slow_first)
    await page.goto("/query")
    for text in ("the first", "the second"):
        await page.get_by_label("SQL").fill(f"select '{text}' as said")
        await page.keyboard.press("Control+Enter")
    rows = page.get_by_role("region", name="Results").last.locator("tbody")
    await expect(rows).to_have_text("the second")
    go.set()
    await page.wait_for_timeout(800)
    await expect(rows).to_have_text("the second")


async def test_new_entries_do_not_move_what_is_read(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("read-1", "read 16")
    await page.goto("/threads/read-1")
    read = page.locator("#entry-12")
    await read.scroll_into_view_if_needed()
    top = "e => Math.round(e.getBoundingClientRect().top)"
    before = await read.evaluate(top)
    await stage.send_and_wait("read-1", "hello")
    await expect(page.get_by_role("button", name="New entries")).to_be_visible()
    assert await read.evaluate(top) == before
    await page.get_by_role("button", name="New entries").click()
    await expect(page.get_by_text("you said hello")).to_be_in_viewport()


@pytest.mark.full
async def test_new_entries_do_not_turn_the_pages_of_the_journal(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("busy-1", "read 14")
    go, asked = asyncio.Event(), asyncio.Event()

    async def slow_newest(route: Route) -> None:
        if "before=" not in route.request.url:
            asked.set()
            await go.wait()
        with contextlib.suppress(Error):
            await route.continue_()

    await page.goto("/threads/busy-1?tab=state")
    await page.route("**/fragments/journal*", slow_newest)
    await stage.send_and_wait("busy-1", "hello")
    await asyncio.wait_for(asked.wait(), 90)
    await page.get_by_role("button", name="Older").click()
    await expect(page.locator("[data-entries]")).to_have_attribute("data-newest", "false")
    go.set()
    await page.wait_for_timeout(800)
    await expect(page.locator("[data-entries]")).to_have_attribute("data-newest", "false")


async def test_the_focus_stays_in_a_row_that_moves(stage: Stage, page: Page) -> None:
    for number in (1, 2):
        await stage.send_and_wait(f"moving-{number}", "hello")
        await stage.wait_until_listed(f"moving-{number}")
    await page.goto("/?text=moving-&sort=-stored")
    ids = page.locator("table.threads td.c-id a")
    await expect(ids).to_have_count(2)
    last = await ids.nth(1).inner_text()
    await ids.nth(1).focus()
    await stage.send_and_wait(last, "read 12")
    await expect(ids.nth(0)).to_have_text(last)
    await expect(ids.nth(0)).to_be_focused()


async def test_a_filter_is_chosen_with_the_keyboard_step_by_step(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("stepped-1", "hello")
    await stage.wait_until_listed("stepped-1")
    await page.goto("/")
    agents = page.get_by_label("Agent")
    await agents.select_option(index=1)
    await expect(page.get_by_role("link", name="Clear")).to_be_visible()
    await expect(agents).to_be_focused()


async def test_the_badge_follows_on_a_page_of_one_thread(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("badge-1", "hello")
    await page.goto("/threads/badge-1")
    await expect(page.get_by_text("Waiting for a message.")).to_be_visible()
    badge = page.locator("[data-badge-count]")
    before = int((await badge.text_content() or "0").replace(",", ""))
    await stage.send("badge-1", "restart billing")
    await expect(badge).to_have_text(str(before + 1))
    # Other tests expect that nothing waits.
    await page.get_by_role("button", name="Deny restart of badge-1").click()
    await expect(page.get_by_text("Denied: restart.")).to_be_visible()
