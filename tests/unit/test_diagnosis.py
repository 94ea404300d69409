"""Diagnoses: read from a failed task of a worker, and added to an error."""

import asyncio
import contextlib
import itertools
import time
from typing import cast

import pytest
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client

from everlong.client import diagnosis
from everlong.client.diagnosis import (
    Diagnosis,
    Fault,
    Watch,
    compute_look_seconds,
    explain_agent,
    explain_fault,
)
from everlong.client.errors import START_ONE
from everlong.client.status import read_held_reason
from everlong.errors import KeyMissing, NoWorker
from everlong.models import HELD


@pytest.mark.parametrize(
    ("types", "message", "kind", "text"),
    [
        (
            ("KeyMissing",),
            "stored bytes are sealed with key 'a'",
            "unreadable",
            "worker it cannot read what this client writes: run everlong doctor (KeyMissing: stored",
        ),
        (
            (HELD,),
            "BlobMissing: pack 'x' is missing",
            "unreadable",
            "worker it cannot read what this client writes: run everlong doctor (BlobMissing: pack",
        ),
        ((HELD,), "StoreUnavailable: no route", "no_store", "worker it cannot reach the store"),
        ((HELD,), "something else", "held", "held on worker it: something else"),
        (
            ("RuntimeError", "KeyError"),
            "Failed decoding arguments: 'Unknown payload encoding binary/everlong-ref'",
            "no_plugin",
            "worker it runs without EverlongPlugin",
        ),
        (
            ("NotFoundError",),
            "Workflow class everlong.Agent is not registered on this worker, available: A",
            "no_plugin",
            "worker it runs without EverlongPlugin",
        ),
        (("ValueError",), "a bug", "failing", "tasks fail on worker it: a bug. See its log"),
    ],
)
def test_a_fault_is_explained_with_the_worker_and_the_remedy(
    types: tuple[str, ...], message: str, kind: str, text: str
) -> None:
    found = explain_fault(Fault("it", types, message))
    assert found.kind == kind
    assert found.text.startswith(text)


def make_missing_agent_fault(worker: str, agents: list[str]) -> Fault:
    return Fault(worker, (HELD,), f"a worker runs no agent 'opps', only {agents}. Start one")


def test_an_agent_of_another_worker_is_not_called_missing() -> None:
    faults = [
        make_missing_agent_fault("b", ["ops"]),
        make_missing_agent_fault("a", ["deploy", "ops"]),
    ]
    found = explain_agent("q", faults, {"a", "b"})
    assert found.text.startswith(
        "no worker has agent 'opps'; workers have: deploy, ops. Did you mean ops? Start"
    )
    found = explain_agent("q", faults[:1], {"a", "b"})
    assert found.text.startswith("worker b has no agent 'opps'; it has: ops. Start")
    assert found.text.endswith("or wait for another")
    assert (
        "workers have: none" in explain_agent("q", [make_missing_agent_fault("a", [])], ["a"]).text
    )


async def test_a_diagnosis_replaces_general_advice() -> None:
    watch = Watch(await Client.connect("127.0.0.1:1", lazy=True), "ops-7")
    watch.latest = Diagnosis("busy", "worker it is busy")
    watch._diagnosed_at = time.monotonic()
    error = await watch.explain(NoWorker(f"no worker answers. {START_ONE} Look again."))
    assert str(error) == "no worker answers. Worker it is busy. Look again."
    error = await watch.explain(NoWorker("it cannot take it now."))
    assert str(error) == "it cannot take it now. Worker it is busy."


async def test_the_error_stays_unchanged_without_a_server() -> None:
    watch = Watch(await Client.connect("127.0.0.1:1", lazy=True), "ops-7")
    error = NoWorker(f"no worker answers. {START_ONE}")
    assert await watch.explain(error) is error


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every diagnosis find the same, at once."""

    async def describe(*_: object) -> DescribeWorkflowExecutionResponse:
        return DescribeWorkflowExecutionResponse()

    async def diagnose(*_: object) -> Diagnosis:
        return Diagnosis("busy", "it is busy")

    monkeypatch.setattr(diagnosis, "_describe", describe)
    monkeypatch.setattr(diagnosis, "_diagnose", diagnose)
    monkeypatch.setattr(diagnosis, "FIRST_SECONDS", 0.0)


@pytest.mark.usefixtures("found")
async def test_a_report_that_fails_does_not_fail_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    reported = asyncio.Event()

    def report(text: str) -> None:
        reported.set()
        raise BrokenPipeError

    async with asyncio.timeout(10), Watch(cast("Client", None), "t", report) as watch:
        await reported.wait()
        await asyncio.sleep(0)
    assert watch.latest == Diagnosis("busy", "it is busy")
    assert "was not reported" in caplog.text


@pytest.mark.usefixtures("found")
async def test_a_failing_callback_about_holds_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def held_by(*_: object) -> str:
        return "the store is away"

    def fail(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(diagnosis, "read_held_reason", held_by)
    async with asyncio.timeout(10), Watch(cast("Client", None), "t") as watch:
        watch.on_held = fail
        while watch.latest is None:
            await asyncio.sleep(0.01)
        assert watch._task is not None
        assert not watch._task.done()
    assert watch.held_by == "the store is away"
    assert "was not reported" in caplog.text


@pytest.mark.usefixtures("found")
async def test_unreadable_heartbeats_do_not_undo_a_diagnosis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def held_by(*_: object) -> str:
        raise KeyMissing("sealed with key 'a'")

    monkeypatch.setattr(diagnosis, "read_held_reason", held_by)
    watch = Watch(cast("Client", None), "t")
    watch.held_by = "what was read before"
    await watch._diagnose()
    assert watch.latest == Diagnosis("busy", "it is busy")
    assert watch.held_by == "what was read before"


async def test_heartbeats_of_other_activities_are_not_decoded() -> None:
    theirs, ours = PendingActivityInfo(), PendingActivityInfo()
    theirs.activity_type.name = "deploy"
    theirs.heartbeat_details.payloads.add(metadata={"encoding": b"theirs"}, data=b"?")
    ours.activity_type.name = "everlong.call_model"
    ours.heartbeat_details.payloads.add(metadata={"encoding": b"json/plain"}, data=b'"a slot"')
    client = await Client.connect("127.0.0.1:1", lazy=True)
    assert await read_held_reason(client, [theirs, ours]) == "a slot"


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(("age_seconds", "text"), [(3.0, "It is busy."), (1.0, "No worker polls.")])
async def test_a_fresh_diagnosis_makes_a_caller_give_up(age_seconds: float, text: str) -> None:
    watch = Watch(cast("Client", None), "t")
    watch.latest = Diagnosis("no_worker", "no worker polls")
    watch._diagnosed_at = time.monotonic() - age_seconds
    assert str(await watch.explain(NoWorker(START_ONE))) == text
    assert watch.finds_workers == (age_seconds > 2)


@pytest.mark.usefixtures("found")
async def test_an_idle_thread_is_checked_soon_after_new_work() -> None:
    async with asyncio.timeout(10), Watch(cast("Client", None), "t") as watch:
        watch.set_quiet(True)
        while watch.latest is None:
            await asyncio.sleep(0.01)
        watch.latest = None
        await asyncio.sleep(0.1)
        assert watch.latest is None, "a minute has not passed"
        watch.set_quiet(False)
        while watch.latest is None:
            await asyncio.sleep(0.01)


async def test_waits_of_one_connection_share_a_listing_of_pollers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = await Client.connect("127.0.0.1:1", lazy=True)
    listed: list[str] = []

    async def list_pollers(_: Client, queue: str, __: object) -> list[object]:
        listed.append(queue)
        return []

    monkeypatch.setattr(diagnosis, "_list_pollers", list_pollers)
    for queue in ("a", "a", "b", "a"):
        await diagnosis._get_pollers(client, queue, diagnosis._WORKFLOWS)
    assert listed == ["a", "b"]
    monkeypatch.setattr(diagnosis, "_LISTED_SECONDS", 0.0)
    await diagnosis._get_pollers(client, "a", diagnosis._WORKFLOWS)
    assert listed == ["a", "b", "a"]


def test_a_healthy_thread_is_checked_a_few_times() -> None:
    elapsed, looks = diagnosis.FIRST_SECONDS, 1
    while (elapsed := elapsed + compute_look_seconds(elapsed)) <= 100:
        looks += 1
    assert looks <= 7
    assert compute_look_seconds(0) == diagnosis.SECOND_SECONDS
    assert [compute_look_seconds(each) for each in (100, 600, 1e6)] == [20, 30, 60]


@pytest.mark.usefixtures("found")
async def test_waits_of_one_process_diagnose_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times: list[float] = []

    async def describe(*_: object) -> DescribeWorkflowExecutionResponse:
        times.append(time.monotonic())
        return DescribeWorkflowExecutionResponse()

    monkeypatch.setattr(diagnosis, "_describe", describe)
    monkeypatch.setattr(diagnosis, "_TURN_SECONDS", 0.05)
    async with asyncio.timeout(30), contextlib.AsyncExitStack() as stack:
        for number in range(20):
            watch = Watch(cast("Client", None), str(number))
            await stack.enter_async_context(watch)
        while len(times) < 4:
            await asyncio.sleep(0.01)
    assert all(after - before >= 0.04 for before, after in itertools.pairwise(times))


async def test_a_cancelled_caller_stays_cancelled_while_its_watch_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, ending = asyncio.Event(), asyncio.Event()

    async def run(watch: Watch) -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            ending.set()
            await asyncio.sleep(0.01)

    async def wait() -> str:
        async with Watch(cast("Client", None), "t"):
            await begun.wait()
        return "not cancelled"

    monkeypatch.setattr(Watch, "_run", run)
    caller = asyncio.create_task(wait())
    await ending.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
