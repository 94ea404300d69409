"""Sweeps of synthetic namespaces: which objects they take and leave."""

import asyncio
import dataclasses
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong.codecs import EverlongCodec
from everlong.codecs.refs import parse_ref
from everlong.errors import BlobMissing, ConfigError
from everlong.models import Kind, Ref, SweepOptions, thread_key
from everlong.policy import Retention
from everlong.storage.file import FileBlobStore
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, open_packs, pack_key
from everlong.sweep import Sweep
from everlong.sweep.index import Link
from everlong.sweep.links import find_links
from tests.support.fake_namespace import AT_ONCE, NAMESPACE, FakeNamespace, build_namespace
from tests.support.sample_payloads import noise, payload

SWEEPS = 3
"""The first quarantines, the second deletes, and the third finds nothing left to do."""


@pytest.mark.guarantee(107)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_a_sweep_takes_exactly_the_unreachable_objects(seed: int) -> None:
    async def live() -> None:
        world = await build_namespace(MemoryBlobStore(), seed)
        await world.sweep(whole_store=True)
        left = await world.reachable()
        assert await world.keys() == left
        await _step_on(world)
        left = await world.reachable()
        for _ in range(SWEEPS):
            report = await world.sweep(whole_store=True)
            assert not report.incomplete
        assert await world.keys() == left == await world.reachable()
        assert not await world.keys("quarantine/")

    asyncio.run(live())


async def _step_on(world: FakeNamespace) -> None:
    for run in list(world.all.values())[::2]:
        if run.run.is_open:
            world.close(run)
        world.delete(run)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=5, deadline=None)
def test_an_index_does_not_change_the_swept_objects(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    async def live() -> None:
        index_dir = tmp_path_factory.mktemp("index")
        world = await build_namespace(MemoryBlobStore(), seed)
        for _ in range(SWEEPS):
            await world.sweep(index_dir=index_dir, whole_store=True)
            for run in list(world.all.values())[:2]:
                if run.run.is_open:
                    run.payloads.append(await world.append(run, 500))
                else:
                    world.delete(run)
        left = await world.reachable()
        for _ in range(SWEEPS):
            await world.sweep(index_dir=index_dir, whole_store=True)
        assert await world.keys() == left

    asyncio.run(live())


async def small(store: MemoryBlobStore | None = None) -> FakeNamespace:
    """Two threads with a journal and large payloads, and some garbage in both."""
    world = FakeNamespace(store or MemoryBlobStore())
    for number in range(2):
        run = world.start(f"w{number}")
        for _ in range(6):
            run.payloads.append(await world.append(run, 400))
        run.payloads.append(await world.large(f"w{number}"))
        await world.large(f"w{number}")
    return world


async def test_young_objects_stay(tmp_path: Path) -> None:
    world = await small(FileBlobStore(tmp_path))  # type: ignore[arg-type]
    before = await world.keys()
    report = await world.sweep(Retention(quarantine_seconds=0))
    assert await world.keys() == before
    assert report.young.objects == 2
    old = time.time() - 25 * 3600
    for key in before:
        os.utime(tmp_path / key, (old, old))
    report = await world.sweep(Retention(quarantine_seconds=0))
    assert report.quarantined.objects == 2
    assert report.classes["payload"].objects == 2


async def test_each_object_class_has_its_own_retention() -> None:
    world = await small()
    [run, _] = world.all.values()
    run.payloads = run.payloads[:1]  # A reset: its journal and payloads are unreachable.
    report = await world.sweep(
        Retention(payload_seconds=0, journal_seconds=9, quarantine_seconds=0)
    )
    assert set(report.classes) == {"payload"}
    report = await world.sweep(
        Retention(payload_seconds=9, journal_seconds=0, quarantine_seconds=0)
    )
    assert set(report.classes) == {"journal"}


async def test_the_index_dates_objects_of_a_store_without_times(tmp_path: Path) -> None:
    world = await small()
    kept = Retention(payload_seconds=1.0, journal_seconds=1.0, quarantine_seconds=0)
    report = await world.sweep(kept, index_dir=tmp_path)
    assert report.quarantined.objects == 0
    deadline = time.monotonic() + 60
    while not report.quarantined.objects:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)
        report = await world.sweep(kept, index_dir=tmp_path)
    assert report.quarantined.objects == 2


@pytest.mark.guarantee(107)
@pytest.mark.parametrize("is_remembered", [False, True])
async def test_the_base_of_a_pack_and_the_sources_of_the_base_stay(
    tmp_path: Path, is_remembered: bool
) -> None:
    world = FakeNamespace(MemoryBlobStore())
    run = world.start("w0")
    body, through_base = b"", set[bytes]()
    for step in range(40):
        body += noise(3000, step)
        encoded = await world.encode("w0", payload(body))
        ref = parse_ref(encoded)
        pack = await world.packs.open(ref.thread, ref.pack)
        if pack.base is not None:
            # The history names the newest list alone, and its manifest leaves these packs to its base.
            base = await world.packs.open(ref.thread, pack.base)
            through_base = set(base.sources) - set(pack.sources)
        if len(through_base) > 3:
            break
    run.payloads.append(encoded)
    assert len(through_base) > 3
    left = await world.reachable()
    assert {pack_key(ref.thread, each) for each in through_base} <= left
    for _ in range(SWEEPS):
        await world.sweep(index_dir=tmp_path if is_remembered else None, whole_store=True)
    assert await world.keys() == left
    assert await EverlongCodec(world.store).decode([encoded]) == [payload(body)]


async def test_a_dry_run_reports_candidates_and_changes_nothing() -> None:
    world = await small()
    before = await world.keys("")
    report = await world.sweep(dry_run=True)
    assert await world.keys("") == before
    assert report.quarantined.objects == 2
    assert {each.workflow_id for each in report.threads} == {"w0", "w1"}
    assert (await world.sweep()).quarantined == report.quarantined


@pytest.mark.guarantee(107)
async def test_threads_of_unknown_origin_are_left_alone() -> None:
    world = await small()
    elsewhere = PackStore(world.store)
    await elsewhere.write_body(thread_key("another", "w9"), "segment", b"{}")  # type: ignore[arg-type]
    report = await world.sweep()
    assert report.foreign.objects == 1
    report = await world.sweep(whole_store=True)
    assert (report.foreign.objects, report.quarantined.objects) == (0, 1)


@pytest.mark.guarantee(107)
async def test_a_thread_seen_once_is_swept_after_its_history() -> None:
    world = await small()
    await world.sweep(Retention(quarantine_seconds=0))
    world.all.clear()
    for _ in range(SWEEPS):
        await world.sweep()  # Without an index: what a sweep has seen is noted in the store.
    assert await world.keys() == await world.keys("quarantine/") == set()


@pytest.mark.guarantee(106)
async def test_a_read_restores_a_quarantined_object() -> None:
    world = await small()
    before = await world.keys()
    runs = dict(world.all)
    world.all.clear()
    await world.sweep(AT_ONCE, whole_store=True)
    assert await world.keys() == set()
    operations: list[str] = []
    packs = open_packs(world.store, on_call=lambda operation, *_: operations.append(operation))
    for key in before:
        assert await packs.store.get(key)
        assert (await packs.store.get_range(key, 0, 4)) == b"EVPK"
    assert await world.keys() == before
    assert operations.count("restore") == len(before)
    world.all = runs
    with pytest.raises(BlobMissing):
        await packs.store.get(f"v1/{thread_key(NAMESPACE, 'w0')}/{'0' * 64}.pack")


async def test_the_next_sweep_restores_objects_referenced_again() -> None:
    world = await small()
    hidden = next(iter(world.all))
    world.hidden = {hidden}  # As a run that visibility does not list yet.
    report = await world.sweep(whole_store=True)
    assert report.quarantined.objects > 2
    world.hidden = set()
    report = await world.sweep()
    assert report.restored.objects > 0
    assert await world.keys() == await world.reachable()


async def test_an_unlisted_run_counts_as_long_as_temporal_has_it(
    tmp_path: Path,
) -> None:
    world = await small()
    await world.sweep(index_dir=tmp_path)
    world.hidden = set(world.all)
    await world.sweep(index_dir=tmp_path)
    assert await world.keys() == await world.reachable()


@pytest.mark.guarantee(106)
async def test_possible_results_of_a_running_activity_are_not_deleted() -> None:
    world = await small()
    run = next(iter(world.all.values()))
    run.busy_since_ms = int(time.time() * 1000) - 5000
    result = await world.append(run, 2000)  # Written, and not returned yet.
    for _ in range(SWEEPS):
        await world.sweep()
    assert await world.keys("quarantine/")
    run.payloads.append(result)
    run.busy_since_ms = None
    for _ in range(SWEEPS):
        await world.sweep()
    assert await world.keys() == await world.reachable()
    assert not await world.keys("quarantine/")


async def test_objects_of_a_schedule_stay() -> None:
    world = await small()
    world.nightly = await world.large("w0")
    for _ in range(SWEEPS):
        await world.sweep()
    assert await world.keys() == await world.reachable()


@pytest.mark.guarantee(108)
async def test_one_history_that_cannot_be_read_keeps_everything() -> None:
    world = await small()
    run = next(iter(world.all.values()))
    lost = next(iter(await world._keys(run.payloads[-1])))
    data = await world.store.get(lost)
    await world.store.delete([lost])
    before = await world.keys()
    report = await world.sweep()
    assert await world.keys() == before
    assert "w0" in report.incomplete[0]
    assert "BlobMissing" in report.incomplete[0]
    await world.store.put(lost, data)
    assert not (await world.sweep()).incomplete


async def test_a_lost_segment_keeps_everything() -> None:
    world = await small()
    run = next(iter(world.all.values()))
    assert run.head is not None
    lost = min(await world._journal(run.head))
    await world.store.delete([lost])
    report = await world.sweep()
    assert report.incomplete
    assert report.quarantined.objects == 0


@pytest.mark.guarantee(108)
async def test_unreadable_payloads_keep_everything() -> None:
    world = await small()
    run = next(iter(world.all.values()))
    run.payloads.append(payload(b"secret", encoding=b"binary/encrypted"))
    report = await world.sweep()
    assert "binary/encrypted" in report.incomplete[0]
    assert "secret" not in report.incomplete[0]
    assert report.quarantined.objects == 0
    report = await world.sweep(encodings=("binary/encrypted",))
    assert not report.incomplete


async def test_foreign_objects_are_never_touched() -> None:
    world = await small()
    names = ["v1/notes.txt", "v1/abc/def.pack", "doctor/probe", "other/thing", "archive/readme"]
    names += [f"v1/{thread_key('', '')}/{'0' * 64}.pack", "quarantine/mine", "sweep/mine"]
    names.append(f"v1/{thread_key(NAMESPACE, 'w0')}/{'0' * 64}")  # No pack.
    for name in names:
        await world.store.put(name, b"not ours")
    for _ in range(SWEEPS):
        await world.sweep(
            Retention(
                payload_seconds=0, journal_seconds=0, archive_seconds=0, quarantine_seconds=0
            ),
            whole_store=True,
        )
    assert set(names) <= await world.keys("")


async def test_archives_are_deleted_only_by_their_age() -> None:
    world = await small()
    place = f"archive/v1/{thread_key(NAMESPACE, 'w0')}/20260101T000000000Z-0123abcd"
    for end in (".json", ".parquet"):
        await world.store.put(place + end, b"archived")
    for _ in range(SWEEPS):
        await world.sweep()
    assert len(await world.keys("archive/")) == 2
    kept = Retention(payload_seconds=0, journal_seconds=0, archive_seconds=0, quarantine_seconds=0)
    report = await world.sweep(kept)
    assert report.classes["archive"].objects == 2
    assert not await world.keys("archive/")


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "sorted"])
@pytest.mark.parametrize("kind", [Kind.SEGMENT, Kind.SNAPSHOT, Kind.MESSAGE])
def test_refs_are_found_with_the_thread_that_they_name(kind: Kind, in_order: bool) -> None:
    ref = Ref(thread="7" * 32, digest="ab" * 32, size_bytes=12, kind=kind, preview='a "b" ö')
    data = json.dumps(dataclasses.asdict(ref), sort_keys=not in_order, separators=(",", ":"))
    [link] = find_links(f'[{data},"{"0" * 63}"]'.encode())
    assert link == Link(bytes.fromhex("ab" * 32), "7" * 32, kind is Kind.MESSAGE)


def test_a_name_counts_anywhere_in_a_payload() -> None:
    name = "0123456789abcdef" * 4
    for around in ("{}", "see v1/xyz/{}.pack", '\\"{}\\"', "g{}g"):
        [link] = find_links(around.format(name).encode())
        assert link == Link(bytes.fromhex(name))


def test_a_short_quarantine_is_refused() -> None:
    world = FakeNamespace(MemoryBlobStore())
    with pytest.raises(ConfigError, match="quarantine_seconds"):
        Sweep(world, None, world.packs, SweepOptions(retention=AT_ONCE))
    Sweep(world, None, world.packs, SweepOptions())


async def test_a_damaged_index_is_rebuilt(tmp_path: Path) -> None:
    world = await small()
    await world.sweep(index_dir=tmp_path)
    (tmp_path / "sweep.sqlite").write_bytes(b"not a database" * 100)
    world.histories_read.clear()
    report = await world.sweep(index_dir=tmp_path)
    assert report.runs_read == len(world.all)
    assert await world.keys() == await world.reachable()


async def test_an_index_of_another_store_is_not_used(tmp_path: Path) -> None:
    world = await small()
    await world.sweep(index_dir=tmp_path)
    other = await small(FileBlobStore(tmp_path / "blobs"))  # type: ignore[arg-type]
    report = await other.sweep(index_dir=tmp_path)
    assert report.runs_read == len(other.all)
    assert await other.keys() == await other.reachable()
