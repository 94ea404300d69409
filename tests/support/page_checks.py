"""What holds for any page: names for all that can be used, contrast, nothing wider than the screen."""

from pathlib import Path

from playwright.async_api import Page

HERE = Path(__file__).parent
NAMES, CONTRAST = (HERE / "names.js").read_text(), (HERE / "contrast.js").read_text()
WIDTH = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def check_page(page: Page) -> None:
    """Check what holds for any page, as it is shown now."""
    unnamed, faint = await page.evaluate(NAMES), await page.evaluate(CONTRAST)
    assert unnamed == [], unnamed
    assert faint == [], faint
    assert await page.evaluate(WIDTH) <= 0, "the page is wider than the screen"
