"""Sharded listings: their results, cursors and handling of store faults."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.errors import StoreUnavailable
from everlong.models import SweepOptions, SweepReport
from everlong.storage.base import BlobInfo, OutOfOrder
from everlong.storage.instrumented import InstrumentedBlobStore
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from everlong.sweep import Sweep
from tests.support.fake_namespace import AT_ONCE, FakeNamespace, build_namespace
from tests.support.fake_stores import OrderedStore


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few objects are many."""
    monkeypatch.setattr(limits, "SWEEP_SCOUT_OBJECTS", 4)
    monkeypatch.setattr(limits, "SWEEP_LIST_PAGE", 2)
    monkeypatch.setattr(limits, "SWEEP_LISTING_PART", 3)
    monkeypatch.setattr(limits, "SWEEP_LISTING_KEEP_SECONDS", 0)


class Kill(BaseException):
    """The sweeper is gone."""


class DyingStore(OrderedStore):
    """Another store's objects. Listing stops after so many of them."""

    def __init__(self, behind: OrderedStore, dies_after: int) -> None:
        super().__init__()
        self._objects, self._times = behind._objects, behind._times
        self._left = dies_after

    async def list_range(
        self, folder: str, after: str, before: str
    ) -> AsyncGenerator[BlobInfo, None]:
        async for info in super().list_range(folder, after, before):
            self._left -= 1
            if self._left < 0:
                raise Kill
            yield info


async def sweep_all(
    world: FakeNamespace,
    store: MemoryBlobStore,
    index_dir: Path | None,
    attempt_of: str = "sweep-1",
) -> SweepReport:
    packs = PackStore(store)
    options = SweepOptions(retention=AT_ONCE, whole_store=True)
    return await Sweep(
        world,
        EverlongCodec(packs),
        packs,
        options,
        index_dir=index_dir,
        allow_short_quarantine=True,
        attempt_of=attempt_of,
    ).run()


@pytest.mark.guarantee(106)
@pytest.mark.parametrize("seed", range(3))
async def test_a_store_listed_in_shards_is_swept_like_any_other(seed: int) -> None:
    world = await build_namespace(OrderedStore(), seed)
    wanted, before = await world.reachable(), await world.keys()
    assert wanted < before
    report = await world.sweep(whole_store=True)
    assert report.stored.objects == len(before)
    for _ in range(2):
        await world.sweep(whole_store=True)
    assert await world.keys() == await world.reachable() == wanted
    assert not await world.keys("quarantine/")


@pytest.mark.guarantee(106)
async def test_an_interrupted_listing_continues_after_its_cursors(tmp_path: Path) -> None:
    world = await build_namespace(OrderedStore(), 1)
    store, count = world.store, len(await world.keys())
    assert isinstance(store, OrderedStore)
    with pytest.raises(Kill):
        await sweep_all(world, DyingStore(store, count - 10), tmp_path)
    report = await sweep_all(world, store, tmp_path)
    assert report.stored.objects == count
    # Less than a page of each of the 16 shards is listed again.
    again = {each for each in store.listed if each.startswith("v1/")}
    assert 10 <= len(again) <= 10 + 16
    for number in range(2, 4):
        await sweep_all(world, store, tmp_path, f"sweep-{number}")
    assert await world.keys() == await world.reachable()


@pytest.mark.guarantee(106)
async def test_another_worker_continues_a_listing_from_its_stored_parts(
    tmp_path: Path,
) -> None:
    world = await build_namespace(OrderedStore(), 1)
    store, count = world.store, len(await world.keys())
    assert isinstance(store, OrderedStore)
    with pytest.raises(Kill):
        await sweep_all(world, DyingStore(store, count - 10), tmp_path / "one")
    parts = await world.keys("sweep/11111111-2222-3333-4444-555555555555/listing/")
    assert parts
    report = await sweep_all(world, store, tmp_path / "other")
    assert report.stored.objects == count
    assert len({each for each in store.listed if each.startswith("v1/")}) < count - 10
    # They are of no use when the sweep has ended.
    assert not await world.keys("sweep/11111111-2222-3333-4444-555555555555/listing/")


@pytest.mark.parametrize("damage", ["a bit", "the end", "gone"])
async def test_a_damaged_part_restarts_the_listing_after_it(tmp_path: Path, damage: str) -> None:
    world = await build_namespace(OrderedStore(), 1)
    store, count = world.store, len(await world.keys())
    assert isinstance(store, OrderedStore)
    with pytest.raises(Kill):
        await sweep_all(world, DyingStore(store, count - 3), tmp_path / "one")
    for key in [each for each in store._objects if "/listing/" in each and "-000001-" in each]:
        data = store._objects[key]
        if damage == "gone":
            del store._objects[key]
        elif damage == "the end":
            store._objects[key] = data[:-1]
        else:
            store._objects[key] = data[:-1] + bytes([data[-1] ^ 1])
    store._sorted = None
    report = await sweep_all(world, store, tmp_path / "other")
    assert report.stored.objects == count
    for number in range(2, 4):
        await sweep_all(world, store, None, f"sweep-{number}")
    assert await world.keys() == await world.reachable()


async def test_a_new_sweep_lists_everything_again(tmp_path: Path) -> None:
    world = await build_namespace(OrderedStore(), 1)
    store, count = world.store, len(await world.keys())
    assert isinstance(store, OrderedStore)
    with pytest.raises(Kill):
        await sweep_all(world, DyingStore(store, count - 3), tmp_path)
    await sweep_all(world, store, tmp_path, "sweep-2")
    assert len({each for each in store.listed if each.startswith("v1/")}) == count


async def test_an_outdated_listing_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await build_namespace(OrderedStore(), 1)
    store, count = world.store, len(await world.keys())
    assert isinstance(store, OrderedStore)
    with pytest.raises(Kill):
        await sweep_all(world, DyingStore(store, count - 3), tmp_path)
    monkeypatch.setattr(limits, "SWEEP_LISTING_SECONDS_MAX", 0.0)
    await sweep_all(world, store, tmp_path)
    assert len({each for each in store.listed if each.startswith("v1/")}) == count


class OverloadedStore(OrderedStore):
    """Does not answer now and then."""

    fails_every = 7

    async def list_range(
        self, folder: str, after: str, before: str
    ) -> AsyncGenerator[BlobInfo, None]:
        async for info in super().list_range(folder, after, before):
            if len(self.listed) % self.fails_every == 0 and before != f"{folder}z":
                raise StoreUnavailable("it did not answer in time")
            yield info


async def test_a_request_that_fails_does_not_end_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_LIST_PAUSE_SECONDS", 0.0)
    world = await build_namespace(OverloadedStore(), 1)
    count = len(await world.keys())
    assert (await world.sweep(dry_run=True)).stored.objects == count
    monkeypatch.setattr(OverloadedStore, "fails_every", 1)
    with pytest.raises(StoreUnavailable):
        await world.sweep(dry_run=True)


class ShuffledStore(OrderedStore):
    """Says that it lists in order, and does not."""

    async def list_range(
        self, folder: str, after: str, before: str
    ) -> AsyncGenerator[BlobInfo, None]:
        last = after
        keys = [each for each in self._objects if each.startswith(folder)]
        for key in keys:
            if key <= last:
                raise OutOfOrder
            if key >= before:
                return
            last = key
            yield self.info(key)


@pytest.mark.guarantee(106)
async def test_an_unordered_store_is_listed_in_one_stream() -> None:
    world = await build_namespace(ShuffledStore(), 2)
    count = len(await world.keys())
    report = await world.sweep(whole_store=True)
    assert report.stored.objects == count
    for _ in range(2):
        await world.sweep(whole_store=True)
    assert await world.keys() == await world.reachable()


async def test_a_store_whose_calls_are_counted_lists_ranges_too() -> None:
    world = await build_namespace(OrderedStore(), 2)
    store = world.store
    assert isinstance(store, OrderedStore)
    await world.sweep(store=InstrumentedBlobStore(store, lambda *_: None), dry_run=True)
    assert len({each for each in store.listed if each.startswith("v1/")}) == len(await world.keys())
    plain = InstrumentedBlobStore(MemoryBlobStore(), lambda *_: None)
    assert not plain.lists_ranges


async def test_a_small_store_takes_one_request_for_each_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    world = await build_namespace(OrderedStore(), 1)
    store = world.store
    assert isinstance(store, OrderedStore)
    await world.sweep()
    assert store.list_requests == 4  # Objects and archives, in their places and in quarantine.


async def test_the_age_of_an_object_counts_from_the_beginning_of_a_resumed_listing(
    tmp_path: Path,
) -> None:
    """It may have been written again after it was listed."""
    world = FakeNamespace(OrderedStore())
    world.start("w0")
    for _ in range(30):
        await world.large("w0")
    store = world.store
    assert isinstance(store, OrderedStore)
    with pytest.raises(Kill):
        await sweep_all(world, DyingStore(store, 25), tmp_path)
    first = await sweep_all(world, store, tmp_path)
    again = await sweep_all(world, store, tmp_path)
    assert again.started_ms == first.started_ms
    other = await sweep_all(world, store, tmp_path, "sweep-2")
    assert other.started_ms > first.started_ms


async def test_a_sweep_at_its_time_limit_stops_and_deletes_nothing(tmp_path: Path) -> None:
    world = await build_namespace(OrderedStore(), 1)
    before = await world.keys()
    packs = PackStore(world.store)
    options = SweepOptions(retention=AT_ONCE, whole_store=True)
    report = await Sweep(
        world,
        EverlongCodec(packs),
        packs,
        options,
        index_dir=tmp_path,
        allow_short_quarantine=True,
        attempt_of="sweep-1",
        seconds_max=-1.0,
    ).run()
    assert report.is_unfinished
    assert report.quarantined.objects == report.purged.objects == 0
    assert await world.keys() == before
    assert not await world.keys("sweep/11111111-2222-3333-4444-555555555555/reports/")
    whole = await sweep_all(world, world.store, tmp_path)  # type: ignore[arg-type]
    assert not whole.is_unfinished
    assert whole.quarantined.objects == len(before - await world.reachable())
