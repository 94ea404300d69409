"""Sweeps with faults: unreadable objects, full disks and large batches."""

import dataclasses
import json
import time
from pathlib import Path

import pytest

from everlong.client import archives
from everlong.errors import StoreUnavailable
from everlong.models import thread_key
from everlong.storage import quarantine
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, object_key
from everlong.storage.quarantine import RestoringBlobStore, build_copy_key
from everlong.sweep import candidates
from everlong.sweep.index import SweepIndex
from tests.support.fake_namespace import AT_ONCE, NAMESPACE, FakeNamespace
from tests.support.sample_payloads import payload

SWEEPS = 3


class UnreadableStore(MemoryBlobStore):
    """Gives all but some of its objects."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck: set[str] = set()

    async def get(self, key: str) -> bytes:
        if key in self.stuck:
            raise StoreUnavailable("the object is in cold storage")
        return await super().get(key)


@pytest.mark.guarantee(108)
@pytest.mark.parametrize("around", [None, "mine"])
async def test_a_journal_with_an_unreadable_head_stays(
    around: str | None,
) -> None:
    """Also in a state of a form that is not ours, as that of a team's own workflow."""
    world = FakeNamespace(MemoryBlobStore())
    run = world.start("w0")
    for _ in range(6):
        await world.append(run, 400)
    assert run.head is not None
    state: dict[str, object] = {"state": {"head": dataclasses.asdict(run.head)}}
    data = json.dumps({around: state} if around else state).encode()
    world.start("w0", first=await world.encode("w0", payload(data)))
    world.delete(run)
    journal = await world._journal(run.head)
    key = object_key(run.head.ref)
    good = await world.store.get(key)
    await world.store.put(key, good[:-1] + bytes([good[-1] ^ 1]))
    for _ in range(SWEEPS):
        report = await world.sweep()
        assert report.incomplete
        assert report.purged.objects == 0
    await world.store.put(key, good)
    assert journal <= await world.keys()


@pytest.mark.guarantee(107)
async def test_one_unreadable_object_does_not_block_the_others() -> None:
    store = UnreadableStore()
    world = FakeNamespace(store)
    run = world.start("w0")
    run.payloads.append(await world.append(run))
    for _ in range(5):
        await world.large("w0")
    unreached = sorted(await world.keys() - await world.reachable())
    assert len(unreached) >= 5
    store.stuck = {unreached[0]}
    report = await world.sweep()
    assert unreached[0] in report.incomplete[0]
    assert report.quarantined.objects == len(unreached) - 1
    # Nothing is deleted until every object is readable.
    assert (await world.sweep()).purged.objects == 0
    store.stuck = set()
    for _ in range(SWEEPS):
        report = await world.sweep()
        assert not report.incomplete
    assert await world.keys() == await world.reachable()
    assert not await world.keys("quarantine/")


async def test_a_store_outage_ends_a_sweep() -> None:
    store = UnreadableStore()
    world = FakeNamespace(store)
    world.start("w0")
    for _ in range(20):
        await world.large("w0")
    store.stuck = await world.keys()
    with pytest.raises(StoreUnavailable):
        await world.sweep()


async def test_a_quarantine_read_needs_no_temporary_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    store = MemoryBlobStore()
    await store.put(build_copy_key("v1/a/b", 1_794_800_000_000, "0" * 8), b"bytes")
    monkeypatch.setattr(quarantine, "restore", full)
    assert await RestoringBlobStore(store).get("v1/a/b") == b"bytes"


@pytest.mark.guarantee(109)
@pytest.mark.parametrize("query", ["_CANDIDATES", "_NEEDED", "_OLD_COPIES"])
def test_the_cost_of_a_batch_is_constant(tmp_path: Path, query: str) -> None:
    """Each goes on by the key from where the last one ended, and sorts nothing."""
    index = SweepIndex(tmp_path, "test")
    statement = getattr(candidates, query)
    named = dict.fromkeys(("payload", "journal", "archive", "unknown", "first", "oldest"), 0)
    values = named | {"after": "", "count": 1}
    try:
        if query == "_OLD_COPIES":
            plan = index.run(f"EXPLAIN QUERY PLAN {statement}", "", 0, 1)
        else:
            plan = index.run_named(f"EXPLAIN QUERY PLAN {statement}", values)
    finally:
        index.close()
    steps = [row[3] for row in plan]
    assert any("PRIMARY KEY (key>?)" in each for each in steps), steps
    assert not any("TEMP B-TREE FOR ORDER BY" in each for each in steps), steps


async def test_a_file_of_an_archive_does_not_go_before_its_manifest() -> None:
    world = FakeNamespace(MemoryBlobStore())
    world.start("w0")
    place = f"archive/v1/{thread_key(NAMESPACE, 'w0')}/20261117T000000000Z-00000000"
    retention = dataclasses.replace(AT_ONCE, archive_seconds=3600.0)
    hour_ago = {f"{place}.parquet": 3700, f"{place}.json": 3500}
    store = AgedStore(hour_ago)
    for key in hour_ago:
        await store.put(key, b"{}")
    report = await world.sweep(retention, store=store)
    assert report.quarantined.objects == 0
    store.seconds = dict.fromkeys(hour_ago, 3700)
    report = await world.sweep(retention, store=store)
    assert report.quarantined.objects == 2


class AgedStore(MemoryBlobStore):
    """Some objects were written longer ago."""

    def __init__(self, seconds: dict[str, int]) -> None:
        super().__init__()
        self.seconds = seconds

    async def list(self, prefix):  # type: ignore[no-untyped-def]
        async for info in super().list(prefix):
            seconds = time.time() - self.seconds.get(info.key, 0)
            yield dataclasses.replace(info, modified_ms=int(1000 * seconds))


async def test_one_thread_that_cannot_be_archived_does_not_block_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Listed:
        typed_search_attributes: dict[str, str] = {}  # noqa: RUF012

        def __init__(self, thread_id: str) -> None:
            self.id = thread_id

    async def ended(_: object):  # type: ignore[no-untyped-def]
        for number in range(3):
            yield Listed(f"ops-{number}")

    async def is_due(*_: object) -> bool:
        return True

    async def archived(_: object, __: object, thread: Listed, ___: object) -> str:
        if thread.id == "ops-0":
            raise OSError(28, "No space left on device")
        return thread.id

    monkeypatch.setattr(archives, "_list_ended", ended)
    monkeypatch.setattr(archives, "_is_due", is_due)
    monkeypatch.setattr(archives, "_archive_thread", archived)
    found = await archives.archive_before_sweep(None, PackStore(MemoryBlobStore()))  # type: ignore[arg-type]
    assert found.archived == 2
    assert found.failed == ("ops-0: OSError",)
