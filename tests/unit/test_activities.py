"""Activities by themselves, without a workflow: what one worker does of another one's work."""

import asyncio
import threading
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from everlong import Agent, Reply, limits, tool
from everlong.activities import AgentActivities
from everlong.models import (
    HELD,
    Collect,
    Context,
    Kind,
    Message,
    ModelCall,
    SegmentRef,
    ToolRun,
    new_entry,
    thread_key,
)
from everlong.storage.journal import Journal
from everlong.storage.opening import open_packs
from everlong.storage.packstore import PackStore
from everlong.testing import ScriptedModel
from tests.agents import call
from tests.journals import entry
from tests.stores import CountingStore

ASKED = new_entry(1, Kind.MESSAGE, Message(role="user", text="go"), 1)


def context(head: SegmentRef | None = None) -> Context:
    return Context(agent="ops", head=head, snapshot=None, now_ms=5, policy={})


def calling(name: str, **arguments: object) -> ScriptedModel:
    return ScriptedModel(lambda _: Reply(tool_calls=(call(0, name, **arguments),)))


async def test_a_tool_is_not_run_unapproved_though_another_worker_did_not_know_that_it_asks(
    tmp_path: Path,
) -> None:
    """A release adds a tool, or makes it ask. Its workers run beside those of the last."""
    ran: list[str] = []

    @tool(needs_approval=True)
    def restart(service: str) -> str:
        """Restart a service."""
        ran.append(service)
        return "restarted"

    packs, env = open_packs(tmp_path.as_uri()), ActivityEnvironment()
    model = calling("restart", service="prod")
    old = AgentActivities(packs, [Agent(name="ops", model=model)])
    new = AgentActivities(packs, [Agent(name="ops", model=model, tools=[restart])])
    turn = await env.run(old.call_model, ModelCall(context=context(), tail=(ASKED,)))
    [wanted] = turn.tool_calls
    assert not wanted.options.needs_approval
    run = ToolRun(context=context(turn.head), call_id=wanted.call_id, tool=wanted.tool)
    result = await env.run(new.run_tool, run)
    assert (ran, result.outcome) == ([], "failed")
    assert "call it again" in str(result.entry.body)
    turn = await env.run(new.call_model, ModelCall(context=context(), tail=(ASKED,)))
    assert turn.tool_calls[0].options.needs_approval
    approved = ToolRun(
        context=context(turn.head), call_id=wanted.call_id, tool=wanted.tool, approved=True
    )
    assert (await env.run(new.run_tool, approved)).outcome == "ok"
    assert ran == ["prod"]


async def test_rules_that_hang_do_not_keep_the_store_from_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "APPROVAL_RULE_SECONDS_MAX", 0.05)
    let_go = threading.Event()

    @tool(needs_approval=lambda: let_go.wait(60))
    def act() -> str:
        """Act."""
        return ""

    agent = Agent(name="ops", model=calling("act"), tools=[act])
    activities = AgentActivities(open_packs(tmp_path.as_uri()), [agent])
    env, asked = ActivityEnvironment(), ModelCall(context=context(), tail=(ASKED,))
    try:
        for _ in range(40):  # More than asyncio has threads of its own.
            turn = await asyncio.wait_for(env.run(activities.call_model, asked), 10)
            assert turn.tool_calls[0].options.needs_approval
    finally:
        let_go.set()


async def test_recall_of_lost_bytes_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HOLD_SECONDS_MAX", 0.1)
    env, packs = ActivityEnvironment(), open_packs(tmp_path.as_uri())
    journal = Journal(packs, thread_key(env.info.namespace, env.info.workflow_id or ""))
    long = Message(role="user", text="x" * 5000)
    entry, _ = await journal.body_entry(Kind.MESSAGE, long, 1, seq=1)
    head, _ = await journal.append(None, [entry])
    wanted = call(0, "recall", seq=1)
    asking = Message(role="assistant", tool_calls=(wanted,))
    head, _ = await journal.append(head, [new_entry(2, Kind.REPLY, asking, 2)])
    assert entry.ref is not None
    [lost] = tmp_path.glob(f"v1/*/{entry.ref.digest}*")
    kept = lost.read_bytes()
    lost.unlink()
    agent = Agent(name="ops", model=calling("recall"))
    activities = AgentActivities(open_packs(tmp_path.as_uri()), [agent])
    run = ToolRun(context=context(head), call_id=wanted.id, tool="recall")
    with pytest.raises(ApplicationError, match="BlobMissing") as held:
        await env.run(activities.run_tool, run)
    assert held.value.type == HELD
    lost.write_bytes(kept)
    assert (await env.run(activities.run_tool, run)).outcome == "ok"


@pytest.mark.parametrize("failed", [False, True], ids=["answer", "failure"])
async def test_the_answer_of_a_subagent_is_collected_from_the_end_of_its_journal(
    *, failed: bool
) -> None:
    """However long its journal is, and whether it has ever failed."""
    store, env = CountingStore(), ActivityEnvironment()
    packs = PackStore(store)
    child = Journal(packs, thread_key(env.info.namespace, "child"))
    head: SegmentRef | None = None
    for first in range(1, 2000, 20):
        texts = (entry(seq, f"text {seq}") for seq in range(first, first + 20))
        head, _ = await child.append(head, list(texts))
    said = (Kind.FAILURE, "no more money") if failed else (Kind.REPLY, "all is well")
    assert head is not None
    head, _ = await child.append(head, [entry(2001, "late", Kind.REPLY), entry(2002, *said[::-1])])
    activities = AgentActivities(packs, [])
    store.gets = 0
    result = await env.run(
        activities.collect, Collect(child_id="child", head=head, call_id="c1", tool="ask")
    )
    assert store.gets == 1
    assert result.outcome == ("failed" if failed else "ok")
    assert said[1] in str(result.entry.body)
