"""Access: login and logout, the buttons of each role, and error pages."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, Request, expect
from temporalio.client import Client

from everlong.admin.web import Access, AppContext, create_admin_app
from everlong.admin.web.auth import Grant, Role
from everlong.errors import ServerUnreachable
from tests.support.dashboard import Stage, open_page, serve, shoot
from tests.support.page_checks import check_page

TOKENS = {role: f"a-long-token-of-the-{role}" for role in Role}
BUTTONS = ("Compact …", "Pause …", "Set limits …", "Fork …", "Stop …")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded_url(stage: Stage) -> AsyncIterator[str]:
    """The address of a dashboard that wants tokens."""
    grants = tuple(Grant(name=f"ann-{role}", role=role, token=TOKENS[role]) for role in Role)
    async with serve(create_admin_app(stage.make_context(), Access(grants=grants))) as url:
        yield url


async def enter(page: Page, role: Role, path: str = "/") -> None:
    """Go to a page, and log in on the way."""
    await page.goto(path)
    await page.get_by_label("Token").fill(TOKENS[role])
    await page.get_by_role("button", name="Log in").click()


async def test_a_token_logs_a_user_in_and_logout_ends_the_session(
    stage: Stage, guarded_url: str
) -> None:
    async with open_page(stage, url=guarded_url) as page:
        page.expected_troubles = ("status of 401",)  # type: ignore[attr-defined]
        await page.goto("/fleet")
        await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        await expect(page.get_by_role("navigation", name="Pages")).to_have_count(0)
        await check_page(page)
        await shoot(page, "login")
        await page.get_by_label("Token").fill("not valid on this server")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_contain_text("not valid on this server")
        await page.get_by_label("Token").fill(TOKENS[Role.ADMIN])
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Fleet")
        await expect(page.get_by_text("ann-admin · admin")).to_be_visible()
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        await page.goto("/")
        await expect(page.get_by_role("heading", name="Log in")).to_be_visible()


async def test_a_login_leads_to_the_page_that_was_asked_for(stage: Stage, guarded_url: str) -> None:
    async with open_page(stage, url=guarded_url) as page:
        origins: list[str] = []

        async def note(request: Request) -> None:
            if request.method == "POST":
                origins.append((await request.all_headers()).get("origin", ""))

        page.on("request", note)
        await enter(page, Role.VIEWER, "/?text=none%20such&status=held")
        await expect(page.get_by_label("Search by thread id")).to_have_value("none such")
        # By this the server knows that a browser speaks HTTPS to the proxy before it.
        assert origins == [guarded_url]


async def test_buttons_that_a_role_may_not_use_are_not_shown(
    stage: Stage, guarded_url: str
) -> None:
    number = await stage.send("roles-1", "restart billing")
    await stage.wait_until_listed("roles-1", "approval")
    for role in (Role.VIEWER, Role.OPERATOR, Role.APPROVER, Role.ADMIN):
        operates = role in (Role.OPERATOR, Role.ADMIN)
        decides = role in (Role.APPROVER, Role.ADMIN)
        async with open_page(stage, url=guarded_url) as page:
            await enter(page, role, "/threads/roles-1")
            await expect(page.get_by_role("heading", level=1)).to_have_text("roles-1")
            for name in BUTTONS:
                button = page.get_by_role("button", name=name)
                await expect(button).to_have_count(1 if operates else 0)
            # The composer and the labels are for operators, the call in its place for approvers.
            for name in ("Message to roles-1", "Add a label"):
                await expect(page.get_by_label(name)).to_have_count(1 if operates else 0)
            call = page.get_by_role("article", name="Approval of restart")
            await expect(call).to_be_visible()
            await expect(call.get_by_role("button")).to_have_count(2 if decides else 0)
            await page.goto("/approvals")
            card = page.get_by_role("article").filter(has_text="roles-1")
            await expect(card).to_be_visible()
            await expect(card.get_by_role("button")).to_have_count(2 if decides else 0)
            # A token names its user, so the form has no field for a name.
            await expect(card.get_by_label("Your name")).to_have_count(0)
            if role == Role.ADMIN:
                await card.get_by_role("button", name="Deny").click()
                await expect(page.get_by_text("Denied: restart.")).to_be_visible()
    await stage.threads.wait_for_answers("roles-1", number)


async def test_an_unknown_thread_gets_a_page_that_says_so(page: Page) -> None:
    page.expected_troubles = ("status of 404",)  # type: ignore[attr-defined]
    response = await page.goto("/threads/missing")
    assert response is not None
    assert response.status == 404
    await expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    await expect(page.get_by_text("'missing'")).to_be_visible()
    await check_page(page)
    await shoot(page, "error-404")
    await page.get_by_role("link", name="All threads").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Threads")


@pytest.mark.full
async def test_pages_without_a_temporal_server_say_what_to_do(stage: Stage) -> None:
    async def connect() -> Client:
        raise ServerUnreachable("no Temporal server answers at 127.0.0.1:1")

    context = AppContext(connect, stage.context.packs, task_queue="none")
    async with (
        serve(create_admin_app(context, Access())) as url,
        open_page(stage, url=url, dark=True) as page,
    ):
        page.expected_troubles = ("status of 503",)  # type: ignore[attr-defined]
        response = await page.goto("/threads/any")
        assert response is not None
        assert response.status == 503
        await expect(page.get_by_text("everlong doctor")).to_be_visible()
        await check_page(page)
        await shoot(page, "error-503")
        # The list is a list all the same, and says that it is old.
        await page.goto("/")
        await expect(page.get_by_text("This list may be out of date")).to_be_visible()
        await check_page(page)


async def test_the_theme_can_be_chosen_and_is_kept(stage: Stage) -> None:
    async with open_page(stage) as page:
        await page.goto("/fleet")
        ground = "() => getComputedStyle(document.documentElement).backgroundColor"
        light = await page.evaluate(ground)
        await page.get_by_role("button", name="Use the dark theme").click()
        assert await page.evaluate(ground) != light
        await page.goto("/approvals")
        assert await page.evaluate(ground) != light
        await check_page(page)
        await page.get_by_role("button", name="Use the light theme").click()
        assert await page.evaluate(ground) == light


async def test_the_bar_can_be_skipped(page: Page) -> None:
    await page.goto("/")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
