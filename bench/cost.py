"""`python -m bench.cost`: counts billed actions of a thread, against a plain list-passing loop.

Both do the same work on the same server, one after the other: a model call with a tool call in each
step, both of which return at once. `bench.cost_actions` counts the actions. The benchmark waits by
reading histories, which is not billed; it sends a query only where a user would look for an approval.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.cost_actions import Cost, histories, read_cost, requests
from bench.report import Report, Series, finish, machine
from everlong import Agent, EverlongPlugin, Policy, Reply, ThreadStart, tool
from everlong.client.status import list_pending
from everlong.embedded import start_server
from everlong.embedded.server import find_free_port
from everlong.models import (
    AGENT_WORKFLOW,
    DECIDE_UPDATE,
    SEND_UPDATE,
    Decide,
    Message,
    SendMessage,
    ToolCall,
)
from everlong.models.search_attributes import build_start_attributes
from everlong.testing import ScriptedModel

ACTIONS_MAX: Final = 50
"""Bound on the billed actions of 20 fast steps: 41 activities, the start and the message are 43."""
STEPS: Final = 20
_WAIT_SECONDS_MAX: Final = 120.0
_POLL_SECONDS: Final = 0.1
_QUIET_SECONDS: Final = 3.0
_HALF: Final = STEPS // 2
_RUN_STEPS: Final = 5
_METRICS_SECONDS_MAX: Final = 10.0
_CALL_TIMEOUT: Final = timedelta(seconds=60)
_ENDED: Final = "RespondActivityTaskCompleted"
_ANSWERED: Final = EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
_SETTLED: Final = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
_ROLLED: Final = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW


# The messages: `read 20` reads 20 pages, `publish` needs approval, `say` is answered at once.


def next_call(text: str, done: int) -> str:
    """Return the tool that a turn with `done` results calls next; empty if it answers."""
    what, _, count = text.partition(" ")
    if what == "read" and done < int(count):
        return "read_page"
    return "publish" if what == "publish" and not done else ""


@tool
def read_page(page: int) -> str:
    """Read a page."""
    return f"page {page}: " + "all is well. " * 20


@tool(needs_approval=True)
def publish(page: int) -> str:
    """Publish a page."""
    return f"page {page} is out"


def _reply_by_script(turn: Sequence[Message]) -> Reply:
    done = sum(message.role == "tool" for message in turn)
    name = next_call(turn[0].text, done)
    if not name:
        return Reply(text="done")
    arguments = json.dumps({"page": done})
    return Reply(tool_calls=(ToolCall(id=f"call-{done}", tool=name, arguments=arguments),))


def _build_agent() -> Agent:
    return Agent(name="reader", model=ScriptedModel(_reply_by_script), tools=[read_page, publish])


# The plain loop does the same with a list of messages, passed whole to the model's activity.


@activity.defn
async def call_plain_model(messages: list[dict[str, str]]) -> str:
    """Return the tool to call next; empty if the turn is over."""
    begun = max(number for number, message in enumerate(messages) if message["role"] == "user")
    return next_call(messages[begun]["text"], len(messages) - begun - 1)


@activity.defn
async def run_plain_tool(name: str, page: int) -> str:
    """Return the tool's result."""
    return f"{name} {page}: " + "all is well. " * 20


@workflow.defn
class PlainLoop:
    """Takes messages by signal. A run has `run_steps` steps; 0 means unbounded."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._approved = False

    @workflow.run
    async def run(self, messages: list[dict[str, str]], run_steps: int) -> None:
        """Answer messages until the benchmark terminates the workflow."""
        steps = 0
        while True:
            name = await workflow.execute_activity(
                call_plain_model, messages, start_to_close_timeout=_CALL_TIMEOUT
            )
            if name == "publish":
                await workflow.wait_condition(lambda: self._approved)
            if name:
                result = await workflow.execute_activity(
                    run_plain_tool, args=[name, steps], start_to_close_timeout=_CALL_TIMEOUT
                )
                messages.append({"role": "tool", "text": result})
            else:
                await workflow.wait_condition(lambda: bool(self._texts))
                messages.append({"role": "user", "text": self._texts.pop(0)})
            steps += 1
            if run_steps and steps >= run_steps and name:
                workflow.continue_as_new(args=[messages, run_steps])

    @workflow.signal
    def send(self, text: str) -> None:
        """Take a message."""
        self._texts.append(text)

    @workflow.signal
    def approve(self) -> None:
        """Approve the waiting tool call."""
        self._approved = True


class Variant(Protocol):
    """One of the two loops, with its client."""

    name: str
    client: Client

    async def start(self, thread_id: str, text: str, *, rolls: bool = False) -> None:
        """Start a thread with its first message; with `rolls`, it continues as new every few steps."""

    async def send(self, thread_id: str, text: str) -> None:
        """Send one more message."""

    async def approve(self, thread_id: str) -> None:
        """Query the waiting call and approve it, as a user would."""


@dataclasses.dataclass
class EverlongVariant:
    """The agent thread, with the default policy except where it has to roll or idle."""

    client: Client
    queue: str
    name: str = "Everlong"

    async def start(
        self, thread_id: str, text: str, *, rolls: bool = False, policy: Policy | None = None
    ) -> None:
        """See `Variant`."""
        policy = Policy(run_events_max=50) if rolls else policy
        await self.client.start_workflow(
            AGENT_WORKFLOW,
            ThreadStart(agent="reader", policy=policy),
            id=thread_id,
            task_queue=self.queue,
            search_attributes=build_start_attributes(
                "reader"
            ),  # The same start as that of `service.send`.
        )
        await self.send(thread_id, text)

    async def send(self, thread_id: str, text: str) -> None:
        """See `Variant`."""
        handle = self.client.get_workflow_handle(thread_id)
        await handle.execute_update(SEND_UPDATE, SendMessage(text=text))

    async def approve(self, thread_id: str) -> None:
        """See `Variant`."""
        [waiting] = await list_pending(self.client, thread_id)
        decide = Decide(id=waiting.id, approve=True, by="bench")
        await self.client.get_workflow_handle(thread_id).execute_update(DECIDE_UPDATE, decide)


@dataclasses.dataclass
class PlainVariant:
    """The list-passing loop, with a plain client."""

    client: Client
    queue: str
    name: str = "plain loop"

    async def start(self, thread_id: str, text: str, *, rolls: bool = False) -> None:
        """See `Variant`."""
        first = [{"role": "user", "text": text}]
        await self.client.start_workflow(
            PlainLoop.run,
            args=[first, _RUN_STEPS if rolls else 0],
            id=thread_id,
            task_queue=self.queue,
        )

    async def send(self, thread_id: str, text: str) -> None:
        """See `Variant`."""
        await self.client.get_workflow_handle(thread_id).signal(PlainLoop.send, text)

    async def approve(self, thread_id: str) -> None:
        """See `Variant`."""
        await self.client.get_workflow_handle(thread_id).signal(PlainLoop.approve)


@contextlib.asynccontextmanager
async def _open_everlong(address: str, folder: Path) -> AsyncIterator[EverlongVariant]:
    plugin = EverlongPlugin(store=(folder / "blobs").as_uri(), agents=[_build_agent()])
    client = await Client.connect(address, plugins=[plugin])
    queue = f"cost-{uuid.uuid4().hex[:8]}"
    async with Worker(client, task_queue=queue):
        yield EverlongVariant(client, queue)


@contextlib.asynccontextmanager
async def _open_plain(address: str) -> AsyncIterator[PlainVariant]:
    client = await Client.connect(address)
    queue = f"cost-{uuid.uuid4().hex[:8]}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[PlainLoop],
        activities=[call_plain_model, run_plain_tool],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        yield PlainVariant(client, queue)


async def _settle(variant: Variant, thread_id: str, activities: int, rolls: int = 0) -> None:
    """Wait until the activities have ended, the workflow has processed them, and runs have rolled."""
    async with asyncio.timeout(_WAIT_SECONDS_MAX):
        while True:
            runs = await histories(variant.client, thread_id)
            kinds = [event.event_type for events in reversed(runs) for event in events]
            last = len(kinds) - 1 - kinds[::-1].index(_ANSWERED) if _ANSWERED in kinds else 0
            if (
                kinds.count(_ANSWERED) >= activities
                and kinds.count(_ROLLED) >= rolls
                and _SETTLED in kinds[last:]
                and kinds[-1] not in (_ROLLED, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED)
            ):
                return
            await asyncio.sleep(_POLL_SECONDS)


@dataclasses.dataclass
class Costs:
    """Costs of one variant."""

    whole: Cost
    """Cost of 20 fast steps, from the start to the answer."""
    rows: dict[str, tuple[Cost, int]]
    """Cost of each kind of work, and how often it was done."""
    requests: Counter[str]
    """All requests of the variant to the server."""
    counted: Cost
    """All histories of the variant."""


class _Meter:
    """Counts the costs of the threads of one variant."""

    def __init__(self, variant: Variant, metrics_port: int) -> None:
        self.variant = variant
        self.ids: list[str] = []
        self._port = metrics_port
        self._first = self._last = self._requests()

    def _requests(self) -> Counter[str]:
        return requests(self._port, self.variant.client.namespace)

    def new_id(self) -> str:
        """Return the id of a new thread."""
        self.ids.append(f"cost-{uuid.uuid4().hex[:8]}")
        return self.ids[-1]

    @contextlib.asynccontextmanager
    async def count(self, thread_id: str, *, new: bool = True) -> AsyncIterator[list[Cost]]:
        """Yield a list that gets the cost of the body once the body has ended."""
        before = Cost() if new else await read_cost(self.variant.client, thread_id)
        found: list[Cost] = []
        yield found
        cost = (await read_cost(self.variant.client, thread_id)).since(before)
        asked = await self._count_requests(cost.actions["activities"])
        found.append(cost.with_requests(asked))

    async def _count_requests(self, activities: int) -> Counter[str]:
        """Return the requests since the last call, once they include the ends of these activities.

        The server publishes its metrics about once a second. Earlier heartbeats and queries are
        published together with those ends.
        """
        async with asyncio.timeout(_METRICS_SECONDS_MAX):
            while True:
                now = self._requests()
                if (now - self._last)[_ENDED] >= activities:
                    asked, self._last = now - self._last, now
                    return asked
                await asyncio.sleep(_POLL_SECONDS)

    async def all(self) -> tuple[Counter[str], Cost]:
        """Return all requests of this variant, and the totals of its histories."""
        costs = [await read_cost(self.variant.client, thread_id) for thread_id in self.ids]
        actions: Counter[str] = sum((cost.actions for cost in costs), Counter())
        counted = Cost(actions, sum(cost.events for cost in costs), sum(c.runs for c in costs))
        return self._last - self._first, counted


async def _turn(meter: _Meter, text: str, activities: int, *, rolls: int = 0) -> tuple[str, Cost]:
    """Start a thread, wait for its answer, and return the cost."""
    thread_id = meter.new_id()
    async with meter.count(thread_id) as found:
        await meter.variant.start(thread_id, text, rolls=rolls > 0)
        await _settle(meter.variant, thread_id, activities, rolls)
    return thread_id, found[0]


async def _measure_approval(meter: _Meter) -> Cost:
    """Return the extra cost of a call that needs approval."""
    _, free = await _turn(meter, "read 1", 3)
    thread_id = meter.new_id()
    async with meter.count(thread_id) as found:
        await meter.variant.start(thread_id, "publish")
        await _settle(meter.variant, thread_id, 1)
        await meter.variant.approve(thread_id)
        await _settle(meter.variant, thread_id, 3)
    return found[0].since(free)


async def _measure_idle(meter: _Meter, whole: Cost) -> Cost:
    """Return the cost of an idle thread after its answer."""
    thread_id = meter.new_id()
    variant = meter.variant
    async with meter.count(thread_id) as found:
        if isinstance(variant, EverlongVariant):
            await variant.start(thread_id, f"read {STEPS}", policy=Policy(idle_seconds=1))
            await _settle(variant, thread_id, 2 * STEPS + 2, rolls=1)
        else:
            await variant.start(thread_id, f"read {STEPS}")
            await _settle(variant, thread_id, 2 * STEPS + 1)
        await asyncio.sleep(_QUIET_SECONDS)
    return found[0].since(whole)


async def _measure_variant(variant: Variant, metrics_port: int, *, quick: bool) -> Costs:
    meter = _Meter(variant, metrics_port)
    rows: dict[str, tuple[Cost, int]] = {}
    thread_id, whole = await _turn(meter, f"read {STEPS}", 2 * STEPS + 1)
    if not quick:
        _, shorter = await _turn(meter, f"read {_HALF}", 2 * _HALF + 1)
        rows["a step: a model call and a tool"] = whole.since(shorter), STEPS - _HALF
    async with meter.count(thread_id, new=False) as turn:
        await variant.send(thread_id, "say")
        await _settle(variant, thread_id, 2 * STEPS + 2)
    rows["a turn of one model call"] = turn[0], 1
    rows["an approval, more than the same call"] = await _measure_approval(meter), 1
    if not quick:
        _, rolling = await _turn(meter, f"read {STEPS}", 2 * STEPS + 1, rolls=2)
        rolled = rolling.since(whole)
        rows["a roll"] = rolled, rolled.runs
        rows["an idle day, after the last answer"] = await _measure_idle(meter, whole), 1
    rows[f"{STEPS} fast steps, start to answer"] = whole, 1
    asked, counted = await meter.all()
    for each in meter.ids:
        await variant.client.get_workflow_handle(each).terminate("measured")
    return Costs(whole, rows, asked, counted)


async def measure_cost(address: str, metrics_port: int, folder: Path, *, quick: bool) -> Report:
    """Measure the variants one after the other: the server's metrics do not distinguish them."""
    async with _open_everlong(address, folder) as everlong:
        ours = await _measure_variant(everlong, metrics_port, quick=quick)
    async with _open_plain(address) as plain:
        theirs = await _measure_variant(plain, metrics_port, quick=quick)
    return _report(ours, theirs)


def _report(ours: Costs, theirs: Costs) -> Report:
    report = Report("Bounds")
    columns = ("what", "Everlong: actions", "events", "plain loop: actions", "events")
    rows = [(what, *_divide(*ours.rows[what]), *_divide(*theirs.rows[what])) for what in ours.rows]
    report.series.append(Series("Billed actions and history events", columns, rows))
    kinds = sorted({*ours.whole.actions, *theirs.whole.actions, "heartbeats", "queries"})
    report.series.append(
        Series(
            f"Billed actions of {STEPS} fast steps, by kind",
            ("kind", "Everlong", "plain loop"),
            [(kind, ours.whole.actions[kind], theirs.whole.actions[kind]) for kind in kinds],
        )
    )
    report.add(f"actions of {STEPS} fast steps", ours.whole.billed, most=ACTIONS_MAX)
    report.add("... of which heartbeats", ours.whole.actions["heartbeats"], most=0)
    report.add("... of which queries", ours.whole.actions["queries"], most=0)
    report.add("... over the plain loop's", ours.whole.billed / theirs.whole.billed)
    for variant, costs in (("Everlong", ours), ("plain loop", theirs)):
        for what, requested, counted in _build_checks(costs):
            report.add(
                f"{variant}: {what} in histories, as in the server's request metrics",
                counted,
                least=requested,
                most=requested,
            )
    report.notes += [
        "Actions by the published definition of Temporal Cloud, from histories; queries and heartbeats "
        "from the server's request metrics.",
        f"A step is what {STEPS} steps cost more than {_HALF}, divided by {STEPS - _HALF}. An idle day "
        "is what a thread costs after its answer until it rests, here after 1 s instead of 300, and "
        f"{_QUIET_SECONDS:g} s more, in which nothing happens. At rest its one timer is that of the "
        "next expiry in its context, by default 7 days after a tool's result.",
    ]
    return report


def _divide(cost: Cost, times: int = 1) -> tuple[float, float]:
    return cost.billed / times, cost.events / times


def _build_checks(costs: Costs) -> list[tuple[str, int, int]]:
    """Return the operations that both histories and request metrics count: name, requests, events."""
    asked, counted = costs.requests, costs.counted.actions
    return [
        ("activities", asked[_ENDED], counted["activities"]),
        ("updates", asked["UpdateWorkflowExecution"], counted["updates"]),
        ("signals", asked["SignalWorkflowExecution"], counted["signals"]),
    ]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code, which is not 0 if a bound does not hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without rolls and idle time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="and as tables in Markdown")
    asked = parser.parse_args(arguments)
    about = machine()
    with tempfile.TemporaryDirectory(prefix="everlong-bench-") as folder:
        report = asyncio.run(_measure(Path(folder), quick=asked.quick))
    return finish(about, [report], asked.json, asked.markdown)


async def _measure(folder: Path, *, quick: bool) -> Report:
    metrics_port = find_free_port()
    server = await start_server(folder, metrics_port=metrics_port)
    with server.process:
        return await measure_cost(server.address, metrics_port, folder, quick=quick)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
