"""Moving payloads to the store: with bounded patience, and without it where it is down."""

import asyncio
import logging
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import FailureError

from everlong import limits
from everlong.codecs import EverlongCodec, offload
from everlong.codecs.budget import BUDGET, CompletionBudget
from everlong.codecs.offload import Offloader, retry_store_call
from everlong.codecs.refs import ENCODING as REF_ENCODING
from everlong.errors import StoreUnavailable
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from tests.support.sample_payloads import activity, noise, payload, read_objects, text, workflow

SMALL = payload(noise(20_000))
LARGE = payload(noise(limits.FALLBACK_BYTES_MAX + 1000))


class FaultyStore(MemoryBlobStore):
    """A store whose next calls fail, hang, or lose their answer."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[BaseException | None] = []
        self.puts = 0
        self.hangs = False
        self.hangs_after = False
        self.get_seconds = 0.0

    async def put(self, key: str, data: bytes) -> None:
        self.puts += 1
        if self.hangs:
            await asyncio.sleep(3600)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        await super().put(key, data)
        if self.hangs_after:
            await asyncio.sleep(3600)

    async def get(self, key: str) -> bytes:
        await asyncio.sleep(self.get_seconds)
        return await super().get(key)

    def fail(self, times: int) -> None:
        self.faults = [StoreUnavailable("down for a test")] * times


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_PAUSES", (0.001, 0.002))


@pytest.fixture
def budget() -> Iterator[CompletionBudget]:
    opened = CompletionBudget()
    token = BUDGET.set(opened)
    yield opened
    BUDGET.reset(token)


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Put the clock of the codec forward, and not the one of the event loop."""
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + seconds)
    monkeypatch.setattr(offload, "time", clock)


@pytest.mark.parametrize("failures", [0, 1, 2])
async def test_a_transient_store_failure_is_retried(failures: int) -> None:
    store = FaultyStore()
    store.fail(failures)
    codec = EverlongCodec(store)
    [ref] = await codec.encode([SMALL])
    assert store.puts == failures + 1
    assert ref.metadata["encoding"] == REF_ENCODING
    assert await EverlongCodec(store).decode([ref]) == [SMALL]
    assert codec.stats.fallbacks == 0


@pytest.mark.guarantee(30)
async def test_retries_have_a_time_limit() -> None:
    store = FaultyStore()
    store.fail(9)
    offloader = Offloader(PackStore(store))
    assert not offloader.is_down
    with pytest.raises(StoreUnavailable, match="down for a test") as raised:
        await offloader.write("", LARGE, LARGE.data)
    assert store.puts == 3
    # One object may be refused for what it is: the store counts as down when another fails too.
    assert not offloader.is_down
    with pytest.raises(StoreUnavailable):
        await offloader.write("", SMALL, SMALL.data)
    assert offloader.is_down
    # A plain exception: Temporal retries the task. ApplicationError could end the workflow.
    assert not isinstance(raised.value, FailureError)


@pytest.mark.guarantee(30)
async def test_a_hanging_call_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_TRY_SECONDS", 0.05)
    store = FaultyStore()
    store.hangs = True
    with pytest.raises(StoreUnavailable, match=r"did not answer in \d+ s\. Check the store"):
        await Offloader(PackStore(store)).write("", SMALL, SMALL.data)
    store.hangs = False
    [ref] = await EverlongCodec(store).encode([SMALL])
    store.get_seconds = 3600
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await EverlongCodec(store).decode([ref])


async def test_a_large_payload_gets_longer_timeouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [ref] = await EverlongCodec(store := FaultyStore()).encode([LARGE])
    monkeypatch.setattr(limits, "STORE_TRY_SECONDS", 0.01)
    store.get_seconds = 0.2
    assert await EverlongCodec(store).decode([ref]) == [LARGE]
    # However large a ref claims to be, there is an end.
    assert offload.store_timeout_seconds(1 << 60) < 600


async def test_other_errors_of_a_store_are_not_retried() -> None:
    store = FaultyStore()
    store.faults = [RuntimeError("a bug")]
    with pytest.raises(RuntimeError, match="a bug"):
        await EverlongCodec(store).encode([SMALL])
    assert store.puts == 1


@pytest.mark.guarantee(30)
async def test_payloads_that_fit_stay_inline_without_a_wait_while_the_store_is_down(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore()
    store.fail(6)
    codec = EverlongCodec(store).with_context(workflow())
    secret = payload(text(60_000, 7) + noise(20_000))
    with caplog.at_level(logging.WARNING):
        inline = [(await codec.encode([each]))[0] for each in (SMALL, secret, SMALL)]
    assert store.puts == 6
    assert await read_objects(store) == {}
    assert all(each.metadata["encoding"] != REF_ENCODING for each in inline)
    assert await EverlongCodec(store).decode(inline) == [SMALL, secret, SMALL]
    assert codec.stats.fallbacks == 3
    assert 0 <= codec.stats.fallback_bytes - sum(each.ByteSize() for each in inline) < 100
    [record] = caplog.records
    assert "the blob store is down: 1 payloads" in record.getMessage()

    pass_time(monkeypatch, limits.STORE_DOWN_SECONDS + 1)
    [ref] = await codec.encode([SMALL])
    assert ref.metadata["encoding"] == REF_ENCODING
    assert codec.stats.payloads == 1


async def test_a_successful_put_marks_the_store_as_up() -> None:
    store = FaultyStore()
    store.fail(3)
    codec = EverlongCodec(store)
    await codec.encode([SMALL])
    assert codec.stats.fallbacks == 1
    encoded = await codec.encode([LARGE, SMALL])
    assert all(each.metadata["encoding"] == REF_ENCODING for each in encoded)
    assert codec.stats.fallbacks == 1


@pytest.mark.guarantee(30)
async def test_the_fallback_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore()
    store.fail(100)
    codec = EverlongCodec(store)
    for minute in range(3):
        pass_time(monkeypatch, 61.0 * minute)
        for thread in "abc":
            await codec.with_context(workflow(thread)).encode([SMALL])
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == [
        1,
        4,
        7,
    ]


async def test_a_payload_that_does_not_fit_raises_and_leaves_nothing() -> None:
    store = FaultyStore()
    store.fail(100)
    codec = EverlongCodec(store)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await codec.encode([LARGE])
    assert codec.stats.fallbacks == 0
    metadata = payload(b"x", extra=LARGE.data)
    with pytest.raises(StoreUnavailable):
        await codec.encode([metadata])


@pytest.mark.guarantee(27)
async def test_a_completion_of_many_small_payloads_goes_to_the_store(
    budget: CompletionBudget,
) -> None:
    store = FaultyStore()
    codec = EverlongCodec(store, inline_bytes_max=64 * 1024)
    items = [payload(noise(60_000, seed)) for seed in range(70)]
    encoded = [(await codec.encode([item]))[0] for item in items]
    inline = [each for each in encoded if each.metadata["encoding"] != REF_ENCODING]
    assert 0 < sum(each.ByteSize() for each in inline) <= limits.COMPLETION_BYTES_MAX
    assert sum(each.ByteSize() for each in encoded) <= limits.COMPLETION_BYTES_MAX + 200 * 70
    assert len(await read_objects(store)) == 70 - len(inline) > 0
    assert budget.left_bytes < 60_100
    assert await EverlongCodec(store).decode(encoded) == items


async def test_a_full_completion_raises_while_the_store_is_down(
    budget: CompletionBudget,
) -> None:
    store = FaultyStore()
    store.fail(10_000)
    codec = EverlongCodec(store)
    fitting = limits.COMPLETION_BYTES_MAX // 1_000_100
    for seed in range(fitting):
        [encoded] = await codec.encode([payload(noise(1_000_000, seed))])
        assert encoded.ByteSize() > 1_000_000
    with pytest.raises(StoreUnavailable):
        await codec.encode([payload(noise(1_000_000, 99))])
    assert 0 <= budget.left_bytes < 1_000_100
    assert codec.stats.fallbacks == fitting


async def lose_payload(codec: EverlongCodec, item: Payload, store: FaultyStore, how: str) -> None:
    """Encode a payload that never becomes durable, or whose durability is not confirmed."""
    if how == "unavailable":
        store.fail(3)
        with pytest.raises(StoreUnavailable):
            await codec._offloader.write(codec._thread, item, item.data)
    elif how == "timeout":
        store.faults = [TimeoutError(), TimeoutError(), TimeoutError()]
        with pytest.raises(StoreUnavailable):
            await codec._offloader.write(codec._thread, item, item.data)
    elif how == "error":
        store.faults = [RuntimeError("a bug")]
        with pytest.raises(RuntimeError):
            await codec.encode([item])
    else:
        store.hangs, store.hangs_after = how == "cancelled", how == "cancelled late"
        task = asyncio.create_task(codec.encode([item]))
        before = store.puts
        while store.puts == before:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.hangs = store.hangs_after = False


@pytest.mark.guarantee(2)
@pytest.mark.parametrize("how", ["unavailable", "timeout", "error", "cancelled", "cancelled late"])
async def test_a_payload_that_is_not_durable_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(limits, "STORE_DOWN_SECONDS", 0.0)
    store = FaultyStore()
    codec = EverlongCodec(store).with_context(workflow())
    body = noise(100_000)
    await codec.encode([payload(body)])
    body += noise(30_000, 1)
    await lose_payload(codec, payload(body), store, how)
    if how != "cancelled late":
        assert len(await read_objects(store)) == 1
    for step in range(2, 4):
        body += noise(30_000, step)
        [ref] = await codec.encode([payload(body)])
        assert ref.metadata["encoding"] == REF_ENCODING
        assert await EverlongCodec(store).decode([ref]) == [payload(body)]
    # Once more, now that all is well: the one that was lost is like any other.
    [again] = await codec.encode([payload(body[:130_000])])
    assert await EverlongCodec(store).decode([again]) == [payload(body[:130_000])]


@pytest.mark.guarantee(9)
async def test_a_payload_encoded_twice_is_one_object_with_one_ref() -> None:
    store = FaultyStore()
    codec = EverlongCodec(store).with_context(workflow())
    first = await codec.encode([SMALL, SMALL])
    assert await codec.encode([SMALL]) == first[:1] == first[1:]
    assert store.puts == 1
    at_once = await asyncio.gather(*(codec.encode([LARGE]) for _ in range(4)))
    assert len({each[0].SerializeToString(deterministic=True) for each in at_once}) == 1
    assert len(await read_objects(store)) == 2


@pytest.mark.guarantee(9)
async def test_an_activity_learns_from_its_input_and_a_client_does_not() -> None:
    store = FaultyStore()
    body = noise(200_000)
    [ref] = await EverlongCodec(store).with_context(workflow()).encode([payload(body)])
    for context, writes_little in (
        (activity(), True),
        (workflow(), False),
        (activity("other"), False),
        (activity(activity_id=None), False),
    ):
        codec = EverlongCodec(store)
        assert await codec.with_context(context).decode([ref]) == [payload(body)]
        grown = payload(body + noise(1000, 1))
        [encoded] = await codec.with_context(workflow()).encode([grown])
        assert (codec.stats.written_bytes < 10_000) == writes_little
        assert await EverlongCodec(store).decode([encoded]) == [grown]


@pytest.mark.guarantee(9)
async def test_a_workflow_task_learns_from_results_so_a_list_does_not_store_them_again() -> None:
    store = FaultyStore()
    activities, workflows = EverlongCodec(store), EverlongCodec(store)
    body = noise(50_000)
    token = BUDGET.set(CompletionBudget())
    try:
        await workflows.with_context(workflow()).encode([payload(body)])
    finally:
        BUDGET.reset(token)
    for step in range(1, 4):
        result = noise(100_000, step)
        [ref] = await activities.with_context(activity()).encode([payload(result)])
        token = BUDGET.set(CompletionBudget())
        try:
            # The result of an activity, decoded on the side of the workflow: there is no activity id.
            decoder = workflows.with_context(activity(activity_id=None))
            assert await decoder.decode([ref]) == [payload(result)]
            before_bytes = workflows.stats.written_bytes
            body += b"result: " + result
            [grown] = await workflows.with_context(workflow()).encode([payload(body)])
        finally:
            BUDGET.reset(token)
        assert workflows.stats.written_bytes - before_bytes < 1000
        assert await EverlongCodec(store).decode([grown]) == [payload(body)]


async def test_a_payload_of_no_thread_is_not_deduplicated() -> None:
    codec = EverlongCodec(FaultyStore())
    for step in range(2):
        await codec.encode([payload(noise(50_000) + noise(100, step))])
    assert codec.stats.written_bytes > 100_000


async def test_unknown_errors_are_passed_on() -> None:
    async def fails() -> None:
        raise ValueError("not of the store")

    with pytest.raises(ValueError, match="not of the store"):
        await retry_store_call(fails)
