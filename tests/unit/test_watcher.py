"""The watcher: held threads and queues without workers are reported once, after a while."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.client import Client

from everlong.admin import watcher as module
from everlong.admin.watcher import HeldWatcher
from everlong.client.visibility import RowsPage, ThreadRow
from everlong.models.status import Status
from everlong.notify import Notify, Webhook
from tests.support.sink_receivers import HttpReceiver, run_http_receiver

SECRET = "0123456789abcdef0123456789abcdef"


def row(thread_id: str, status: Status = Status.HELD, reason: str = "store") -> ThreadRow:
    return ThreadRow(
        thread_id=thread_id,
        run_id="r",
        agent="ops",
        status=status,
        reason=reason,
        started_ms=0,
        closed_ms=None,
        stored_bytes=0,
        growth_bytes_per_hour=0.0,
        pending=0,
        asked_ms=None,
        last_resume_ms=0.0,
        task_queue="q",
    )


@dataclasses.dataclass
class Fleet:
    """What the server shows, and the clock."""

    rows: Sequence[ThreadRow] = ()
    has_workers: bool = True
    now: float = 1_800_000_000.0


class FakeClient:
    namespace = "default"


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    found = Fleet()

    async def read_rows(client: Client, query: str, **options: Any) -> RowsPage:
        return RowsPage(list(found.rows), {}, b"")

    async def has_workers(client: Client, queue: str) -> bool:
        assert queue == "q"
        return found.has_workers

    monkeypatch.setattr(module, "read_rows", read_rows)
    monkeypatch.setattr(module, "has_workers", has_workers)
    return found


def make_watcher(fleet: Fleet, receiver: HttpReceiver) -> HeldWatcher:
    async def connect() -> Any:
        return FakeClient()

    sink = Webhook(name="hook", url=receiver.url, secret=SECRET, events=["held"])
    return HeldWatcher(connect, Notify(sinks=[sink]), "q", clock=lambda: fleet.now)


async def test_threads_that_are_held_for_long_are_reported_once_together(fleet: Fleet) -> None:
    async with run_http_receiver() as receiver:
        watcher = make_watcher(fleet, receiver)
        fleet.rows = [row(f"ops-{number}") for number in range(5)]
        await watcher.look()
        fleet.now += 599
        await watcher.look()
        assert receiver.received == []
        fleet.now += 1
        await watcher.look()
        await watcher.look()
        [event] = [event for each in receiver.received for event in each.json["events"]]
        assert event["event"] == "held"
        assert event["detail"] == "5 threads held for 10 minutes (store): ops-0, ops-1, ops-2, …"
        # After the end of the incident, a new one is reported again.
        fleet.rows = []
        await watcher.look()
        fleet.now += 3600
        fleet.rows = [row("ops-1")]
        await watcher.look()
        fleet.now += 600
        await watcher.look()
        assert receiver.received[1].json["events"][0]["thread_id"] == "ops-1"
        assert receiver.received[1].json["key"] != receiver.received[0].json["key"]


async def test_threads_that_are_held_for_a_moment_are_not_reported(fleet: Fleet) -> None:
    async with run_http_receiver() as receiver:
        watcher = make_watcher(fleet, receiver)
        for number in range(20):
            fleet.rows = [row(f"ops-{number}")]
            await watcher.look()
            fleet.now += 300
        assert receiver.received == []


async def test_a_queue_without_workers_is_reported_if_threads_need_one(fleet: Fleet) -> None:
    async with run_http_receiver() as receiver:
        watcher = make_watcher(fleet, receiver)
        fleet.has_workers = False
        for _ in range(3):
            await watcher.look()
            fleet.now += 600
        assert receiver.received == []
        fleet.rows = [row("ops-1", Status.WORKING, "")]
        await watcher.look()
        fleet.now += 600
        await watcher.look()
        [event] = [event for each in receiver.received for event in each.json["events"]]
        assert event["detail"] == "no worker on task queue q for 10 minutes; 1 thread: ops-1"


async def test_two_servers_report_an_incident_with_one_key(fleet: Fleet) -> None:
    async with run_http_receiver() as receiver:
        watchers = [make_watcher(fleet, receiver) for _ in range(2)]
        fleet.rows = [row("ops-1")]
        for watcher in watchers:
            await watcher.look()
        fleet.now += 660
        for watcher in watchers:
            await watcher.look()
        assert len({request.json["key"] for request in receiver.received}) == 1
        assert len(receiver.received) == 2


async def test_a_report_that_fails_is_sent_again(fleet: Fleet) -> None:
    async with run_http_receiver(lambda number: 200 if number else 500) as receiver:
        watcher = make_watcher(fleet, receiver)
        fleet.rows = [row("ops-1")]
        await watcher.look()
        fleet.now += 600
        await watcher.look()
        fleet.now += 60
        await watcher.deliver(())
        assert [request.answer for request in receiver.received] == [500, 200]
        assert receiver.received[0].body == receiver.received[1].body


async def test_a_name_of_any_length_is_reported(fleet: Fleet) -> None:
    async with run_http_receiver() as receiver:
        watcher = make_watcher(fleet, receiver)
        # Any client may start a workflow with this attribute; agents have shorter names.
        fleet.rows = [dataclasses.replace(row("ops-1"), agent="x" * 65)]
        await watcher.look()
        fleet.now += 600
        await watcher.look()
        assert receiver.received[0].json["events"][0]["agent"] == "x" * 64


async def test_a_look_that_fails_does_not_end_the_watch(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked = asyncio.Event()

    async def look() -> None:
        if not caplog.text:
            raise ValueError("secret")
        looked.set()

    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)
    async with run_http_receiver() as receiver:
        watcher = make_watcher(fleet, receiver)
        monkeypatch.setattr(watcher, "look", look)
        async with watcher.watching():
            await asyncio.wait_for(looked.wait(), 10)
    assert "held threads cannot be seen now: ValueError" in caplog.text
    assert "secret" not in caplog.text
