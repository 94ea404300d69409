"""Drain report: counts the runs that hold Everlong payloads, and so still need the plugin.

It reads histories as they are stored, and changes nothing.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from temporalio.client import Client
from temporalio.converter import PayloadCodec
from temporalio.service import RPCError, RPCStatusCode

from everlong import limits
from everlong.errors import ConfigError, ServerUnreachable
from everlong.sweep.codec_usage import CodecUsage, CodecUsageReader
from everlong.sweep.history_reader import Histories, Run

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

    def plus(self, holding: CodecUsage) -> "HoldingCount":
        """Return the count with one more."""
        return HoldingCount(
            self.looked_at + 1,
            self.refs + (holding is CodecUsage.REFS),
            self.inline + (holding is CodecUsage.INLINE),
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
    tell: Callable[[str], None] = lambda _: None,
) -> DrainReport:
    """Inspect the runs of the client's namespace, newest first, and its schedules.

    Args:
        client: Client of the namespace.
        query: Visibility query; with one, schedules are not inspected.
        only_open: Leave out closed runs, which the namespace's retention removes.
        runs_max: Most runs to inspect.
        seconds_max: Time after which no further run is inspected.
        tell: Called with a line about the progress.

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
            closed = await count.runs(
                _join_conditions(query, _CLOSED), lambda n: tell(f"{n} closed runs")
            )
        # Open runs last: the answer depends on them, so their count should be the freshest.
        opened = await count.runs(_join_conditions(query, _OPEN), lambda n: tell(f"{n} open runs"))
    if not query and not only_open:
        schedules = await count.schedules()
    return DrainReport(opened, closed, schedules, tuple(count.examples), count.is_complete)


class _Count:
    """Inspects runs in batches."""

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

    async def runs(self, query: str, tell: Callable[[int], None]) -> HoldingCount:
        count = HoldingCount()
        async for batch in self._batches(query):
            for run, holding in zip(
                batch,
                await asyncio.gather(*(self._reader.run(each) for each in batch)),
                strict=True,
            ):
                count = count.plus(holding)
                is_example = run.is_open and holding is not CodecUsage.NOTHING
                if is_example and len(self.examples) < EXAMPLES_MAX:
                    self.examples.append(run.workflow_id)
            tell(count.looked_at)
        return count

    async def schedules(self) -> HoldingCount:
        count = HoldingCount()
        async for page in self._histories.schedules():
            for schedule_id in page:
                count = count.plus(await self._reader.schedule(schedule_id))
        return count

    async def _batches(self, query: str) -> AsyncIterator[list[Run]]:
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
