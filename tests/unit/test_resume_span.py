"""The resume span: its parts, its cause, and what it served."""

import dataclasses
import itertools
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio import workflow
from temporalio.api.enums.v1 import TaskQueueKind, WorkerStatus
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionCompletedEventAttributes,
    WorkflowTaskCompletedEventAttributes,
    WorkflowTaskScheduledEventAttributes,
    WorkflowTaskTimedOutEventAttributes,
)
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    ListWorkersRequest,
    ListWorkersResponse,
)
from temporalio.bridge.proto.workflow_activation import (
    InitializeWorkflow,
    QueryWorkflow,
    RemoveFromCache,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client

from everlong.interceptors.last_worker import LastWorker, WorkerLookup
from everlong.interceptors.resume import PARTS, ResumeHook, ResumeLog
from everlong.interceptors.run_history import RunHistory
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import RESUME

REPLAYED = WorkflowActivationJob(initialize_workflow=InitializeWorkflow(workflow_type="W"))
SIGNAL = WorkflowActivationJob(signal_workflow=SignalWorkflow(signal_name="go"))
QUERY = WorkflowActivationJob(query_workflow=QueryWorkflow(query_id="legacy_query"))
EVICTION = WorkflowActivationJob(remove_from_cache=RemoveFromCache())


@dataclasses.dataclass
class HookHarness:
    """One instance of a run, the hook that watches it, and what that has emitted."""

    hook: ResumeHook
    history: RunHistory
    resumes: ResumeLog
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def activate(self, job: WorkflowActivationJob, *, replaying: bool = True) -> None:
        activation = WorkflowActivation(jobs=[job], is_replaying=replaying, history_length=9)
        activation.timestamp.FromNanoseconds(time.time_ns() - 10**8)
        self.hook.before_activation(activation)
        self.hook.after_activation(activation, WorkflowActivationCompletion())

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    @property
    def resume(self) -> dict[str, Any]:
        return dict(self.spans[RESUME].attributes or {})

    @property
    def counted(self) -> list[dict[str, Any]]:
        data = self.reader.get_metrics_data()
        return [
            dict(point.attributes or {})
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "everlong.resume.duration"
            for point in metric.data.data_points
        ]


def new_harness(resumes: ResumeLog | None = None) -> HookHarness:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    resumes = resumes or ResumeLog(Telemetry(provider, MeterProvider([reader])))
    info = SimpleNamespace(run_id="r", workflow_id="w", workflow_type="W", continued_run_id=None)
    history = RunHistory()
    hook = ResumeHook(resumes, cast("workflow.Info", info), history)
    return HookHarness(hook, history, resumes, exporter, reader)


def make_scheduled_event(queue: str = "") -> HistoryEvent:
    kind = TaskQueueKind.TASK_QUEUE_KIND_STICKY if queue else TaskQueueKind.TASK_QUEUE_KIND_NORMAL
    task = WorkflowTaskScheduledEventAttributes(task_queue=TaskQueue(name=queue or "q", kind=kind))
    return HistoryEvent(workflow_task_scheduled_event_attributes=task)


def make_completed_event(identity: str) -> HistoryEvent:
    return HistoryEvent(
        workflow_task_completed_event_attributes=WorkflowTaskCompletedEventAttributes(
            identity=identity
        )
    )


TIMED_OUT = HistoryEvent(
    workflow_task_timed_out_event_attributes=WorkflowTaskTimedOutEventAttributes()
)
ENDED = HistoryEvent(
    workflow_execution_completed_event_attributes=WorkflowExecutionCompletedEventAttributes()
)


def seconds(span: ReadableSpan) -> float:
    return ((span.end_time or 0) - (span.start_time or 0)) / 1e9


@pytest.mark.guarantee(37)
@pytest.mark.parametrize("end", ["live", "query", "evicted"])
def test_each_part_is_a_child_that_is_as_long_as_its_attribute(end: str) -> None:
    harness = new_harness()
    harness.activate(REPLAYED)
    time.sleep(0.03)
    harness.history.reads.seconds = 0.015
    harness.history.scan_seconds = 0.005
    harness.history.settle_worker(is_lost=False)
    job = {"live": SIGNAL, "query": QUERY, "evicted": EVICTION}[end]
    harness.activate(job, replaying=end != "live")
    children = [harness.spans[f"{RESUME}.{part}"] for part in PARTS]
    recorded_seconds = [harness.resume[f"{RESUME}.{part}_seconds"] for part in PARTS]
    assert [seconds(child) for child in children] == pytest.approx(recorded_seconds)
    assert sum(recorded_seconds) == pytest.approx(seconds(harness.spans[RESUME]))
    assert all(part >= 0 for part in recorded_seconds)
    assert harness.resume[f"{RESUME}.read_seconds"] == pytest.approx(0.015)
    assert harness.resume[f"{RESUME}.scan_seconds"] == pytest.approx(0.005)
    parent = harness.spans[RESUME].context
    for before, after in itertools.pairwise(children):
        assert before.end_time == after.start_time
        assert parent is not None
        assert before.parent is not None
        assert before.parent.span_id == parent.span_id


def test_the_time_in_the_queue_is_a_span_before_the_resume() -> None:
    harness = new_harness()
    harness.activate(REPLAYED)
    harness.history.task.scheduled_ns = time.time_ns() - 3 * 10**9
    harness.history.settle_worker(is_lost=False)
    harness.activate(SIGNAL, replaying=False)
    queue = harness.spans[f"{RESUME}.queue"]
    assert queue.end_time == harness.spans[RESUME].start_time
    assert queue.parent is None
    assert seconds(queue) == pytest.approx(harness.resume[f"{RESUME}.queue_seconds"])
    assert 2.5 < seconds(queue) < 3.5


def test_objects_that_were_read_ahead_from_the_store_are_misses() -> None:
    harness = new_harness()
    harness.activate(REPLAYED)
    harness.history.prefetched.misses, harness.history.prefetched.hits = 4, 1
    harness.history.reads.hits = 5
    harness.history.settle_worker(is_lost=False)
    harness.activate(SIGNAL, replaying=False)
    assert harness.resume[f"{RESUME}.cache.misses"] == 4
    assert harness.resume[f"{RESUME}.cache.hits"] == 1


def test_a_query_after_a_crash_is_a_resume_by_crash() -> None:
    harness = new_harness()
    harness.activate(REPLAYED)
    harness.activate(QUERY)
    assert RESUME not in harness.spans  # The look-up of the last worker is not done yet.
    harness.history.settle_worker(is_lost=True)
    harness.history.settle_worker(is_lost=False)  # The first answer counts.
    assert (harness.resume[f"{RESUME}.cause"], harness.resume[f"{RESUME}.end"]) == (
        "crash",
        "query",
    )
    assert harness.counted == [{"cause": "crash", "end": "query"}]
    last = harness.resumes.last.pop("r")
    assert last is not None
    assert (last.cause, last.events) == ("crash", 9)
    assert last.ms == pytest.approx(1000 * seconds(harness.spans[RESUME]))


@pytest.mark.guarantee(37)
@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ([make_scheduled_event(), make_completed_event("a")], "new_worker"),
        (
            [
                make_scheduled_event(),
                make_completed_event("a"),
                make_scheduled_event("a-1"),
                TIMED_OUT,
            ],
            "crash",
        ),
        ([make_scheduled_event(), make_completed_event("a"), ENDED], "closed"),
    ],
)
@pytest.mark.parametrize("end", ["live", "query"])
def test_the_cause_is_the_same_whatever_the_resume_served(
    events: list[HistoryEvent], cause: str, end: str
) -> None:
    harness = new_harness()
    for event in events:
        harness.history.add(event)
    harness.activate(REPLAYED)
    harness.activate(QUERY if end == "query" else SIGNAL, replaying=end == "query")
    harness.history.settle_worker(is_lost=False)
    assert (harness.resume[f"{RESUME}.cause"], harness.resume[f"{RESUME}.end"]) == (cause, end)


def test_a_query_of_an_evicted_thread_is_a_resume_by_eviction() -> None:
    first = new_harness()
    first.activate(REPLAYED, replaying=False)
    first.activate(EVICTION)
    again = new_harness(first.resumes)
    again.activate(REPLAYED)
    again.activate(QUERY)
    assert first.resume[f"{RESUME}.cause"] == "eviction"
    assert first.resume[f"{RESUME}.end"] == "query"


def test_the_sticky_queue_is_known_once_its_worker_has_done_two_tasks() -> None:
    worker = LastWorker()

    def note(*events: HistoryEvent) -> str:
        for event in events:
            worker.add_event(event.WhichOneof("attributes") or "", event)
        return worker.sticky_queue.name if worker.sticky_queue else ""

    assert note(make_scheduled_event(), make_completed_event("a")) == ""
    assert note(make_scheduled_event("a-1"), make_completed_event("a")) == "a-1"
    assert note(make_scheduled_event("a-1")) == "a-1"
    assert note(make_completed_event("b")) == ""  # Another worker took that one.
    assert note(make_scheduled_event("b-1")) == "b-1"


class Server:
    """Says what pollers each queue has, and which workers it knows; raises for an unknown queue."""

    def __init__(self, *workers: WorkerHeartbeat, **pollers: int) -> None:
        self.workers = workers
        self.pollers = pollers
        self.asked: list[str] = []
        self.namespace = "default"
        self.workflow_service = self

    async def describe_task_queue(
        self, request: DescribeTaskQueueRequest, **_: object
    ) -> DescribeTaskQueueResponse:
        self.asked.append(request.task_queue.name)
        count = self.pollers[request.task_queue.name]
        return DescribeTaskQueueResponse(pollers=[PollerInfo()] * count)

    async def list_workers(self, request: ListWorkersRequest, **_: object) -> ListWorkersResponse:
        self.asked.append(request.query)
        found = [
            WorkerInfo(worker_heartbeat=worker)
            for worker in self.workers
            if request.query == f'WorkerIdentity="{worker.worker_identity}"'
        ]
        return ListWorkersResponse(workers_info=found)


def last_worker(queue: str) -> LastWorker:
    worker = LastWorker()
    for event in (make_scheduled_event(), make_completed_event("a"), make_scheduled_event(queue)):
        worker.add_event(event.WhichOneof("attributes") or "", event)
    return worker


def heartbeat(identity: str, started: int, status: WorkerStatus.ValueType) -> WorkerHeartbeat:
    beat = WorkerHeartbeat(worker_identity=identity, status=status)
    beat.start_time.FromSeconds(started)
    return beat


async def test_a_worker_is_lost_if_its_queue_still_has_pollers() -> None:
    server = Server(killed=1, stopped=0)
    lookup = WorkerLookup(cast("Client", server))
    queues = ["killed", "stopped", "unknown", "killed", "stopped", "unknown"]
    found = [await lookup.is_lost(last_worker(name)) for name in queues]
    assert found == [True, False, False] * 2
    assert server.asked == ["killed", "stopped", "unknown"]  # Each once, however many threads ask.


async def test_a_worker_without_a_known_queue_is_lost_if_it_is_listed_as_running() -> None:
    running, stopping = (
        WorkerStatus.WORKER_STATUS_RUNNING,
        WorkerStatus.WORKER_STATUS_SHUTTING_DOWN,
    )
    server = Server(
        heartbeat("killed", 100, running),
        heartbeat("stopped", 100, stopping),
        heartbeat("stopped", 300, running),  # The next process has the same identity.
    )
    lookup = WorkerLookup(cast("Client", server))
    found = [
        await lookup.is_lost(LastWorker(identity=identity, completed_ns=200 * 10**9))
        for identity in ("killed", "stopped", "unknown", 'a "quoted" one', "")
    ]
    assert found == [True, False, False, False, False]
