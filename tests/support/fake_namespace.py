"""Fake namespace for tests of sweeps: runs, keys in their histories, and an oracle of reachable keys."""

import dataclasses
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from google.protobuf.message import Message
from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.history.v1 import (
    ActivityTaskCompletedEventAttributes,
    HistoryEvent,
    WorkflowExecutionCompletedEventAttributes,
)
from temporalio.api.schedule.v1 import Schedule, ScheduleAction
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo, PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeScheduleResponse
from temporalio.converter import WorkflowSerializationContext

from everlong.codecs import EverlongCodec
from everlong.codecs.refs import is_ref, parse_ref
from everlong.models import Kind, Segment, SegmentRef, SweepOptions, SweepReport, thread_key
from everlong.policy import Retention
from everlong.storage.base import BlobStore
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore, object_key, pack_key
from everlong.sweep import Sweep
from everlong.sweep.history_reader import Run, RunDescription
from tests.support.journal_builder import entry
from tests.support.sample_payloads import noise, payload, text

AT_ONCE = Retention(payload_seconds=0, journal_seconds=0, quarantine_seconds=0)
NAMESPACE = "made-up"
_SEGMENT = TypeAdapter(SegmentRef)
_STATE = TypeAdapter(dict[str, SegmentRef])
_WHOLE = TypeAdapter(Segment)


@dataclasses.dataclass
class FakeRun:
    """Run with the keys that its history names."""

    run: Run
    payloads: list[Payload] = dataclasses.field(default_factory=list)
    heartbeat: Payload | None = None
    busy_since_ms: int | None = None
    head: SegmentRef | None = None
    is_over: bool = False
    """Whether its last event ends it."""


class FakeNamespace:
    """Implements `HistorySource`, and counts its calls."""

    namespace = NAMESPACE

    def __init__(self, store: BlobStore, seed: int = 0) -> None:
        self.store = store
        self.packs = PackStore(store)
        self.codec = EverlongCodec(self.packs, inline_bytes_max=1024)
        self.all: dict[str, FakeRun] = {}
        self.hidden: set[str] = set()
        """Runs that the listing does not have, yet or any more."""
        self.nightly: Payload | None = None
        """The payload of a schedule."""
        self.hidden_schedules: set[str] = set()
        self.source = random.Random(seed)
        self.histories_read: list[str] = []
        self.described: list[str] = []
        self._numbers = 0

    # The interface that a sweep reads.

    async def fetch_namespace_id(self) -> str:
        return "11111111-2222-3333-4444-555555555555"

    async def list_runs(self) -> AsyncIterator[list[Run]]:
        listed = [each.run for each in self.all.values() if each.run.run_id not in self.hidden]
        for first in range(0, len(listed), 3):
            yield listed[first : first + 3]

    async def describe_run(self, workflow_id: str, run_id: str) -> RunDescription | None:
        self.described.append(run_id or workflow_id)
        if not run_id:
            newest = [each for each in self.all.values() if each.run.workflow_id == workflow_id]
            run_id = newest[-1].run.run_id if newest else ""
        found = self.all.get(run_id)
        if found is None:
            return None
        holds: Sequence[Message] = []
        if found.heartbeat is not None:
            holds = [PendingActivityInfo(heartbeat_details=Payloads(payloads=[found.heartbeat]))]
        return RunDescription(
            found.run.is_open,
            len(found.payloads),
            holds,
            found.busy_since_ms,
            run_id,
            found.run.root,
        )

    async def read_events(
        self, workflow_id: str, run_id: str, after: int
    ) -> AsyncIterator[list[HistoryEvent]]:
        self.histories_read.append(run_id)
        if run_id not in self.all:
            return
        run = self.all[run_id]
        ends_with = len(run.payloads) if run.is_over else 0
        numbered = list(enumerate(run.payloads, 1))[after:][::-1]
        for first in range(0, max(1, len(numbered)), 4):
            yield [
                _event(number, each, ends=number == ends_with)
                for number, each in numbered[first : first + 4]
            ]

    async def list_schedules(self) -> AsyncIterator[list[str]]:
        if self.nightly is not None and "nightly" not in self.hidden_schedules:
            yield ["nightly"]

    async def describe_schedule(self, schedule_id: str) -> DescribeScheduleResponse | None:
        if self.nightly is None:
            return None
        start = NewWorkflowExecutionInfo(
            workflow_id="w-nightly", input=Payloads(payloads=[self.nightly])
        )
        action = ScheduleAction(start_workflow=start)
        return DescribeScheduleResponse(schedule=Schedule(action=action))

    # Events of a namespace.

    def start(self, workflow_id: str, root: str = "", first: Payload | None = None) -> FakeRun:
        self._numbers += 1
        run = FakeRun(Run(f"run-{self._numbers}", workflow_id, root or workflow_id, True))
        run.payloads.append(first or payload(b'"start"'))
        self.all[run.run.run_id] = run
        return run

    def close(self, run: FakeRun) -> None:
        run.run = dataclasses.replace(run.run, is_open=False)
        run.is_over = True
        run.payloads.append(payload(b'"the end"'))
        run.heartbeat = None

    def delete(self, run: FakeRun) -> None:
        del self.all[run.run.run_id]

    async def encode(self, workflow_id: str, plain: Payload) -> Payload:
        context = WorkflowSerializationContext(namespace=NAMESPACE, workflow_id=workflow_id)
        [done] = await self.codec.with_context(context).encode([plain])
        return done

    async def large(self, workflow_id: str) -> Payload:
        """Store a payload. Half of these payloads mostly repeat an earlier pack."""
        shared = text(9000, self.source.randrange(2))
        new = noise(2000, self.source.randrange(10**6)).hex().encode()
        return await self.encode(workflow_id, payload(b'"' + shared.hex().encode() + new + b'"'))

    async def append(self, run: FakeRun, text_bytes: int = 40) -> Payload:
        """Append to the journal of a run's thread; return the payload that names the new head."""
        journal = Journal(self.packs, thread_key(NAMESPACE, run.run.workflow_id))
        seq = 1 if run.head is None else run.head.first_seq + run.head.count
        kind = Kind.MESSAGE if seq % 2 else Kind.TOOL_RESULT
        new = entry(seq, noise(text_bytes, self.source.randrange(10**6)).hex(), kind)
        run.head, _ = await journal.append(run.head, [new])
        return await self.name_head(run.run.workflow_id, run.head)

    async def name_head(self, workflow_id: str, head: SegmentRef) -> Payload:
        state = b'{"head":' + _SEGMENT.dump_json(head) + b"}"
        return await self.encode(workflow_id, payload(state))

    async def fork(self, run: FakeRun, new_id: str) -> FakeRun:
        assert run.head is not None
        seq = run.head.first_seq + run.head.count - 1
        journal = Journal(self.packs, thread_key(NAMESPACE, new_id))
        head, _ = await journal.fork(run.head, seq, entry(seq + 1, "forked"))
        forked = self.start(new_id, first=await self.name_head(new_id, head))
        forked.head = head
        return forked

    # The oracle.

    async def reachable(self) -> set[str]:
        """Return the reachable keys, computed by another algorithm than the sweep's.

        A name counts in every thread: equal content has equal names, also in two forks.
        """
        found: set[str] = set()
        held = [each for run in self.all.values() for each in (*run.payloads, run.heartbeat)]
        for each in (*held, self.nightly):
            if each is not None:
                found |= await self._keys(each)
        names = {key.rpartition("/")[2] for key in found}
        return found | {key for key in await self.keys() if key.rpartition("/")[2] in names}

    async def _keys(self, encoded: Payload) -> set[str]:
        found: set[str] = set()
        if is_ref(encoded):
            ref = parse_ref(encoded)
            pack = await self.packs.open(ref.thread, ref.pack)
            found |= {pack_key(ref.thread, each) for each in (ref.pack, *pack.sources)}
            if pack.base is not None:
                base = await self.packs.open(ref.thread, pack.base)
                found |= {pack_key(ref.thread, each) for each in base.sources}
        [plain] = await EverlongCodec(self.packs).decode([encoded])
        if plain.data.startswith(b'{"head"'):
            found |= await self._journal(_STATE.validate_json(plain.data)["head"])
        return found

    async def _journal(self, place: SegmentRef) -> set[str]:
        """Yield what a segment leads to. It counts whole, though a fork may use only its beginning."""
        found = {object_key(place.ref)}
        data = await self.packs.read_body(place.ref)
        segment = _WHOLE.validate_json(data[data.rfind(b"\n") + 1 :])
        for each in segment.entries:
            found |= {object_key(ref) for ref in (each.ref, each.original) if ref is not None}
        for before in segment.before:
            found |= await self._journal(before)
        return found

    async def keys(self, prefix: str = "v1/") -> set[str]:
        return {info.key async for info in self.store.list(prefix)}

    async def sweep(
        self,
        retention: Retention = AT_ONCE,
        *,
        store: BlobStore | None = None,
        index_dir: Path | None = None,
        dry_run: bool = False,
        whole_store: bool = False,
        encodings: tuple[str, ...] = (),
    ) -> SweepReport:
        packs = PackStore(store or self.store)
        options = SweepOptions(
            retention=retention, dry_run=dry_run, whole_store=whole_store, encodings=encodings
        )
        codec = EverlongCodec(packs)
        return await Sweep(
            self, codec, packs, options, index_dir=index_dir, allow_short_quarantine=True
        ).run()


def _event(number: int, result: Payload, *, ends: bool) -> HistoryEvent:
    held = Payloads(payloads=[result])
    if ends:
        end = WorkflowExecutionCompletedEventAttributes(result=held)
        return HistoryEvent(event_id=number, workflow_execution_completed_event_attributes=end)
    done = ActivityTaskCompletedEventAttributes(result=held)
    return HistoryEvent(event_id=number, activity_task_completed_event_attributes=done)


async def build_namespace(store: BlobStore, seed: int, steps: int = 40) -> FakeNamespace:
    """Return a namespace after random steps: threads that wrote, rolled, forked and ended."""
    world = FakeNamespace(store, seed)
    source = world.source
    for number in range(2):
        world.start(f"w{number}")
    for step in range(steps):
        await _step(world, source, step)
    return world


async def _step(world: FakeNamespace, source: random.Random, step: int) -> None:
    open_runs = [each for each in world.all.values() if each.run.is_open]
    run = source.choice(open_runs) if open_runs else world.start(f"w{step}")
    workflow_id = run.run.workflow_id
    match source.randrange(12):
        case 0 | 1:
            run.payloads.append(await world.large(workflow_id))
        case 2 | 3 | 4:
            run.payloads.append(await world.append(run, source.choice([20, 400, 2000])))
        case 5:  # The worker died after the write.
            await world.large(workflow_id)
        case 6:
            await world.append(dataclasses.replace(run), 300)
        case 7:  # A roll: the next run begins with the head and large lists.
            world.close(run)
            first = await world.name_head(workflow_id, run.head) if run.head else None
            world.start(workflow_id, run.run.root, first).head = run.head
        case 8 if run.head:
            await world.fork(run, f"fork-{step}")
        case 9:  # A child, whose result is in its parent's history.
            child = world.start(f"child-{step}", run.run.root)
            result = await world.large(child.run.workflow_id)
            child.payloads.append(result)
            world.close(child)
            run.payloads.append(result)
        case 10:
            run.heartbeat = await world.large(workflow_id)
        case _:
            closed = [each for each in world.all.values() if not each.run.is_open]
            if closed:
                world.delete(source.choice(closed))
