"""Follower of a thread's history: long polls that return events as the server writes them.

A long poll needs no worker and is no billed action. The server answers one within 20 s, so a wait
takes at most 180 requests an hour. The follower begins at the first event of the newest run, which the
policy bounds (400 events by default), and continues into the runs that follow.
"""

import asyncio
import collections
import contextlib
import random
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
)
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.converter import ActivitySerializationContext, WorkflowSerializationContext
from temporalio.service import RPCError, RPCStatusCode

from everlong.client.errors import explain_unreadable, translate_rpc_error
from everlong.client.progress import Activity, Decode, NotConverted, ThreadProgress, Tracker
from everlong.errors import EverlongError, StoreUnavailable
from everlong.models import AGENT_WORKFLOW, ThreadStart
from everlong.models.json_payloads import from_raw

LONG_POLLS_MAX: Final = 500
"""Long polls of one connection at a time. A Temporal frontend takes 1,200 of a namespace by default, and
the polls of workers count among them: more waits than that would keep workers from their tasks."""
# Without a long poll, a wait looks at the description of the thread: often at first, then rarely.
_LOOK_SECONDS_MIN: Final = 0.25
_LOOK_SECONDS_MAX: Final = 5.0
_LOOK_FACTOR: Final = 1.3
_RETRY_SECONDS_MIN: Final = 0.1
_RETRY_SECONDS_MAX: Final = 5.0
# Three times what the server takes for a long poll without news.
_POLL_SECONDS_MAX: Final = timedelta(seconds=60)
_DESCRIBE_SECONDS_MAX: Final = timedelta(seconds=10)
_PAGE_BATCHES: Final = 1000
# The server answers with one of these if it does not know a page token any more.
_TOKEN_REFUSED: Final = frozenset(
    {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.FAILED_PRECONDITION}
)
_RUNNING: Final = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING


class LongPolls:
    """Counts the long polls of one connection. Beyond a bound, waits take turns at making one."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

    @property
    def are_too_many(self) -> bool:
        """Whether a caller should look at its thread now and then instead of making one more."""
        return self.count >= LONG_POLLS_MAX

    @contextlib.contextmanager
    def count_one(self) -> Iterator[None]:
        """Count one long poll while it is under way."""
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
            self._wake_first()

    async def is_free_within(self, seconds: float) -> bool:
        """Wait until a long poll ends, in the order of arrival; return whether one can be made now."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await asyncio.wait([waiter], timeout=seconds)
        except asyncio.CancelledError:
            if waiter.done():
                self._wake_first()
            raise
        finally:
            if not waiter.done():
                self._waiting.remove(waiter)
        return not self.are_too_many

    def _wake_first(self) -> None:
        if self._waiting and not self.are_too_many:
            self._waiting.popleft().set_result(None)


_long_polls: "weakref.WeakKeyDictionary[Any, LongPolls]" = weakref.WeakKeyDictionary()


def get_long_polls(client: Client) -> LongPolls:
    """Return the counter of a client's connection."""
    return _long_polls.setdefault(client.service_client, LongPolls())


class Follower:
    """Returns the events of a thread, run after run, from the first event of the newest run on.

    A caller that knows a run can begin there, which saves a request.
    """

    def __init__(self, client: Client, thread_id: str, run_id: str = "") -> None:
        self.has_ended = False
        """Whether the thread has ended, and all of its events were returned."""
        self.problem = ""
        """Why the server could not be asked the last time."""
        self._client = client
        self._thread_id = thread_id
        self._run_id = run_id
        self._token = b""
        self._last_event_id = 0
        self._closing: HistoryEvent | None = None
        self._failures = 0
        self._looks = 0
        self._polls = get_long_polls(client)

    async def next(self) -> Sequence[HistoryEvent]:
        """Return the next events; none if there were none for a while, or the server is away.

        Raises `ThreadNotFound` if the server does not know the thread.
        """
        try:
            if self._closing is not None or not self._run_id:
                await self._find_run()
            if self.has_ended:
                return ()
            events = await self._read()
        except RPCError as error:
            await self._recover(error)
            return ()
        self._failures = 0
        self.problem = ""
        return events

    async def is_at_end(self) -> bool:
        """Whether the events so far are all that the server has of the thread."""
        try:
            described = await self._describe()
        except RPCError as error:
            self.problem = str(translate_rpc_error(error, self._thread_id))
            return False
        info = described.workflow_execution_info
        return (info.execution.run_id, info.history_length) == (self._run_id, self._last_event_id)

    def restart(self) -> None:
        """Return the events of the newest run again, from its first one on."""
        self._begin("")
        self.has_ended = False

    async def _find_run(self) -> None:
        """Find the newest run at the beginning, and the next run once one has closed."""
        described = await self._describe()
        run_id = described.workflow_execution_info.execution.run_id
        self.has_ended = run_id == self._run_id
        if not self.has_ended:
            self._begin(run_id)

    def _begin(self, run_id: str) -> None:
        self._run_id, self._token, self._last_event_id = run_id, b"", 0
        self._closing = None

    async def _read(self) -> Sequence[HistoryEvent]:
        if self._token and self._polls.are_too_many and not await self._has_news():
            return ()
        with self._polls.count_one():
            page = await self._client.workflow_service.get_workflow_execution_history(
                GetWorkflowExecutionHistoryRequest(
                    namespace=self._client.namespace,
                    execution=WorkflowExecution(workflow_id=self._thread_id, run_id=self._run_id),
                    maximum_page_size=_PAGE_BATCHES,
                    next_page_token=self._token,
                    wait_new_event=True,
                    skip_archival=True,
                ),
                timeout=_POLL_SECONDS_MAX,
            )
        events = page.history.events
        self._token = page.next_page_token
        if events:
            self._looks = 0
            self._last_event_id = events[-1].event_id
        if not self._token and self._last_event_id:
            await self._close(events[-1] if events else HistoryEvent())
        return events

    async def _close(self, last: HistoryEvent) -> None:
        """Continue with the next run if the last event names it; otherwise ask the server for it."""
        if run_id := _find_next_run(last):
            self._begin(run_id)
        else:
            self._closing = last

    async def _has_news(self) -> bool:
        """Wait for a moment; return whether a long poll would return at once."""
        pause_seconds = _LOOK_SECONDS_MIN * _LOOK_FACTOR**self._looks
        self._looks = min(self._looks + 1, 20)
        pause_seconds = min(pause_seconds, _LOOK_SECONDS_MAX) * random.uniform(0.8, 1.2)  # noqa: S311
        if await self._polls.is_free_within(pause_seconds):
            return True
        info = (await self._describe()).workflow_execution_info
        is_same = info.execution.run_id == self._run_id and info.status == _RUNNING
        return not is_same or info.history_length > self._last_event_id

    async def _describe(self) -> DescribeWorkflowExecutionResponse:
        return await self._client.workflow_service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(
                namespace=self._client.namespace,
                execution=WorkflowExecution(workflow_id=self._thread_id),
            ),
            timeout=_DESCRIBE_SECONDS_MAX,
        )

    async def _recover(self, error: RPCError) -> None:
        """Begin again without a page token that the server refuses; else wait and try again."""
        if error.status in _TOKEN_REFUSED:
            if not self._run_id:
                raise translate_rpc_error(error, self._thread_id) from error
            self.restart()
        # A long poll without an answer is no failure.
        elif error.status not in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
            self.problem = str(translate_rpc_error(error, self._thread_id))
        await pause_after(self._failures)
        self._failures += 1


async def pause_after(failures: int) -> None:
    """Wait before the next try: longer after each failure, up to a bound."""
    pause_seconds = min(_RETRY_SECONDS_MIN * 2 ** min(failures, 10), _RETRY_SECONDS_MAX)
    await asyncio.sleep(pause_seconds * random.uniform(0.8, 1.2))  # noqa: S311


class ProgressFollower:
    """Follows the progress of a thread by its history, without asking a worker.

    While the store is away, it tries again. Lost or corrupt bytes and a missing key stay errors: another
    try would read the same.
    """

    def __init__(self, client: Client, thread_id: str, run_id: str = "") -> None:
        self.follower = Follower(client, thread_id, run_id)
        self._thread_id = thread_id
        self._tracker = Tracker(make_decoder(client, thread_id))
        self._has_begun = False
        self._failures = 0
        self._last: ThreadProgress | None = None

    @property
    def is_agent(self) -> bool:
        """False if the workflow is not `everlong.Agent`, whose events this class can interpret."""
        return self._tracker.is_agent

    async def next(self) -> ThreadProgress | None:
        """Return the progress if it has changed; None if it has not after one long poll."""
        events = await self.follower.next()
        try:
            with explain_unreadable(self._thread_id):
                await self._tracker.add(events)
        except StoreUnavailable as error:
            # The tracker has some of the events and the page token is past all of them. The first event
            # of a run resets the tracker, so the whole run is read again.
            self.follower.restart()
            self.follower.problem = str(error)
            await pause_after(self._failures)
            self._failures += 1
            return None
        if events:
            self._failures = 0
        self._has_begun = self._has_begun or bool(events)
        progress = self._tracker.progress()
        # A run that has closed may have a successor, which the follower looks for next.
        is_sure = self._has_begun and (not progress.ended or self.follower.has_ended)
        if not is_sure or progress == self._last:
            return None
        self._last = progress
        return progress


def make_decoder(client: Client, thread_id: str) -> Decode:
    """Return a decoder of a thread's payloads, with the context that the thread's worker gives."""
    own = WorkflowSerializationContext(namespace=client.namespace, workflow_id=thread_id)

    async def decode(payloads: Sequence[Payload], kind: Any, activity: Activity | None) -> Any:
        if not payloads:
            return None
        context = own if activity is None else _make_context(client, thread_id, activity)
        converter = client.data_converter.with_context(context)
        # In two steps, as on a worker: there, a codec's error fails a task, which is tried again.
        [raw] = await converter.decode(payloads[:1], [RawValue])
        try:
            # As on a worker: it reads payloads of our activities by pydantic, which is faster. A run's
            # argument is the largest payload of a short history.
            if activity is not None or kind is ThreadStart:
                return from_raw(raw, kind, converter.payload_converter)
            return converter.payload_converter.from_payload(raw.payload, kind)
        except EverlongError:
            raise
        except Exception as error:
            raise NotConverted(
                f"a payload of thread {thread_id!r} is no {getattr(kind, '__name__', kind)}. Has a "
                "worker another payload converter, or another version?"
            ) from error

    return decode


def _make_context(
    client: Client, thread_id: str, activity: Activity
) -> ActivitySerializationContext:
    return ActivitySerializationContext(
        namespace=client.namespace,
        workflow_id=thread_id,
        workflow_type=AGENT_WORKFLOW,
        activity_type=activity.type,
        # Not the id in the event: only the activity itself knows that one, the workflow does not.
        activity_id=None,
        activity_task_queue=activity.task_queue,
        is_local=False,
    )


def _find_next_run(last: HistoryEvent) -> str:
    """Return the run that a closing event names as the next; nothing after a reset, which names none."""
    name = last.WhichOneof("attributes")
    attributes: Any = getattr(last, name) if name else None
    run_id: str = getattr(attributes, "new_execution_run_id", "")
    return run_id
