"""Diagnoses of a thread that does not answer: their content, their delay and their cost."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.worker import Worker

from everlong import Agent, EverlongPlugin, Reply, tool
from everlong.client import diagnosis
from everlong.client.diagnosis import Diagnosis, diagnose
from everlong.client.packs import find_packs
from everlong.client.status import read_status
from everlong.client.updates import send
from everlong.client.wait import ask
from everlong.embedded import TemporalServer
from everlong.errors import BlobMissing, EverlongError, KeyMissing, NotAnswered, NoWorker
from everlong.models import Message
from everlong.storage import BlobStore
from everlong.storage.memory import MemoryBlobStore
from everlong.testing import ScriptedModel
from tests.support.loop_workflows import noise
from tests.support.sample_payloads import KEY_1, KEY_2
from tests.support.scripted_agents import call, pages_answer, reading_agent, results

Keys = dict[str, bytes] | None
SECONDS_MAX = 10.0
"""By when a caller has to know."""


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Diagnose after a second, and every second: the same looks in less time."""
    for name in ("FIRST_SECONDS", "SECOND_SECONDS", "EVERY_SECONDS"):
        monkeypatch.setattr(diagnosis, name, 1.0)


async def connect(
    server: TemporalServer, store: BlobStore, keys: Keys = None, agents: Sequence[Agent] = ()
) -> Client:
    plugin = EverlongPlugin(store=store, keys=keys, agents=agents)
    return await Client.connect(server.address, plugins=[plugin])


class Notices:
    """Collects the notices that a caller gets, and after how many seconds."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.seconds: list[float] = []
        self._begun = time.monotonic()

    def __call__(self, text: str) -> None:
        self.texts.append(text)
        self.seconds.append(time.monotonic() - self._begun)

    async def first(self) -> str:
        async with asyncio.timeout(3 * SECONDS_MAX):
            while not self.texts:
                await asyncio.sleep(0.05)
        assert self.seconds[0] < SECONDS_MAX
        return self.texts[0]


@contextlib.asynccontextmanager
async def open_caller(
    client: Client,
    thread_id: str,
    text: str = "hello",
    agent: str = "ops",
    seconds_max: float | None = None,
) -> AsyncIterator[tuple[Notices, "asyncio.Task[str]"]]:
    notices = Notices()
    asked = ask(
        client,
        find_packs(client),
        thread_id,
        text,
        task_queue=thread_id,
        agent=agent,
        seconds_max=seconds_max,
        on_wait=notices,
    )
    task = asyncio.create_task(asked)
    try:
        yield notices, task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, EverlongError):
            await task


@pytest.mark.guarantee(44)
@pytest.mark.parametrize("there", [{"second": KEY_2}, None], ids=["other", "none"])
async def test_a_worker_with_other_keys_is_named(
    server: TemporalServer, store: BlobStore, thread_id: str, there: Keys
) -> None:
    client = await connect(server, store, {"first": KEY_1})
    wrong = await connect(server, store, there, [reading_agent(1)])
    async with (
        Worker(wrong, task_queue=thread_id, identity="it"),
        open_caller(client, thread_id) as (notices, _),
    ):
        notice = await notices.first()
    assert notice.startswith(
        "worker it cannot read what this client writes: run everlong doctor (KeyMissing: "
    )
    assert "key 'first'" in notice


@pytest.mark.usefixtures("short_looks")
async def test_a_caller_is_notified_once_and_answered_after_the_keys_agree(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client = await connect(server, store, {"first": KEY_1})
    wrong = await connect(server, store, {"second": KEY_2}, [reading_agent(1)])
    async with contextlib.AsyncExitStack() as stack:
        async with Worker(wrong, task_queue=thread_id, identity="it"):
            notices, answer = await stack.enter_async_context(open_caller(client, thread_id))
            notice = await notices.first()
            await asyncio.sleep(2 * diagnosis.EVERY_SECONDS)
            assert notices.texts == [notice]
        right = await connect(server, store, {"first": KEY_1}, [reading_agent(1)])
        async with Worker(right, task_queue=thread_id):
            assert await answer == pages_answer(1)


async def test_the_error_at_the_end_says_what_the_thread_waited_for(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client = await connect(server, store, {"first": KEY_1})
    wrong = await connect(server, store, {"second": KEY_2}, [reading_agent(1)])
    async with Worker(wrong, task_queue=thread_id, identity="it"):
        with pytest.raises(
            NoWorker, match=r"Worker it cannot read what this client writes: run everlong doctor"
        ) as raised:
            await send(client, thread_id, "hello", task_queue=thread_id, agent="ops", seconds_max=2)
    assert "Start one on its task queue" not in str(raised.value)
    assert f"everlong show {thread_id}" in str(raised.value)


async def test_a_client_without_the_keys_says_so_at_once(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client = await connect(server, store)
    right = await connect(server, store, {"first": KEY_1}, [reading_agent(1)])
    async with Worker(right, task_queue=thread_id):
        with pytest.raises(KeyMissing, match=r"cannot read what the worker of.*everlong doctor"):
            async with asyncio.timeout(SECONDS_MAX):
                await send(client, thread_id, "hello", task_queue=thread_id, agent="ops")


@pytest.mark.guarantee(44)
async def test_a_worker_with_another_store_is_named(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    """The client offloads the update itself, so the worker's task needs the store."""
    plugin = EverlongPlugin(store=store, inline_bytes_max=256)
    client = await Client.connect(server.address, plugins=[plugin])
    wrong = await connect(server, MemoryBlobStore(), agents=[reading_agent(1)])
    async with (
        Worker(wrong, task_queue=thread_id, identity="it"),
        open_caller(client, thread_id, noise(thread_id, 3000)) as (notices, _),
    ):
        notice = await notices.first()
    assert notice.startswith(
        "worker it cannot read what this client writes: run everlong doctor (BlobMissing: "
    )


async def test_the_error_for_an_answer_in_another_store_names_the_doctor(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client = await connect(server, store)
    wrong = await connect(server, MemoryBlobStore(), agents=[reading_agent(1)])
    async with (
        Worker(wrong, task_queue=thread_id),
        open_caller(client, thread_id) as (_, answer),
    ):
        with pytest.raises(BlobMissing, match=r"differ in store or keys.*Run: everlong doctor"):
            async with asyncio.timeout(SECONDS_MAX):
                await answer


@pytest.mark.guarantee(44)
async def test_an_unknown_agent_is_named_with_the_known_ones(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client = await connect(server, store, agents=[reading_agent(1), reading_agent(1, "deploy")])
    async with (
        Worker(client, task_queue=thread_id),
        open_caller(client, thread_id, agent="opps", seconds_max=6) as (notices, answer),
    ):
        notice = await notices.first()
        assert notice.startswith(
            "no worker has agent 'opps'; workers have: deploy, ops. Did you mean ops? Start"
        )
        with pytest.raises(NotAnswered, match=r"It waits: no worker has agent 'opps'"):
            await answer


@pytest.mark.guarantee(44)
async def test_a_task_queue_without_workers_is_named(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client = await connect(server, store)
    async with open_caller(client, thread_id, seconds_max=4) as (notices, answer):
        notice = await notices.first()
        assert notice.startswith(
            f"no worker polls task queue '{thread_id}': start one with: everlong"
        )
        with pytest.raises(NoWorker, match=f"No worker polls task queue '{thread_id}'"):
            await answer


@pytest.mark.usefixtures("short_looks")
async def test_a_thread_without_its_worker_is_not_called_busy_for_ever(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    """An idle thread has no pending task: a message to it is an update that no worker takes."""
    client = await connect(server, store, agents=[reading_agent(1)])
    async with Worker(client, task_queue=thread_id, identity="it"):
        async with open_caller(client, thread_id) as (_, answer):
            await answer
    async with open_caller(client, thread_id, "again") as (notices, _):
        notice = await notices.first()
    # The server lists a worker that has stopped for some minutes.
    assert "no worker" in notice or "has just stopped" in notice


@tool
async def slow() -> str:
    """Take long."""
    await asyncio.sleep(3)
    return "done"


def slow_script(turn: Sequence[Message]) -> Reply:
    return Reply(text="done") if results(turn) else Reply(tool_calls=(call(0, "slow"),))


@pytest.mark.usefixtures("short_looks")
@pytest.mark.guarantee(44)
async def test_a_worker_without_a_free_slot_is_busy_and_not_missing(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = Agent(name="ops", model=ScriptedModel(slow_script), tools=[slow])
    client = await connect(server, store, agents=[agent])
    worker = Worker(client, task_queue=thread_id, identity="it", max_concurrent_activities=1)
    async with worker, open_caller(client, thread_id) as (_, first):
        await wait_for_tool(client, thread_id)
        other = f"{thread_id}-2"
        notices = Notices()
        async with asyncio.timeout(60):
            answer = await ask(
                client,
                find_packs(client),
                other,
                "hello",
                task_queue=thread_id,
                agent="ops",
                on_wait=notices,
            )
        assert answer == "done"
        assert await first == "done"
    assert notices.texts[0].startswith(f"worker it polls task queue '{thread_id}'")
    assert "busy" in notices.texts[0]
    assert notices.seconds[0] < SECONDS_MAX


async def wait_for_tool(client: Client, thread_id: str) -> None:
    async with asyncio.timeout(90):
        while True:
            with contextlib.suppress(EverlongError):
                if (await read_status(client, thread_id)).counters.steps:
                    return
            await asyncio.sleep(0.05)


class Slow(PayloadCodec):
    """Decodes so slowly that workflow tasks keep their slots."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        await asyncio.sleep(4)
        return list(payloads)


@pytest.mark.usefixtures("short_looks")
async def test_a_worker_without_a_slot_for_workflow_tasks_is_busy_and_not_missing(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client = await connect(server, store)
    slow_client = await Client.connect(
        server.address,
        data_converter=DataConverter(payload_codec=Slow()),
        plugins=[EverlongPlugin(store=store, agents=[reading_agent(1)])],
    )
    worker = Worker(
        slow_client,
        task_queue=thread_id,
        workflows=[Theirs],
        identity="it",
        max_concurrent_workflow_tasks=2,
    )
    async with worker:
        for number in range(2):
            await client.start_workflow(
                Theirs.run, "x", id=f"{thread_id}-{number}", task_queue=thread_id
            )
        await asyncio.sleep(0.5)
        async with open_caller(client, thread_id) as (notices, _):
            notice = await notices.first()
    assert notice.startswith(f"worker it polls task queue '{thread_id}' and has not taken")
    assert "workflow task yet: it is busy" in notice


@pytest.mark.usefixtures("short_looks")
async def test_a_working_thread_is_not_diagnosed(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    agent = Agent(name="ops", model=ScriptedModel(slow_script), tools=[slow])
    client = await connect(server, store, agents=[agent])
    async with (
        Worker(client, task_queue=thread_id),
        open_caller(client, thread_id) as (notices, answer),
    ):
        assert await answer == "done"
    assert notices.texts == []


@workflow.defn
class Theirs:
    @workflow.run
    async def run(self, text: str) -> str:
        return text


@pytest.mark.guarantee(44)
async def test_a_worker_without_the_plugin_is_recognised_by_its_failure(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client = await connect(server, store)
    plain = await Client.connect(server.address)
    async with (
        Worker(plain, task_queue=thread_id, workflows=[Theirs], identity="it"),
        open_caller(client, thread_id) as (notices, _),
    ):
        notice = await notices.first()
        assert notice.startswith("worker it runs without EverlongPlugin, or without its agents")
        assert "Workflow class everlong.Agent is not registered" in notice
        own = f"{thread_id}-own"
        await client.start_workflow(Theirs.run, "x" * 20_000, id=own, task_queue=thread_id)
        found = await wait_for_diagnosis(client, own, "no_plugin")
        await client.get_workflow_handle(own).terminate()
    assert "Unknown payload encoding binary/everlong" in found.text


async def wait_for_diagnosis(client: Client, thread_id: str, kind: str) -> Diagnosis:
    async with asyncio.timeout(3 * SECONDS_MAX):
        while True:
            found = await diagnose(client, thread_id)
            if found is not None and found.kind == kind:
                return found
            await asyncio.sleep(0.2)


class CallCounter:
    """Counts the calls of a workflow service."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._service, name)


async def test_a_diagnosis_takes_four_calls_at_most(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(server, store, agents=[reading_agent(1)])
    async with (
        Worker(client, task_queue=thread_id),
        open_caller(client, thread_id, agent="opps") as (notices, _),
    ):
        await notices.first()
        counting = CallCounter(client.workflow_service)
        monkeypatch.setattr(Client, "workflow_service", counting)
        found = await diagnose(client, thread_id)
        monkeypatch.undo()
    assert found is None or found.kind == "no_agent"
    assert len(counting.calls) <= 4


def test_the_command_prints_the_diagnosis_on_standard_error(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "everlong", "send", thread_id, "hello", "--agent", "ops"],
        cwd=tmp_path,
        env={
            **os.environ,
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "TEMPORAL_ADDRESS": server.address,
            "EVERLONG_STORE": (tmp_path / "blobs").as_uri(),
            "EVERLONG_TASK_QUEUE": thread_id,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
    finally:
        process.kill()
        process.communicate(timeout=10)
    assert line.startswith(f"{thread_id} waits: no worker polls task queue '{thread_id}': start")
