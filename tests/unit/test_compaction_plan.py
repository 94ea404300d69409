"""Outcomes of compactions: which are used, and what happens if one frees too little."""

import json

import pytest

from everlong.activities.compaction import CompactionPlan, plan_compaction
from everlong.activities.model_calls import format_contents
from everlong.agents import Agent
from everlong.compaction import Snapshot, compact
from everlong.models import Compact, Context, Message
from everlong.policy import Policy
from everlong.storage.context_store import LoadedContext
from tests.support.conversations import Thread, build_shown_context

KIB = 1024
ALL = 10**9
AGENT = Agent(name="ops", model="openai:gpt-4.1")
POLICY = Policy(compact_at_bytes=64 * KIB, compact_to_bytes=16 * KIB)


def plan(
    thread: Thread,
    *,
    base: Snapshot | None = None,
    keep_from_seq: int = ALL,
    reason: str = "policy",
    policy: Policy = POLICY,
) -> CompactionPlan:
    past = LoadedContext(base, tuple(thread.items), policy, thread.now_ms)
    context = Context(agent="ops", head=None, snapshot=None, policy=None, now_ms=thread.now_ms)
    request = Compact(context=context, keep_from_seq=keep_from_seq, reason=reason)
    return plan_compaction(past, request, AGENT)


def build_thread(steps: int, size: int = 2000) -> Thread:
    thread = Thread()
    thread.user("Find the slow query.")
    for number in range(steps):
        thread.step(f"explain {number}", f"row {number}\n" + "seq scan\n" * (size // 9))
    return thread


def test_a_compaction_reports_messages_bytes_and_strategy() -> None:
    found = plan(build_thread(60))
    assert (found.outcome, found.strategy, found.is_used) == ("compacted", "notes", True)
    assert found.before.messages == 121
    assert found.after.messages < 30
    assert found.after.size_bytes <= 16 * KIB
    assert found.after.tokens == -(-found.after.size_bytes // 4)


@pytest.mark.parametrize(("reason", "outcome"), [("policy", "no_shrink"), ("idle", "unchanged")])
def test_a_context_that_cannot_shrink_stays_as_it_is(reason: str, outcome: str) -> None:
    thread = build_thread(4)
    seq = thread.calls(("dump", {"all": "yes"}))
    thread.result(f"{seq}-0", "x" * 100_000)
    found = plan(thread, keep_from_seq=seq, reason=reason)
    assert (found.outcome, found.is_used) == (outcome, False)
    assert found.after == found.before
    assert found.past.base is None


def test_a_provider_that_refuses_the_context_gets_any_smaller_one() -> None:
    thread = build_thread(12)
    seq = thread.calls(("dump", {"all": "yes"}))
    thread.result(f"{seq}-0", "x" * 100_000)
    found = plan(thread, keep_from_seq=seq, reason="provider")
    assert (found.outcome, found.is_used) == ("compacted", True)
    assert found.after.size_bytes < found.before.size_bytes


def test_half_of_the_budget_is_tried_if_the_budget_frees_too_little() -> None:
    policy = Policy(compact_at_bytes=20 * KIB, compact_to_bytes=18 * KIB)
    found = plan(build_thread(10), policy=policy)
    assert (found.outcome, found.is_used) == ("halved", True)
    assert found.after.size_bytes <= 9 * KIB


def test_a_context_within_its_budget_is_unchanged() -> None:
    assert plan(build_thread(3)).outcome == "unchanged"
    assert plan(Thread()).outcome == "unchanged"


def test_no_context_is_compacted_twice_in_a_row() -> None:
    thread = build_thread(60)
    first = plan(thread)
    again = plan(thread, base=first.past.base)
    assert (again.outcome, again.is_used) == ("unchanged", False)


def test_the_tail_stays_if_notes_would_keep_terms_of_less_worth() -> None:
    thread = Thread()
    thread.user("Later, please rotate the staging key.")
    thread.user("List all files of the modules.")
    for step in range(30):
        # Nothing but paths: a note of them takes more room than the result itself.
        thread.step(f"ls {step}", " ".join(f"src/m{step}/f{n}.py" for n in range(120)))
    base = compact(None, thread.items, POLICY, 0, keep_from_seq=ALL)
    assert base.strategy == "tail"
    summary, *kept = build_shown_context(base)
    assert "Open:\n1 user: Later, please rotate the staging key.\n" in summary.text
    newest = thread.items[-8:]
    assert kept[-8:] == [item.message for item in newest]
    assert plan(thread).outcome == "tail"


def test_recorded_contents_name_the_compacted_past() -> None:
    messages = [
        Message(role="summary", text="[Entries 1 to 9, compacted.]"),
        Message(role="user", text="go on"),
    ]
    assert json.loads(format_contents(messages)) == [
        {
            "role": "user",
            "parts": [{"type": "compaction", "content": "[Entries 1 to 9, compacted.]"}],
        },
        {"role": "user", "parts": [{"type": "text", "content": "go on"}]},
    ]
