"""All threads together."""

from playwright.async_api import expect

from everlong.admin.web import Access, create_admin_app
from tests.support.dashboard import Stage, open_page, serve, shoot
from tests.support.fake_thread_list import FakeThreadList, rows
from tests.support.page_checks import check_page


async def test_the_fleet_adds_up_all_threads(stage: Stage) -> None:
    listed = rows(400)

    context = stage.make_context(FakeThreadList(listed))
    async with (
        serve(create_admin_app(context, Access())) as url,
        open_page(stage, url=url) as page,
    ):
        await page.goto("/fleet")
        figures = page.get_by_role("region", name="Figures")
        await expect(figures).to_contain_text("400")
        for name in ("Stored", "Saved", "Resume", "Approvals", "Steps"):
            await expect(figures.get_by_text(name, exact=True)).to_be_visible()
        fastest = max(listed, key=lambda row: row.growth_bytes_per_hour)
        growing = page.get_by_role("region", name="Fastest growth")
        await expect(growing.locator("tbody tr").first).to_contain_text(fastest.thread_id)
        largest = max(listed, key=lambda row: row.stored_bytes)
        await expect(
            page.get_by_role("region", name="Largest").locator("tbody tr").first
        ).to_contain_text(largest.thread_id)
        loops = page.get_by_role("region", name="Failure loops")
        await expect(loops).to_contain_text("Same failure in a row")
        store = page.get_by_role("region", name="Store")
        await expect(store).to_contain_text("ok")
        await expect(store).to_contain_text("was written, read, listed and deleted")
        await check_page(page)
        await shoot(page, "fleet")
        await page.get_by_role("region", name="By status").get_by_text("paused").click()
        await expect(page.get_by_label("Status")).to_have_value("paused")


async def test_an_empty_fleet_fits_390_pixels(stage: Stage) -> None:
    async with open_page(stage, width=390, height=844) as page:
        await page.goto("/fleet")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Fleet")
        await check_page(page)
        await shoot(page, "fleet-390")
