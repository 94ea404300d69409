"""Payloads of a list-passing loop, sent through the codec as a Temporal worker sends them.

In each step the workflow's side encodes the list for the model's activity, whose side decodes it and
encodes the reply; the workflow's side decodes that, and the results of the tools likewise.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final, Self

from temporalio.api.common.v1 import Payload
from temporalio.converter import ActivitySerializationContext

from bench import measure
from bench.conversation import Turn, list_data
from bench.payloads import make_json_payload
from bench.stores import CountingStore
from everlong.codecs import EverlongCodec
from everlong.codecs.budget import BUDGET, CompletionBudget
from everlong.codecs.refs import is_ref
from everlong.limits import MIB

_QUEUE: Final = "bench"
_GETS_MAX: Final = 24
_GETS_PER_MIB: Final = 3


@dataclasses.dataclass(frozen=True)
class Sides:
    """The codecs that encode and decode what a workflow and its activities exchange."""

    workflow: EverlongCodec
    activity: EverlongCodec

    @classmethod
    def of_one_worker(cls, store: CountingStore) -> Self:
        """One process runs workflows and activities."""
        codec = EverlongCodec(store)
        return cls(codec, codec)

    @classmethod
    def of_two_workers(cls, store: CountingStore) -> Self:
        """One process runs workflows and another one activities; they share the store."""
        return cls(EverlongCodec(store), EverlongCodec(store))


@dataclasses.dataclass
class Tally:
    """Sizes of the payloads that were sent."""

    steps: int = 0
    payloads: int = 0
    raw_bytes: int = 0
    """Bytes of all payloads, which a plain loop puts into history."""
    unique_bytes: int = 0
    """Sum of zstd-3 of each step's new messages."""
    inline_bytes: int = 0
    """Bytes of payloads that stay in history."""
    ref_bytes: int = 0
    """Bytes of refs in history."""
    changed: int = 0
    """Payloads that were not decoded to what was encoded."""


@dataclasses.dataclass(frozen=True)
class ColdRead:
    """Costs of reading a payload with a new codec."""

    payload_bytes: int
    gets: int
    get_bytes: int
    compressed_bytes: int
    """zstd-3 of the whole payload."""

    @property
    def gets_max(self) -> int:
        """The bound on GETs."""
        return gets_max(self.payload_bytes)

    @property
    def over_compressed(self) -> float:
        """Bytes that were read over zstd-3 of the payload."""
        return self.get_bytes / self.compressed_bytes


class Loop:
    """A list-passing loop of one workflow."""

    def __init__(self, sides: Sides, tally: Tally, workflow_id: str = "bench") -> None:
        self._sides = sides
        self._tally = tally
        self._workflow_id = workflow_id
        self._messages: list[bytes] = []
        self._calls = 0
        self.last_list = Payload()
        """The list that was sent last, as it is in history."""
        self.last_data = b""

    async def take(self, turn: Turn) -> None:
        """Take one step."""
        tally = self._tally
        tally.steps += 1
        tally.unique_bytes += len(measure.compress(list_data(turn.messages)))
        self._messages += turn.before
        self.last_data = list_data(self._messages)
        self.last_list = await self._call("call_model", self.last_data, turn.reply)
        for result in turn.results:
            await self._call("run_tool", None, result)
        self._messages += [turn.reply, *turn.results]

    async def _call(self, activity: str, given: bytes | None, returned: bytes) -> Payload:
        """Send an activity its input, and its result back; return the input as it is in history."""
        self._calls += 1
        # The workflow's side knows no activity id unless the team's code sets one.
        scheduled = _build_context(self._workflow_id, activity, None)
        started = _build_context(self._workflow_id, activity, str(self._calls))
        workflow = self._sides.workflow.with_context(scheduled)
        running = self._sides.activity.with_context(started)
        sent = Payload()
        if given is not None:
            sent = await self._send(workflow, running, given)
        await self._send(running, workflow, returned, budget=CompletionBudget())
        return sent

    async def _send(
        self,
        sender: EverlongCodec,
        receiver: EverlongCodec,
        data: bytes,
        budget: CompletionBudget | None = None,
    ) -> Payload:
        """Send a payload. A receiver that is a workflow task has a budget: the hook opens it."""
        payload = make_json_payload(data)
        [encoded] = await sender.encode([payload])
        token = BUDGET.set(budget)
        try:
            [decoded] = await receiver.decode([encoded])
        finally:
            BUDGET.reset(token)
        tally = self._tally
        tally.payloads += 1
        tally.raw_bytes += len(data)
        tally.changed += decoded.data != data or decoded.metadata != payload.metadata
        if is_ref(encoded):
            tally.ref_bytes += encoded.ByteSize()
        else:
            tally.inline_bytes += encoded.ByteSize()
        return encoded


def gets_max(payload_bytes: int) -> int:
    """Return the bound on GETs of a cold read. They run 16 at a time, so a large list may take more."""
    return _GETS_MAX + _GETS_PER_MIB * payload_bytes // MIB


async def read_cold(store: CountingStore, loops: Sequence[Loop]) -> ColdRead:
    """Read the largest of the loops' last lists with a new codec."""
    loop = max(loops, key=lambda each: len(each.last_data))
    again = store.reopen()
    [decoded] = await EverlongCodec(again).decode([loop.last_list])
    if decoded.data != loop.last_data:
        raise RuntimeError("a list was not decoded to what was encoded")
    return ColdRead(
        payload_bytes=len(loop.last_data),
        gets=again.gets,
        get_bytes=again.get_bytes,
        compressed_bytes=len(measure.compress(loop.last_data)),
    )


def _build_context(
    workflow_id: str, activity: str, activity_id: str | None
) -> ActivitySerializationContext:
    return ActivitySerializationContext(
        namespace="default",
        workflow_id=workflow_id,
        workflow_type="BenchLoop",
        activity_type=activity,
        activity_id=activity_id,
        activity_task_queue=_QUEUE,
        is_local=False,
    )
