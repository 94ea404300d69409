"""A journal of 20,000 entries: paged both ways, at a cost that does not grow with it."""

import pytest
import pytest_asyncio
from playwright.async_api import Page, Request, expect

from tests.support.dashboard import Stage, shoot
from tests.support.long_journal import write_long_journal
from tests.support.page_checks import check_page
from tests.support.scale import scaled

# Tests marked `full` say 20,000 in their texts.
ENTRIES = scaled(2_000, 20_000)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def long_life(stage: Stage) -> str:
    """The address of the page of a thread with a long journal."""
    return await write_long_journal(stage, "long-life", ENTRIES, compacted_seq=ENTRIES - 500)


@pytest.mark.full
@pytest.mark.guarantee(104)
async def test_twenty_thousand_entries_are_paged_both_ways(page: Page, long_life: str) -> None:
    asked: list[str] = []

    def seen(request: Request) -> None:
        asked.append(request.url)

    page.on("request", seen)
    await page.goto(long_life)
    rows = page.locator("[data-entries] > li")
    await expect(rows).to_have_count(40)
    assert not any("/fragments/body" in url for url in asked)
    await expect(page.get_by_text("19,961 to 20,000 of 20,000")).to_be_visible()
    await expect(page.get_by_role("button", name="Newer")).to_be_disabled()
    await check_page(page)
    await shoot(page, "journal-20000")

    await page.get_by_role("button", name="Older").click()
    await expect(page.get_by_text("19,921 to 19,960 of 20,000")).to_be_visible()
    await page.get_by_role("button", name="Newer").click()
    await expect(page.get_by_text("19,961 to 20,000 of 20,000")).to_be_visible()
    await page.get_by_role("button", name="Oldest").click()
    await expect(page.get_by_text("1 to 40 of 20,000")).to_be_visible()
    await expect(page.get_by_role("button", name="Older")).to_be_disabled()
    await page.get_by_label("Go to entry").fill("10000")
    await page.keyboard.press("Enter")
    await expect(page.locator("[data-key='10000']")).to_contain_text("10000")
    await page.locator("[data-key='10000'] summary").click()
    await expect(page.locator("[data-key='10000'] [data-slice]")).to_have_text("(no text)")
    await page.get_by_role("button", name="Newest").click()
    await expect(page.get_by_text("19,961 to 20,000 of 20,000")).to_be_visible()
    assert await rows.count() == 40


@pytest.mark.full
@pytest.mark.guarantee(104)
async def test_charts_of_a_long_thread_are_sampled(page: Page, long_life: str) -> None:
    await page.goto(long_life)
    await expect(page.get_by_text("Sampled from 20,000 entries.")).to_be_visible()
    charts = page.locator("#charts figure")
    for number in range(3):
        drawn = await charts.nth(number).locator("svg .point, svg .rect").count()
        assert 5 < drawn <= 125
    await charts.nth(2).locator("summary").click()
    await expect(page.get_by_role("region", name="Resume times, figures")).to_contain_text("ms")


async def test_the_slider_reaches_any_entry_of_a_long_journal(page: Page, long_life: str) -> None:
    await page.goto(long_life)
    await page.get_by_text("Time travel").click()
    scene = page.locator("[data-scene]")
    await expect(scene).to_contain_text("This is the newest entry.")
    await page.get_by_label("Entry", exact=True).fill("50")
    await expect(scene).to_contain_text("After entry 50,")
    await expect(scene).to_contain_text(f"{ENTRIES - 50:,}")
