"""One resume span for every cold resume, and none otherwise."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner

from everlong.embedded import TemporalServer
from everlong.interceptors.resume import PARTS, ResumeHook
from everlong.storage import BlobStore
from everlong.telemetry.spans import RESUME
from tests.support.scripted_agents import reading_agent
from tests.support.threads import Threads, open_threads


@workflow.defn
class Patient:
    """Collects signals until it is asked to end."""

    def __init__(self) -> None:
        self._notes: list[str] = []

    @workflow.run
    async def run(self) -> int:
        await workflow.wait_condition(lambda: "end" in self._notes)
        return len(self._notes)

    @workflow.signal
    def note(self, text: str) -> None:
        self._notes.append(text)

    @workflow.query
    def count(self) -> int:
        return len(self._notes)


def list_resumes(threads: Threads) -> list[ReadableSpan]:
    return [span for span in threads.spans.get_finished_spans() if span.name == RESUME]


def spans(threads: Threads) -> list[dict[str, Any]]:
    return [dict(span.attributes or {}) for span in list_resumes(threads)]


def duration(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def list_parts(span: dict[str, Any]) -> list[float]:
    return [span[f"everlong.resume.{part}_seconds"] for part in PARTS]


@pytest.mark.guarantee(37)
@pytest.mark.parametrize("sandboxed", [True, False])
async def test_a_cold_resume_is_one_span_and_a_warm_step_is_none(
    server: TemporalServer, store: BlobStore, thread_id: str, sandboxed: bool
) -> None:
    options = {} if sandboxed else {"workflow_runner": UnsandboxedWorkflowRunner()}
    async with open_threads(server.address, store) as threads:
        handle = None
        async with threads.worker(workflows=[Patient], **options):
            handle = await threads.client.start_workflow(
                Patient.run, id=thread_id, task_queue=threads.task_queue
            )
            for i in range(5):
                await handle.signal(Patient.note, f"{i}")
                assert await handle.query(Patient.count) == i + 1
        assert spans(threads) == []
        async with threads.worker(workflows=[Patient], **options):
            await handle.signal(Patient.note, "cold")
            await handle.signal(Patient.note, "end")
            assert await handle.result() == 7
        [span] = spans(threads)
        assert span["gen_ai.conversation.id"] == thread_id
        assert span["everlong.run.id"] == handle.first_execution_run_id
        assert span["everlong.resume.end"] == "live"
        assert isinstance(span["everlong.resume.events"], int)
        assert span["everlong.resume.events"] >= 10
        assert span["everlong.resume.cause"] == "new_worker"
        assert span["everlong.resume.attempt"] == 1
        [resume] = list_resumes(threads)
        assert 0 < duration(resume) < 5
        assert sum(list_parts(span)) == pytest.approx(duration(resume))
        assert resume.context is not None
        children = [
            each
            for each in threads.spans.get_finished_spans()
            if each.parent is not None and each.parent.span_id == resume.context.span_id
        ]
        assert [each.name for each in children] == [f"{RESUME}.{part}" for part in PARTS]
        assert [duration(each) for each in children] == pytest.approx(list_parts(span))
        starts = [each.start_time for each in children]
        assert [resume.start_time, *(each.end_time for each in children)] == [
            *starts,
            resume.end_time,
        ]


async def test_a_query_of_a_closed_run_is_a_resume_that_ends_with_the_query(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store) as threads:
        async with threads.worker(workflows=[Patient]):
            handle = await threads.client.start_workflow(
                Patient.run, id=thread_id, task_queue=threads.task_queue
            )
            await handle.signal(Patient.note, "end")
            await handle.result()
        async with threads.worker(workflows=[Patient]):
            assert await handle.query(Patient.count) == 1
        [span] = spans(threads)
        assert span["everlong.resume.end"] == "query"
        assert span["everlong.resume.cause"] == "closed"


@pytest.mark.guarantee(37)
async def test_an_evicted_thread_resumes_with_a_span_each_time(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store) as threads:
        async with threads.worker(workflows=[Patient], max_cached_workflows=0):
            handle = await threads.client.start_workflow(
                Patient.run, id=thread_id, task_queue=threads.task_queue
            )
            for i in range(3):
                assert await handle.query(Patient.count) == i
                await handle.signal(Patient.note, f"{i}")
                while await handle.query(Patient.count) == i:
                    await asyncio.sleep(0.02)
            await handle.signal(Patient.note, "end")
            await handle.result()
        live = [span for span in spans(threads) if span["everlong.resume.end"] == "live"]
        assert len(live) == 4


FAILURES: list[int] = []


@workflow.defn(sandboxed=False)
class Fragile:
    """Fails its task twice once it is asked to go on."""

    def __init__(self) -> None:
        self._asked = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._asked)
        if len(FAILURES) < 2:
            FAILURES.append(1)
            raise RuntimeError("for a test")

    @workflow.signal
    def go(self) -> None:
        self._asked = True

    @workflow.query
    def is_asked(self) -> bool:
        return self._asked


async def test_the_span_of_a_retried_task_has_its_attempt(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    FAILURES.clear()
    async with open_threads(server.address, store) as threads:
        async with threads.worker(workflows=[Fragile]):
            handle = await threads.client.start_workflow(
                Fragile.run, id=thread_id, task_queue=threads.task_queue
            )
            assert not await handle.query(Fragile.is_asked)  # Its first task is over.
            await handle.signal(Fragile.go)
            await handle.result()
        recorded = [
            (span["everlong.resume.cause"], span["everlong.resume.attempt"])
            for span in spans(threads)
            if span["everlong.resume.end"] == "live"
        ]
        assert recorded == [("failure", 2), ("failure", 3)]


@pytest.mark.guarantee(37)
async def test_rolls_are_not_resumes(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(40)) as threads, threads.worker():
        await threads.send(thread_id, "read")
        status = await threads.wait_for_answers(thread_id, 1)
        assert status.counters.runs == 2
        # A question that meets the run which has just rolled may replay that one.
        assert [span for span in spans(threads) if span["everlong.resume.end"] != "query"] == []


@pytest.mark.guarantee(37)
async def test_a_hook_that_fails_does_not_fail_the_workflow(
    server: TemporalServer,
    store: BlobStore,
    thread_id: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the hook is broken for a test")

    monkeypatch.setattr(ResumeHook, "after_activation", broken)
    async with open_threads(server.address, store) as threads:
        async with threads.worker(workflows=[Patient]):
            handle = await threads.client.start_workflow(
                Patient.run, id=thread_id, task_queue=threads.task_queue
            )
            await handle.signal(Patient.note, "end")
            assert await handle.result() == 1
    assert "the hook is broken for a test" in caplog.text
