"""Draining runs: what the codec writes in `mode="read"`, and how a run is known to hold refs."""

import asyncio
import base64
import dataclasses
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import CommandType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import PayloadCodec, WorkflowSerializationContext
from temporalio.service import RPCError, RPCStatusCode

from everlong import limits
from everlong.cli import doctor as cli_doctor
from everlong.codecs import EverlongCodec
from everlong.codecs.budget import (
    ACTIVITY_RESULT,
    BUDGET,
    UNWATCHED,
    ActivityResult,
    CompletionBudget,
)
from everlong.codecs.composition import OuterCodec
from everlong.codecs.payloads import INLINE_ENCODING
from everlong.codecs.refs import is_ref
from everlong.config import Settings, load_settings
from everlong.doctor.remaining_payloads import CodecUsage, CodecUsageReader
from everlong.errors import ConfigError, ServerUnreachable
from everlong.interceptors.read_mode import DrainReader, RunDrain, get_plain_bytes_max, holds_ref
from everlong.interceptors.run_history import RunHistory
from everlong.storage.instrumented import count_reads
from everlong.storage.memory import MemoryBlobStore
from everlong.sweep.history_reader import Histories, Run
from tests.support.sample_payloads import KEY_1, activity, payload

WORKFLOW = WorkflowSerializationContext(namespace="default", workflow_id="w")
INFO = cast("Any", SimpleNamespace(workflow_id="w", run_id="r"))
LARGE = payload(b"".join(bytes([at % 251, at // 251]) for at in range(30_000)))


class HeldRun:
    """A run that is known to hold refs, or known not to."""

    def __init__(self, *, holds: bool) -> None:
        self.holds_refs = self.is_draining = holds
        self.noted = False

    def begin(self, *, replaying: bool) -> None:
        raise AssertionError("the codec does not activate")

    def note(self, event: HistoryEvent) -> None:
        raise AssertionError("the codec reads no events")

    async def decide(self) -> bool:
        return self.is_draining

    def note_refs(self) -> None:
        self.noted = True


@contextmanager
def start_completion(budget: CompletionBudget) -> Iterator[None]:
    token = BUDGET.set(budget)
    try:
        yield
    finally:
        BUDGET.reset(token)


def make_read_codec(**options: Any) -> EverlongCodec:
    return EverlongCodec(MemoryBlobStore(), read_only=True, **options)


async def large_ref() -> tuple[EverlongCodec, Payload]:
    """Return a codec that reads, and a ref to a payload that it can read."""
    store = MemoryBlobStore()
    ref = (await EverlongCodec(store).with_context(WORKFLOW).encode([LARGE]))[0]
    assert is_ref(ref)
    return EverlongCodec(store, read_only=True), ref


async def test_only_a_draining_run_offloads_in_read() -> None:
    codec = make_read_codec().with_context(WORKFLOW)
    for holds in (True, False):
        drain = HeldRun(holds=holds)
        with start_completion(CompletionBudget(drain=drain)):
            encoded = await codec.encode([LARGE])
        assert is_ref(encoded[0]) is holds is drain.noted
    assert await codec.encode([LARGE]) == [LARGE]


@pytest.mark.guarantee(33)
async def test_only_a_draining_run_seals() -> None:
    codec = make_read_codec(keys={"first": KEY_1}).with_context(WORKFLOW)
    small = payload(b"secret")
    with start_completion(CompletionBudget(drain=HeldRun(holds=True))):
        sealed = await codec.encode([small, LARGE])
    assert not any(b"secret" in each.SerializeToString() for each in sealed)
    assert is_ref(sealed[1])
    with start_completion(CompletionBudget(drain=HeldRun(holds=False))):
        assert await codec.encode([small]) == [small]


async def test_outbound_values_of_a_draining_run_are_plain_up_to_a_bound() -> None:
    codec = make_read_codec().with_context(WORKFLOW)
    budget = CompletionBudget(drain=HeldRun(holds=True))
    budget.plain_bytes_max = limits.DRAIN_HANDOVER_BYTES_MAX
    with start_completion(budget):
        assert await codec.encode([LARGE]) == [LARGE]
        both = await codec.encode([LARGE, LARGE])
    # Together they are too large, and one of them would keep the next run draining anyway.
    assert all(map(is_ref, both))


async def test_small_values_stay_plain_while_refs_are_only_suspected() -> None:
    codec = make_read_codec().with_context(WORKFLOW)
    drain = HeldRun(holds=True)
    drain.holds_refs = False
    with start_completion(CompletionBudget(drain=drain)):
        assert await codec.encode([LARGE]) == [LARGE]
        assert all(map(is_ref, await codec.encode([LARGE, LARGE])))


async def test_the_result_of_a_child_of_a_draining_run_is_offloaded() -> None:
    codec = make_read_codec().with_context(WORKFLOW)
    budget = CompletionBudget(drain=HeldRun(holds=False))
    budget.returns_to_drain = True
    with start_completion(budget):
        assert is_ref((await codec.encode([LARGE]))[0])


async def test_an_activity_offloads_its_result_if_its_input_held_a_ref() -> None:
    codec, ref = await large_ref()

    async def run(given: Payload) -> Payload:
        mine = codec.with_context(activity(activity_id="1"))
        await mine.decode([given])
        return (await mine.encode([LARGE]))[0]

    # Each in a task of its own, as the SDK runs activities.
    assert is_ref(await asyncio.create_task(run(ref)))
    assert await asyncio.create_task(run(LARGE)) == LARGE


async def test_a_client_inside_such_an_activity_writes_plain() -> None:
    codec, ref = await large_ref()

    async def run() -> None:
        await codec.with_context(activity(activity_id="1")).decode([ref])
        result = ACTIVITY_RESULT.get()
        assert result is not None
        assert result.offloads
        assert await codec.with_context(WORKFLOW).encode([LARGE]) == [LARGE]

    await asyncio.create_task(run())


class Server:
    """A client whose histories have these events, or an error."""

    def __init__(self, *events: HistoryEvent, error: Exception | None = None) -> None:
        self.events = events
        self.error = error
        self.calls = 0

    namespace = "default"

    def get_workflow_handle(self, workflow_id: str, *, run_id: str) -> "Server":
        return self

    async def fetch_history_events(self, *, page_size: int) -> AsyncIterator[HistoryEvent]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        for event in self.events:
            yield event


def run_drain(server: Server) -> tuple[RunDrain, RunHistory]:
    history = RunHistory()
    drain = RunDrain(DrainReader(cast("Client", server)), INFO, history)
    history.drain = drain
    return drain, history


def make_scheduled_event(*inputs: Payload) -> HistoryEvent:
    event = HistoryEvent()
    event.activity_task_scheduled_event_attributes.input.payloads.extend(inputs)
    return event


async def test_a_ref_is_found_in_a_recorded_input_and_not_in_a_text_that_names_it() -> None:
    _, ref = await large_ref()
    assert holds_ref(make_scheduled_event(LARGE, ref))
    assert not holds_ref(make_scheduled_event(payload(b"binary/everlong-ref")))


async def test_a_new_run_drains_once_a_ref_was_read_or_written() -> None:
    drain, history = run_drain(Server())
    drain.begin(replaying=False)
    assert not await drain.decide()
    history.reads.large_when_plain = 1
    assert await drain.decide()
    drain, _ = run_drain(Server())
    drain.begin(replaying=False)
    drain.note_refs()
    assert await drain.decide()


async def test_the_history_decides_if_a_replayed_run_drains() -> None:
    _, ref = await large_ref()
    for inputs, drains in (((LARGE, ref), True), ((LARGE,), False)):
        drain, history = run_drain(Server())
        drain.begin(replaying=True)
        assert drain.is_draining
        assert not drain.holds_refs
        history.add(make_scheduled_event(*inputs))
        history.finish(complete=True)
        assert await drain.decide() is drains


async def test_a_history_is_read_before_a_write_even_without_a_prefetch() -> None:
    _, ref = await large_ref()
    for events, drains in (
        ((make_scheduled_event(ref),), True),
        ((make_scheduled_event(LARGE),), False),
    ):
        server = Server(*events)
        drain, history = run_drain(server)
        history.finish(complete=False)
        await asyncio.to_thread(drain.begin, replaying=True)
        assert drain.holds_refs is drains
        assert await drain.decide() is drains
        assert server.calls == 1


@pytest.mark.guarantee(33)
async def test_an_unreadable_history_counts_as_having_refs_after_one_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "DRAIN_SECONDS_MAX", 0.1)
    server = Server(error=RPCError("away", RPCStatusCode.UNAVAILABLE, b""))
    drain, history = run_drain(server)
    history.finish(complete=False)
    drain.begin(replaying=True)
    assert await drain.decide()
    assert await drain.decide()
    assert server.calls == 1
    assert "as if it held refs" in caplog.text
    # One that is never read to its end.
    slow, _ = run_drain(Server())
    slow.begin(replaying=True)
    began = time.monotonic()
    assert await slow.decide()
    assert await slow.decide()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("command", "ends", "rolls", "has_parent", "bound"),
    [
        (None, False, True, False, limits.DRAIN_HANDOVER_BYTES_MAX),
        (None, False, False, False, 0),
        ("COMPLETE_WORKFLOW_EXECUTION", True, False, False, limits.DRAIN_HANDOVER_BYTES_MAX),
        ("COMPLETE_WORKFLOW_EXECUTION", True, False, True, 0),
        ("START_CHILD_WORKFLOW_EXECUTION", False, False, False, limits.INLINE_BYTES_MAX),
        ("SIGNAL_EXTERNAL_WORKFLOW_EXECUTION", False, False, False, limits.INLINE_BYTES_MAX),
        ("SCHEDULE_ACTIVITY_TASK", False, False, False, 0),
    ],
)
def test_values_for_other_runs_stay_plain_up_to_their_bound(
    command: str | None, ends: bool, rolls: bool, has_parent: bool, bound: int
) -> None:
    info = None
    if command is not None:
        info = SimpleNamespace(command_type=CommandType.Value(f"COMMAND_TYPE_{command}"))
    assert get_plain_bytes_max(info, ends=ends, rolls=rolls, has_parent=has_parent) == bound


class RollingHistories:
    """Histories in which the run `first` has rolled to `second` since it was listed."""

    def __init__(self, held: Payload, other: Payload = LARGE) -> None:
        self._held = held
        self._other = other

    namespace = "default"

    async def read_events(
        self, workflow_id: str, run_id: str, after: int
    ) -> AsyncIterator[list[HistoryEvent]]:
        event = make_scheduled_event(self._held if run_id == "second" else self._other)
        rolled = HistoryEvent()
        if run_id == "first":
            attributes = rolled.workflow_execution_continued_as_new_event_attributes
            attributes.new_execution_run_id = "second"
        yield [rolled, event]

    async def describe_run(self, workflow_id: str, run_id: str) -> None:
        return None


async def test_the_count_follows_a_run_that_rolls() -> None:
    _, ref = await large_ref()
    histories = cast("Histories", RollingHistories(ref))
    reader = CodecUsageReader(histories)
    assert await reader.read_run(Run("first", "w", "w", is_open=True)) is CodecUsage.REFS
    assert await reader.read_run(Run("first", "w", "w", is_open=False)) is CodecUsage.NOTHING


class MaskingCodec(PayloadCodec):
    """An outer codec: flips all bits, so that no encoding can be seen."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(
                metadata={"encoding": b"binary/masked"},
                data=bytes(255 - each for each in one.SerializeToString()),
            )
            for one in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if any(each.metadata["encoding"] != b"binary/masked" for each in payloads):
            raise ValueError("not masked")
        return [Payload.FromString(bytes(255 - each for each in one.data)) for one in payloads]


@pytest.mark.parametrize("held", [True, False, None], ids=["a ref", "plain", "not decodable"])
async def test_behind_an_outer_codec_only_a_replayed_run_with_refs_drains(
    held: bool | None,
) -> None:
    codec, ref = await large_ref()
    outer = OuterCodec(codec, MaskingCodec())
    given = ref if held else LARGE
    history = RunHistory()
    inputs = [given] if held is None else await outer.outer.encode([given])
    DrainReader(cast("Client", Server(make_scheduled_event(*inputs))), outer).watch(INFO, history)
    assert history.drain is not None
    history.add(make_scheduled_event(*inputs))
    history.finish(complete=True)  # The prefetch cannot have seen it.
    await asyncio.to_thread(history.drain.begin, replaying=True)
    assert await history.drain.decide() is (held is not False)
    assert history.drain.holds_refs is (held is not False)


async def test_runs_are_counted_behind_an_outer_codec() -> None:
    codec, ref = await large_ref()
    outer = OuterCodec(codec, MaskingCodec())
    run = Run("second", "w", "w", is_open=True)
    for given, holding in ((ref, CodecUsage.REFS), (LARGE, CodecUsage.NOTHING)):
        [masked] = await outer.outer.encode([given])
        [other] = await outer.outer.encode([LARGE])
        reader = CodecUsageReader(cast("Histories", RollingHistories(masked, other)), outer)
        assert await reader.read_run(run) is holding
    with pytest.raises(ConfigError, match="MaskingCodec does not decode a payload of workflow 'w'"):
        await CodecUsageReader(cast("Histories", RollingHistories(LARGE)), outer).read_run(run)


async def test_the_command_needs_the_keys_only_behind_an_outer_codec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = load_settings(
        {
            "EVERLONG_OUTER_CODEC": "tests.unit.test_drain:MaskingCodec",
            "EVERLONG_KEYS": f"a:{base64.b64encode(KEY_1).decode()}",
        }
    )
    seen: list[Settings] = []

    async def connect(settings: Settings) -> None:
        seen.append(settings)
        raise ServerUnreachable("no server")

    monkeypatch.setattr(cli_doctor, "connect", connect)
    for each in (settings, dataclasses.replace(settings, outer_codec="")):
        with pytest.raises(ServerUnreachable):
            await cli_doctor._drain(each, "", False, True)
    assert [each.keys != "" for each in seen] == [True, False]


async def test_a_large_value_that_stayed_inline_keeps_a_run_draining() -> None:
    """`inline_bytes_max` may be set high, and values stay inline while the store is down."""
    text = b"the same again " * 100_000
    writes = EverlongCodec(MemoryBlobStore(), inline_bytes_max=limits.FALLBACK_BYTES_MAX)
    [inline] = await writes.with_context(WORKFLOW).encode([payload(text)])
    [small] = await writes.with_context(WORKFLOW).encode([payload(text[:20_000])])
    assert inline.metadata["encoding"] == small.metadata["encoding"] == INLINE_ENCODING
    assert holds_ref(make_scheduled_event(inline))
    assert not holds_ref(make_scheduled_event(small))

    async def run(given: Payload) -> tuple[int, Payload]:
        mine = make_read_codec().with_context(activity(activity_id="1"))
        with count_reads() as reads:
            await mine.decode([given])
        return reads.large_when_plain, (await mine.encode([LARGE]))[0]

    held, result = await asyncio.create_task(run(inline))
    assert held == 1
    assert is_ref(result)
    held, result = await asyncio.create_task(run(small))
    assert held == 0
    assert result == LARGE


async def test_large_values_are_stored_without_an_activation_hook() -> None:
    codec = make_read_codec().with_context(WORKFLOW)

    async def task() -> None:
        UNWATCHED.set(lambda: True)
        assert await codec.encode([LARGE]) == [LARGE]
        assert all(map(is_ref, await codec.encode([LARGE, LARGE])))
        # In an activity: its result, and what its client sends.
        ActivityResult.current()
        assert await codec.encode([LARGE, LARGE]) == [LARGE, LARGE]
        mine = make_read_codec().with_context(activity(activity_id="1"))
        assert await mine.encode([LARGE, LARGE]) == [LARGE, LARGE]

    await asyncio.create_task(task())
    assert await codec.encode([LARGE, LARGE]) == [LARGE, LARGE]


async def test_a_failed_history_read_leaves_the_hooks_on() -> None:
    drain, history = run_drain(Server(error=ValueError("odd")))
    history.finish(complete=False)
    await asyncio.to_thread(drain.begin, replaying=True)
    assert drain.is_draining
