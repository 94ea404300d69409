"""Keyboard shortcuts and the command palette: what they do, and what they leave alone."""

import re

from playwright.async_api import Page, expect

from everlong.admin.web import Access, create_admin_app
from tests.support.dashboard import Stage, open_page, serve, shoot
from tests.support.fake_thread_list import FakeThreadList, rows
from tests.support.page_checks import check_page

NAMES = """
- dialog "Find threads, pages and actions":
  - combobox "Thread, page or action" [expanded]: /ops-\\d+/
  - listbox "Results":
    - option "ops-00004 thread, {status}" [selected]
  - status: 1 result
"""


async def test_keys_move_select_search_and_stay_out_of_fields(stage: Stage) -> None:
    app = create_admin_app(stage.make_context(FakeThreadList(rows(12))), Access())
    async with serve(app) as url, open_page(stage, url=url) as page:
        await page.goto("/?sort=id")
        links = page.locator("[data-item] [data-open]")
        await page.keyboard.press("j")
        await expect(links.nth(0)).to_be_focused()
        await page.keyboard.press("j")
        await expect(links.nth(1)).to_be_focused()
        await page.keyboard.press("x")
        await expect(page.get_by_role("region", name="Selected threads")).to_contain_text(
            "1 thread"
        )
        await expect(page.locator("[data-pick]").nth(1)).to_be_checked()
        await page.keyboard.press("k")
        await expect(links.nth(0)).to_be_focused()

        field = page.get_by_label("Search by thread id")
        await page.keyboard.press("/")
        await expect(field).to_be_focused()
        await page.keyboard.type("jkxad?/gt")
        await page.keyboard.press("Control+k")
        await expect(field).to_have_value("jkxad?/gt")
        await expect(page.get_by_role("dialog")).to_have_count(0)

        await links.nth(0).focus()
        await page.keyboard.press("?")
        help_ = page.get_by_role("dialog", name="Keyboard")
        await expect(help_).to_be_visible()
        await check_page(page)
        await page.keyboard.press("j")  # Not while a dialog is open.
        await page.get_by_label("Shortcuts of single keys").uncheck()
        await page.keyboard.press("Escape")
        await expect(links.nth(0)).to_be_focused()
        await page.keyboard.press("j")
        await expect(links.nth(0)).to_be_focused()
        await page.reload()
        await page.keyboard.press("?")
        await expect(help_).to_be_hidden()


async def test_the_palette_finds_threads_pages_and_actions_by_name(stage: Stage) -> None:
    listed = rows(12)
    app = create_admin_app(stage.make_context(FakeThreadList(listed)), Access())
    async with serve(app) as url, open_page(stage, url=url) as page:
        await page.goto("/")
        await page.keyboard.press("Control+k")
        palette = page.get_by_role("dialog", name="Find threads, pages and actions")
        field = palette.get_by_role("combobox")
        await expect(field).to_be_focused()
        await page.keyboard.type("ops-00004")
        await expect(palette.get_by_role("option", name="ops-00004")).to_be_visible()
        status = next(each.status for each in listed if each.thread_id == "ops-00004")
        await expect(palette).to_match_aria_snapshot(NAMES.format(status=status))
        await check_page(page)
        await shoot(page, "palette", whole=False)
        for _ in range(3):  # The focus stays inside.
            await page.keyboard.press("Tab")
        assert not await page.evaluate(
            "document.querySelector('main').contains(document.activeElement)"
        )
        await field.fill("use the")
        await field.press("Enter")
        await expect(palette).to_be_hidden()
        await expect(page.locator("html")).to_have_attribute("data-theme", re.compile("."))
        await page.get_by_role("button", name="Find").click()
        await field.fill("arch")
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile("/archives$"))


async def test_keys_approve_the_call_that_has_the_focus_and_ask_first(
    stage: Stage, page: Page
) -> None:
    number = await stage.send("keyed-1", "restart billing")
    await stage.wait_until_listed("keyed-1", "approval")
    await page.goto("/")
    await page.keyboard.press("g")
    await page.keyboard.press("a")
    await expect(page).to_have_url(re.compile("/approvals$"))
    await page.goto("/approvals?thread=keyed-1")  # Its call is the first.
    call = page.get_by_role("article").filter(has_text="keyed-1")
    await page.keyboard.press(
        "a"
    )  # Nothing has the focus: the key moves it there, and decides nothing.
    await expect(call).to_be_focused()
    await page.keyboard.press("d")
    question = page.get_by_role("dialog", name="Deny restart of keyed-1?")
    await expect(question).to_contain_text('"service": "billing"')
    await page.keyboard.press("Escape")
    await expect(call).to_be_focused()
    await page.keyboard.press("a")
    await expect(page.get_by_role("dialog", name="Approve restart of keyed-1?")).to_be_visible()
    await check_page(page)
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Approved: restart.")).to_be_visible()
    await expect(call).to_have_count(0)
    await stage.threads.wait_for_answers("keyed-1", number)
