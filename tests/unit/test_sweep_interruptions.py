"""Interrupted sweeps: cancellations, slow stores and wrong clocks."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.errors import BlobMissing, StoreUnavailable
from everlong.models import SweepOptions
from everlong.policy import Retention
from everlong.storage.base import BlobInfo
from everlong.storage.file import FileBlobStore
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from everlong.storage.quarantine import PREFIX, RestoringBlobStore
from everlong.sweep import Sweep
from everlong.sweep.index import SweepIndex, with_progress
from tests.support.fake_namespace import AT_ONCE, FakeNamespace

LINKS = 300_000
"""To follow so many takes a second."""
DAY_NS = 24 * 3600 * 10**9


def fill_index(index: SweepIndex, holder: str) -> None:
    with index.transaction():
        index._db.executemany(
            "INSERT INTO links VALUES (?, ?, '', 0, 0)",
            ((holder, number.to_bytes(32, "big")) for number in range(LINKS)),
        )


@pytest.mark.guarantee(106)
async def test_a_sweep_cancelled_while_its_index_works_ends_cleanly(tmp_path: Path) -> None:
    world = FakeNamespace(MemoryBlobStore())
    run = world.start("w0")
    thinks = asyncio.Event()

    def on_progress(text: str) -> None:
        if text == "following known links":
            thinks.set()

    packs = PackStore(world.store)
    options = SweepOptions(retention=AT_ONCE)
    sweep = Sweep(
        world,
        EverlongCodec(packs),
        packs,
        options,
        index_dir=tmp_path,
        on_progress=on_progress,
        allow_short_quarantine=True,
    )
    await sweep.run()  # It makes the index.
    identity = f"{world.store!r} {await world.fetch_namespace_id()} []"
    index = SweepIndex(tmp_path, identity)
    fill_index(index, run.run.run_id)
    index.close()
    thinks.clear()
    sweeping = asyncio.create_task(sweep.run())
    await thinks.wait()
    for _ in range(3):  # As an impatient operator does.
        sweeping.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await sweeping
    # It is sound, and the next one goes on with it.
    index = SweepIndex(tmp_path, identity)
    assert index.scalar("SELECT COUNT(*) FROM links") >= LINKS
    index.close()
    assert not (await sweep.run()).incomplete


async def test_a_working_index_is_not_closed(tmp_path: Path) -> None:
    index = SweepIndex(tmp_path, "x")
    fill_index(index, "r")
    index.run("INSERT INTO roots VALUES ('r')")
    ended: list[str] = []

    def compute() -> None:
        try:
            index.reach_from_roots()
        finally:
            ended.append(threading.current_thread().name)

    computing = asyncio.create_task(index.compute(compute, lambda _: None))
    await asyncio.sleep(0.1)
    computing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await computing
    assert len(ended) == 1
    assert index.scalar("SELECT COUNT(*) FROM marked") in (0, LINKS)  # As a whole, or not at all.
    index.close()


async def test_cancelled_work_has_ended_before_its_waiter_continues() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            steps.append("cleaned up")

    waiting = asyncio.create_task(with_progress(work(), lambda _: None, ""))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert steps == ["cleaned up"]


class SlowStore(MemoryBlobStore):
    """Each read takes a while."""

    seconds = 0.0

    async def get(self, key: str) -> bytes:
        await asyncio.sleep(self.seconds)
        return await super().get(key)


async def test_a_sweep_sends_heartbeats_regularly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_PROGRESS_SECONDS", 0.1)
    store = SlowStore()
    world = FakeNamespace(store)
    run = world.start("w0")
    for _ in range(3):
        run.payloads.append(await world.large("w0"))
        run.payloads.append(await world.append(run, 400))
        await world.large("w0")
    store.seconds = 0.7  # As if each call took twelve minutes.
    reported_at, gaps = time.monotonic(), [0.0]

    def on_progress(_: str) -> None:
        nonlocal reported_at
        gaps.append(time.monotonic() - reported_at)
        reported_at = time.monotonic()

    packs = PackStore(store)
    options = SweepOptions(retention=AT_ONCE)
    report = await Sweep(
        world,
        EverlongCodec(packs),
        packs,
        options,
        on_progress=on_progress,
        allow_short_quarantine=True,
    ).run()
    on_progress("the end")
    assert report.quarantined.objects == 3
    assert max(gaps) < store.seconds


@pytest.mark.guarantee(106)
async def test_a_sweeper_whose_clock_is_ahead_takes_nothing_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FakeNamespace(FileBlobStore(tmp_path))
    world.start("w0")
    await world.large("w0")
    await world.large("w0")
    first = await world.sweep(Retention(payload_seconds=0))
    assert first.quarantined.objects == 2
    assert first.clock_ahead_seconds == 0
    await world.large("w0")
    now_ns = time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now_ns() + 8 * DAY_NS)
        report = await world.sweep(Retention())
    assert (report.purged.objects, report.quarantined.objects) == (0, 0)
    assert report.clock_ahead_seconds == pytest.approx(8 * 24 * 3600, abs=60)
    assert abs(report.started_ms - now_ns() // 10**6) < 60_000


async def test_a_slightly_fast_clock_is_tolerated(tmp_path: Path) -> None:
    class Behind(FileBlobStore):
        async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
            async for info in super().list(prefix):
                assert info.modified_ms is not None
                yield dataclasses.replace(info, modified_ms=info.modified_ms - 2000)

    world = FakeNamespace(Behind(tmp_path))
    world.start("w0")
    await world.large("w0")
    await world.sweep()
    report = await world.sweep()
    assert (report.clock_ahead_seconds, report.purged.objects) == (0, 1)


@pytest.mark.parametrize("read_only", [True, False], ids=["a sweep", "a worker"])
async def test_a_quarantine_that_cannot_be_listed_is_no_proof_of_loss(read_only: bool) -> None:
    class Broken(MemoryBlobStore):
        async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
            if prefix.startswith(PREFIX):
                raise StoreUnavailable("try again")
            async for info in super().list(prefix):
                yield info

    store = RestoringBlobStore(Broken(), read_only=read_only)
    with pytest.raises(StoreUnavailable if read_only else BlobMissing):
        await store.get("v1/a")
    with pytest.raises(BlobMissing):
        await store.get("other/a")
