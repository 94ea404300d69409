"""`everlong drain` and the doctor say which runs still hold Everlong payloads."""

import asyncio
import json
import time
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
    ScheduleState,
)
from typer.testing import CliRunner, Result

from everlong import EverlongPlugin
from everlong.cli import app
from everlong.doctor.checks import check_runs
from everlong.doctor.remaining_payloads import count_holdings
from everlong.embedded import TemporalServer
from everlong.errors import ConfigError
from tests.support.fake_stores import CountingStore
from tests.support.loop_workflows import noise

SECONDS_MAX = 90.0
# More than stays inline; what compresses to less; and what is left as it is.
VALUES = {"refs": noise("large", 30_000), "inline": "x" * 2_000, "plain": "small"}


class Namespace:
    """Runs on a task queue that no worker polls: each holds what it was started with."""

    def __init__(self, client: Client, server: TemporalServer, task_queue: str) -> None:
        self.client = client
        self.query = f"TaskQueue = '{task_queue}'"
        self._address = server.address
        self._task_queue = task_queue

    async def start(self, name: str) -> None:
        await self.client.start_workflow(
            "Anything",
            VALUES[name],
            id=f"{self._task_queue}-{name}",
            task_queue=self._task_queue,
            execution_timeout=timedelta(seconds=60),
        )

    async def terminate(self, name: str) -> None:
        await self.client.get_workflow_handle(f"{self._task_queue}-{name}").terminate()

    async def drain(self, *arguments: str) -> Result:
        return await asyncio.to_thread(
            CliRunner().invoke,
            app,
            ["drain", *arguments],
            env={"TEMPORAL_ADDRESS": self._address, "COLUMNS": "120"},
        )

    async def report(self, opened: int, closed: int) -> dict[str, Any]:
        """Return the report once visibility shows so many runs."""
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            result = await self.drain("--query", self.query, "--json")
            found: dict[str, Any] = json.loads(result.stdout)
            seen = (found["open_runs"]["looked_at"], found["closed_runs"]["looked_at"])
            if seen == (opened, closed):
                assert result.exit_code == (0 if found["is_drained"] else 13)
                return found
            await asyncio.sleep(0.1)
        raise AssertionError(f"{opened} open and {closed} closed runs were not listed: {found}")


@pytest.fixture
async def namespace(server: TemporalServer, thread_id: str) -> Namespace:
    plugin = EverlongPlugin(store=CountingStore())
    client = await Client.connect(server.address, plugins=[plugin])
    return Namespace(client, server, thread_id)


@pytest.mark.guarantee(33)
async def test_open_runs_are_counted_by_the_refs_that_they_hold(namespace: Namespace) -> None:
    for name in VALUES:
        await namespace.start(name)
    found = await namespace.report(3, 0)
    assert found["open_runs"] == {"looked_at": 3, "refs": 1, "inline": 1}
    assert len(found["examples"]) == 2
    assert not found["is_drained"]
    text = (await namespace.drain("--query", namespace.query)).stdout
    assert "1 with refs to the store, 1 with compressed" in text
    assert "Not drained" in text
    await namespace.terminate("refs")
    assert (await namespace.report(2, 1))["closed_runs"] == {"looked_at": 1, "refs": 1, "inline": 0}
    await namespace.terminate("inline")
    found = await namespace.report(1, 2)
    assert found["is_drained"]
    assert found["examples"] == []
    text = (await namespace.drain("--query", namespace.query)).stdout
    assert "Drained" in text
    assert "until they expire" in text


async def test_a_bounded_count_says_so(namespace: Namespace) -> None:
    for name in VALUES:
        await namespace.start(name)
    await namespace.report(3, 0)
    bounded = await count_holdings(namespace.client, query=namespace.query, runs_max=2)
    assert bounded.open_runs.looked_at == 2
    assert not bounded.is_complete
    assert not bounded.is_drained
    late = await count_holdings(namespace.client, query=namespace.query, seconds_max=-1.0)
    assert late.open_runs.looked_at == 0
    assert not late.is_complete


@pytest.mark.guarantee(33)
async def test_a_schedule_that_hands_out_refs_is_not_drained(
    namespace: Namespace, thread_id: str
) -> None:
    before = (await count_holdings(namespace.client)).schedules
    action = ScheduleActionStartWorkflow(
        "Anything", VALUES["refs"], id=f"{thread_id}-scheduled", task_queue=thread_id
    )
    handle = await namespace.client.create_schedule(
        thread_id, Schedule(action, ScheduleSpec(), state=ScheduleState(paused=True))
    )
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while (found := await count_holdings(namespace.client)).schedules == before:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        assert found.schedules.refs == before.refs + 1
        assert not found.is_drained
    finally:
        await handle.delete()


async def test_a_count_query_that_the_server_refuses_is_named(namespace: Namespace) -> None:
    with pytest.raises(ConfigError, match="rejects this query"):
        await count_holdings(namespace.client, query="NoSuchThing = 1")


async def test_the_doctor_says_how_many_open_runs_hold_payloads(namespace: Namespace) -> None:
    await namespace.start("refs")
    await namespace.report(1, 0)
    finding = await check_runs(namespace.client)
    assert finding.status == "ok"
    assert "with refs to the store" in finding.text
    assert "the plugin must stay" in finding.text
