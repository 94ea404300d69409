"""The list of threads: sorted, filtered, searched, in pages, and live."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
import pytest_asyncio
from playwright.async_api import Page, Route, expect

from everlong.admin.web import Access, create_admin_app
from everlong.client.thread import ThreadHandle
from tests.support.dashboard import Stage, open_page, serve, shoot
from tests.support.fake_thread_list import FakeThreadList, rows
from tests.support.page_checks import check_page

MANY = 10_000


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def many(stage: Stage) -> AsyncIterator[str]:
    """The address of a dashboard with 10,000 threads."""
    async with _open_listing(stage, FakeThreadList(rows(MANY))) as url:
        yield url


def _open_listing(stage: Stage, thread_list: FakeThreadList) -> AbstractAsyncContextManager[str]:
    context = stage.make_context(thread_list)
    return serve(create_admin_app(context, Access()))


async def ids(page: Page) -> list[str]:
    return await page.locator("table.threads td.c-id a.name").all_inner_texts()


async def test_an_empty_list_shows_how_to_send_a_message(stage: Stage) -> None:
    async with _open_listing(stage, FakeThreadList([])) as url, open_page(stage, url=url) as page:
        await page.goto("/")
        await expect(page.get_by_role("heading", name="No threads yet")).to_be_visible()
        await expect(page.get_by_text("everlong send hello-1")).to_be_visible()
        await check_page(page)
        await shoot(page, "threads-empty")


@pytest.mark.full
async def test_ten_thousand_threads_are_listed_sorted_filtered_and_paged(
    stage: Stage, many: str
) -> None:
    async with open_page(stage, url=many) as page:
        await page.goto("/")
        await expect(page.get_by_text("1 to 50 of 10,000")).to_be_visible()
        first = await ids(page)
        assert len(first) == 50
        # What needs a person is first: the approval that was asked for first.
        asking = [row for row in rows(MANY) if row.pending]
        assert first[0] == min(asking, key=lambda row: row.asked_ms or 0).thread_id
        await check_page(page)
        await shoot(page, "threads-10000", whole=False)

        await page.get_by_role("link", name="Next").click()
        await expect(page.get_by_text("51 to 100 of 10,000")).to_be_visible()
        assert not set(first) & set(await ids(page))

        head = page.get_by_role("columnheader", name="Stored")
        await head.get_by_role("link").click()
        await expect(head).to_have_attribute("aria-sort", "descending")
        await expect(page.get_by_text("1 to 50 of 10,000")).to_be_visible()
        largest = max(rows(MANY), key=lambda row: row.stored_bytes)
        assert (await ids(page))[0] == largest.thread_id
        await head.get_by_role("link").click()
        await expect(head).to_have_attribute("aria-sort", "ascending")

        await page.get_by_label("Status").select_option("paused")
        await expect(page).to_have_url(re.compile("status=paused"))
        others = page.locator("tbody .status").filter(has_not_text="paused")
        await expect(others).to_have_count(0)
        await expect(page.locator("tbody .status").first).to_have_text("paused")
        await page.get_by_label("Search by thread id").fill("ops-0")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile(r"text=ops-0.*status=paused"))
        assert all(each.startswith("ops-0") for each in await ids(page))
        await page.get_by_role("link", name="Clear").click()
        await expect(page.get_by_text("1 to 50 of 10,000")).to_be_visible()

        await page.get_by_label("Search by thread id").fill("nothing like it")
        await page.get_by_role("button", name="Search").click()
        await expect(page.get_by_role("heading", name="No matching threads")).to_be_visible()


@pytest.mark.full
async def test_a_filter_chosen_before_the_script_loads_is_applied(stage: Stage, many: str) -> None:
    async with open_page(stage, url=many) as page:
        may_come = asyncio.Event()

        async def come_late(route: Route) -> None:
            await may_come.wait()
            await route.continue_()

        await page.route("**/static/app.js*", come_late)
        await page.goto("/", wait_until="commit")
        await page.get_by_label("Status").select_option("paused")
        may_come.set()
        await expect(page).to_have_url(re.compile("status=paused"))


@pytest.mark.full
async def test_polling_ten_thousand_threads_that_do_not_change_sends_nothing(
    stage: Stage, many: str
) -> None:
    async with open_page(stage, url=many) as page:
        await page.goto("/")
        async with page.expect_response(lambda r: "/fragments/threads" in r.url) as answered:
            pass
        response = await answered.value
        assert response.status == 304
        began = time.perf_counter()
        await page.request.get("/fragments/threads")
        assert time.perf_counter() - began < 5


async def test_rows_become_cards_at_390_pixels(stage: Stage, many: str) -> None:
    async with open_page(stage, url=many, width=390, height=844) as page:
        await page.goto("/")
        await expect(page.locator("table.threads tbody tr").first).to_be_visible()
        await check_page(page)
        box = await page.locator("table.threads tbody tr").first.bounding_box()
        assert box is not None
        assert box["width"] <= 390
        assert box["height"] > 80
        await shoot(page, "threads-390", whole=False)


async def test_the_list_has_a_dark_theme(stage: Stage, many: str) -> None:
    async with open_page(stage, url=many, dark=True) as page:
        await page.goto("/")
        await check_page(page)
        await shoot(page, "threads-dark", whole=False)


async def test_selected_threads_are_paused_with_one_preview(stage: Stage, page: Page) -> None:
    for name in ("bulk-1", "bulk-2"):
        await stage.send_and_wait(name, "hello")
        await stage.wait_until_listed(name)
    await ThreadHandle(stage.client, "bulk-2").pause(by="ann")
    await stage.wait_until_listed("bulk-2", "paused")
    await page.goto("/?text=bulk-")
    bar = page.get_by_role("region", name="Selected threads")
    await expect(bar).to_be_hidden()
    await page.get_by_role("checkbox", name="Select bulk-1").check()
    await expect(bar.get_by_role("status")).to_have_text("1 thread selected")
    await bar.get_by_role("button", name="Select all on this page").click()
    await bar.get_by_role("button", name="Pause …", exact=True).click()
    dialog = page.get_by_role("dialog", name="Pause 2 threads")
    await expect(
        dialog.get_by_text("Acts on 1 thread. On 1 thread, nothing happens.")
    ).to_be_visible()
    await expect(dialog.get_by_text("Nothing happens: It is paused already.")).to_be_visible()
    await check_page(page)
    await shoot(page, "threads-bulk", whole=False)
    await dialog.get_by_label("Reason").fill("all of them")
    await dialog.get_by_role("button", name="Pause", exact=True).click()
    await expect(dialog.get_by_role("status")).to_have_text("pause: done on 1 thread, 1 refused.")
    await dialog.get_by_role("button", name="Close").click()
    await expect(bar).to_be_hidden()
    await stage.wait_until_listed("bulk-1", "paused")
    await expect(page.locator("tr", has_text="bulk-1").locator(".status")).to_have_text("paused")


async def test_columns_and_views_are_remembered_and_in_the_url(stage: Stage) -> None:
    async with (
        _open_listing(stage, FakeThreadList(rows(20))) as url,
        open_page(stage, url=url) as page,
    ):
        await page.goto("/?status=waiting")
        heads = page.get_by_role("columnheader")
        await expect(heads.filter(has_text="Cost")).to_have_count(1)
        await page.locator("summary", has_text="Columns").click()
        boxes = page.locator("form[data-columns] input[type=checkbox]")
        await boxes.evaluate_all("all => all.forEach((box) => { box.checked = false; })")
        await page.get_by_role("checkbox", name="Tokens").check()
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(page).to_have_url(re.compile(r"\?status=waiting&columns=tokens$"))
        await expect(heads).to_have_text(["Thread", "Status", "Tokens"])
        await page.locator("summary", has_text="Views").click()
        await page.get_by_label("Name of the view").fill("Idle")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("link", name="Idle")).to_be_visible()
        await page.goto("/")  # A list without columns gets this browser's.
        await expect(page).to_have_url(re.compile(r"/\?columns=tokens$"))
        await expect(heads).to_have_text(["Thread", "Status", "Tokens"])
        await page.locator("summary", has_text="Views").click()
        await page.get_by_role("link", name="Idle").click()
        await expect(page).to_have_url(re.compile("status=waiting.*columns=tokens"))
        await check_page(page)


async def test_a_running_thread_is_followed_without_a_reload(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("followed-1", "hello")
    await stage.wait_until_listed("followed-1")
    await page.goto("/?text=followed-")
    await page.evaluate("window.kept = true")
    row = page.locator("tr", has_text="followed-1")
    await expect(row.locator(".status")).to_have_text("waiting")
    search = page.get_by_label("Search by thread id")
    await search.focus()

    await stage.send("followed-1", "restart billing")
    await expect(row.locator(".status")).to_have_text("approval")
    await expect(row).to_have_class(re.compile("changed"))
    await shoot(page, "threads-live", whole=False)
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await stage.send("followed-2", "hello")
    await expect(page.locator("tr", has_text="followed-2")).to_be_visible()
    # The page was not reloaded, and the search field keeps the focus.
    assert await page.evaluate("window.kept")
    await expect(search).to_be_focused()


@pytest.mark.guarantee(103)
@pytest.mark.parametrize("thread_id", ["a/b ünï ✓", "50%?x=1&y#<b>"])
async def test_any_thread_id_links_to_its_page(stage: Stage, page: Page, thread_id: str) -> None:
    await stage.send_and_wait(thread_id, "hello")
    await stage.wait_until_listed(thread_id)
    await page.goto("/")
    await page.get_by_role("link", name=thread_id, exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(thread_id)
    await page.get_by_role("button", name="Pause …").click()
    await expect(page.get_by_role("dialog").get_by_text("takes no more steps")).to_be_visible()
