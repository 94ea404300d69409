"""Spans of a whole thread, as an operator's backend receives them: each once, under its parent."""

import asyncio
import contextlib
import copy
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowUpdateFailedError

from everlong import EverlongPlugin
from everlong.client.updates import send
from everlong.client.wait import wait_for_status
from everlong.embedded import ManagedProcess, TemporalServer
from everlong.interceptors.resume import PARTS
from everlong.models import DECIDE_UPDATE, STATUS_QUERY, Decide, Entry, Kind
from everlong.telemetry.spans import (
    ACT,
    APPROVAL,
    CONTINUE_AS_NEW,
    OFFLOAD,
    RESUME,
    derive_trace_id,
)
from tests.support.exporting_worker import READY
from tests.support.otlp_receiver import ReceivedTelemetry, Span, grpc_receiver, http_receiver
from tests.support.threads import read_journal

RECEIVERS = {"http/protobuf": http_receiver, "grpc": grpc_receiver}


class TracedThread:
    """One thread, its workers, and their spans and metrics."""

    def __init__(
        self, client: Client, received: ReceivedTelemetry, queue: str, thread_id: str, start: Any
    ) -> None:
        self.client = client
        self.received = received
        self.queue = queue
        self.thread_id = thread_id
        self._start = start
        self.sent = 0
        self.worker: ManagedProcess | None = None

    async def begin_worker(self) -> None:
        self.worker = self._start()
        assert self.worker is not None
        await self.worker.wait_for_output(READY, 60)

    async def say(self, text: str, thread_id: str = "") -> None:
        await send(
            self.client, thread_id or self.thread_id, text, task_queue=self.queue, agent="seen"
        )
        if not thread_id:
            self.sent += 1

    def spans(self, name: str, thread_id: str = "") -> list[Span]:
        wanted = thread_id or self.thread_id
        return [
            span
            for span in list(self.received.spans)
            if span.name.partition(" ")[0] == name
            and span.attributes.get("gen_ai.conversation.id") == wanted
        ]

    def wait(self, name: str, count: int, thread_id: str = "") -> None:
        self.received.wait(lambda _: len(self.spans(name, thread_id)) >= count, 30)

    def count_answers(self) -> int:
        outcomes = [span.attributes["everlong.turn.outcome"] for span in self.spans("invoke_agent")]
        return outcomes.count("answered")

    def wait_for_answers(self, count: int) -> None:
        self.received.wait(lambda _: self.count_answers() >= count, 30)

    def look(self) -> None:
        """Keep what has arrived: what the next question adds is not looked at."""
        self.received = copy.copy(self.received)
        self.received.spans = list(self.received.spans)

    async def runs(self) -> dict[str, list[HistoryEvent]]:
        """The histories of all runs, in order: what is true, whatever the spans say."""
        found: dict[str, list[HistoryEvent]] = {}
        description = await self.client.get_workflow_handle(self.thread_id).describe()
        run_id = description.raw_description.workflow_execution_info.first_run_id
        while run_id:
            handle = self.client.get_workflow_handle(self.thread_id, run_id=run_id)
            events = [event async for event in handle.fetch_history_events()]
            found[run_id] = events
            last = events[-1].workflow_execution_continued_as_new_event_attributes
            run_id = last.new_execution_run_id
        return found


@contextlib.contextmanager
def workers(
    address: str, queue: str, store: str, protocol: str, received: ReceivedTelemetry, logs: Path
) -> Iterator[Any]:
    started: list[ManagedProcess] = []
    environ = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": received.url,
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }

    def start() -> ManagedProcess:
        command = [sys.executable, "-m", "tests.support.exporting_worker", address, queue, store]
        log = logs / f"worker-{len(started)}.log"
        started.append(ManagedProcess("seen worker", command, log=log, env=environ))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.stop()


@pytest.mark.guarantee(79)
@pytest.mark.parametrize(
    "protocol", ["http/protobuf", pytest.param("grpc", marks=pytest.mark.full)]
)
async def test_every_span_of_a_thread_arrives_once_under_its_parent(
    server: TemporalServer, tmp_path: Path, thread_id: str, protocol: str
) -> None:
    store = (tmp_path / "blobs").as_uri()
    queue = f"queue-{thread_id}"
    plugin = EverlongPlugin(store=store)
    client = await Client.connect(server.address, plugins=[plugin])
    with (
        RECEIVERS[protocol]() as received,
        workers(server.address, queue, store, protocol, received, tmp_path) as start,
    ):
        life = TracedThread(client, received, queue, thread_id, start)
        await run_scenario(life)
        runs = await life.runs()
        life.wait(CONTINUE_AS_NEW, len(runs) - 1)
        life.look()
        entries = await read_journal(client, plugin.packs, thread_id)
        check_counts(life, runs, [entry for entry in entries if entry.ref is not None])
        check_traces(life, list(runs))
        check_resumes(life)
        check_people(life)


async def run_scenario(life: TracedThread) -> None:
    """Three rolls, an approval that is asked for on one worker and decided on another, a crash, an
    eviction, and a query of a closed run. No status query: it could be a resume.
    """
    await life.begin_worker()
    while len(life.spans(CONTINUE_AS_NEW)) < 3:
        assert life.sent < 8
        await life.say("read 4")
        life.wait_for_answers(life.sent)
    before = len(life.spans("chat"))
    await life.say("deploy")
    life.wait("chat", before + 1)
    approval = await wait_for_approval(life)
    # A worker exports every 0.1 s. Spans that it has not exported are lost when it is killed.
    life.wait(CONTINUE_AS_NEW, len(await life.runs()) - 1)
    await asyncio.sleep(0.5)
    assert life.worker is not None
    life.worker.kill()
    await life.begin_worker()
    handle = life.client.get_workflow_handle(life.thread_id)
    await handle.execute_update(DECIDE_UPDATE, Decide(id=approval, approve=True, by="ada"))
    life.wait_for_answers(life.sent)
    other = f"{life.thread_id}-other"
    await life.say("read 0", other)  # There is room for one thread.
    await wait_for_status(
        life.client, other, lambda status: status.counters.answered == 1, seconds_max=90
    )
    await life.say("read 0")
    life.wait_for_answers(life.sent)
    [first, *_] = await life.runs()
    closed = life.client.get_workflow_handle(life.thread_id, run_id=first)
    await closed.query(STATUS_QUERY)
    life.wait(RESUME, 3)


async def wait_for_approval(life: TracedThread) -> str:
    """Return the id of the approval, once it waits.

    Read from the rejection of a wrong decision: a query could meet a continue-as-new, and be a resume.
    """
    deadline = time.monotonic() + 90
    handle = life.client.get_workflow_handle(life.thread_id)
    while time.monotonic() < deadline:
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(DECIDE_UPDATE, Decide(id="none", approve=True, by="ada"))
        if found := re.search(r"waiting: (\S+)", str(refused.value.cause)):
            return found[1]
        await asyncio.sleep(0.05)
    raise AssertionError("no approval waits")


def check_counts(
    life: TracedThread, runs: dict[str, list[HistoryEvent]], stored: list[Entry]
) -> None:
    activities = Counter(
        event.activity_task_scheduled_event_attributes.activity_type.name
        for events in runs.values()
        for event in events
        if event.HasField("activity_task_scheduled_event_attributes")
    )
    carried = sum(
        1
        for span in life.spans("invoke_agent")
        if span.attributes["everlong.turn.outcome"] != "answered"
    )
    expected = {
        "chat": activities["everlong.call_model"],
        "execute_tool": activities["everlong.run_tool"],
        "everlong.compact": activities["everlong.compact"],
        "invoke_agent": life.sent + carried,
        # One for each result by which the store grew. Repeats of a result have none.
        OFFLOAD: len({entry.ref for entry in stored if entry.kind == Kind.TOOL_RESULT}),
        CONTINUE_AS_NEW: len(runs) - 1,
        APPROVAL: 1,
        ACT: life.sent + 1,
        RESUME: 3,
    }
    found = {name: len(life.spans(name)) for name in expected}
    assert found == expected, causes(life)
    assert len(runs) >= 4
    assert activities["everlong.run_tool"] >= 9
    ids = [span.span_id for span in life.received.spans]
    assert len(set(ids)) == len(ids)


def check_traces(life: TracedThread, runs: list[str]) -> None:
    traces = {f"{derive_trace_id(run_id):032x}": run_id for run_id in runs}
    ends = {span.attributes["everlong.run.id"]: span for span in life.spans(CONTINUE_AS_NEW)}
    for span in life.received.spans:
        if span.attributes.get("gen_ai.conversation.id") != life.thread_id:
            continue
        run_id = traces[span.trace_id]
        assert span.attributes["everlong.run.id"] == run_id
        place = runs.index(run_id)
        if not span.parent_id and place and span.name not in (CONTINUE_AS_NEW, ACT):
            last = ends[runs[place - 1]]
            assert (last.trace_id, last.span_id) in span.links, span.name
    turns = {span.span_id for span in life.spans("invoke_agent")}
    for name in ("chat", "execute_tool", OFFLOAD):
        assert {span.parent_id for span in life.spans(name)} <= turns, name


def causes(life: TracedThread) -> list[tuple[str, str]]:
    return [
        (each.attributes["everlong.resume.cause"], each.attributes["everlong.resume.end"])
        for each in life.spans(RESUME)
    ]


def check_resumes(life: TracedThread) -> None:
    resumes = life.spans(RESUME)
    assert causes(life) == [("crash", "live"), ("eviction", "live"), ("closed", "query")]
    for resume in resumes:
        whole = (resume.end_ns - resume.start_ns) / 1e9
        parts = [resume.attributes[f"everlong.resume.{part}_seconds"] for part in PARTS]
        assert all(part >= 0 for part in parts)
        assert sum(parts) == pytest.approx(whole)
        children = [span for span in life.received.spans if span.parent_id == resume.span_id]
        assert [each.name for each in children] == [f"{RESUME}.{part}" for part in PARTS]
        taken = [(each.end_ns - each.start_ns) / 1e9 for each in children]
        assert taken == pytest.approx(parts)


def check_people(life: TracedThread) -> None:
    [approval] = life.spans(APPROVAL)
    assert approval.attributes["everlong.approval.decision"] == "approved"
    [tool] = [span for span in life.spans("execute_tool") if span.name.endswith("deploy")]
    [first, *_] = life.spans("chat")
    assert approval.end_ns <= tool.start_ns
    assert approval.resource["service.instance.id"] != first.resource["service.instance.id"]
    assert approval.resource["service.instance.id"] == tool.resource["service.instance.id"]
    kinds = Counter(span.attributes["everlong.act.kind"] for span in life.spans(ACT))
    assert kinds == {"message": life.sent, "approval": 1}
    [acted] = [
        span for span in life.spans(ACT) if span.attributes["everlong.act.kind"] == "approval"
    ]
    assert acted.start_ns <= tool.start_ns
    assert abs(acted.end_ns - tool.start_ns) < 1e9
    text = str([span.attributes for span in life.received.spans])
    assert "deployed" not in text


@pytest.mark.guarantee(37)
async def test_a_query_that_comes_first_after_a_kill_counts_as_a_crash(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store = (tmp_path / "blobs").as_uri()
    plugin = EverlongPlugin(store=store)
    client = await Client.connect(server.address, plugins=[plugin])
    protocol = "http/protobuf"
    with (
        http_receiver() as received,
        workers(server.address, thread_id, store, protocol, received, tmp_path) as start,
    ):
        life = TracedThread(client, received, thread_id, thread_id, start)
        await life.begin_worker()
        await life.say("read 0")
        life.wait_for_answers(1)
        assert life.worker is not None
        life.worker.kill()
        await life.begin_worker()
        await client.get_workflow_handle(thread_id).query(STATUS_QUERY)
        life.wait(RESUME, 1)
        assert causes(life) == [("crash", "query")]
        await life.say("read 0")  # The thread is in memory by now.
        life.wait_for_answers(2)
        entries = await read_journal(client, plugin.packs, thread_id)
        resume = life.spans(RESUME)[0]
        [step] = [each.step for each in entries if each.step and each.step.resume_ms]
        assert step.resume_cause == "crash"
        assert step.resume_ms == pytest.approx((resume.end_ns - resume.start_ns) / 1e6, abs=0.1)
        assert causes(life) == [("crash", "query")]
