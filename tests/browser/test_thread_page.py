"""Page of one thread: its conversation, and the tabs beside it."""

import pytest
import pytest_asyncio
from playwright.async_api import Page, Request, expect

from everlong.client.status import read_status
from tests.support.dashboard import Stage, open_page, shoot
from tests.support.page_checks import check_page


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def thread_url(stage: Stage) -> str:
    """The address of a thread that has something to show."""
    await stage.send_and_wait("shown-1", "read 12")
    await stage.send_and_wait("shown-1", "remember the door code is 4711")
    return "/threads/shown-1"


async def test_a_thread_shows_its_sizes_limits_charts_and_journal(
    page: Page, thread_url: str
) -> None:
    await page.goto(thread_url)
    await expect(page.get_by_role("heading", level=1)).to_have_text("shown-1")
    await expect(page.get_by_text("Waiting for a message.")).to_be_visible()
    await expect(page.get_by_text("ops · 15 steps · ")).to_be_visible()
    turns = page.locator("[data-turns] > li")
    await expect(turns.last).to_contain_text("remembered")
    assert await turns.count() == 18
    await check_page(page)
    await shoot(page, "thread", whole=False)
    await page.get_by_role("link", name="State", exact=True).click()
    await expect(page.get_by_role("img", name="Steps: 15 of 100,000")).to_be_visible()
    assert await page.locator("[data-entries] > li").count() == 20
    await check_page(page)
    await shoot(page, "thread-state")
    await page.get_by_role("link", name="Size", exact=True).click()
    figures = page.get_by_role("region", name="Sizes")
    for name in ("Operational state", "Context", "Stored", "History", "Steps"):
        await expect(figures.get_by_text(name, exact=True)).to_be_visible()
    for title in ("Size over time", "Size per step"):
        await expect(page.get_by_role("img", name=title)).to_be_visible()
    await page.locator("summary", has_text="Figures").nth(1).click()
    table = page.get_by_role("region", name="Size per step, figures")
    assert await table.locator("tbody tr").count() == 15
    await check_page(page)
    await shoot(page, "thread-size")


@pytest.mark.guarantee(104)
async def test_bodies_are_read_when_they_are_opened_and_long_ones_in_slices(
    stage: Stage, page: Page
) -> None:
    await stage.send_and_wait("long-1", "long")
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/fragments/call" in request.url or "/fragments/body" in request.url:
            asked.append(request.url)

    page.on("request", note)
    await page.goto("/threads/long-1")
    call = page.locator("[data-key='2'] details.call")
    await expect(call).to_contain_text("long_report")
    await expect(page.get_by_text("line 004000 of the report")).to_have_count(0)
    assert asked == []
    await call.locator("summary").click()
    body = call.locator("[data-slice]")
    await expect(body).to_contain_text("line 000000 of the report")
    await expect(call.locator(".arguments")).to_have_text("{}")
    assert len(asked) == 1
    shown = len(await body.inner_text())
    assert shown < 70_000
    await call.get_by_role("button", name="Show more").click()
    await expect(body).to_contain_text("line 004000 of the report")
    assert len(await body.inner_text()) > shown
    await check_page(page)
    await shoot(page, "thread-body", whole=False)
    async with page.expect_download() as download:
        await call.get_by_role("link", name="Download").click()
    text = (await (await download.value).path()).read_text()
    assert text.endswith("of the report\n")
    assert len(text) > 190_000
    await call.get_by_role("button", name="Show as JSON").click()
    await expect(call.locator("[data-slice]")).to_contain_text('"parts"')


async def test_the_slider_shows_state_context_and_changes(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("past-1", "remember blue")
    await stage.send_and_wait("past-1", "read 6")
    await page.goto("/threads/past-1")
    await page.get_by_role("link", name="Time travel").click()
    scene = page.locator("[data-scene]")
    await expect(scene).to_contain_text("This is the newest entry.")
    slider = page.get_by_role("slider", name="Entry to look at")
    await slider.focus()
    await page.keyboard.press("Home")
    await expect(scene.get_by_text("After entry 1,")).to_be_visible()
    await expect(scene).to_contain_text("remember blue")
    await expect(scene).to_contain_text("Added to the context")
    await page.keyboard.press("End")
    await expect(scene).to_contain_text("This is the newest entry.")
    number = page.get_by_label("Entry", exact=True)
    await number.fill("4")
    await expect(scene.get_by_text("After entry 4,")).to_be_visible()
    await expect(scene).to_contain_text("note")
    await check_page(page)
    await shoot(page, "thread-past")


@pytest.mark.guarantee(103)
async def test_thread_content_is_rendered_as_text_and_never_as_markup(
    stage: Stage, page: Page
) -> None:
    evil = "<img src=/nope onerror=window.hacked=1><script>window.hacked=1</script>"
    number = await stage.send("evil-1", f"restart {evil}")
    await stage.wait_until_listed("evil-1", "approval")
    await page.goto("/approvals?thread=evil-1")
    card = page.get_by_role("article").filter(has_text="evil-1")
    await expect(card.locator(".arguments")).to_contain_text(evil)
    await card.get_by_role("button", name="Approve").click()
    await expect(card).to_have_count(0)
    await stage.threads.wait_for_answers("evil-1", number)
    await page.goto("/threads/evil-1")
    turns = page.locator("[data-turns]")
    await expect(turns.locator("[data-key='1']")).to_contain_text(evil)
    await turns.locator("details.call summary").click()
    await expect(turns.locator(".arguments")).to_contain_text(evil)
    await expect(turns.locator("[data-slice]")).to_contain_text(evil)
    # The reply repeats it, and is Markdown.
    await expect(turns.locator(".md")).to_contain_text("<img src=/nope")
    for tab, place in (("state", "[data-entries]"), ("time-travel", "[data-scene]")):
        await page.goto(f"/threads/evil-1?tab={tab}")
        await expect(page.locator(place)).to_contain_text(evil)
    assert await page.evaluate("window.hacked") is None


@pytest.mark.full
async def test_runs_link_to_the_temporal_ui(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("runs-1", "hello")
    await page.goto("/threads/runs-1?tab=runs")
    link = page.get_by_role("link", name="in the Temporal UI")
    run_id = (await stage.client.get_workflow_handle("runs-1").describe()).run_id
    place = f"/namespaces/default/workflows/runs-1/{run_id}/history"
    await expect(link).to_have_attribute("href", stage.context.temporal_ui + place)


async def test_an_open_page_follows_a_running_thread(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("follow-1", "read 1")
    await page.goto("/threads/follow-1")
    call = page.locator("[data-key='2'] details.call")
    await call.locator("summary").click()
    await expect(call.locator("[data-slice]")).to_contain_text("# result 0")
    await page.evaluate("window.kept = true")
    await page.get_by_label("Message to follow-1").fill("tick 6")
    await page.keyboard.press("Control+Enter")
    await expect(page.get_by_text("Working on message 2.")).to_be_visible()
    await expect(page.get_by_label("Message to follow-1")).to_have_value("")
    await expect(page.locator("[data-turns]")).to_contain_text("tick 1")
    await shoot(page, "thread-live", whole=False)
    await stage.threads.wait_for_answers("follow-1", 2)
    await expect(page.get_by_text("Waiting for a message.")).to_be_visible()
    await expect(page.locator("[data-key='18']")).to_be_in_viewport()
    # An opened call stays open, with its text loaded.
    await expect(call.locator("[data-slice]")).to_contain_text("# result 0")
    assert await page.evaluate("window.kept")


async def test_a_failed_turn_is_sent_again_and_a_draft_is_kept(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("again-1", "fail")
    await page.goto("/threads/again-1")
    await expect(page.locator(".turn.failure")).to_contain_text("the provider will not")
    await page.get_by_label("Message to again-1").fill("a draft")
    await check_page(page)
    await shoot(page, "thread-failed", whole=False)
    await page.get_by_role("button", name="Send the message again").click()
    await expect(page.locator(".turn.failure")).to_have_count(2)
    assert (await read_status(stage.client, "again-1")).counters.messages == 2
    await page.reload()
    await expect(page.get_by_label("Message to again-1")).to_have_value("a draft")
    # Only the failure that ends the conversation has the button.
    await expect(page.get_by_role("button", name="Send the message again")).to_have_count(1)


async def test_labels_are_added_and_removed_on_the_page(stage: Stage, page: Page) -> None:
    await stage.send_and_wait("labelled-1", "hello")
    await page.goto("/threads/labelled-1")
    field = page.get_by_label("Add a label")
    await field.fill("team=payments")
    await page.keyboard.press("Enter")
    remove = page.get_by_role("button", name="Remove the label team=payments")
    await expect(remove).to_be_visible()
    await expect(field).to_have_value("")
    await check_page(page)
    await remove.click()
    await expect(remove).to_have_count(0)
    await expect(field).to_be_focused()


async def test_without_scripts_tabs_and_pages_are_links(stage: Stage, thread_url: str) -> None:
    context = await stage.browser.new_context(base_url=stage.url, java_script_enabled=False)
    try:
        page = await context.new_page()
        await page.goto(thread_url)
        await expect(page.locator("[data-turns] > li").last).to_contain_text("remembered")
        for tab, text in (
            ("State", "15 of 100,000"),
            ("Size", "Operational state"),
            ("Runs", "one Temporal execution each"),
            ("Time travel", "state and context at any entry"),
        ):
            await page.get_by_role("link", name=tab, exact=True).click()
            await expect(page.locator("main")).to_contain_text(text)
        await page.goto(f"{thread_url}?tab=time-travel&seq=3")
        await expect(page.get_by_role("heading", name="After entry 3")).to_be_visible()
        await page.goto(f"{thread_url}?before=10")
        await page.get_by_role("link", name="Show later entries").click()
        await expect(page.locator("[data-turns] > li").last).to_contain_text("remembered")
    finally:
        await context.close()


async def test_a_sub_agents_conversation_opens_in_place_with_links_both_ways(
    stage: Stage, page: Page
) -> None:
    await stage.send_and_wait("boss-1", "delegate it")
    await page.goto("/threads/boss-1")
    call = page.locator("[data-key='2'] details.call")
    await call.locator("summary").first.click()
    await call.get_by_text("Conversation of the sub-agent").click()
    await expect(call.locator(".nested .turn.reply")).to_contain_text("helper heard it")
    await expect(call.locator(".nested .md strong")).to_have_text("helper")
    await check_page(page)
    await shoot(page, "thread-sub-agent", whole=False)
    await page.locator("[data-key='2'] .sub a").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("boss-1/helper-")
    await expect(page.get_by_role("button", name="Send", exact=True)).to_have_count(0)
    await page.get_by_role("link", name="boss-1", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("boss-1")


async def test_a_thread_page_fits_390_pixels(stage: Stage, thread_url: str) -> None:
    async with open_page(stage, width=390, height=844) as page:
        await page.goto(thread_url)
        await check_page(page)
        await shoot(page, "thread-390", whole=False)


@pytest.mark.full
async def test_a_thread_page_has_a_dark_theme(stage: Stage, thread_url: str) -> None:
    async with open_page(stage, dark=True) as page:
        await page.goto(thread_url)
        await check_page(page)
        await shoot(page, "thread-dark", whole=False)


async def test_a_failed_action_shows_the_error_and_its_remedy(stage: Stage, page: Page) -> None:
    # The agent's own policy is known after the first step.
    await stage.threads.wait_for_answers("tight-1", await stage.send("tight-1", "hello", "tight"))
    await stage.send("tight-1", "fail", "tight")
    await stage.send("tight-1", "hello again", "tight")
    await stage.wait_until_listed("tight-1", "paused")
    await page.goto("/threads/tight-1")
    await expect(
        page.get_by_text("Paused by a limit. Failed turns in a row: 1 of 1.")
    ).to_be_visible()
    await expect(
        page.get_by_text("Raise the limit first, then unpause the thread.")
    ).to_be_visible()
    await check_page(page)
    await shoot(page, "thread-paused", whole=False)
