"""Checks that hold for any page: accessible names, contrast, and no horizontal scrolling."""

from pathlib import Path

from playwright.async_api import Page

HERE = Path(__file__).parent
NAMES, CONTRAST = (HERE / "names.js").read_text(), (HERE / "contrast.js").read_text()
WIDTH = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def check_page(page: Page) -> None:
    """Assert them for a page as it is shown now."""
    unnamed, faint = await page.evaluate(NAMES), await page.evaluate(CONTRAST)
    assert unnamed == [], unnamed
    assert faint == [], faint
    assert await page.evaluate(WIDTH) <= 0, "the page is wider than the screen"
