"""Archives, sweeps and queries, from their buttons to the service and back."""

import re
import time

import pytest
from playwright.async_api import Page, expect

from everlong.admin.entries import load_entry_page
from everlong.admin.web import Access, create_admin_app
from everlong.admin.web.auth import Grant, Role
from everlong.client.archives import archive
from everlong.client.status import read_status
from everlong.client.sweeps import read_last_sweep
from everlong.errors import ThreadNotFound
from everlong.queries import LIBRARY
from tests.support.dashboard import Stage, open_page, serve, shoot, wait_until
from tests.support.page_checks import check_page

TOKENS = {role: f"a-long-token-of-a-{role}" for role in (Role.VIEWER, Role.OPERATOR)}


@pytest.mark.guarantee(105, 110)
async def test_an_archive_frees_a_thread_which_is_then_read_from_it_and_revived(
    stage: Stage, page: Page
) -> None:
    await stage.send_and_wait("archive-1", "read 3")
    await page.goto("/threads/archive-1")
    await page.get_by_role("button", name="Archive …").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator(".preview")).to_contain_text("one Parquet file")
    await expect(dialog.locator(".preview .bytes")).to_have_text(re.compile(r"KiB → .*KiB"))
    button = dialog.get_by_role("button", name="Archive", exact=True)
    await expect(button).to_be_enabled()
    await dialog.get_by_label("Close and free").check()
    await expect(dialog.locator(".preview")).to_contain_text("its histories are deleted (1 run)")
    await expect(button).to_be_disabled()
    await check_page(page)
    await shoot(page, "act-archive", whole=False)
    await dialog.get_by_label("to confirm").fill("archive-1")
    await dialog.get_by_label("Reason").fill("done with it")
    await dialog.get_by_label("Your name").fill("ann")
    await button.click()
    toast = page.get_by_role("status").filter(has_text="entries in")
    await expect(toast).to_contain_text("written and read back. Deleted: 1 run.")
    await wait_until(lambda: _is_gone(stage, "archive-1"), 60)
    await page.reload()
    await expect(page.get_by_text("Temporal no longer has this thread.")).to_be_visible()
    await expect(page.locator("[data-turns] > li").last).to_contain_text("stop by ann: done with")
    await page.locator("summary", has_text="read_page").first.click()
    await expect(page.locator("[data-slice]").first).to_be_visible()
    await page.get_by_role("link", name="Time travel").click()
    await expect(page.get_by_text("Context of a model call at this entry")).to_be_visible()
    for hidden in ("Fork …", "Archive …", "Stop …"):
        await expect(page.get_by_role("button", name=hidden)).to_have_count(0)
    await page.get_by_role("link", name="Runs", exact=True).click()
    await expect(page.get_by_text("Temporal no longer has any run of this thread")).to_be_visible()
    await check_page(page)
    await shoot(page, "thread-archived")
    await page.get_by_role("button", name="Revive …").first.click()
    await expect(dialog.locator(".preview")).to_contain_text("packs of its own")
    await dialog.get_by_label("Reason").fill("it is back")
    await dialog.get_by_role("button", name="Revive", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("archive-1-revived")
    await expect(page.locator("[data-turns] > li").last).to_contain_text("it is back")
    found = await stage.send_and_wait("archive-1-revived", "hello")
    assert found.counters.answered > 0


async def _is_gone(stage: Stage, thread_id: str) -> bool:
    try:
        await read_status(stage.client, thread_id)
    except ThreadNotFound:
        return True
    return False


@pytest.mark.full
async def test_archives_are_listed_and_one_of_a_thread_is_revived_up_to_an_entry(
    stage: Stage, page: Page
) -> None:
    await stage.send_and_wait("archive-2", "read 2")
    packs = stage.threads.plugin.packs
    done = await archive(stage.client, packs, "archive-2", by="bob", reason="each week")
    await page.goto("/archives")
    row = page.get_by_role("row").filter(has_text="archive-2")
    await expect(row).to_contain_text("bob")
    await check_page(page)
    await shoot(page, "archives")
    await page.get_by_label("Thread id").fill("missing")
    await page.get_by_role("button", name="Find").click()
    await expect(page.get_by_text("No archive of this thread")).to_be_visible()
    await page.goto("/archives?thread=archive-2")
    await page.get_by_role("link", name="archive-2").click()
    await page.locator("summary", has_text="Archives").click()
    await page.get_by_role("button", name=f"Revive … {done.manifest.archive_id}").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_label("Archive")).to_have_value(done.manifest.archive_id)
    await dialog.get_by_label("Up to entry").fill("3")
    await expect(dialog.locator(".preview")).to_contain_text("up to entry 3")
    await expect(dialog.locator(".preview")).to_contain_text("still runs")
    await check_page(page)
    await dialog.get_by_role("button", name="Revive", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("archive-2-revived")
    head = (await read_status(stage.client, "archive-2-revived")).head
    assert head is not None
    assert (await load_entry_page(stage.client, packs, "archive-2-revived")).last_seq == 4


async def test_a_dry_run_precedes_a_sweep(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("swept-1", "hello")
    await page.goto("/fleet")
    panel = page.get_by_role("region", name="Last sweep")
    await expect(panel).to_contain_text("No sweep yet.")
    await panel.get_by_role("button", name="Dry run").click()
    await expect(panel).to_contain_text(
        "A sweep would quarantine 0 B in 0 objects.", timeout=60_000
    )
    assert await read_last_sweep(stage.client, stage.context.packs) is None
    await panel.get_by_role("button", name="Sweep now …").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Sweep", exact=True).click()
    await expect(dialog).to_be_visible()  # It was not confirmed.
    await dialog.get_by_label("to confirm").fill("sweep")
    await check_page(page)
    await shoot(page, "act-sweep", whole=False)
    began_ms = time.time_ns() // 1_000_000
    await dialog.get_by_role("button", name="Sweep", exact=True).click()
    await expect(panel).to_contain_text("Quarantined 0 B", timeout=60_000)
    report = await read_last_sweep(stage.client, stage.context.packs)
    assert report is not None
    assert report.started_ms >= began_ms
    assert report.reachable.objects > 0
    await page.reload()
    await expect(panel).to_contain_text("Quarantined")
    await check_page(page)


async def test_a_query_shows_rows_omissions_and_csv(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("asked-1", "=1+1")
    await page.goto("/query")
    await expect(page.get_by_role("button", name="Download CSV")).to_be_disabled()
    sql = (
        "select seq, text, null as none, 'a \"b\", c' as quoted from entries "
        "where thread_id = 'asked-1' and kind = 'message'"
    )
    await page.get_by_label("SQL").fill(sql)
    await page.keyboard.press("Control+Enter")
    table = page.get_by_role("region", name="Results").last
    await expect(table.locator("tbody tr")).to_have_count(1)
    await expect(page.get_by_text(re.compile(r"1 row, in \d"))).to_be_visible()
    await check_page(page)
    await shoot(page, "query")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download CSV").click()
    text = (await (await download.value).path()).read_bytes().decode()
    # A spreadsheet must not run text of a message as a formula.
    assert text == 'seq,text,none,quoted\r\n1,\'=1+1,,"a ""b"", c"\r\n'
    named = LIBRARY[0]
    await page.get_by_role("button", name=named.name.replace("-", " ").capitalize()).click()
    await expect(page.get_by_label("SQL")).to_have_value(named.sql)
    await expect(
        page.get_by_text(re.compile(r"\d+ rows?(, and there are more)?, in"))
    ).to_be_visible()
    page.expected_troubles = ("422",)  # type: ignore[attr-defined]
    await page.get_by_label("SQL").fill("drop table entries")
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_text("only a SELECT can be run")).to_be_visible()
    cancel = page.get_by_role("button", name="Cancel")
    await expect(cancel).to_be_disabled()
    await page.get_by_label("SQL").fill("select count(*) from range(100000000) a, range(1000000) b")
    await page.get_by_role("button", name="Run").click()
    await cancel.click()
    await expect(page.get_by_text("Cancelled.")).to_be_visible()
    await expect(page.get_by_role("button", name="Run")).to_be_enabled()


@pytest.mark.full
async def test_a_role_sees_only_the_actions_that_it_may_do(stage: Stage) -> None:
    await stage.send_and_wait("viewed-1", "hello")
    grants = tuple(Grant(name=role, role=role, token=token) for role, token in TOKENS.items())
    app = create_admin_app(stage.make_context(), Access(grants=grants))
    async with serve(app) as url:
        async with open_page(stage, url=url) as page:
            await _log_in(page, Role.VIEWER)
            await expect(page.get_by_role("button", name="Archive …")).to_have_count(0)
            await expect(page.get_by_role("link", name="Query")).to_be_visible()
            await page.goto("/fleet")
            await expect(page.get_by_role("heading", level=1)).to_have_text("Fleet")
            await expect(page.get_by_role("button", name="Dry run")).to_have_count(0)
        async with open_page(stage, url=url) as page:
            await _log_in(page, Role.OPERATOR)
            await page.get_by_role("button", name="Archive …").click()
            await expect(page.get_by_label("Close it")).to_be_visible()
            await expect(page.get_by_label("Close and free")).to_have_count(0)


async def _log_in(page: Page, role: Role) -> None:
    await page.goto("/threads/viewed-1")
    await page.get_by_label("Token").fill(TOKENS[role])
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("viewed-1")
