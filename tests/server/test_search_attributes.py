"""Search attributes of threads."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everlong import Agent, Policy, Reply, tool
from everlong.client import search_attributes
from everlong.client.search_attributes import find_missing_attributes
from everlong.client.updates import send
from everlong.embedded import TemporalServer
from everlong.errors import NoWorker
from everlong.models.search_attributes import (
    AGENT,
    GROWTH,
    LAST_RESUME,
    PENDING,
    REASON,
    STATE_BYTES,
    STATUS,
)
from everlong.storage import BlobStore
from everlong.testing import ScriptedModel
from tests.server.test_ask import ask_ops
from tests.support.scripted_agents import call, reading_agent
from tests.support.thread_driver import Drive, DrivenThread, call_then_answer
from tests.support.threads import open_threads

ECHO = Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text="heard")))


async def wait_for_attributes(thread: DrivenThread, **expected: object) -> dict[str, Any]:
    """Wait until the attributes of a thread are as expected."""
    shown: dict[str, Any] = {}
    for _ in range(200):
        shown = await thread.attributes()
        if all(shown.get(f"Everlong{name}") == value for name, value in expected.items()):
            return shown
        await asyncio.sleep(0.03)
    raise AssertionError(f"{shown} is not {expected}")


async def found(thread: DrivenThread, query: str) -> list[str]:
    """Return the threads that the server's list shows, once this one is among them."""
    names: list[str] = []
    for _ in range(100):
        listed = thread.threads.client.list_workflows(
            f"{query} AND WorkflowId = '{thread.thread_id}' AND ExecutionStatus = 'Running'"
        )
        names = [each.id async for each in listed]
        if names:
            break
        await asyncio.sleep(0.05)
    return names


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


@pytest.mark.guarantee(74)
async def test_a_thread_is_found_by_agent_status_and_pending_approvals(drive: Drive) -> None:
    agent = Agent(name="ops", model=call_then_answer(call(0, "pay"), call(1, "pay")), tools=[pay])
    async with drive([agent]) as thread:
        await thread.send()
        approvals = await thread.pending(2)
        await wait_for_attributes(
            thread, Agent="ops", Status="approval", Reason="", PendingApprovals=2
        )
        query = "EverlongStatus = 'approval' AND EverlongPendingApprovals > 1"
        assert await found(thread, query) == [thread.thread_id]
        await thread.decide(approvals[0].id)
        await wait_for_attributes(thread, Status="approval", PendingApprovals=1)
        await thread.decide(approvals[1].id)
        await thread.wait_for_answers()
        await wait_for_attributes(thread, Status="waiting", PendingApprovals=0)


async def test_search_attributes_show_a_pause_and_its_author(drive: Drive) -> None:
    async with drive([ECHO]) as thread:
        await thread.ask()
        await wait_for_attributes(thread, Status="waiting", Reason="")
        await thread.handle.signal("pause")
        await wait_for_attributes(thread, Status="paused", Reason="person")
        await thread.handle.signal("unpause")
        await wait_for_attributes(thread, Status="waiting", Reason="")
        await thread.stop()
        await wait_for_attributes(thread, Status="done", Reason="")


async def test_attributes_survive_a_roll_without_a_rewrite(drive: Drive) -> None:
    async with drive([reading_agent(12)], Policy(run_events_max=50)) as thread:
        await thread.ask()
        runs = (await thread.status()).counters.runs
        assert runs >= 3
        await wait_for_attributes(thread, Agent="ops", Status="waiting")
        upserts = [
            set(
                event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
            )
            for history in await thread.histories()
            for event in history.events
            if event.HasField("upsert_workflow_search_attributes_event_attributes")
        ]
        with_status = [names for names in upserts if "EverlongStatus" in names]
        [first] = [names for names in with_status if "EverlongAgent" in names]
        [last] = [names for names in with_status if names is not first]
        assert {"EverlongPendingApprovals", "EverlongStateBytes"} <= first
        assert {"EverlongReason", "EverlongStateBytes"} <= last
        others = (first, last, {"TemporalChangeVersion"})
        sizes = [names for names in upserts if names not in others]
        assert all(names <= {"EverlongStateBytes", "EverlongGrowthBytesPerHour"} for names in sizes)
        assert len(sizes) <= 3, "as often as its card is written"
        # The SDK's own is of the patch: once in a run that writes a card.
        assert upserts.count({"TemporalChangeVersion"}) <= runs


async def test_the_server_shows_by_queries_which_attributes_exist_with_their_types(
    server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await Client.connect(server.address)

    async def refuse(*_: object, **__: object) -> None:
        raise RPCError("no", RPCStatusCode.PERMISSION_DENIED, b"")

    monkeypatch.setattr(client.operator_service, "list_search_attributes", refuse)
    assert await find_missing_attributes(client) == []
    wanted = {"EverlongStatus": "Int", "EverlongAgent": "Keyword", "EverlongOther": "Keyword"}
    monkeypatch.setattr(search_attributes, "SEARCH_ATTRIBUTES", wanted)
    assert await find_missing_attributes(client) == ["EverlongStatus", "EverlongOther"]


@pytest.mark.guarantee(74)
async def test_a_thread_is_started_with_its_attributes_and_writes_its_size_when_it_waits(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(3)) as threads:
        with pytest.raises(NoWorker):
            await send(
                threads.client,
                thread_id,
                "read",
                task_queue=threads.task_queue,
                agent="ops",
                seconds_max=2,
            )
        handle = threads.client.get_workflow_handle(thread_id)
        before = (await handle.describe()).typed_search_attributes
        assert (before[AGENT], before[STATUS], before[PENDING]) == ("ops", "working", 0)
        async with threads.worker():
            await ask_ops(threads, thread_id, "read")
            history = await handle.fetch_history()
            after = (await handle.describe()).typed_search_attributes
    assert after[GROWTH] > after[STATE_BYTES] > 0, "growth counts from the start, over ten minutes"
    upserts = [
        set(
            event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
        )
        for event in history.events
        if event.HasField("upsert_workflow_search_attributes_event_attributes")
    ]
    sizes = {STATE_BYTES.name, GROWTH.name, LAST_RESUME.name}
    assert all(names <= sizes | {STATUS.name, REASON.name} for names in upserts)
    assert upserts[-1] >= {STATE_BYTES.name, STATUS.name}, "both in one, which is one action"
    assert len(upserts) <= 2, "at the end of each turn"


@pytest.mark.guarantee(74)
async def test_threads_run_without_the_attributes_on_the_server(
    drive: Drive, monkeypatch: Any
) -> None:
    async def some(*_: object) -> list[str]:
        return ["EverlongStatus"]

    monkeypatch.setattr("everlong.client.search_attributes.find_missing_attributes", some)
    async with drive([ECHO]) as thread:
        assert await thread.ask() == "heard"
        await thread.handle.signal("pause")
        await thread.wait_for_status("paused")
        assert "EverlongStatus" not in await thread.attributes()


async def test_a_worker_whose_first_calls_fail_writes_attributes_once_one_succeeds(
    drive: Drive, monkeypatch: Any
) -> None:
    heals = asyncio.Event()
    asked = 0

    async def failing(client: Client) -> list[str]:
        nonlocal asked
        asked += 1
        if not heals.is_set():
            raise RPCError("down", RPCStatusCode.UNAVAILABLE, b"")
        return await find_missing_attributes(client)

    monkeypatch.setattr("everlong.client.search_attributes.find_missing_attributes", failing)
    monkeypatch.setattr("everlong.client.search_attributes.RETRY_SECONDS", 0.02)
    agent = Agent(name="ops", model=call_then_answer(call(0, "pay")), tools=[pay])
    async with drive([agent]) as thread:
        async with asyncio.timeout(90):
            while asked < 3:
                await asyncio.sleep(0.02)
        heals.set()
        async with asyncio.timeout(90):
            while not thread.threads.plugin._activities.attribute_namespaces:
                await asyncio.sleep(0.02)
        calls = asked
        await thread.send()
        await thread.pending(1)
        await wait_for_attributes(thread, Status="approval", PendingApprovals=1)
    assert asked <= calls + 1, "once the answer is known, only the program that sends asks, once"


async def test_attributes_added_later_need_no_new_worker(drive: Drive, monkeypatch: Any) -> None:
    lacking = ["EverlongStatus"]

    async def missing(*_: object) -> list[str]:
        return lacking

    monkeypatch.setattr("everlong.client.search_attributes.find_missing_attributes", missing)
    monkeypatch.setattr("everlong.client.search_attributes.MISSING_SECONDS", 0.05)
    async with drive([ECHO]) as thread:
        assert await thread.ask() == "heard"
        assert "EverlongStatus" not in await thread.attributes()
        lacking.clear()
        async with asyncio.timeout(90):
            while not thread.threads.plugin._activities.attribute_namespaces:
                await asyncio.sleep(0.02)
        await thread.ask()
        await wait_for_attributes(thread, Agent="ops")
