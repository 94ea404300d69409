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


@pytest.mark.guarantee(104)
async def test_a_long_conversation_is_read_both_ways_with_a_bounded_page(
    page: Page, long_life: str
) -> None:
    await page.goto(long_life)
    turns = page.locator("[data-turns]")
    await expect(turns).to_have_attribute("data-newest", "true")
    await expect(turns.locator("> li").last).to_be_in_viewport()
    first = int(await turns.get_attribute("data-first") or 0)
    assert ENTRIES - 80 < first < ENTRIES
    for _ in range(scaled(6, 10)):
        before = int(await turns.get_attribute("data-first") or 0)
        await page.get_by_role("link", name="Show earlier entries").click()
        await expect(turns).not_to_have_attribute("data-first", str(before))
    assert await turns.locator("> li").count() <= 200
    assert await page.evaluate("document.querySelectorAll('*').length") < 6_000
    await expect(turns).to_have_attribute("data-newest", "false")
    await page.get_by_role("link", name="Show later entries").click()
    await page.get_by_role("link", name="Go to the newest").click()
    await expect(turns).to_have_attribute("data-newest", "true")
    await expect(turns.locator("> li").last).to_be_in_viewport()
    # A link to any entry.
    await page.goto(f"{long_life}#entry-{ENTRIES // 2}")
    await expect(page.locator(f"#entry-{ENTRIES // 2}")).to_be_in_viewport()
    await check_page(page)


@pytest.mark.full
@pytest.mark.guarantee(104)
async def test_twenty_thousand_entries_are_paged_both_ways(page: Page, long_life: str) -> None:
    asked: list[str] = []

    def seen(request: Request) -> None:
        asked.append(request.url)

    page.on("request", seen)
    await page.goto(f"{long_life}?tab=state")
    rows = page.locator("[data-entries] > li")
    await expect(rows).to_have_count(20)
    assert not any("/fragments/body" in url for url in asked)
    await expect(page.get_by_text("19,981 to 20,000 of 20,000")).to_be_visible()
    await expect(page.get_by_role("button", name="Newer")).to_be_disabled()
    await check_page(page)
    await shoot(page, "journal-20000")

    await page.get_by_role("button", name="Older").click()
    await expect(page.get_by_text("19,961 to 19,980 of 20,000")).to_be_visible()
    await page.get_by_role("button", name="Newer").click()
    await expect(page.get_by_text("19,981 to 20,000 of 20,000")).to_be_visible()
    await page.get_by_role("button", name="Oldest").click()
    await expect(page.get_by_text("1 to 20 of 20,000")).to_be_visible()
    await expect(page.get_by_role("button", name="Older")).to_be_disabled()
    await page.get_by_label("Go to entry").fill("10000")
    await page.keyboard.press("Enter")
    await expect(page.locator("[data-key='10000']")).to_contain_text("10000")
    await page.locator("[data-key='10000'] summary").click()
    await expect(page.locator("[data-key='10000'] [data-slice]")).to_have_text("(no text)")
    await page.get_by_role("button", name="Newest").click()
    await expect(page.get_by_text("19,981 to 20,000 of 20,000")).to_be_visible()
    assert await rows.count() == 20


@pytest.mark.full
@pytest.mark.guarantee(104)
async def test_charts_of_a_long_thread_are_sampled(page: Page, long_life: str) -> None:
    await page.goto(f"{long_life}?tab=size")
    await expect(page.get_by_text("Sampled from 20,000 entries.")).to_be_visible()
    charts = page.locator("#charts figure")
    for number in range(3):
        drawn = await charts.nth(number).locator("svg .point, svg .rect").count()
        assert 5 < drawn <= 125
    await charts.nth(2).locator("summary").click()
    await expect(page.get_by_role("region", name="Resume times, figures")).to_contain_text("ms")


async def test_the_slider_reaches_any_entry_of_a_long_journal(page: Page, long_life: str) -> None:
    await page.goto(f"{long_life}?tab=time-travel")
    scene = page.locator("[data-scene]")
    await expect(scene).to_contain_text("This is the newest entry.")
    await page.get_by_label("Entry", exact=True).fill("50")
    await expect(scene).to_contain_text("After entry 50,")
    await expect(scene).to_contain_text(f"{ENTRIES - 50:,}")
