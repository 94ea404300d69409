"""Harness of the thread benchmarks: a client, a store, worker processes, and readers of histories."""

import asyncio
import contextlib
import dataclasses
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from bench import worker_log
from bench.thread_agent import GATE
from everlong import EverlongPlugin, Policy, ThreadStart, open_store
from everlong.config import drop_temporal_variables
from everlong.embedded import ManagedProcess
from everlong.models import (
    AGENT_WORKFLOW,
    CALL_MODEL,
    SEND_UPDATE,
    STATUS_QUERY,
    SendMessage,
    ThreadStatus,
)
from everlong.storage import BlobStore

AGENT: Final = "reader"
_ROOT: Final = Path(__file__).parents[1]
_READY_SECONDS_MAX: Final = 60.0
_SEND_SECONDS_MAX: Final = 30.0
_ANSWER_SECONDS_MAX: Final = 600.0
_POLL_SECONDS: Final = 0.2


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a thread, with its history."""

    run_id: str
    events: Sequence[HistoryEvent] = dataclasses.field(repr=False)
    history_bytes: int
    """Size that the server reports."""
    start: ThreadStart


class ThreadHarness:
    """A client, a store, and the worker processes of one task queue."""

    def __init__(self, client: Client, address: str, store_url: str, folder: Path) -> None:
        self.client = client
        self.store: BlobStore = open_store(store_url)
        self.queue = f"bench-{uuid.uuid4().hex[:8]}"
        self.gate = folder / f"{self.queue}.open"
        self.workers: list[ManagedProcess] = []
        self._address = address
        self._store_url = store_url
        self._folder = folder

    async def start_worker(self, sticky_seconds: str = "") -> ManagedProcess:
        """Start another worker, with empty caches; return once it polls."""
        arguments = [sys.executable, "-m", "bench.thread_worker"]
        arguments += [self._address, self.queue, self._store_url, sticky_seconds]
        name = f"{self.queue}-{len(self.workers)}"
        environment = {
            **drop_temporal_variables(),
            "PYTHONPATH": str(_ROOT),
            GATE: str(self.gate),
        }
        worker = ManagedProcess(name, arguments, env=environment, log=self._folder / f"{name}.log")
        self.workers.append(worker)
        await worker.wait_for_output(worker_log.format_line_end("ready"), _READY_SECONDS_MAX)
        return worker

    def stop_workers(self) -> None:
        """Stop all workers."""
        for worker in self.workers:
            worker.stop()

    async def start(self, thread_id: str, policy: Policy) -> None:
        """Start a thread with this policy."""
        await self.client.start_workflow(
            AGENT_WORKFLOW,
            ThreadStart(agent=AGENT, policy=policy),
            id=thread_id,
            task_queue=self.queue,
        )

    async def send(self, thread_id: str, text: str) -> int:
        """Send a message; the first one starts the thread."""
        operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            AGENT_WORKFLOW,
            ThreadStart(agent=AGENT),
            id=thread_id,
            task_queue=self.queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        number: int = await self.client.execute_update_with_start_workflow(
            SEND_UPDATE,
            SendMessage(text=text),
            start_workflow_operation=operation,
            result_type=int,
            rpc_timeout=timedelta(seconds=_SEND_SECONDS_MAX),
        )
        return number

    async def ask(
        self,
        thread_id: str,
        text: str,
        on_status: Callable[[ThreadStatus], None] = lambda _: None,
    ) -> ThreadStatus:
        """Send a message and wait for its answer."""
        number = await self.send(thread_id, text)
        return await self.wait_for_answer(thread_id, number, on_status)

    async def wait_for_answer(
        self,
        thread_id: str,
        number: int,
        on_status: Callable[[ThreadStatus], None] = lambda _: None,
    ) -> ThreadStatus:
        """Wait until the message with this number has been answered."""
        return await self.wait_until(thread_id, lambda s: s.counters.answered >= number, on_status)

    async def wait_until(
        self,
        thread_id: str,
        done: Callable[[ThreadStatus], bool],
        on_status: Callable[[ThreadStatus], None] = lambda _: None,
    ) -> ThreadStatus:
        """Wait until `done` holds for the status. Queries add nothing to the history."""
        handle = self.client.get_workflow_handle(thread_id)
        async with asyncio.timeout(_ANSWER_SECONDS_MAX):
            while True:
                # A worker that starts after a kill may not poll yet: the server then refuses queries.
                with _allow_no_worker():
                    status: ThreadStatus = await handle.query(
                        STATUS_QUERY, result_type=ThreadStatus
                    )
                    on_status(status)
                    if done(status):
                        return status
                await asyncio.sleep(_POLL_SECONDS)

    async def run_events(self, thread_id: str) -> int:
        """Return the number of events of the current run."""
        described = await self.client.get_workflow_handle(thread_id).describe()
        return int(described.raw_description.workflow_execution_info.history_length)

    async def runs(self, thread_id: str) -> list[Run]:
        """Return all runs of a thread, oldest first."""
        found: list[Run] = []
        run_id: str | None = None  # The newest.
        while run_id != "":
            handle = self.client.get_workflow_handle(thread_id, run_id=run_id)
            described = await handle.describe()
            handle = self.client.get_workflow_handle(thread_id, run_id=described.run_id)
            events = [event async for event in handle.fetch_history_events()]
            started = events[0].workflow_execution_started_event_attributes
            [start] = await self.client.data_converter.decode(started.input.payloads, [ThreadStart])
            info = described.raw_description.workflow_execution_info
            found.append(Run(described.run_id, events, info.history_size_bytes, start))
            run_id = started.continued_execution_run_id
        return found[::-1]


def count_model_calls(runs: Sequence[Run]) -> Iterator[tuple[HistoryEvent, int]]:
    """Yield every event of a thread with the number of model calls that ended before it."""
    ended = 0
    for run in runs:
        scheduled = set()
        for event in run.events:
            yield event, ended
            if event.activity_task_scheduled_event_attributes.activity_type.name == CALL_MODEL:
                scheduled.add(event.event_id)
            ended += event.activity_task_completed_event_attributes.scheduled_event_id in scheduled


@contextlib.asynccontextmanager
async def open_harness(address: str, folder: Path) -> AsyncIterator[ThreadHarness]:
    """Open a harness with its own store; its workers are stopped on exit."""
    url = (folder / f"blobs-{uuid.uuid4().hex[:8]}").as_uri()
    client = await Client.connect(address, plugins=[EverlongPlugin(store=url)])
    harness = ThreadHarness(client, address, url, folder)
    try:
        yield harness
    finally:
        harness.stop_workers()


@contextlib.contextmanager
def _allow_no_worker() -> Iterator[None]:
    try:
        yield
    except RPCError as error:
        if error.status != RPCStatusCode.FAILED_PRECONDITION:
            raise
