"""Events of threads reach sinks, at least once, and no sink delays a thread."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import WorkflowHandle
from temporalio.worker import Replayer

from everlong import Agent, Policy, Reply, limits, tool
from everlong.embedded import TemporalServer
from everlong.models.notices import build_notifier_id
from everlong.notify import Notify, Webhook
from everlong.storage import BlobStore
from everlong.testing import ScriptedModel
from everlong.workflows import NotifierWorkflow
from tests.support.scripted_agents import call
from tests.support.sink_receivers import HttpReceiver, run_http_receiver
from tests.support.thread_driver import DrivenThread, call_then_answer
from tests.support.threads import Threads, open_threads

SECRET = "0123456789abcdef0123456789abcdef"


@tool(needs_approval=True, approvers=["alice"])
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


def payer(*euros: int) -> Agent:
    calls = tuple(call(i, "pay", euros=each) for i, each in enumerate(euros))
    return Agent(name="ops", model=call_then_answer(*calls), tools=[pay])


def webhook(receiver: HttpReceiver, **fields: Any) -> Webhook:
    values = {"name": "hook", "url": receiver.url, "secret": SECRET, "seconds_max": 1.0}
    return Webhook(**{**values, **fields})


@contextlib.asynccontextmanager
async def open_notified(
    server: TemporalServer, store: BlobStore, agent: Agent, *sinks: Webhook
) -> AsyncIterator[Threads]:
    """Run a worker with sinks. Ends the notifier, and checks that its history replays."""
    async with open_threads(server.address, store, agent, notify=Notify(sinks=sinks)) as threads:
        async with threads.worker():
            yield threads
            notifier = find_notifier(threads)
            history = await notifier.fetch_history()
            replayer = Replayer(workflows=[NotifierWorkflow], plugins=[threads.plugin])
            await replayer.replay_workflow(history)
            await notifier.terminate()


def find_notifier(threads: Threads) -> WorkflowHandle[Any, Any]:
    return threads.client.get_workflow_handle(build_notifier_id(threads.task_queue))


async def count_events(handle: WorkflowHandle[Any, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for event in (await handle.fetch_history()).events:
        kind = event.WhichOneof("attributes") or ""
        found[kind] = found.get(kind, 0) + 1
    return found


async def test_an_approval_is_asked_and_decided_and_its_costs_are_as_documented(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        run_http_receiver() as receiver,
        open_notified(server, store, payer(5, 6), webhook(receiver)) as threads,
    ):
        thread = DrivenThread(threads, thread_id)
        await thread.send()
        first, second = await thread.pending(2)
        await receiver.wait_for(lambda: len(receiver.received) == 2)
        events = [request.json["events"][0] for request in receiver.received]
        assert {event["about"] for event in events} == {first.id, second.id}
        for event in events:
            assert (event["event"], event["tool"], event["agent"]) == ("asked", "pay", "ops")
            assert (event["thread_id"], event["approvers"]) == (thread_id, ["alice"])
            assert "arguments" not in event
        # Both requests are one signal, sent again by the activity that starts the notifier.
        counts = await count_events(thread.handle)
        signals = "signal_external_workflow_execution_initiated_event_attributes"
        assert counts[signals] == 1
        await thread.decide(first.id)
        await thread.decide(second.id, approve=False)
        await thread.answer()
        await receiver.wait_for(lambda: len(receiver.received) == 4)
        details = {
            (event["detail"], event["by"])
            for request in receiver.received[2:]
            for event in request.json["events"]
        }
        assert details == {("approved", "alice"), ("denied", "alice")}
        counts = await count_events(find_notifier(threads))
        assert counts["workflow_execution_signaled_event_attributes"] <= 3
        assert counts["activity_task_scheduled_event_attributes"] <= 3
        assert "timer_started_event_attributes" not in counts
        assert len(receiver.taken) == 4
        await thread.check()


@pytest.mark.guarantee(117)
async def test_a_sink_that_hangs_blocks_neither_a_thread_nor_its_roll_nor_another_sink(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    policy = Policy(idle_seconds=0.2)  # A thread that waits for a decision continues as new.
    async with (
        run_http_receiver(lambda number: "hang") as hung,
        run_http_receiver() as good,
        open_notified(
            server,
            store,
            payer(5),
            webhook(hung, name="slow", seconds_max=20.0),
            webhook(good, name="good"),
        ) as threads,
    ):
        await threads.start(thread_id, policy)
        thread = DrivenThread(threads, thread_id)
        await thread.send()
        started = time.monotonic()
        await thread.wait_until(lambda status: status.counters.runs >= 2)
        [approval] = await thread.pending()
        await thread.decide(approval.id)
        assert await thread.answer() == "paid 5"
        assert (await thread.stop()).status == "done"
        await good.wait_for(lambda: len(good.taken) == 2)
        assert time.monotonic() - started < 15
        assert len(hung.received) == 2


@pytest.mark.guarantee(117)
async def test_failed_deliveries_come_again_with_one_key_and_a_second_notifier_takes_over(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NOTIFIER_RETRY_SECONDS_MIN", 0.25)
    async with (
        run_http_receiver(lambda number: 500 if number < 2 else 200) as receiver,
        open_notified(server, store, payer(5), webhook(receiver, events=["asked"])) as threads,
    ):
        thread = DrivenThread(threads, thread_id)
        await thread.send()
        await receiver.wait_for(lambda: bool(receiver.taken))
        keys = {request.headers["everlong-key"] for request in receiver.received}
        assert len(receiver.received) == 3
        assert len(keys) == 1
        await find_notifier(
            threads
        ).terminate()  # An operator's mistake: the next event starts one.
        other = thread.other(f"{thread_id}-b")
        await other.send()
        await receiver.wait_for(lambda: len(receiver.taken) == 2)


async def test_limits_and_budgets_are_reported_once(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    model = ScriptedModel(lambda turn: Reply(text="done", tokens=30))
    agent = Agent(name="ops", model=model)
    async with (
        run_http_receiver() as receiver,
        open_notified(server, store, agent, webhook(receiver)) as threads,
    ):
        await threads.start(thread_id, Policy(tokens_max=100))
        thread = DrivenThread(threads, thread_id)
        for number in range(1, 5):
            await thread.send()
            await thread.wait_for_answers(number)
        await thread.send()
        await thread.wait_for_status("paused")
        await receiver.wait_for(lambda: len(receiver.taken) == 2)
        events = [event for each in receiver.received for event in each.json["events"]]
        assert [(each["event"], each["about"]) for each in events] == [
            ("budget", "tokens_max"),
            ("limit", "tokens_max"),
        ]
        assert events[1]["detail"] == "tokens_max: 120 of 100"


async def test_without_a_sink_that_wants_it_a_thread_sends_nothing(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        run_http_receiver() as receiver,
        open_threads(
            server.address,
            store,
            payer(5),
            notify=Notify(sinks=[webhook(receiver, tools=["other"], events=["asked"])]),
        ) as threads,
        threads.worker(),
    ):
        thread = DrivenThread(threads, thread_id)
        await thread.send()
        [approval] = await thread.pending()
        await thread.decide(approval.id)
        await thread.answer()
        kinds = await count_events(thread.handle)
        assert not any("external" in kind for kind in kinds)
        assert receiver.received == []


@pytest.mark.guarantee(117)
async def test_the_notifier_continues_as_new_and_loses_nothing(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NOTIFIER_EVENTS_MAX", 15)
    monkeypatch.setattr(limits, "NOTIFIER_RETRY_SECONDS_MIN", 0.25)
    async with (
        run_http_receiver(lambda number: 500 if number % 3 == 0 else 200) as receiver,
        open_threads(
            server.address,
            store,
            payer(5),
            notify=Notify(sinks=[webhook(receiver, events=["asked"])]),
        ) as threads,
        threads.worker(),
    ):
        ids = [f"{thread_id}-{number}" for number in range(6)]
        for each in ids:
            await DrivenThread(threads, each).send()
            await asyncio.sleep(0.1)
        await receiver.wait_for(lambda: len(receiver.taken) == len(ids))
        assert all(count == 1 for count in receiver.taken.values())
        notifier = await find_notifier(threads).describe()
        first_run = notifier.raw_description.workflow_execution_info.first_run_id
        assert notifier.run_id != first_run
        await find_notifier(threads).terminate()
