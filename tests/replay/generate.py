"""Records the stored histories: `python -m tests.replay.generate`, of scenes that have none.

With `--replace` it records all of them again, which is allowed before the first tag only. From then on
a change to workflow code has to replay what is stored, by a patch if need be. Each history is a thread
that did something that workflow code decides about.
"""

import asyncio
import contextlib
import dataclasses
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from temporalio.client import Client

from everlong import Agent, Always, OutcomeUnknown, Policy, Reply, limits, tool
from everlong.client.fork import fork
from everlong.client.lookup import find_previous_run
from everlong.client.status import list_pending
from everlong.client.thread import ThreadHandle
from everlong.client.updates import send_signal
from everlong.client.wait import ask as ask_thread
from everlong.client.wait import wait_for_status
from everlong.embedded import start_server
from everlong.errors import DecisionRefused, ModelRefused, ThreadPaused
from everlong.models import (
    NOTE_SIGNAL,
    STOP_SIGNAL,
    Control,
    ControlNote,
    Message,
    ThreadStatus,
    seq_after,
)
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call, calls_done, reading_agent
from tests.support.threads import Threads, open_threads

HERE: Final = Path(__file__).parent
NEWEST: Final = "v1"
_SECONDS_MAX: Final = 60.0
# All inline: a history then needs no store to be replayed.
_INLINE_BYTES_MAX: Final = limits.MIB
_LONG: Final = "word " * 2000  # Too long to be sent as it is.


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(needs_approval=True, deadline_seconds=1, on_deadline="escalate", escalate_to=["boss"])
def fire(name: str) -> str:
    """Fire an employee."""
    return f"fired {name}"


@tool(needs_approval=True, deadline_seconds=1)
def hire(name: str) -> str:
    """Hire an employee."""
    return f"hired {name}"


@tool
async def interview() -> str:
    """Take longer than the first deadline, and less than the second."""
    await asyncio.sleep(1.5)
    return "interviewed"


@tool(needs_approval=True, approvers=["ann", "ben"], approvals_needed=2)
def sell(amount: int) -> str:
    """Sell."""
    return f"sold {amount}"


@tool(effects="once")
def ship(amount: int) -> str:
    """Ship, and cannot tell whether that worked."""
    raise OutcomeUnknown


@tool(attempts_max=1)
def broken() -> str:
    """Fail."""
    raise OSError("no")


def _build_agent(name: str, *steps: Sequence[tuple[str, dict[str, object]]]) -> ScriptedModel:
    """Make the calls of each step in turn, then answer."""

    def script(turn: Sequence[Message]) -> Reply:
        results = [message for message in turn if message.role == "assistant"]
        if len(results) >= len(steps):
            return Reply(text=f"{name} done")
        calls = steps[len(results)]
        base = 10 * len(results)
        return Reply(
            tool_calls=tuple(call(base + i, tool, **args) for i, (tool, args) in enumerate(calls)),
            tokens=100,
        )

    return ScriptedModel(script)


def _endless(turn: Sequence[Message]) -> Reply:
    number = calls_done(turn)
    return Reply(tool_calls=(call(number, "read_page", page=0),))


class Refusing:
    """Is refused a context that has no summary, and some messages whatever there is."""

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[object]
    ) -> Reply:
        if not tools:  # A summary is asked for without tools.
            return Reply(text="SUMMARY: there were words", tokens=10)
        wanted = messages[-1].text
        has_summary = any(message.role == "summary" for message in messages)
        if wanted == "never" or (wanted == "more" and not has_summary):
            raise ModelRefused("400: maximum context length", context_too_large=True)
        return Reply(text="words done", tokens=100)


reader = reading_agent(8, name="reader", policy=Policy(run_events_max=60))
helper = Agent(
    name="helper",
    description="Helps.",
    model=_build_agent("helper", [("recall", {"seq": 1})]),
)
AGENTS: Final = (
    reader,
    reading_agent(1, name="skimmer", policy=Policy(run_events_max=70)),
    Agent(
        name="payer",
        model=_build_agent(
            "payer",
            [("pay", {"amount": 1}), ("pay", {"amount": 2}), ("nothing", {})],
            [("fire", {"name": "Bob"})],
        ),
        tools=[pay, fire],
    ),
    Agent(name="failer", model=_build_agent("failer", [("broken", {})]), tools=[broken]),
    Agent(
        name="trader",
        model=_build_agent(
            "trader",
            [("pay", {"amount": 1}), ("sell", {"amount": 2})],
            [("pay", {"amount": 1}), ("ship", {"amount": 3}), ("ship", {"amount": 4})],
        ),
        tools=[pay, sell, ship],
        policy=Policy(idle_seconds=0.5, run_events_max=50),
    ),
    Agent(
        name="keeper",
        model=_build_agent(
            "keeper", [("remember", {"key": "a", "text": "b"})], [("forget", {"key": "a"})]
        ),
        policy=Policy(idle_seconds=1),
    ),
    Agent(
        name="boss", model=_build_agent("boss", [("helper", {"request": "help"})]), tools=[helper]
    ),
    Agent(
        name="runaway",
        model=ScriptedModel(_endless),
        tools=reader.tools,
        policy=Policy(no_progress_steps_max=3, actions={"steps_max": "stop"}),
    ),
    Agent(
        name="talker",
        model=Refusing(),
        policy=Policy(summary=True, compact_to_bytes=2 * limits.KIB),
    ),
    Agent(
        name="manager",
        model=_build_agent(
            "manager", [("interview", {}), ("hire", {"name": "Al"}), ("fire", {"name": "Bob"})]
        ),
        tools=[interview, hire, fire],
    ),
    Agent(
        name="crowd",
        model=_build_agent("crowd", [("pay", {"amount": number}) for number in range(20)]),
        tools=[pay],
    ),
    Agent(
        name="learner",
        model=_build_agent(
            "learner", [("remember", {"key": "a", "text": "b", "ttl_days": 3 / 86_400})]
        ),
        policy=Policy(idle_seconds=1),
    ),
)


@dataclasses.dataclass
class Scene:
    """A thread, and the messages sent to it."""

    threads: Threads
    thread_id: str

    @property
    def client(self) -> Client:
        return self.threads.client

    async def say(self, text: str, agent: str) -> None:
        await self.threads.send(self.thread_id, text, agent=agent)

    async def ask(self, text: str, agent: str) -> str:
        return await ask_thread(
            self.client,
            PackStore(self.threads.store),
            self.thread_id,
            text,
            task_queue=self.threads.task_queue,
            agent=agent,
            seconds_max=_SECONDS_MAX,
        )

    async def wait_until(self, done: Callable[[ThreadStatus], bool]) -> ThreadStatus:
        return await wait_for_status(self.client, self.thread_id, done, seconds_max=_SECONDS_MAX)

    async def decide(self, approval_id: str, approve: bool, by: str) -> None:
        await ThreadHandle(self.client, self.thread_id).decide(
            approval_id, approve=approve, by=by, reason="so"
        )


async def rolls(scene: Scene) -> None:
    """Reads pages, and continues as new on the way."""
    await scene.say("read", "reader")
    await scene.wait_until(lambda status: status.counters.answered == 1)
    await ThreadHandle(scene.client, scene.thread_id).stop()


async def approvals(scene: Scene) -> None:
    """One call approved, one denied, one escalated."""
    await scene.say("pay", "payer")
    await scene.wait_until(lambda status: status.pending == 2)
    first, second = await list_pending(scene.client, scene.thread_id)
    await scene.decide(second.id, approve=False, by="ann")
    await scene.decide(first.id, approve=True, by="ann")
    await scene.wait_until(lambda status: status.pending == 1)
    while not (waiting := await list_pending(scene.client, scene.thread_id))[0].escalated:
        await asyncio.sleep(0.1)
    await scene.decide(waiting[0].id, approve=True, by="boss")
    await scene.wait_until(lambda status: status.counters.answered == 1)
    await ThreadHandle(scene.client, scene.thread_id).stop()


async def failures(scene: Scene) -> None:
    """A tool that fails permanently; the thread goes on."""
    for number in (1, 2):
        await scene.say("fail", "failer")
        await scene.wait_until(lambda status, number=number: status.counters.answered == number)  # type: ignore[misc]
    await scene.client.get_workflow_handle(scene.thread_id).cancel()


async def idle(scene: Scene) -> None:
    """Remembers, forgets, becomes idle, and gets another message."""
    await scene.say("keep", "keeper")
    await scene.wait_until(lambda status: status.counters.runs == 2)
    await scene.say("again", "keeper")
    await scene.wait_until(lambda status: status.counters.answered == 2)
    await ThreadHandle(scene.client, scene.thread_id).stop()


async def children(scene: Scene) -> None:
    """Has a sub-agent answer."""
    await scene.say("delegate", "boss")
    await scene.wait_until(lambda status: status.counters.answered == 1)
    await ThreadHandle(scene.client, scene.thread_id).stop()


async def controls(scene: Scene) -> None:
    """Reaches a limit, is configured and unpaused, paused by a person, compacted, and ended."""
    await scene.say("run", "runaway")
    await scene.wait_until(lambda status: status.pause is not None)
    changes = {"no_progress_steps_max": 1000}
    await ThreadHandle(scene.client, scene.thread_id).configure(changes, by="ann", reason="go on")
    await ThreadHandle(scene.client, scene.thread_id).unpause(by="ann")
    before = (await scene.wait_until(lambda status: status.pause is None)).counters.steps
    await scene.wait_until(lambda status: status.counters.steps > before + 2)
    await ThreadHandle(scene.client, scene.thread_id).pause(by="ann", reason="look")
    await ThreadHandle(scene.client, scene.thread_id).compact()
    paused = await scene.wait_until(lambda status: status.status == "paused")
    changes = {"steps_max": paused.counters.steps + 3}
    await ThreadHandle(scene.client, scene.thread_id).configure(changes, by="ann")
    await ThreadHandle(scene.client, scene.thread_id).unpause()


async def holds(scene: Scene) -> None:
    """No worker has the agent: held, goes on with one that has, is held again, and stopped so."""
    address = scene.client.service_client.config.target_host
    async with open_threads(
        address, scene.threads.store, reader, inline_bytes_max=_INLINE_BYTES_MAX
    ) as lacking:
        having = dataclasses.replace(scene.threads, task_queue=lacking.task_queue)
        held = Scene(lacking, scene.thread_id)
        async with lacking.worker():
            await held.say("help", "helper")
            await held.wait_until(lambda status: status.status == "held")
        async with having.worker():
            await scene.wait_until(lambda status: status.counters.answered == 1)
        async with lacking.worker():
            await held.say("again", "helper")
            await held.wait_until(lambda status: status.status == "held")
            await ThreadHandle(scene.client, scene.thread_id).stop()
            await scene.client.get_workflow_handle(scene.thread_id).result()


async def refusals(scene: Scene) -> None:
    """A context refused until it has a summary, a message that is in no store, a final refusal."""
    await scene.say(_LONG, "talker")
    await scene.wait_until(lambda status: status.counters.answered == 1)
    await scene.say("more", "talker")
    await scene.wait_until(lambda status: status.counters.answered == 2)
    elsewhere = dataclasses.replace(scene.threads, store=MemoryBlobStore())
    await Scene(elsewhere, scene.thread_id).say(f"other {_LONG}", "talker")
    await scene.wait_until(lambda status: status.counters.answered == 3)
    await scene.say("never", "talker")
    await scene.wait_until(lambda status: status.counters.answered == 4)
    await ThreadHandle(scene.client, scene.thread_id).stop()


async def deadlines(scene: Scene) -> None:
    """No approver decides: denied, escalated while a tool runs, then denied. Cancelled in a step."""
    await scene.say("staff", "manager")
    steps = (await scene.wait_until(lambda status: status.counters.answered == 1)).counters.steps
    await scene.say("again", "manager")
    await scene.wait_until(lambda status: status.counters.steps > steps)
    await scene.client.get_workflow_handle(scene.thread_id).cancel()


async def forks(scene: Scene) -> None:
    """Begins as a fork, gets a message, becomes idle, and wakes when a fact expires."""
    origin = Scene(scene.threads, f"{scene.thread_id}-origin")
    await origin.say("learn", "learner")
    head = (await origin.wait_until(lambda status: status.counters.answered == 1)).head
    await ThreadHandle(scene.client, origin.thread_id).stop()
    await fork(
        scene.client,
        PackStore(scene.threads.store),
        origin.thread_id,
        seq_after(head) - 1,
        scene.thread_id,
        task_queue=scene.threads.task_queue,
    )
    await scene.say("learn more", "learner")
    await scene.wait_until(lambda status: status.counters.runs == 3)
    await ThreadHandle(scene.client, scene.thread_id).stop()


async def crowds(scene: Scene) -> None:
    """Twenty calls wait, and most are denied: more is noted than stays in the state."""
    await scene.say("pay", "crowd")
    await scene.wait_until(lambda status: status.pending == 20)
    for approval in await list_pending(scene.client, scene.thread_id):
        await scene.decide(approval.id, approve=approval.id.split("-")[1] in ("7", "15"), by="ann")
    await scene.wait_until(lambda status: status.counters.answered == 1)
    await ThreadHandle(scene.client, scene.thread_id).stop()


async def decisions(scene: Scene) -> None:
    """Votes, changed arguments, grants that are used and revoked, and unknown outcomes, over rolls."""
    thread = ThreadHandle(scene.client, scene.thread_id)
    await scene.say("trade", "trader")
    await scene.wait_until(lambda status: status.pending == 2)
    pays, sells = await thread.approvals()
    await thread.decide(sells.id, approve=True, by="ann")
    await scene.wait_until(lambda status: status.counters.runs == 2)
    with contextlib.suppress(DecisionRefused):
        await thread.decide(sells.id, approve=True, by="ben", arguments={"amount": "many"})
    await thread.decide(sells.id, approve=True, by="ben", arguments={"amount": 9})
    always = Always(match="tool", seconds=3600)
    await thread.decide(pays.id, approve=True, by="ann", always=always)
    [changed] = await thread.approvals()
    await thread.decide(changed.id, approve=True, by="ann")
    await scene.wait_until(lambda status: status.outcomes == 2)
    [grant] = await thread.grants()
    first, second = await thread.outcomes()
    runs = (await thread.status()).counters.runs
    await scene.wait_until(lambda status: status.counters.runs > runs)
    await thread.resolve_outcome(first.id, outcome="retry", by="ann")
    await thread.resolve_outcome(second.id, outcome="not_done", by="ben")
    await thread.revoke_grant(grant.id, by="ben")
    while [each.id for each in await thread.outcomes()] in ([], [first.id]):
        await asyncio.sleep(0.1)
    [again] = await thread.outcomes()
    await thread.resolve_outcome(again.id, outcome="done", by="ann", result="shipped")
    await scene.wait_until(lambda status: status.counters.answered == 1)
    await thread.stop()


async def endings(scene: Scene) -> None:
    """Noted, and ended as archived."""
    await scene.threads.start(scene.thread_id, agent="reader")
    await scene.say("read", "reader")
    await scene.wait_until(lambda status: status.counters.answered == 1)
    record = ControlNote(action="archive", by="ann", reason="audit")
    await send_signal(scene.client, scene.thread_id, NOTE_SIGNAL, record)
    control = Control(by="ann", archive=True)
    await send_signal(scene.client, scene.thread_id, STOP_SIGNAL, control)


async def asks(scene: Scene) -> None:
    """Callers wait by updates: six at once, through a roll, and in a pause."""
    await scene.threads.start(scene.thread_id, agent="skimmer")
    await asyncio.gather(*(scene.ask(f"read {number}", "skimmer") for number in range(6)))
    await ThreadHandle(scene.client, scene.thread_id).pause(by="ann")
    with contextlib.suppress(ThreadPaused):
        await scene.ask("read later", "skimmer")
    await ThreadHandle(scene.client, scene.thread_id).unpause(by="ann")
    await scene.wait_until(lambda status: status.counters.answered == 7)
    await scene.ask("read once more", "skimmer")
    await ThreadHandle(scene.client, scene.thread_id).stop()


_FIRST: Final = (rolls, approvals, failures, idle, children, controls)
SCENES: Final[dict[str, Callable[[Scene], Awaitable[None]]]] = {
    each.__name__: each
    for each in (*_FIRST, holds, refusals, deadlines, forks, crowds, decisions, endings, asks)
}


async def record(threads: Threads, name: str) -> dict[str, str]:
    """Play a scene; return the history of each of its thread's runs, the oldest first."""
    thread_id = f"stored-{name}"
    await SCENES[name](Scene(threads, thread_id))
    histories: list[str] = []
    run_id: str | None = None
    async with asyncio.timeout(_SECONDS_MAX):
        while run_id != "":
            handle = threads.client.get_workflow_handle(thread_id, run_id=run_id)
            while (description := await handle.describe()).close_time is None:
                await asyncio.sleep(0.1)
            newest = threads.client.get_workflow_handle(thread_id, run_id=description.run_id)
            histories.insert(0, (await newest.fetch_history()).to_json())
            run_id = await find_previous_run(threads.client, thread_id, description.run_id)
    return {f"{name}-{number}": history for number, history in enumerate(histories, 1)}


async def generate(directory: Path, *, replace: bool = False) -> None:
    """Record the scenes that have no files yet; with `replace`, all of them."""
    directory.mkdir(exist_ok=True)
    if replace:
        for path in directory.glob("*.json"):
            path.unlink()
    with tempfile.TemporaryDirectory() as data_dir:
        server = await start_server(Path(data_dir))
        with server.process:
            async with open_threads(
                server.address, MemoryBlobStore(), *AGENTS, inline_bytes_max=_INLINE_BYTES_MAX
            ) as threads:
                async with threads.worker():
                    for name in SCENES:
                        if list(directory.glob(f"{name}-*.json")):
                            continue
                        for stem, history in (await record(threads, name)).items():
                            # Stack traces hold paths of this machine.
                            history = re.sub(r'"stackTrace": ".*",\n\s*', "", history)
                            (directory / f"{stem}.json").write_text(history)
                            sys.stdout.write(f"{stem}.json\n")


if __name__ == "__main__":
    asyncio.run(generate(HERE / NEWEST, replace="--replace" in sys.argv[1:]))
