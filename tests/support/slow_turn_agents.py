"""Agents whose turn has a slow tool and an approval; one has enough steps for a roll.

`wait_through` runs such turns, kills their worker, and counts the requests that the server received.
"""

import asyncio
import collections
import dataclasses
import os
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from temporalio.client import Client

from everlong import Agent, EverlongPlugin, Policy, Reply, ask, tool
from everlong.client.status import read_status
from everlong.client.thread import ThreadHandle
from everlong.config import Settings, load_settings, point_to_embedded
from everlong.embedded import start_server, start_worker
from everlong.embedded.server import find_free_port
from everlong.models import Message, call_digest
from everlong.storage import open_store
from everlong.testing import ScriptedModel
from everlong.worker_options import READY
from tests.support.scripted_agents import call, calls_done

ANSWER = "done"
_STEPS = 6
_ARGUMENTS = {"service": "api"}


@tool
async def look(item: int) -> str:
    """Look at something."""
    return f"seen {item}"


@tool
async def wait_long() -> str:
    """Take as long as `TEST_SLOW_SECONDS` says."""
    await asyncio.sleep(float(os.environ["TEST_SLOW_SECONDS"]))
    return "waited"


@tool(needs_approval=True)
async def restart(service: str) -> str:
    """Restart a service."""
    return f"{service} is up"


def _script(turn: Sequence[Message]) -> Reply:
    number = calls_done(turn)
    if number < _STEPS:
        return Reply(tool_calls=(call(number, "look", item=number),))
    if number == _STEPS:
        return Reply(tool_calls=(call(number, "wait_long"),))
    if number == _STEPS + 1:
        return Reply(tool_calls=(call(number, "restart", **_ARGUMENTS),))
    return Reply(text=ANSWER)


slow = Agent(
    name="slow",
    model=ScriptedModel(_script),
    tools=[look, wait_long, restart],
    policy=Policy(run_events_max=50),
)
# Without a roll, the caller's update waits until the answer.
steady = Agent(name="steady", model=ScriptedModel(_script), tools=[look, wait_long, restart])
_AGENTS = ["tests.support.slow_turn_agents:slow", "tests.support.slow_turn_agents:steady"]


@dataclasses.dataclass(frozen=True)
class WaitReport:
    """Result of waiting for a turn of each agent."""

    answers: list[str]
    runs: list[int]
    returncode: int | None
    """Exit code of the first worker."""
    requests: collections.Counter[str]
    """Requests of the server's frontend from before the message to after the answer, by name."""
    seconds: float
    late_seconds: float
    """From the decision to the answer."""


async def wait_through(folder: Path, approval_seconds: float) -> WaitReport:
    """Ask, kill the worker during the approval, approve on another worker, and return the answers."""
    metrics_port = find_free_port()
    server = await start_server(folder, durable=False, metrics_port=metrics_port)
    with server.process:
        base = load_settings({"EVERLONG_DATA_DIR": str(folder), "EVERLONG_TASK_QUEUE": "slow"})
        settings = point_to_embedded(base, server.address)
        plugin = EverlongPlugin(store=open_store(settings.store))
        client = await Client.connect(server.address, plugins=[plugin])
        return await _wait_through(settings, client, metrics_port, approval_seconds)


async def _wait_through(
    settings: Settings, client: Client, metrics_port: int, approval_seconds: float
) -> WaitReport:
    before = requests(metrics_port)
    with start_worker(settings, _AGENTS, name="first") as first:
        await first.wait_for_output(READY, 60)
        begun = time.monotonic()
        asking = asyncio.gather(
            *(
                ask(client, f"{agent}-1", "go", agent=agent, task_queue="slow", seconds_max=600)
                for agent in ("slow", "steady")
            )
        )
        for agent in ("slow", "steady"):
            await _wait_until(partial(_is_approval_pending, client, f"{agent}-1"))
        asked = time.monotonic()
        first.kill()
    with start_worker(settings, _AGENTS, name="second") as second:
        await second.wait_for_output(READY, 60)
        await asyncio.sleep(max(0.0, asked + approval_seconds - time.monotonic()))
        assert not asking.done()
        decided = time.monotonic()
        digest = call_digest("restart", call(0, "restart", **_ARGUMENTS).arguments)
        # Every step journals its reply; the message, its results and notes come between.
        reply_seq = 2 + 2 * (_STEPS + 1)
        for agent in ("slow", "steady"):
            approval_id = f"{reply_seq}-1-{digest[:4]}"
            await ThreadHandle(client, f"{agent}-1").decide(approval_id, approve=True, by="ann")
        answers = await asking
        ended = time.monotonic()
        made = requests(metrics_port)
        made.subtract(before)
        runs = [
            (await read_status(client, f"{agent}-1")).counters.runs for agent in ("slow", "steady")
        ]
    return WaitReport(answers, runs, first.returncode, made, ended - begun, ended - decided)


def requests(metrics_port: int) -> collections.Counter[str]:
    """Return the server's own count of requests by clients and workers."""
    url = f"http://127.0.0.1:{metrics_port}/metrics"
    with urllib.request.urlopen(url) as response:
        lines = response.read().decode().splitlines()
    found: collections.Counter[str] = collections.Counter()
    for line in lines:
        if line.startswith("service_requests{") and 'service_name="frontend"' in line:
            name = line.partition('operation="')[2].partition('"')[0]
            found[name] += int(float(line.rsplit(" ", 1)[1]))
    return found


async def _is_approval_pending(client: Client, thread_id: str) -> bool:
    """Check by search attributes, without a query, whether the thread waits for approval."""
    try:
        found = await client.get_workflow_handle(thread_id).describe()
    except Exception:  # noqa: BLE001 - it may not have been started yet
        return False
    pending = found.raw_description.workflow_execution_info.search_attributes.indexed_fields
    return pending["EverlongPendingApprovals"].data == b"1"


async def _wait_until(done: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not await done():
            await asyncio.sleep(0.2)
