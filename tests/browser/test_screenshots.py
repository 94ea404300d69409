"""The pictures of the README and of docs/how-to/dashboard.md. `make screenshots` takes them again."""

import dataclasses
import time
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from everlong.admin.web import Access, create_admin_app
from everlong.client.visibility import ThreadRow
from everlong.models import Status
from everlong.models.status import ENDED
from tests.support.dashboard import Stage, open_page, screenshot, serve
from tests.support.fake_thread_list import FakeThreadList, row
from tests.support.long_journal import write_long_journal

IMAGES = Path(__file__).parents[2] / "docs" / "images"
BYTES_MAX = 200_000
NAMES = (
    ("checkout-incident", "ops", Status.APPROVAL),
    ("nightly-reconcile", "billing", Status.WAITING),
    ("vendor-research", "researcher", Status.WORKING),
    ("customer-4711", "support", Status.FAILED),
    ("index-rebuild", "ops", Status.PAUSED),
    ("quarter-close", "billing", Status.HELD),
    ("competitor-watch", "researcher", Status.WORKING),
    ("customer-1204", "support", Status.DONE),
    ("gdpr-export-88", "support", Status.ARCHIVED),
)
REASONS = {Status.PAUSED: "steps_max", Status.HELD: "store"}


def fake_threads() -> list[ThreadRow]:
    """Threads as a team has them."""
    now_ms = time.time_ns() // 1_000_000
    found = []
    for number, (name, agent, status) in enumerate(NAMES):
        is_open = status not in ENDED
        made = row(number + 20, now_ms)
        found.append(
            dataclasses.replace(
                made,
                thread_id=name,
                agent=agent,
                status=status,
                reason=REASONS.get(status, ""),
                closed_ms=None if is_open else now_ms,
                pending=int(status == Status.APPROVAL),
                growth_bytes_per_hour=made.stored_bytes * 0.004 if is_open else 0.0,
                started_ms=now_ms - number * 60_000,
            )
        )
    return found


async def take_picture(page: Page, name: str) -> None:
    """Take a picture that is small enough to be kept; the one in the repository has to be there."""
    path = screenshot(name)
    await page.screenshot(path=path, animations="disabled")
    assert path.stat().st_size < BYTES_MAX
    assert (IMAGES / path.name).exists(), "make screenshots"


@pytest.mark.full
async def test_the_pictures_of_the_documents_can_be_taken(stage: Stage) -> None:
    context = stage.make_context(FakeThreadList(fake_threads()))
    async with (
        serve(create_admin_app(context, Access())) as url,
        open_page(stage, url=url, width=1280, height=680) as page,
    ):
        await page.goto("/")
        await expect(page.locator("table.threads tbody tr")).to_have_count(len(NAMES))
        await take_picture(page, "dashboard")
        address = await write_long_journal(stage, "checkout-incident", 900, compacted_seq=600)
        await page.set_viewport_size({"width": 1280, "height": 900})
        text = "investigate why checkout is slow again, and mend it if you may"
        await stage.send("checkout-incident", text)
        await page.goto(address)
        await expect(page.get_by_role("article", name="Approval of restart")).to_be_in_viewport()
        await expect(page.get_by_text("A person has to decide")).to_be_in_viewport()
        await take_picture(page, "dashboard-thread")
