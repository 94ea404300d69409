"""Notifications benchmark: many approvals, and a receiver that fails, hangs and answers twice.

Each approval has to be delivered at least once, with one key for all its attempts. No thread may wait
for the receiver: each is decided while its notification may still be on its way.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client
from temporalio.worker import Worker

from bench.report import Report, finish, machine
from everlong import Agent, EverlongPlugin, Reply, tool
from everlong.client.thread import ThreadHandle
from everlong.embedded import start_server
from everlong.errors import NoWorker, ServerUnreachable
from everlong.models import Approval, Message
from everlong.models.notices import build_notifier_id
from everlong.notify import Notify, Webhook
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call, calls_done
from tests.support.sink_receivers import Answer, HttpReceiver, run_http_receiver

_SIGNED_WITH: Final = "0123456789abcdef0123456789abcdef"
_FAILS: Final = 0.30
_HANGS: Final = 0.05
_TWICE: Final = 0.05
# Threads at a time that are started, asked and decided.
_AT_ONCE: Final = 20
# Threads of the comparison without a sink.
_PLAIN_MAX: Final = 100
_SINK_SECONDS: Final = 2.0
_THREAD_SECONDS_MAX: Final = 300.0
_DELIVERY_SECONDS_MAX: Final = 900.0


@tool(needs_approval=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


def _script(turn: Sequence[Message]) -> Reply:
    if calls_done(turn):
        return Reply(text="done")
    return Reply(tool_calls=(call(0, "pay", euros=5),))


def choose_answers(seed: int) -> list[Answer]:
    """Return the answers of a receiver that fails, hangs and answers twice, in a random order."""
    kinds: tuple[Answer, ...] = (500, "hang", "twice", 200)
    weights = (_FAILS, _HANGS, _TWICE, 1 - _FAILS - _HANGS - _TWICE)
    return random.Random(seed).choices(kinds, weights, k=10_000)  # noqa: S311 - a benchmark


@contextlib.asynccontextmanager
async def run_agents(
    address: str, store: Path, receiver: HttpReceiver | None
) -> AsyncIterator[tuple[Client, str]]:
    """Run a worker, with a sink for the receiver if there is one."""
    notify = None
    if receiver is not None:
        hook = Webhook(
            name="hook",
            url=receiver.url,
            secret=_SIGNED_WITH,
            events=["asked"],
            seconds_max=_SINK_SECONDS,
        )
        notify = Notify(sinks=[hook])
    agent = Agent(name="ops", model=ScriptedModel(_script, whole=False), tools=[pay])
    plugin = EverlongPlugin(store=store.as_uri(), agents=[agent], notify=notify)
    client = await Client.connect(address, plugins=[plugin])
    queue = f"queue-{uuid.uuid4().hex[:8]}"
    async with Worker(client, task_queue=queue):
        yield client, queue


async def decide_one(client: Client, queue: str, thread_id: str) -> float:
    """Start a thread, and decide its approval. Returns the seconds from there to the answer."""
    handle = ThreadHandle(client, thread_id, task_queue=queue)
    number = await handle.send("go", agent="ops")
    pending: list[Approval] = []
    pause = 0.05
    while not pending:
        await asyncio.sleep(pause)
        pause = min(1.0, 1.5 * pause)
        with contextlib.suppress(NoWorker):  # It is busy: a query is given up after 20 s.
            pending = await handle.approvals()
    began = time.monotonic()
    while True:
        # The server aborts an update if the task that has it times out on a busy machine.
        with contextlib.suppress(NoWorker, ServerUnreachable):
            await handle.decide(pending[0].id, approve=True, by="ann", update_id=thread_id)
            break
        await asyncio.sleep(pause)
    answer = await handle.wait(number, seconds_max=_THREAD_SECONDS_MAX)
    if answer != "done":
        raise RuntimeError(f"{thread_id} answered {answer!r}")
    return time.monotonic() - began


async def decide_all(client: Client, queue: str, count: int) -> list[float]:
    """Decide the approvals of many threads, some at a time; return the seconds of each, sorted."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> float:
        async with slots:
            return await decide_one(client, queue, f"{queue}-{number}")

    return sorted(await asyncio.gather(*map(one, range(count))))


async def count_actions(client: Client, queue: str) -> Counter[str]:
    """Count what Temporal bills of the notifier: over all of its runs."""
    found: Counter[str] = Counter()
    handle = client.get_workflow_handle(build_notifier_id(queue))
    run_id: str | None = (await handle.describe()).run_id
    while run_id:
        run = client.get_workflow_handle(build_notifier_id(queue), run_id=run_id)
        started: Any = None
        async for event in run.fetch_history_events():
            kind = event.WhichOneof("attributes") or ""
            found[kind.removesuffix("_event_attributes")] += 1
            if kind.startswith("workflow_execution_started"):
                started = event.workflow_execution_started_event_attributes
        run_id = started.continued_execution_run_id if started is not None else None
    return found


async def measure(address: str, folder: Path, count: int, seed: int) -> Report:
    """Run both arms, and return the figures."""
    report = Report("Notifications")
    async with run_agents(address, folder / "plain", None) as (client, queue):
        plain_count = min(count, _PLAIN_MAX)
        plain = await decide_all(client, queue, plain_count)
    answers = choose_answers(seed)
    async with run_http_receiver(lambda number: answers[number % len(answers)]) as receiver:
        async with run_agents(address, folder / "notified", receiver) as (client, queue):
            notified = await decide_all(client, queue, count)
            at_once = len(receiver.taken)
            began = time.monotonic()
            await receiver.wait_for(
                lambda: len(receiver.taken) >= count, seconds=_DELIVERY_SECONDS_MAX
            )
            late = time.monotonic() - began
            actions = await count_actions(client, queue)
            await client.get_workflow_handle(build_notifier_id(queue)).terminate()
        keys: dict[str, set[str]] = {}
        for request in receiver.received:
            for event in request.json["events"]:
                keys.setdefault(event["thread_id"], set()).add(event["key"])
        taken = receiver.taken
        kinds = Counter(str(request.answer) for request in receiver.received)
    report.add("approvals", count)
    report.add("requests to the receiver", len(receiver.received))
    report.add("... that it failed", kinds["500"])
    report.add("... that it let hang", kinds["hang"])
    report.add("... that it answered twice", kinds["twice"])
    report.add("approvals delivered at least once", len(taken), least=count)
    report.add(
        "approvals with more than one key", sum(len(each) > 1 for each in keys.values()), most=0
    )
    report.add("deliveries beyond the first", sum(taken.values()) - len(taken))
    report.add("delivered when the last thread had answered", at_once)
    report.add("time from there to the last delivery", round(late, 1), "s")
    for name, times in (("without a sink", plain), ("with the sink", notified)):
        least = count if times is notified else plain_count
        report.add(f"threads that answered, {name}", len(times), least=least)
        report.add(f"from decision to answer, {name}, p50", round(times[len(times) // 2], 2), "s")
        report.add(f"from decision to answer, {name}, max", round(times[-1], 2), "s")
    signals = actions["workflow_execution_signaled"]
    activities = actions["activity_task_scheduled"]
    timers = actions["timer_started"]
    report.add("signals to the notifier", signals)
    report.add("its activities", activities)
    report.add("its timers", timers)
    per_approval = (signals + activities + timers) / count
    report.add("billed actions for each approval", round(per_approval, 2), most=3.0)
    return report


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.notifications", description=__doc__)
    parser.add_argument("--approvals", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    async def run() -> Report:
        with tempfile.TemporaryDirectory() as folder:
            # Not durable: a busy disk would delay the server, and not what is measured.
            server = await start_server(Path(folder), durable=False)
            with server.process:
                return await measure(server.address, Path(folder), options.approvals, options.seed)

    about = machine()
    return finish(about, [asyncio.run(run())])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
