"""Prefetch on resume: fetches the payloads of a replay concurrently.

The SDK decodes the payloads of a replay one after another. At 60 ms a GET, 250 results take longer than
the timeout of a workflow task, so the workflow would never resume. When a replay begins, the refs in its
history that workflow code consumes (results, signals, updates; not recorded inputs) are fetched into the
cache, with bounded concurrency. The prefetch only warms the cache: the decode reports any fault itself.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator
from typing import Any, Final, Protocol, Self

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import SerializationContext, WorkflowSerializationContext

from everlong import limits
from everlong.codecs.payloads import walk_encoded_payloads
from everlong.interceptors.activation import ActivationHook
from everlong.interceptors.last_worker import ThisWorker, WorkerLookup
from everlong.interceptors.run_history import RunHistory, in_event_loop
from everlong.interceptors.sdk_internals import WorkflowActivation
from everlong.storage.instrumented import READS

logger = logging.getLogger(__name__)

# The server logs a warning for larger pages.
_PAGE_EVENTS: Final = 256
# Events whose payloads a replay passes to workflow code: not inputs of activities and children.
_CONSUMED: Final = (
    "workflow_execution_started_event_attributes",
    "activity_task_completed_event_attributes",
    "activity_task_failed_event_attributes",
    "activity_task_canceled_event_attributes",
    "marker_recorded_event_attributes",
    "workflow_execution_signaled_event_attributes",
    "workflow_execution_update_accepted_event_attributes",
    "workflow_execution_update_admitted_event_attributes",
    "child_workflow_execution_completed_event_attributes",
    "child_workflow_execution_failed_event_attributes",
    "child_workflow_execution_canceled_event_attributes",
    "nexus_operation_completed_event_attributes",
    "nexus_operation_failed_event_attributes",
)


class Warmer(Protocol):
    """Fetches the bytes behind a payload into the cache."""

    def with_context(self, context: SerializationContext) -> Self:
        """Return a warmer for the payloads of one workflow."""
        ...

    def is_wanted(self, payload: Payload) -> bool:
        """Return whether a payload may have bytes to fetch."""
        ...

    async def warm(self, payload: Payload) -> int | None:
        """Fetch the bytes of a payload; return their number, None if there was nothing to fetch."""
        ...


class Prefetcher:
    """Runs the prefetches for a worker's resumes, in its event loop."""

    def __init__(
        self, client: Client, warmer: Warmer, this_worker: ThisWorker | None = None
    ) -> None:
        self.client = client
        self._warmer = warmer
        self._workers = WorkerLookup(client, this_worker)
        self._tasks: set[asyncio.Task[None]] = set()
        # Counted separately: look-ups wait for the server and must not take the slots of prefetches.
        self._lookups: set[asyncio.Task[bool]] = set()

    def start(self, workflow_id: str, run_id: str, history: RunHistory) -> None:
        """Start reading the history of a run and fetching the payloads that its replay consumes."""
        if len(self._tasks) >= limits.PREFETCHES_MAX:
            history.finish(complete=False)
            history.settle_worker(is_lost=False)
            return
        task = asyncio.create_task(self._run(workflow_id, run_id, history))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel all prefetches and look-ups."""
        # Order matters: a running prefetch may still start a look-up.
        await _cancel(self._tasks)
        await _cancel(self._lookups)

    async def _run(self, workflow_id: str, run_id: str, history: RunHistory) -> None:
        READS.set(history.prefetched)
        try:
            async with asyncio.timeout(limits.PREFETCH_SECONDS_MAX):
                await self._fetch(workflow_id, run_id, history)
        except Exception as error:  # noqa: BLE001 - the decode reports the same fault
            logger.debug("a prefetch ended early: %s", type(error).__name__)
        finally:
            history.finish(complete=history.is_complete)
            if not history.is_complete:  # Otherwise a look-up has been started.
                history.settle_worker(is_lost=False)

    async def _fetch(self, workflow_id: str, run_id: str, history: RunHistory) -> None:
        slots = asyncio.Semaphore(limits.STORE_READS_MAX)
        left_bytes = limits.PREFETCH_BYTES_MAX
        warmer = self._warmer.with_context(
            WorkflowSerializationContext(namespace=self.client.namespace, workflow_id=workflow_id)
        )

        async def fetch(payload: Payload) -> None:
            nonlocal left_bytes
            async with slots:
                if left_bytes <= 0:
                    return
                history.prefetched.blobs += 1
                try:
                    taken_bytes = await warmer.warm(payload)
                    if taken_bytes is None:
                        history.prefetched.blobs -= 1
                    else:
                        left_bytes -= taken_bytes
                except Exception as error:  # noqa: BLE001 - an outer codec may raise anything
                    # Caught here, or the group would also cancel reading the history, without which a
                    # replay writes.
                    logger.debug("not prefetched: %s", type(error).__name__)

        handle = self.client.get_workflow_handle(workflow_id, run_id=run_id)
        async with asyncio.TaskGroup() as fetches:
            async for event in handle.fetch_history_events(page_size=_PAGE_EVENTS):
                history.add(event)
                for payload in walk_consumed_payloads(event):
                    if warmer.is_wanted(payload):
                        fetches.create_task(fetch(payload))
            history.finish(complete=True)
            self._start_lookup(history)

    def _start_lookup(self, history: RunHistory) -> None:
        """Start a look-up of the run's last worker, if the history does not show the cause."""
        if history.cause or len(self._lookups) >= limits.LOOKUPS_MAX:
            history.settle_worker(is_lost=False)
            return

        def settle(ended: asyncio.Task[bool]) -> None:
            # In a callback, since the task may be cancelled before it begins.
            self._lookups.discard(ended)
            history.settle_worker(is_lost=not ended.cancelled() and ended.result())

        task = asyncio.create_task(self._look_up(history))
        self._lookups.add(task)
        task.add_done_callback(settle)

    async def _look_up(self, history: RunHistory) -> bool:
        try:
            async with asyncio.timeout(limits.LOOKUP_SECONDS_MAX):
                return await self._workers.is_lost(history.last_worker)
        except Exception as error:  # noqa: BLE001 - the cause stays unknown, and the resume goes on
            logger.debug("the look-up of a run's last worker ended early: %s", type(error).__name__)
            return False


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)


class PrefetchHook(ActivationHook):
    """Starts the prefetch when the first activation of an instance replays."""

    def __init__(self, prefetcher: Prefetcher, info: workflow.Info, history: RunHistory) -> None:
        self._prefetcher = prefetcher
        self._info = info
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._first = True

    def before_activation(self, activation: WorkflowActivation) -> None:
        """See `ActivationHook`."""
        if self._first and activation.is_replaying:
            self._loop.call_soon_threadsafe(
                self._prefetcher.start, self._info.workflow_id, self._info.run_id, self._history
            )
            if not in_event_loop():
                # Commands that are not known to be in history by then are converted again, not dropped.
                self._history.wait(limits.HISTORY_SECONDS_MAX)
        self._first = False


def walk_consumed_payloads(event: HistoryEvent) -> Iterator[Payload]:
    """Yield the payloads of an event that workflow code consumes in a replay."""
    kind = event.WhichOneof("attributes")
    if kind in _CONSUMED:
        yield from walk_encoded_payloads(getattr(event, kind))
