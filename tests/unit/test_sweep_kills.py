"""Sweeps that are cut off anywhere, that meet each other, and what they cost."""

import asyncio
import copy
import dataclasses
import random
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path

import pytest

from everlong import limits
from everlong.storage.base import BlobInfo
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import open_packs
from tests.support.fake_namespace import AT_ONCE, FakeNamespace, build_namespace


class Kill(BaseException):
    """The sweeper is gone: from now on it does nothing."""


class DyingStore(MemoryBlobStore):
    """Another store's objects. The n-th call kills: before it is done, or after."""

    def __init__(self, behind: MemoryBlobStore, dies_at: int, *, after: bool) -> None:
        super().__init__()
        self._objects = behind._objects
        self._left = dies_at
        self._after = after
        self.is_dead = False

    async def _call(self, work: Awaitable[object]) -> object:
        self._left -= 1
        if self.is_dead or (self._left <= 0 and not self._after):
            self.is_dead = True
            work.close()  # type: ignore[attr-defined]
            raise Kill
        done = await work
        if self._left <= 0:
            self.is_dead = True
            raise Kill
        return done

    async def put(self, key: str, data: bytes) -> None:
        await self._call(super().put(key, data))

    async def get(self, key: str) -> bytes:
        return await self._call(super().get(key))  # type: ignore[return-value]

    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:  # One by one: a bulk delete may be cut off as well.
            await self._call(super().delete([key]))

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        async for info in super().list(prefix):
            await self._call(asyncio.sleep(0))
            yield info


class BusyStore(MemoryBlobStore):
    """Takes a moment for each call, so that those of several sweeps mix."""

    def __init__(self, behind: MemoryBlobStore, seed: int) -> None:
        super().__init__()
        self._objects = behind._objects
        self._source = random.Random(seed)

    async def _pause(self) -> None:
        for _ in range(self._source.randrange(4)):
            await asyncio.sleep(0)

    async def put(self, key: str, data: bytes) -> None:
        await self._pause()
        await super().put(key, data)

    async def get(self, key: str) -> bytes:
        await self._pause()
        return await super().get(key)

    async def delete(self, keys: Iterable[str]) -> None:
        await self._pause()
        await super().delete(keys)


async def in_all_stages(seed: int) -> FakeNamespace:
    """A namespace with garbage in its place, garbage in quarantine, and what is wrongly there."""
    world = await build_namespace(MemoryBlobStore(), seed, steps=25)
    hidden = [each for each in world.all if world.source.random() < 0.3]
    world.hidden = set(hidden)
    await world.sweep(whole_store=True)
    world.hidden = set()
    for run in [each for each in world.all.values() if not each.run.is_open][:2]:
        world.delete(run)
    return world


async def check(world: FakeNamespace) -> None:
    """All that is reachable can be read, from its place or from quarantine."""
    packs = open_packs(copy.deepcopy(world.store))
    for key in await MadeUpIn(world).reachable():
        assert await packs.store.get(key)


class MadeUpIn(FakeNamespace):
    """The same namespace, over a copy of its store from which quarantine is read."""

    def __init__(self, world: FakeNamespace) -> None:
        super().__init__(world.store)
        self.all, self.nightly = world.all, world.nightly
        self.packs = open_packs(copy.deepcopy(world.store))


@pytest.mark.guarantee(106)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_sweep_killed_at_any_call_loses_nothing(tmp_path: Path, after: bool) -> None:
    world = await in_all_stages(seed=11)
    store = world.store
    assert isinstance(store, MemoryBlobStore)
    wanted, began = await MadeUpIn(world).reachable(), dict(store._objects)
    calls, is_over = 0, False
    while not is_over:
        calls += 1
        store._objects.clear()
        store._objects.update(began)
        index_dir = tmp_path / str(calls)
        try:
            dying = DyingStore(store, calls, after=after)
            await world.sweep(store=dying, index_dir=index_dir, whole_store=True)
            is_over = True
        except Kill:
            copied = {key.removeprefix("quarantine/").rpartition(".")[0] for key in store._objects}
            assert wanted <= copied | store._objects.keys()
        if calls % 20 == 0 or is_over:
            await check(world)
            # It goes on where it was: all garbage goes in the end, and nothing else.
            for _ in range(3):
                await world.sweep(index_dir=index_dir, whole_store=True)
            assert await world.keys() == await world.reachable() == wanted
            assert not await world.keys("quarantine/")
    assert calls > 60


@pytest.mark.guarantee(106)
@pytest.mark.parametrize("seed", range(4))
async def test_concurrent_sweeps_lose_nothing(tmp_path: Path, seed: int) -> None:
    world = await in_all_stages(seed)
    store = world.store
    assert isinstance(store, MemoryBlobStore)
    for _ in range(3):
        await asyncio.gather(
            *(
                world.sweep(
                    store=BusyStore(store, seed + number), index_dir=tmp_path, whole_store=True
                )
                for number in range(3)
            )
        )
        await check(world)
    assert await world.keys() == await world.reachable()
    assert not await world.keys("quarantine/")


class LaggingStore(BusyStore):
    """Its listing is one behind."""

    def __init__(self, behind: MemoryBlobStore, seed: int) -> None:
        super().__init__(behind, seed)
        self._listed: dict[str, list[BlobInfo]] = {}

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        now = [info async for info in super().list(prefix)]
        for info in self._listed.get(prefix, now):
            yield info
        self._listed[prefix] = now


@pytest.mark.guarantee(106)
async def test_a_listing_that_lags_loses_nothing(tmp_path: Path) -> None:
    world = await in_all_stages(seed=5)
    store = world.store
    assert isinstance(store, MemoryBlobStore)
    lagging = LaggingStore(store, 5)
    for _ in range(4):
        await world.sweep(store=lagging, index_dir=tmp_path, whole_store=True)
        await check(world)
        for run in [each for each in world.all.values() if each.run.is_open][:1]:
            run.payloads.append(await world.append(run, 900))
    for _ in range(4):
        await world.sweep(store=lagging, index_dir=tmp_path, whole_store=True)
    assert await world.keys() == await world.reachable()


@pytest.mark.guarantee(106)
async def test_threads_that_write_during_a_sweep_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A quarantine has to be longer than an encoder remembers.
    monkeypatch.setattr(limits, "ENCODER_SECONDS_MAX", 0.1)
    monkeypatch.setattr(limits, "ENCODER_PACK_SECONDS_MAX", 0.2)
    short = dataclasses.replace(AT_ONCE, quarantine_seconds=0.6)
    world = await in_all_stages(seed=8)
    store = world.store
    assert isinstance(store, MemoryBlobStore)

    async def write() -> None:
        for step in range(60):
            await asyncio.sleep(0.03)
            runs = [each for each in world.all.values() if each.run.is_open]
            run = runs[step % len(runs)]
            name = run.run.workflow_id
            written = await (world.large(name) if step % 2 else world.append(run, 900))
            await asyncio.sleep(0)
            run.payloads.append(written)
            if step % 9 == 8:
                world.close(run)
                first = await world.name_head(name, run.head) if run.head else None
                world.start(name, run.run.root, first).head = run.head

    async def sweep_on(writing: asyncio.Task[None]) -> int:
        purged = sweeps = 0
        while not writing.done():
            busy = BusyStore(store, sweeps)
            done = await world.sweep(short, store=busy, index_dir=tmp_path, whole_store=True)
            purged += done.purged.objects
            sweeps += 1
        return purged

    # Reads of its threads restore objects, as everywhere.
    world.packs = open_packs(BusyStore(store, 0))
    writing = asyncio.create_task(write())
    assert await sweep_on(writing) > 0
    await writing
    await check(world)
    for _ in range(3):
        await world.sweep(index_dir=tmp_path, whole_store=True)
    assert await world.keys() == await world.reachable()


async def twenty(count: int = 20) -> FakeNamespace:
    world = FakeNamespace(MemoryBlobStore())
    for number in range(count):
        run = world.start(f"w{number}")
        for _ in range(8):
            run.payloads.append(await world.append(run, 400))
        run.payloads.append(await world.large(f"w{number}"))
        child = world.start(f"w{number}-child", f"w{number}")
        child.payloads.append(await world.append(child))
        world.close(child)
    return world


@pytest.mark.guarantee(109)
async def test_unchanged_histories_are_not_read_again(tmp_path: Path) -> None:
    world = await twenty()
    first = await world.sweep(index_dir=tmp_path)
    assert first.runs_read == 40
    assert first.packs_read > 100
    world.histories_read.clear()
    second = await world.sweep(index_dir=tmp_path)
    assert (second.runs_read, second.packs_read) == (0, 0)
    assert world.histories_read == []


@pytest.mark.guarantee(109)
async def test_a_sweep_reads_only_changed_trees(tmp_path: Path) -> None:
    world = await twenty()
    await world.sweep(index_dir=tmp_path)
    changed = next(each for each in world.all.values() if each.run.workflow_id == "w7")
    changed.payloads.append(await world.append(changed, 400))
    world.histories_read.clear()
    report = await world.sweep(index_dir=tmp_path)
    assert world.histories_read == [changed.run.run_id]
    assert report.packs_read <= 4
    assert await world.keys() == await world.reachable()
