"""States of a thread: the list, the page, the command, the API, the attribute and the metric agree."""

import asyncio
import dataclasses
import json
import os
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.exceptions import ApplicationError
from typer.testing import CliRunner

from everlong import Agent, Policy, Reply, limits, tool
from everlong.admin.fleet import measure_fleet
from everlong.admin.web.auth import Role
from everlong.cli import app
from everlong.client.status import read_status
from everlong.client.visibility import QUERY, read_rows
from everlong.embedded import TemporalServer
from everlong.errors import ModelRefused
from everlong.models import (
    CALL_STATUS_SIGNAL,
    PAUSE_SIGNAL,
    STOP_SIGNAL,
    UNPAUSE_SIGNAL,
    CallStatus,
    Control,
    Message,
    Status,
)
from everlong.models.search_attributes import REASON, STATUS
from everlong.models.status import ENDED
from everlong.storage import open_store
from everlong.storage.pack_store import PackStore
from everlong.testing import ScriptedModel
from tests.support.admin_client import ROLES, bearer, make_context, open_http_client
from tests.support.fake_stores import FlakyStore
from tests.support.scripted_agents import call, results
from tests.support.thread_driver import DrivenThread
from tests.support.threads import Threads, open_threads

Drive = Any
Word = tuple[str, str]
"""Status and reason."""


def script(turn: Sequence[Message]) -> Reply:
    """Call the tool that the message names, and answer; refuse the message `fail`."""
    [asked] = [message.text for message in turn if message.role == "user"][-1:]
    if asked == "fail":
        raise ModelRefused("402: no credit is left")
    if asked == "hello" or results(turn):
        return Reply(text="done")
    return Reply(tool_calls=(call(0, asked),))


class Bench:
    """An agent whose tools wait for the test, or fail until it mends them."""

    def __init__(self, store: FlakyStore | None = None, *, retry_seconds: float = 0.2) -> None:
        gate = self.gate = asyncio.Event()
        self.is_broken = True

        @tool
        async def work() -> str:
            """Wait for the test."""
            await gate.wait()
            return "worked"

        @tool(needs_approval=True)
        def pay() -> str:
            """Pay."""
            return "paid"

        @tool
        def fetch() -> str:
            """Fail until it is mended."""
            if self.is_broken:
                delay = timedelta(seconds=retry_seconds)
                raise ApplicationError("503 from the page", next_retry_delay=delay)
            return "fetched"

        @tool
        def hold() -> str:
            """Find the store down right after."""
            assert store is not None
            store.down = True
            return "held " * 20_000

        self.agent = Agent(name="ops", model=ScriptedModel(script), tools=[work, pay, fetch, hold])


@dataclasses.dataclass
class Surfaces:
    """All places that show a thread's state."""

    threads: Threads
    http: httpx.AsyncClient
    env: dict[str, str]
    before: Counter[str]
    """Threads of other tests, by status."""

    async def read(self, thread_id: str) -> dict[str, Word]:
        client = self.threads.client
        [row] = (await read_rows(client, f"{QUERY} AND WorkflowId = '{thread_id}'")).rows
        page = (await self.http.get(f"/threads/{thread_id}")).text
        [shown] = re.findall(r'<h1.*?</h1><span class="status (\w+)">\1</span>', page)
        answer = (await self.http.get(f"/api/v1/threads/{thread_id}")).json()
        command = ["show", thread_id, "--json"]
        run = await asyncio.to_thread(CliRunner().invoke, app, command, env=self.env)
        assert run.exit_code == 0, (run.output, run.exception)
        told = json.loads(run.stdout)
        published = (await client.get_workflow_handle(thread_id).describe()).typed_search_attributes
        now = Counter(dict((await measure_fleet(client)).by_status))
        [counted] = (now - self.before).keys() or [""]
        return {
            "list row": (row.status, row.reason),
            "page": (shown, row.reason),
            "API, row": (answer["row"]["status"], answer["row"]["reason"]),
            "API, status": (answer["status"]["status"], answer["status"]["reason"]),
            "show --json": (told["status"], told["reason"]),
            "attribute": (published.get(STATUS, ""), published.get(REASON, "")),
            "metric": (counted, row.reason),
        }

    async def agree(self, thread_id: str, status: Status, reason: str = "") -> None:
        """Wait until all of them say the same. Visibility lags."""
        expected: dict[str, Word] = {}
        deadline = time.monotonic() + 60
        query = f"{QUERY} AND WorkflowId = '{thread_id}'"
        while True:
            # The list first: it costs little, and the others seldom come later.
            rows = (await read_rows(self.threads.client, query)).rows
            if [(row.status, row.reason) for row in rows] != [(status, reason)]:
                assert time.monotonic() < deadline, rows
                await asyncio.sleep(0.1)
                continue
            found = await self.read(thread_id)
            expected = dict.fromkeys(found, (status.value, reason))
            if status in ENDED:  # The metric counts threads that run.
                expected["metric"] = ("", reason)
            if status == Status.TERMINATED:  # It could not publish its end.
                del expected["attribute"], found["attribute"]
            if found == expected:
                return
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.3)


async def wait_until(done: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await done():
            await asyncio.sleep(0.1)


async def test_all_surfaces_show_the_same_word_in_every_state(
    server: TemporalServer, tmp_path: Path, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HOLD_SECONDS_MAX", 0.3)
    store = FlakyStore(tmp_path)
    # Twelve attempts: long enough for visibility, which lags.
    bench = Bench(store, retry_seconds=2)
    async with open_threads(server.address, store, bench.agent) as threads, threads.worker():
        env = {
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "TEMPORAL_ADDRESS": server.address,
            "EVERLONG_STORE": tmp_path.as_uri(),
        }
        # A store of its own: the one of the worker will be down.
        packs = PackStore(open_store(tmp_path.as_uri()))
        context = make_context(threads.client, packs, threads.task_queue)
        async with context.lifespan(), open_http_client(context, ROLES) as http:
            http.headers.update(bearer(Role.ADMIN))
            before = Counter(dict((await measure_fleet(threads.client)).by_status))
            all_of = Surfaces(threads, http, env, before)
            thread = DrivenThread(threads, thread_id)

            await thread.send("work")
            await all_of.agree(thread_id, Status.WORKING)
            bench.gate.set()
            await all_of.agree(thread_id, Status.WAITING)

            await thread.send("pay")
            await all_of.agree(thread_id, Status.APPROVAL)
            [approval] = await thread.pending()
            await thread.decide(approval.id)

            await thread.send("fetch")
            await all_of.agree(thread_id, Status.RETRYING, "tool")
            [retry] = (await read_status(threads.client, thread_id)).retries
            assert (retry.call, retry.attempts_max) == ("tool", limits.CALL_ATTEMPTS_MAX)
            assert retry.attempt > 3
            assert "503 from the page" in retry.error
            page = (await http.get(f"/threads/{thread_id}")).text
            assert f"of {limits.CALL_ATTEMPTS_MAX} of the tool call" in page
            assert "503 from the page" in page
            bench.is_broken = False

            await thread.send("hold")
            await all_of.agree(thread_id, Status.HELD, "store")
            store.down = False

            await thread.send("fail")
            await all_of.agree(thread_id, Status.FAILED)

            await thread.handle.signal(PAUSE_SIGNAL, Control(by="ann"))
            await all_of.agree(thread_id, Status.PAUSED, "person")
            await thread.handle.signal(UNPAUSE_SIGNAL)
            await thread.stop()
            await all_of.agree(thread_id, Status.DONE)

            ghost = f"{thread_id}-ghost"
            await threads.send(ghost, "hello", agent="ghost")
            await all_of.agree(ghost, Status.HELD, "agent")
            await threads.client.get_workflow_handle(ghost).terminate()
            await all_of.agree(ghost, Status.TERMINATED)

            other = thread.other(f"{thread_id}-other")
            await other.send("hello")
            await other.handle.signal(STOP_SIGNAL, Control(archive=True))
            await all_of.agree(other.thread_id, Status.ARCHIVED)


def is_status_upsert(event: HistoryEvent) -> bool:
    fields = event.upsert_workflow_search_attributes_event_attributes.search_attributes
    return STATUS.name in fields.indexed_fields


async def test_a_late_or_repeated_retry_signal_changes_nothing(drive: Drive) -> None:
    bench = Bench()
    async with drive([bench.agent]) as thread:

        async def list_signals() -> list[HistoryEvent]:
            events = (await thread.handle.fetch_history()).events
            name = "workflow_execution_signaled_event_attributes"
            signals = [each for each in events if each.HasField(name)]
            return [
                each for each in signals if getattr(each, name).signal_name == CALL_STATUS_SIGNAL
            ]

        async def count_upserts() -> int:
            return sum(map(is_status_upsert, (await thread.handle.fetch_history()).events))

        async def is_past_fourth() -> bool:
            described = (await thread.handle.describe()).raw_description
            return any(each.attempt > 5 for each in described.pending_activities)

        await thread.ask("hello")  # Its reply tells the thread that the server has the attributes.
        await thread.send("fetch")
        await wait_until(is_past_fourth)
        [signal] = await list_signals()
        payloads = signal.workflow_execution_signaled_event_attributes.input.payloads
        [sent] = await thread.threads.client.data_converter.decode(payloads, [CallStatus])
        assert sent.status == Status.RETRYING
        assert (await thread.attributes())["EverlongStatus"] == "retrying"
        upserts = await count_upserts()
        await thread.handle.signal(CALL_STATUS_SIGNAL, sent)
        assert (await thread.status()).status == Status.RETRYING
        assert await count_upserts() == upserts

        bench.is_broken = False
        await thread.wait_for_answers(2)
        assert (await thread.status()).status == Status.WAITING
        upserts = await count_upserts()
        await thread.handle.signal(CALL_STATUS_SIGNAL, sent)
        assert (await thread.status()).status == Status.WAITING
        assert await count_upserts() == upserts


async def test_a_policy_is_shown_as_it_is_before_the_first_reply(drive: Drive) -> None:
    bench, own = Bench(), Policy(steps_max=7, heartbeat_seconds=9)
    agent = dataclasses.replace(bench.agent, policy=own)
    async with drive([agent]) as thread:
        await thread.threads.start(thread.thread_id)
        first = await thread.status()
        assert (first.policy, first.policy_from) == (own, "agent")
        await thread.configure(tokens_max=500)
        changed = dataclasses.replace(own, tokens_max=500)
        assert (await thread.status()).policy == changed
        await thread.ask("hello")
        later = await thread.status()
        assert (later.policy, later.policy_from) == (changed, "thread")

        ghost = thread.other(f"{thread.thread_id}-ghost")
        await thread.threads.start(ghost.thread_id, agent="ghost")
        unknown = await ghost.status()
        assert (unknown.policy, unknown.policy_from) == (Policy(), "default")
        await ghost.stop()
