"""The real Temporal UI in a browser: what people see of values that are in the store.

Screenshots are kept in `EVERLONG_SCREENSHOTS`, or else in `tests/output`.
"""

import contextlib
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright, expect

from everlong.embedded import start_server
from everlong.embedded.server import find_free_port
from everlong.storage import open_store
from tests.server.test_codec_server import LARGE_BYTES, serve, swap, value
from tests.support.dashboard import CHROMIUM, FLAGS

WAIT_MS = 60_000

pytestmark = pytest.mark.skipif(
    not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}: apt-get install chromium"
)


@contextlib.asynccontextmanager
async def browser_page() -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = await browser.new_page(viewport={"width": 1400, "height": 1200})
            page.set_default_timeout(WAIT_MS)
            yield page
        finally:
            await browser.close()


def screenshot(name: str) -> Path:
    folder = Path(os.environ.get("EVERLONG_SCREENSHOTS", Path(__file__).parents[1] / "output"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    return folder / f"{name}.png"


async def downloaded(page: Page, number: int) -> object:
    """Press one of the download buttons, whose text is a size; return what the file holds."""
    buttons = page.get_by_role("button", name=re.compile(r"^39\d(\.\d+)? KB$"))
    async with page.expect_download() as download:
        await buttons.nth(number).click()
    return json.loads((await (await download.value).path()).read_text())


@pytest.mark.full
@pytest.mark.guarantee(89)
async def test_the_temporal_ui_shows_stored_values(tmp_path: Path, thread_id: str) -> None:
    port = find_free_port()
    server = await start_server(tmp_path, codec_endpoint=f"http://127.0.0.1:{port}")
    with server.process:
        store_url = (tmp_path / "blobs").as_uri()
        run_id = (await swap(server.address, open_store(store_url), thread_id)).result_run_id
        path = f"/namespaces/default/workflows/{thread_id}/{run_id}/history"
        log = tmp_path / "serve.log"
        async with (
            serve(store_url, log, port=port, origins=[server.ui_url]),
            browser_page() as page,
        ):
            await page.goto(server.ui_url + path)
            await expect(page.get_by_text("small-begins")).to_be_visible(timeout=WAIT_MS)
            # The page does not fetch large values. It shows their size, and a button downloads each.
            size_bytes = len(json.dumps(value("large", LARGE_BYTES), separators=(",", ":")))
            for text in (f"{size_bytes:,} bytes", "payload stored externally"):
                await expect(page.get_by_text(text)).to_be_visible(timeout=WAIT_MS)
            await page.screenshot(path=screenshot("temporal-ui-history"))
            for name in ("large", "result"):
                assert await page.get_by_text(f"{name}-begins").count() == 0
            assert await downloaded(page, 0) == value("large", LARGE_BYTES)
            assert await downloaded(page, 1) == value("result", LARGE_BYTES)
            assert "refused" not in log.read_text()

            # The same page by its other name is an origin that was not named.
            blocked = page.expect_event(
                "requestfailed", lambda request: request.url.startswith(f"http://127.0.0.1:{port}/")
            )
            async with blocked:
                await page.goto(server.ui_url.replace("127.0.0.1", "localhost") + path)
            await expect(page.get_by_text(thread_id).first).to_be_visible(timeout=WAIT_MS)
            assert await page.get_by_text("small-begins").count() == 0
            await page.screenshot(path=screenshot("temporal-ui-unnamed-origin"))
