"""Read mode (`mode="read"`), the way back to plain payloads: a run that holds refs drains.

To drain means that the run goes on offloading until it ends. Otherwise a loop that passes its list
to every step would write the whole list into its history again, and the server would terminate the run
or reject the payload on every attempt. New runs write plain payloads. Large values that stayed inline,
compressed, count as refs (`codecs.payloads.is_large_when_plain`).

The activation hook decides for each run, since the codec gets no run id. A run drains once a ref was
found: in an activation, in the history that a replay reads, or in a payload that the worker has written
for the run. While the history of a replayed run has not been read, the codec waits for it. After a
bounded time the codec stops waiting. It then offloads large values, since plain lists could end the run,
and leaves small values plain, since a worker without the plugin may have to read them.

An activity cannot see the history. The codec notices refs in its input, and the commands of a draining
run carry a header (`DRAIN_HEADER`) that makes the activity offload its result. A child workflow gets the
same header for its result only: the child itself is a new run, which writes plain.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from temporalio import worker, workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import CommandType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import WorkflowSerializationContext
from temporalio.service import RPCError

from everlong import limits
from everlong.codecs.budget import ActivityResult
from everlong.codecs.composition import OuterCodec
from everlong.codecs.payloads import INLINE_ENCODING, is_large_when_plain, walk_encoded_payloads
from everlong.interceptors.run_history import RunHistory, in_event_loop
from everlong.interceptors.sdk_internals import WorkflowActivationCompletion
from everlong.models import DRAIN_HEADER

logger = logging.getLogger(__name__)

_YES: Final = Payload(metadata={"encoding": b"json/plain"}, data=b"true")
_PAGE_EVENTS: Final = 256
_POLL_SECONDS: Final = 0.02
# A scan shorter than this was a refused prefetch, for which the activation did not wait.
_REFUSED_SECONDS_MAX: Final = 0.1
# Name of the extern function through which sandboxed workflow code calls `RunHistory.holds_refs`.
HOLDS_REFS: Final = "__everlong_holds_refs"


class DrainReader:
    """Reads the histories of one worker's runs that no prefetch has searched for refs.

    An outer codec hides refs, and a prefetch does not remove that layer. With an outer codec, the
    histories of all runs that begin with a replay are therefore read here.
    """

    def __init__(self, client: Client, outer: OuterCodec | None = None) -> None:
        self.is_hidden = outer is not None
        self._outer = outer
        self._client = client
        self._slots = asyncio.Semaphore(limits.DRAIN_READS_MAX)

    def watch(self, info: workflow.Info, history: RunHistory) -> None:
        """Attach a `RunDrain` to a run's history."""
        history.drain = RunDrain(self, info, history)

    async def read(self, info: workflow.Info, drain: "RunDrain") -> None:
        """Pass a run's history to its drain, up to the first ref."""
        handle = self._client.get_workflow_handle(info.workflow_id, run_id=info.run_id)
        async with self._slots:
            async for event in handle.fetch_history_events(page_size=_PAGE_EVENTS):
                if self._outer is None:
                    drain.note(event)
                elif await self._hides_ref(self._outer, info.workflow_id, event):
                    drain.note_refs()
                if drain.holds_refs:
                    return

    async def _hides_ref(self, outer: OuterCodec, workflow_id: str, event: HistoryEvent) -> bool:
        """Return whether an event holds a ref under the outer codec, or may hold one."""
        context = WorkflowSerializationContext(
            namespace=self._client.namespace, workflow_id=workflow_id
        )
        codec = outer.with_context(context)
        try:
            for payload in walk_encoded_payloads(event):
                if any(map(is_large_when_plain, await codec.unwrap([payload]))):
                    return True
        except Exception as error:  # noqa: BLE001 - a user's codec may raise anything
            logger.warning(
                "the outer codec cannot decode a payload in the history of workflow %s (%s): the run "
                "goes on offloading, as if it held refs",
                workflow_id,
                type(error).__name__,
            )
            return True
        return False


class RunDrain:
    """Decides whether one run drains; implements `codecs.budget.Drain`.

    `note` and `decide` run in the worker's event loop. `is_draining` is also read in the SDK's workflow
    threads.
    """

    def __init__(self, reader: DrainReader, info: workflow.Info, history: RunHistory) -> None:
        self._reader = reader
        self._info = info
        self._history = history
        self._has_ref = False
        self._is_known = False
        self._has_begun = False
        self._is_reading = False
        self._retry_at = float("-inf")
        self._loop = asyncio.get_running_loop()

    def begin(self, *, replaying: bool) -> None:
        """Observe an activation. A run that does not begin with a replay has no history yet."""
        if self._has_begun:
            return
        self._has_begun = True
        self._is_known = not replaying
        history = self._history
        refused = history.has_ended and history.scan_seconds < _REFUSED_SECONDS_MAX
        reads = refused or self._reader.is_hidden
        if replaying and reads and self._is_unknown and not in_event_loop():
            # Waits as long as a replay waits for a prefetch, so that commands get their header.
            reading = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
            try:
                reading.result(limits.HISTORY_SECONDS_MAX)
            except Exception as error:  # noqa: BLE001 - `decide` retries; the hooks must stay on
                logger.debug("a history was not read in time: %s", type(error).__name__)

    def note(self, event: HistoryEvent) -> None:
        """Look for refs in an event of the run's history."""
        self._has_ref = self._has_ref or holds_ref(event)

    def note_refs(self) -> None:
        """See `Drain`."""
        self._has_ref = True

    @property
    def holds_refs(self) -> bool:
        """See `Drain`."""
        return self._has_ref or self._history.reads.large_when_plain > 0

    @property
    def is_draining(self) -> bool:
        """See `Drain`."""
        return self.holds_refs or self._is_unknown

    @property
    def _is_unknown(self) -> bool:
        is_read = self._history.is_complete and not self._reader.is_hidden
        return not (self.holds_refs or self._is_known or is_read)

    async def decide(self) -> bool:
        """See `Drain`."""
        if self._is_unknown and time.monotonic() >= self._retry_at:
            # All payloads of a completion share one wait.
            self._retry_at = time.monotonic() + limits.DRAIN_RETRY_SECONDS
            try:
                async with asyncio.timeout(limits.DRAIN_SECONDS_MAX):
                    await self._read()
            except (RPCError, TimeoutError) as error:
                logger.warning(
                    "the history of workflow %s could not be read in %.0f s (%s): its large payloads "
                    "go to the store, as if it held refs",
                    self._info.workflow_id,
                    limits.DRAIN_SECONDS_MAX,
                    type(error).__name__,
                )
        return self.is_draining

    async def _read(self) -> None:
        # Both flags are set in other tasks and threads: by the prefetch and by an earlier reader.
        while self._is_unknown and (self._is_reading or not self._history.has_ended):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        if self._is_unknown:
            self._is_reading = True
            try:
                await self._reader.read(self._info, self)
                self._is_known = True
            finally:
                self._is_reading = False


class DrainInterceptor(worker.Interceptor):
    """Makes an activity offload its result if its command carries the header."""

    def intercept_activity(
        self,
        next: worker.ActivityInboundInterceptor,  # noqa: A002
    ) -> worker.ActivityInboundInterceptor:
        """See `temporalio.worker.Interceptor`."""
        # Called in the task that encodes the result. Other interceptors may run `execute_activity` in
        # another task, where the context variable would be lost. So the result object is kept here.
        return _ResultInbound(next, ActivityResult.current())


class _ResultInbound(worker.ActivityInboundInterceptor):
    def __init__(
        self, following: worker.ActivityInboundInterceptor, result: ActivityResult
    ) -> None:
        super().__init__(following)
        self._result = result

    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:  # noqa: A002
        if DRAIN_HEADER in input.headers:
            self._result.offloads = True
        return await super().execute_activity(input)


def holds_ref(event: HistoryEvent) -> bool:
    """Return whether a payload of an event is in the store, or would be large if it were plain."""
    # Searching the bytes takes microseconds and rules out most events. A ref's encoding has the same
    # prefix.
    return INLINE_ENCODING in event.SerializeToString() and any(
        map(is_large_when_plain, walk_encoded_payloads(event))
    )


def mark_result(call: Any) -> Any:
    """Return an outbound call, with the drain header if the run is known to drain."""
    if not workflow.extern_functions()[HOLDS_REFS]():
        return call
    return dataclasses.replace(call, headers={**call.headers, DRAIN_HEADER: _YES})


def keep_drain_header(headers: Mapping[str, Payload]) -> dict[str, Payload]:
    """Return the headers of the next run: its result goes to the same history as this run's."""
    mark = workflow.info().headers.get(DRAIN_HEADER)
    return {**headers, DRAIN_HEADER: mark} if mark is not None else dict(headers)


def returns_to_drain(info: workflow.Info) -> bool:
    """Return whether a run's result goes into the history of a draining run."""
    return DRAIN_HEADER in info.headers


def continues_as_new(completion: WorkflowActivationCompletion) -> bool:
    """Return whether a completion continues as new."""
    commands = completion.successful.commands
    return any(each.HasField("continue_as_new_workflow_execution") for each in commands)


def get_plain_bytes_max(command_info: Any, *, ends: bool, rolls: bool, has_parent: bool) -> int:
    """Return the size up to which a draining run leaves a value plain for another run's history.

    Arguments of the next run, and the result of a run without a parent, are written once. Children
    and signals may be many, and stay in this run's history too: their bound is the size that stays
    inline anyway. A child's result goes into its parent's history, which may drain.
    """
    if ends:
        return 0 if has_parent else limits.DRAIN_HANDOVER_BYTES_MAX
    if command_info is None:
        return limits.DRAIN_HANDOVER_BYTES_MAX if rolls else 0
    begins = (
        CommandType.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION,
        CommandType.COMMAND_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION,
    )
    return limits.INLINE_BYTES_MAX if command_info.command_type in begins else 0
