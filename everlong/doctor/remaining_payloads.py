"""Remaining payloads: counts the runs that hold Everlong payloads, and so still need the plugin.

`everlong drain` prints the counts. Histories are read without decoding them, and nothing is changed. A
payload is recognized by its encoding.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterator
from enum import IntEnum
from typing import Final

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import PayloadCodec, WorkflowSerializationContext
from temporalio.service import RPCError, RPCStatusCode

from everlong import limits
from everlong.codecs.composition import OuterCodec
from everlong.codecs.payloads import INLINE_ENCODING, walk_payloads
from everlong.codecs.refs import is_ref
from everlong.errors import ConfigError, ServerUnreachable
from everlong.sweep.history_reader import Histories, Run

# Part of every Everlong encoding. A byte search takes microseconds, and rules out most messages.
_MARK: Final = b"/everlong"
# Continue-as-new steps that are followed if a run rolls over while it is read.
_ROLLS_MAX: Final = 8


class CodecUsage(IntEnum):
    """Kinds of Everlong payloads in a run. Refs need the store; both kinds need the codec."""

    NOTHING = 0
    INLINE = 1
    """Compressed or sealed inline payloads, and no refs."""
    REFS = 2


class CodecUsageReader:
    """Finds Everlong payloads in the histories of a namespace.

    Args:
        histories: Histories of the namespace.
        codec: The client's codec. An outer codec around Everlong's is removed before the search.

    """

    def __init__(self, histories: Histories, codec: PayloadCodec | None = None) -> None:
        self._histories = histories
        self._outer = codec if isinstance(codec, OuterCodec) else None

    async def read_run(self, run: Run) -> CodecUsage:
        """Return the usage of a run: its history, and for an open run its memo and activities too."""
        run_id, found = run.run_id, CodecUsage.NOTHING
        for _ in range(_ROLLS_MAX):
            usage, next_run_id = await self._search_history(run.workflow_id, run_id)
            found = max(found, usage)
            if run.is_open and found is not CodecUsage.REFS:
                described = await self._histories.describe_run(run.workflow_id, run_id)
                for message in described.holds if described is not None else ():
                    found = max(found, await self._search_message(message, run.workflow_id))
            if found is CodecUsage.REFS or not (run.is_open and next_run_id):
                break
            # The run was open when it was listed, so no page of the listing has the next run.
            run_id = next_run_id
        return found

    async def read_schedule(self, schedule_id: str) -> CodecUsage:
        """Return the usage of a schedule: the runs that it starts begin with its payloads."""
        schedule = await self._histories.describe_schedule(schedule_id)
        if schedule is None:
            return CodecUsage.NOTHING
        return await self._search_message(
            schedule, schedule.schedule.action.start_workflow.workflow_id
        )

    async def _search_history(self, workflow_id: str, run_id: str) -> tuple[CodecUsage, str]:
        """Return the usage of a history, read back to its newest ref, and the run that continues it."""
        found, next_run_id = CodecUsage.NOTHING, ""
        async for page in self._histories.read_events(workflow_id, run_id, 0):
            for event in page:
                rolled = event.workflow_execution_continued_as_new_event_attributes
                next_run_id = next_run_id or rolled.new_execution_run_id
                found = max(found, await self._search_message(event, workflow_id))
                if found is CodecUsage.REFS:
                    return found, next_run_id
        return found, next_run_id

    async def _search_message(self, message: Message, workflow_id: str) -> CodecUsage:
        """Return the usage of a message, at any depth."""
        found = CodecUsage.NOTHING
        if self._outer is None and _MARK not in message.SerializeToString():
            return found
        for payload, has_passed in walk_payloads(message):
            for each in await self._unwrap(payload, workflow_id) if has_passed else [payload]:
                if is_ref(each):
                    return CodecUsage.REFS
                if each.metadata.get("encoding") == INLINE_ENCODING:
                    found = CodecUsage.INLINE
        return found

    async def _unwrap(self, payload: Payload, workflow_id: str) -> list[Payload]:
        if self._outer is None:
            return [payload]
        context = WorkflowSerializationContext(
            namespace=self._histories.namespace, workflow_id=workflow_id
        )
        try:
            return await self._outer.with_context(context).unwrap([payload])
        except Exception as error:  # A team's own codec may raise anything, and quote anything.
            raise ConfigError(
                f"the outer codec {type(self._outer.outer).__name__} does not decode a payload of "
                f"workflow {workflow_id!r} ({type(error).__name__}), so refs cannot be counted. Run "
                "this where the outer codec has the keys of the workers."
            ) from error


EXAMPLES_MAX: Final = 20
_OPEN: Final = "CloseTime IS NULL"
_CLOSED: Final = "CloseTime IS NOT NULL"


@dataclasses.dataclass(frozen=True)
class HoldingCount:
    """Counts of inspected runs or schedules, by the payloads that they hold."""

    looked_at: int = 0
    refs: int = 0
    """Runs with payloads in the store."""
    inline: int = 0
    """Runs with compressed or sealed payloads only."""

    @property
    def holding(self) -> int:
        """Runs that only Everlong's codec can read."""
        return self.refs + self.inline

    def add(self, usage: CodecUsage) -> "HoldingCount":
        """Return the count with one more."""
        return HoldingCount(
            self.looked_at + 1,
            self.refs + (usage is CodecUsage.REFS),
            self.inline + (usage is CodecUsage.INLINE),
        )


@dataclasses.dataclass(frozen=True)
class DrainReport:
    """Everlong payloads in a namespace."""

    open_runs: HoldingCount
    closed_runs: HoldingCount
    schedules: HoldingCount
    examples: tuple[str, ...]
    """Ids of workflows whose open run holds Everlong payloads, at most 20."""
    is_complete: bool
    """Whether all runs were inspected, before a bound in runs or seconds."""

    @property
    def is_drained(self) -> bool:
        """Whether no open run and no schedule holds Everlong payloads."""
        return self.is_complete and not (self.open_runs.holding or self.schedules.holding)


async def count_holdings(
    client: Client,
    *,
    query: str = "",
    only_open: bool = False,
    runs_max: int | None = None,
    seconds_max: float | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> DrainReport:
    """Inspect the runs of the client's namespace, newest first, and its schedules.

    Args:
        client: Client of the namespace.
        query: Visibility query; with one, schedules are not inspected.
        only_open: Leave out closed runs, which the namespace's retention removes.
        runs_max: Most runs to inspect.
        seconds_max: Time after which no further run is inspected.
        on_progress: Called with a line about the progress.

    """
    count = _Count(
        Histories(client),
        client.data_converter.payload_codec,
        runs_max,
        None if seconds_max is None else time.monotonic() + seconds_max,
    )
    closed, schedules = HoldingCount(), HoldingCount()
    with _translate_query(query):
        if not only_open:
            conditions = _join_conditions(query, _CLOSED)
            closed = await count.runs(conditions, lambda n: on_progress(f"{n} closed runs"))
        # Open runs last: the answer depends on them, so their count should be the freshest.
        opened = await count.runs(
            _join_conditions(query, _OPEN), lambda n: on_progress(f"{n} open runs")
        )
    if not query and not only_open:
        schedules = await count.schedules()
    return DrainReport(opened, closed, schedules, tuple(count.examples), count.is_complete)


class _Count:
    """Counts runs in batches, and schedules."""

    def __init__(
        self,
        histories: Histories,
        codec: PayloadCodec | None,
        runs_max: int | None,
        deadline: float | None,
    ) -> None:
        self._histories = histories
        self._reader = CodecUsageReader(histories, codec)
        self._left = runs_max
        self._deadline = deadline
        self.is_complete = True
        self.examples: list[str] = []

    async def runs(self, query: str, on_progress: Callable[[int], None]) -> HoldingCount:
        count = HoldingCount()
        async for batch in self._iter_batches(query):
            for run, usage in zip(
                batch,
                await asyncio.gather(*(self._reader.read_run(each) for each in batch)),
                strict=True,
            ):
                count = count.add(usage)
                is_example = run.is_open and usage is not CodecUsage.NOTHING
                if is_example and len(self.examples) < EXAMPLES_MAX:
                    self.examples.append(run.workflow_id)
            on_progress(count.looked_at)
        return count

    async def schedules(self) -> HoldingCount:
        count = HoldingCount()
        async for page in self._histories.list_schedules():
            for schedule_id in page:
                count = count.add(await self._reader.read_schedule(schedule_id))
        return count

    async def _iter_batches(self, query: str) -> AsyncIterator[list[Run]]:
        async for page in self._histories.find_runs(query):
            for start in range(0, len(page), limits.SWEEP_RUNS_MAX):
                batch = page[start : start + limits.SWEEP_RUNS_MAX]
                if self._left is not None:
                    if len(batch) > self._left:
                        self.is_complete = False
                        batch = batch[: self._left]
                    self._left -= len(batch)
                if self._deadline is not None and time.monotonic() > self._deadline:
                    self.is_complete = False
                    return
                if not batch:
                    return
                yield batch


@contextlib.contextmanager
def _translate_query(query: str) -> Iterator[None]:
    try:
        yield
    except ServerUnreachable as error:
        cause = error.__cause__
        refused = isinstance(cause, RPCError) and cause.status == RPCStatusCode.INVALID_ARGUMENT
        if not (query and refused):
            raise
        raise ConfigError(f"the server rejects this query: {error}") from cause


def _join_conditions(query: str, condition: str) -> str:
    return f"({query}) AND {condition}" if query else condition
