"""Pending approvals and decisions, also without a mouse."""

import pytest
from playwright.async_api import Page, expect

from everlong.models import Kind
from tests.support.dashboard import Stage, open_page, shoot
from tests.support.page_checks import check_page
from tests.support.threads import read_journal


async def read_decisions(stage: Stage, thread_id: str) -> list[tuple[bool, str, str]]:
    """Return the decisions in a journal: which, by whom, why."""
    packs = stage.threads.plugin.packs
    entries = await read_journal(stage.client, packs, thread_id)
    found = [entry.data or {} for entry in entries if entry.kind == Kind.DECIDED]
    return [(each["approve"], each["by"], each.get("reason", "")) for each in found]


@pytest.mark.guarantee(105)
async def test_the_keyboard_alone_approves_a_call(stage: Stage, page: Page) -> None:
    number = await stage.send("keys-1", "restart billing")
    await stage.wait_until_listed("keys-1", "approval")
    await page.goto("/")
    # Past the link that skips the bar, to the second page.
    for _ in range(4):
        await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Approvals waiting:")).to_be_focused()
    await page.keyboard.press("Enter")
    card = page.get_by_role("article", name="restart").filter(has_text="keys-1")
    await expect(card).to_contain_text('"service": "billing"')
    await expect(card).to_contain_text("restart billing")
    await check_page(page)
    await shoot(page, "approvals")
    reason = card.get_by_label("Reason, for restart of keys-1")
    for _ in range(40):
        await page.keyboard.press("Tab")
        if await reason.evaluate("e => e === document.activeElement"):
            break
    await expect(reason).to_be_focused()
    await page.keyboard.type("it is Sunday")
    # Enter in a field decides nothing.
    await page.keyboard.press("Enter")
    await expect(card).to_be_visible()
    await page.keyboard.press("Tab")
    await expect(card.get_by_role("button", name="Approve")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Approved: restart.")).to_be_visible()
    await expect(card).to_have_count(0)
    waiting = await page.locator("article[data-ask]").count()
    await expect(page.locator("[data-badge-count]")).to_have_text(str(waiting))
    await expect(page.locator("[data-badge]")).to_be_visible(visible=waiting > 0)
    await stage.threads.wait_for_answers("keys-1", number)
    [(approve, by, why)] = await read_decisions(stage, "keys-1")
    assert (approve, why) == (True, "it is Sunday")
    assert by


async def test_a_denial_gives_the_model_the_reason(stage: Stage, page: Page) -> None:
    number = await stage.send("deny-1", "restart payments")
    await stage.wait_until_listed("deny-1", "approval")
    await page.goto("/approvals?thread=deny-1")
    card = page.get_by_role("article").filter(has_text="deny-1")
    await card.get_by_label("Your name").fill("bob")
    await card.get_by_label("Reason, for").fill("not now")
    await card.get_by_role("button", name="Deny restart of deny-1").click()
    await expect(page.get_by_text("Denied: restart.")).to_be_visible()
    await stage.threads.wait_for_answers("deny-1", number)
    assert await read_decisions(stage, "deny-1") == [(False, "bob", "not now")]


async def test_a_call_is_approved_in_its_conversation_with_edited_arguments(
    stage: Stage, page: Page
) -> None:
    await stage.send("edit-1", "restart billing")
    await stage.wait_until_listed("edit-1", "approval")
    await page.goto("/threads/edit-1")
    card = page.get_by_role("article", name="Approval of restart")
    await card.get_by_text("Edit the arguments").click()
    field = card.get_by_label("Arguments to run restart of edit-1")
    await field.fill('{"service": ')
    approve = card.get_by_role("button", name="Approve with these arguments")
    await approve.click()
    await expect(card.get_by_role("alert")).to_contain_text("The arguments are not JSON")
    await field.fill('{"service": "search", "region": "eu-central-1"}')
    await check_page(page)
    await shoot(page, "thread-approval", whole=False)
    await approve.click()
    await expect(card).to_have_count(0)
    await expect(page.locator("[data-key='2']")).to_contain_text("search is up in eu-central-1")
    await expect(page.locator("[data-key='2']")).to_contain_text("with changed arguments")


@pytest.mark.full
async def test_a_grant_is_given_with_an_approval_listed_and_revoked(
    stage: Stage, page: Page
) -> None:
    await stage.send("grant-1", "restart billing")
    await stage.wait_until_listed("grant-1", "approval")
    await page.goto("/threads/grant-1")
    card = page.get_by_role("article", name="Approval of restart")
    await card.get_by_text("Allow later calls too").click()
    await card.get_by_label("Calls to allow").select_option("tool")
    await card.get_by_role("button", name="Approve").click()
    await expect(card).to_have_count(0)
    await stage.threads.wait_for_answers("grant-1", await stage.send("grant-1", "restart search"))
    await expect(page.locator("[data-turns]")).to_contain_text("allowed by a grant of")
    await page.get_by_role("link", name="State", exact=True).click()
    await page.get_by_role("button", name="Revoke the grant for restart").click()
    await page.get_by_role("button", name="Revoke now the grant for restart").click()
    await expect(page.get_by_text("need an approval again")).to_be_visible()
    await expect(page.get_by_role("button", name="the grant for restart")).to_have_count(0)
    await check_page(page)


async def test_a_grant_of_an_agent_is_listed_with_the_approvals_and_revoked(
    stage: Stage, page: Page
) -> None:
    await stage.send("grant-2", "restart granted")
    await stage.wait_until_listed("grant-2", "approval")
    await page.goto("/approvals?thread=grant-2")
    card = page.get_by_role("article").filter(has_text="grant-2")
    await card.get_by_text("Allow later calls too").click()
    await card.get_by_label("Calls to allow").select_option("arguments")
    await card.get_by_label("Where").select_option("agent")
    await card.get_by_role("button", name="Approve").click()
    grants = page.get_by_role("region", name="Calls that need no approval")
    await expect(grants).to_contain_text("all threads of agent ops")
    await expect(grants.get_by_text('{"service": "granted"}')).to_be_visible()
    await check_page(page)
    await shoot(page, "approvals-grants")
    revoke = grants.get_by_role("button", name="Revoke the grant for restart")
    await revoke.click()
    await expect(grants).to_be_visible()
    await grants.get_by_role("button", name="Revoke now the grant for restart").click()
    await expect(page.get_by_text("need an approval again")).to_be_visible()
    await expect(grants).to_have_count(0)


async def test_an_unknown_outcome_is_resolved_in_its_conversation(stage: Stage, page: Page) -> None:
    await stage.send("unknown-1", "charge acme")
    await stage.wait_until_listed("unknown-1", "approval")
    await page.goto("/approvals")
    card = page.get_by_role("article", name="Unknown outcome of charge")
    await expect(card).to_contain_text("Idempotency key")
    await check_page(page)
    await shoot(page, "approvals-outcome")
    await page.goto("/threads/unknown-1")
    await expect(page.get_by_text("whether a call took effect")).to_be_visible()
    await check_page(page)
    await shoot(page, "thread-outcome", whole=False)
    await card.get_by_label("Result of charge").fill("charged 12 EUR")
    await card.get_by_role("button", name="It was done").click()
    await expect(card).to_have_count(0)
    call = page.locator("[data-key='2']")
    await expect(call).to_contain_text("resolved as done by")
    await expect(call).to_contain_text("charged 12 EUR")


@pytest.mark.full
async def test_each_field_keeps_a_unique_label_as_approvals_come_and_go(
    stage: Stage, page: Page
) -> None:
    for name in ("own-a", "own-b"):
        await stage.send(name, f"restart {name}")
        await stage.wait_until_listed(name, "approval")
    await page.goto("/approvals")
    cards = {
        name: page.get_by_role("article").filter(has_text=name)
        for name in ("own-a", "own-b", "own-c")
    }
    await cards["own-a"].get_by_role("button", name="Approve").click()
    await expect(cards["own-a"]).to_have_count(0)
    await stage.send("own-c", "restart own-c")
    await expect(cards["own-c"]).to_be_visible()
    ids = await page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    for name in ("own-b", "own-c"):
        field = cards[name].locator("input[name=reason]")
        labels = await field.evaluate("e => [...e.labels].map(l => l.textContent)")
        assert labels == [f"Reason, for restart of {name}"]
        await cards[name].get_by_role("button", name="Deny").click()
        await expect(cards[name]).to_have_count(0)


async def test_the_page_shows_the_call_that_would_run(stage: Stage, page: Page) -> None:
    number = await stage.send("seen-1", "restart \u202egnillib\u200b")
    await stage.wait_until_listed("seen-1", "approval")
    await page.goto("/approvals")
    card = page.get_by_role("article").filter(has_text="seen-1")
    await expect(card.locator(".arguments")).to_contain_text(r'"service": "\u202egnillib\u200b"')
    text = await card.inner_text()
    assert "\u202e" not in text
    assert "\u200b" not in text
    await card.get_by_role("button", name="Deny").click()
    await stage.threads.wait_for_answers("seen-1", number)


async def test_new_approvals_are_shown_oldest_first(stage: Stage) -> None:
    async with open_page(stage, width=390, height=844) as page:
        await page.goto("/approvals")
        first = await stage.send("order-1", "restart one")
        await expect(page.get_by_role("article").filter(has_text="order-1")).to_be_visible()
        second = await stage.send("order-2", "restart two")
        await expect(page.get_by_role("article").filter(has_text="order-2")).to_be_visible()
        texts = await page.get_by_role("article").all_inner_texts()
        places = [
            next(i for i, t in enumerate(texts) if name in t) for name in ("order-1", "order-2")
        ]
        assert places == sorted(places)
        await check_page(page)
        await shoot(page, "approvals-390")
        for name in ("order-1", "order-2"):
            card = page.get_by_role("article").filter(has_text=name)
            await card.get_by_role("button", name="Approve").click()
            await expect(card).to_have_count(0)
        await stage.threads.wait_for_answers("order-1", first)
        await stage.threads.wait_for_answers("order-2", second)
        await expect(page.get_by_role("heading", name="No pending approvals")).to_be_visible()
        await check_page(page)
