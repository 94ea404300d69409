"""Sweep index in the store: what a new process reads with it and without it."""

import asyncio
import copy
import random
from collections.abc import Awaitable, Iterable
from pathlib import Path

import pytest

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.models import SweepOptions, SweepReport
from everlong.policy import Retention
from everlong.storage.encryption_keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, open_packs
from everlong.sweep import Sweep
from tests.support.fake_namespace import FakeNamespace, _step, build_namespace
from tests.support.fake_stores import OrderedStore
from tests.support.sample_payloads import KEY_1, KEY_2
from tests.unit.test_sweep_kills import check

PLACE = "sweep/11111111-2222-3333-4444-555555555555/index/"
KEPT = Retention(payload_seconds=3600, journal_seconds=3600)


async def twenty(count: int = 20) -> FakeNamespace:
    world = FakeNamespace(OrderedStore())
    for number in range(count):
        run = world.start(f"w{number}")
        for _ in range(4):
            run.payloads.append(await world.append(run, 400))
        run.payloads.append(await world.large(f"w{number}"))
        child = world.start(f"w{number}-child", f"w{number}")
        child.payloads.append(await world.append(child))
        world.close(child)
    return world


async def sweep_first(world: FakeNamespace) -> SweepReport:
    """Run a first sweep. A referenced object that was written within the hour counts as seen."""
    return await world.sweep(KEPT)


@pytest.mark.guarantee(109)
async def test_a_new_process_reads_no_history_and_no_pack_again() -> None:
    world = await twenty()
    first = await sweep_first(world)
    assert first.runs_read == 40
    assert first.packs_read > 60
    world.histories_read.clear()
    second = await world.sweep(KEPT)
    assert (second.runs_read, second.packs_read) == (0, 0)
    assert world.histories_read == []
    assert second.reachable == first.reachable


async def test_a_new_process_reads_only_changed_trees() -> None:
    world = await twenty()
    await sweep_first(world)
    changed = next(each for each in world.all.values() if each.run.workflow_id == "w7")
    changed.payloads.append(await world.append(changed, 400))
    world.histories_read.clear()
    report = await world.sweep(KEPT)
    assert world.histories_read == [changed.run.run_id]
    assert report.packs_read <= 4
    for _ in range(3):
        await world.sweep()
    assert await world.keys() == await world.reachable()


async def test_an_unchanged_index_is_not_written_again() -> None:
    world = await twenty()
    await sweep_first(world)
    before = await world.keys(PLACE)
    assert len(before) == 2  # One file and its manifest.
    await world.sweep(KEPT)
    assert await world.keys(PLACE) == before


async def test_the_index_is_no_object_of_a_thread_and_never_swept() -> None:
    world = await twenty()
    objects = await world.keys()
    for _ in range(3):
        report = await world.sweep(whole_store=True)
    assert report.stored.objects == len(objects)
    assert await world.keys(PLACE)
    assert not [key for key in await world.keys("quarantine/") if "index" in key]


@pytest.mark.guarantee(106)
@pytest.mark.parametrize("damage", ["a bit", "the end", "gone", "empty", "of another place"])
@pytest.mark.parametrize("which", [".bin", ".manifest"])
async def test_a_damaged_index_is_only_slower(
    monkeypatch: pytest.MonkeyPatch, damage: str, which: str
) -> None:
    monkeypatch.setattr(limits, "SWEEP_INDEX_ROWS", 20)
    world = await build_namespace(OrderedStore(), 3)
    store = world.store
    assert isinstance(store, OrderedStore)
    await world.sweep(KEPT, whole_store=True)
    files = sorted(key for key in store._objects if key.startswith(PLACE) and key.endswith(which))
    for number, key in enumerate(files):
        data = store._objects[key]
        if damage == "gone":
            del store._objects[key]
        else:
            store._objects[key] = {
                "a bit": data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]),
                "the end": data[:-1],
                "empty": b"",
                "of another place": store._objects[files[number - 1]],
            }[damage]
    store._sorted = None
    world.histories_read.clear()
    for _ in range(3):
        report = await world.sweep(whole_store=True)
        assert not report.incomplete
    if damage != "of another place" or len(files) > 1:
        assert set(world.histories_read) >= set(world.all)
    assert await world.keys() == await world.reachable()
    assert not await world.keys("quarantine/")


@pytest.mark.guarantee(106)
@pytest.mark.parametrize("rows", [(50_000, 200_000), (15, 25), (50_000, 40)])
@pytest.mark.parametrize("seed", range(2))
async def test_a_new_process_for_each_sweep_takes_exactly_the_unreachable_objects(
    monkeypatch: pytest.MonkeyPatch, seed: int, rows: tuple[int, int]
) -> None:
    """With one file, with many, and with files that hold only a part of the runs."""
    monkeypatch.setattr(limits, "SWEEP_INDEX_ROWS", rows[0])
    monkeypatch.setattr(limits, "SWEEP_INDEX_ROWS_MAX", rows[1])
    world = await build_namespace(OrderedStore(), seed, steps=15)
    source = random.Random(seed)
    for step in range(10):
        for _ in range(source.randrange(5)):
            await _step(world, source, 100 + step)
        await world.sweep(whole_store=True)
        await check(world)
        # An encoder references its packs for a day, and here quarantine is shorter. A new encoder
        # references none of them, and reading an object restores it from quarantine.
        world.packs = open_packs(world.store)
        world.codec = EverlongCodec(world.packs, inline_bytes_max=1024)
    for _ in range(3):
        await world.sweep(whole_store=True)
    assert await world.keys() == await world.reachable()
    assert not await world.keys("quarantine/")


async def test_a_new_process_knows_the_refs_of_masked_payloads() -> None:
    """A payload's bytes do not show what it names: a run that counts as read comes with that."""
    from tests.unit.test_sweep_codecs import sweep_twice
    from tests.unit.test_sweep_races import MaskingCodec

    world = FakeNamespace(OrderedStore())
    run = world.start("w0")
    world.codec = EverlongCodec(world.packs, inline_bytes_max=64).with_inner(MaskingCodec())
    run.payloads[0] = await world.encode("w0", run.payloads[0])
    for _ in range(4):
        run.payloads.append(await world.append(run, 400))
    world.close(run)
    [run.payloads[-1]] = [await world.encode("w0", run.payloads[-1])]
    before = await world.keys()
    for _ in range(3):
        report = await sweep_twice(world, world.codec)
        assert not report.incomplete
    assert report.runs_read == 0
    assert run.head is not None
    journal = await world._journal(run.head)
    assert journal <= await world.keys() <= before


async def seal_namespace(world: FakeNamespace, keys: dict[str, bytes] | None) -> SweepReport:
    packs = PackStore(world.store, None if keys is None else Keyring(keys), accept_unsealed=True)
    options = SweepOptions(retention=KEPT)
    return await Sweep(
        world, EverlongCodec(packs), packs, options, allow_short_quarantine=True
    ).run()


@pytest.mark.guarantee(109)
async def test_the_index_is_sealed_with_keys_and_an_unsealed_one_refused() -> None:
    world = await twenty(3)
    assert (await seal_namespace(world, None)).runs_read == 6
    assert (
        await seal_namespace(world, {"a": KEY_1})
    ).runs_read == 6  # An unsealed index may be forged.
    assert (await seal_namespace(world, {"a": KEY_1})).runs_read == 0
    assert (await seal_namespace(world, {"b": KEY_2, "a": KEY_1})).runs_read == 0
    store = world.store
    assert isinstance(store, OrderedStore)
    held = b"".join(data for key, data in store._objects.items() if key.startswith(PLACE))
    assert b"w0-child" not in held
    assert (await seal_namespace(world, None)).runs_read == 6


class Kill(BaseException):
    """The sweeper is gone: from now on it does nothing."""


class DyingStore(OrderedStore):
    """Another store's objects. The n-th call that changes or reads an object kills."""

    def __init__(self, behind: OrderedStore, dies_at: int) -> None:
        super().__init__()
        self._objects, self._times = behind._objects, behind._times
        self._left = dies_at

    async def _call(self, work: Awaitable[object]) -> object:
        self._left -= 1
        if self._left <= 0:
            work.close()  # type: ignore[attr-defined]
            raise Kill
        return await work

    async def put(self, key: str, data: bytes) -> bool | None:
        return await self._call(super().put(key, data))  # type: ignore[return-value]

    async def get(self, key: str) -> bytes:
        return await self._call(super().get(key))  # type: ignore[return-value]

    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            await self._call(super().delete([key]))


@pytest.mark.guarantee(106)
async def test_a_diskless_sweep_killed_at_every_13th_call_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two files, before the manifest, and before what it replaces is deleted."""
    monkeypatch.setattr(limits, "SWEEP_INDEX_ROWS", 10)
    monkeypatch.setattr(limits, "SWEEP_SAVE_SECONDS", 0.0)
    world = await build_namespace(OrderedStore(), 11, steps=25)
    await world.sweep(whole_store=True)
    world.codec = EverlongCodec(world.packs, inline_bytes_max=1024)
    for step in range(8):
        await _step(world, world.source, 50 + step)
    store = world.store
    assert isinstance(store, OrderedStore)
    wanted, began = await world.reachable(), (dict(store._objects), dict(store._times))
    calls, is_over = 0, False
    while not is_over:
        calls += 13
        store._objects.clear()
        store._objects.update(began[0])
        store._times.update(began[1])
        store._sorted = None
        try:
            await world.sweep(store=DyingStore(store, calls), whole_store=True)
            is_over = True
        except Kill:
            copied = {key.removeprefix("quarantine/").rpartition(".")[0] for key in store._objects}
            assert wanted <= copied | store._objects.keys()
        store._sorted = None
        for _ in range(3):
            await world.sweep(whole_store=True)
        assert await world.keys() == await world.reachable() == wanted
    assert calls > 60


async def test_concurrent_diskless_sweeps_lose_nothing() -> None:
    world = await build_namespace(OrderedStore(), 4)
    for step in range(3):
        await asyncio.gather(*(world.sweep(whole_store=True) for _ in range(3)))
        await check(world)
        world.packs = open_packs(world.store)
        world.codec = EverlongCodec(world.packs, inline_bytes_max=1024)
        await _step(world, world.source, 80 + step)
    for _ in range(3):
        await world.sweep(whole_store=True)
    assert await world.keys() == await world.reachable()


async def test_a_reopened_run_is_read_from_its_beginning(
    tmp_path: Path,
) -> None:
    """Temporal's database was restored from a backup."""
    world = FakeNamespace(OrderedStore())
    run = world.start("w0")
    run.payloads.append(await world.append(run, 400))
    backup = copy.deepcopy(run)
    world.close(run)
    await world.sweep(KEPT, index_dir=tmp_path)
    world.all[run.run.run_id] = backup
    backup.payloads[1] = await world.large("w0")
    backup.payloads.append(await world.append(backup, 400))
    for _ in range(3):
        await world.sweep(index_dir=tmp_path)
    assert await world.reachable() <= await world.keys()


async def test_an_oversized_index_file_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SWEEP_INDEX_BYTES_MAX", 1000)
    world = await twenty(5)
    await sweep_first(world)
    assert not await world.keys(PLACE)
    assert (await sweep_first(world)).runs_read == 10


async def test_a_dry_run_reads_the_index_and_writes_none() -> None:
    world = await twenty(3)
    assert (await world.sweep(KEPT, dry_run=True)).runs_read == 6
    assert not await world.keys("sweep/")
    await sweep_first(world)
    assert (await world.sweep(KEPT, dry_run=True)).runs_read == 0


async def test_open_runs_of_a_store_without_times_are_read_again() -> None:
    world = await twenty(3)
    store = MemoryBlobStore()
    assert isinstance(world.store, OrderedStore)
    store._objects = world.store._objects
    world.store = store
    await world.sweep(KEPT)
    world.histories_read.clear()
    await world.sweep(KEPT)
    assert len(world.histories_read) == 3  # The closed ones are known.
