"""Races and hidden references of sweeps: delays, partial reads, seals and team codecs."""

import base64
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Header, Payload, Payloads
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.history.v1 import (
    ActivityTaskFailedEventAttributes,
    HistoryEvent,
    WorkflowExecutionSignaledEventAttributes,
)
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.converter import PayloadCodec

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.models import SweepOptions, SweepReport, thread_key
from everlong.policy import Retention
from everlong.storage import quarantine
from everlong.storage.base import BlobInfo, BlobStore
from everlong.storage.encryption_keys import Keyring
from everlong.storage.file import FileBlobStore
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, open_packs
from everlong.sweep import Sweep
from tests.support.fake_namespace import AT_ONCE, NAMESPACE, FakeNamespace, FakeRun

SWEEPS = 3
LONG = dataclasses.replace(AT_ONCE, quarantine_seconds=3600)
"""Quarantines unreachable objects at once, and keeps them there."""
NOTHING_YET = Retention(payload_seconds=3600, journal_seconds=3600, quarantine_seconds=3600)
KEYS = {"k1": bytes(range(32)), "k2": bytes(range(32, 64))}


async def build_namespace(store: BlobStore | None = None) -> tuple[FakeNamespace, FakeRun]:
    world = FakeNamespace(store or MemoryBlobStore())
    run = world.start("w0")
    for _ in range(4):
        run.payloads.append(await world.append(run, 400))
    return world, run


@pytest.mark.guarantee(106)
async def test_a_mover_may_delete_the_object_after_others_restored_it() -> None:
    world, run = await build_namespace()
    named = await world.large("w0")
    [key] = await world._keys(named)
    data = await world.store.get(key)
    copy = quarantine.build_copy_key(key, time.time_ns() // 1_000_000, "0123abcd")
    await world.store.put(copy, data)  # A sweep has read its copy back, and pauses.
    run.payloads.append(named)
    await world.sweep(LONG)
    await world.store.delete([key])  # It goes on.
    assert await open_packs(world.store).store.get(key) == data
    await world.sweep(LONG)
    assert await world.keys() == await world.reachable()


@pytest.mark.guarantee(106)
async def test_a_move_delayed_for_long_deletes_nothing() -> None:
    store = MemoryBlobStore()
    await store.put("v1/a", b"x")
    began = time.time() - limits.SWEEP_MOVE_SECONDS_MAX - 1
    copy = quarantine.build_copy_key("v1/a", int(1000 * began), "0123abcd")
    assert not await quarantine.quarantine(store, "v1/a", b"x", copy)
    assert await store.get("v1/a") == b"x"


async def test_a_copy_that_reads_differently_is_dropped_and_the_object_stays() -> None:
    class Torn(MemoryBlobStore):
        async def put(self, key: str, data: bytes) -> None:
            await super().put(key, data[:1] if key.startswith("quarantine/") else data)

    store = Torn()
    await store.put("v1/a", b"xyz")
    copy = quarantine.build_copy_key("v1/a", time.time_ns() // 1_000_000, "0123abcd")
    for data in (b"xyz", None):
        assert not await quarantine.quarantine(store, "v1/a", data, copy)
    assert [info.key async for info in store.list("")] == ["v1/a"]


async def test_archives_are_moved_and_restored_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP_PART_BYTES", 1000)
    store = FileBlobStore(tmp_path / "blobs")
    world, _ = await build_namespace(store)
    place = f"archive/v1/{thread_key(NAMESPACE, 'w0')}/20260101T000000000Z-0123abcd"
    data = bytes(range(256)) * 40
    source = tmp_path / "file"
    source.write_bytes(data)
    packs = open_packs(store)
    await packs.store.put_file(f"{place}.parquet", source)  # type: ignore[attr-defined]
    await store.put(f"{place}.json", b"{}")

    async def whole(key: str) -> bytes:
        assert not key.endswith(".parquet"), "the whole file was read into memory"
        return await FileBlobStore.get(store, key)

    monkeypatch.setattr(store, "get", whole)
    report = await world.sweep(dataclasses.replace(LONG, archive_seconds=0))
    assert report.classes["archive"].bytes == len(data) + 2
    assert not await world.keys("archive/")
    assert await packs.store.get_range(f"{place}.parquet", 2500, 7000) == data[2500:9500]
    assert await store.get_range(f"{place}.parquet", 0, len(data) + 1) == data


async def test_unreferenced_objects_of_a_growing_history_are_checked_again(
    tmp_path: Path,
) -> None:
    world, run = await build_namespace()
    named = await world.large("w0")
    await world.sweep(NOTHING_YET, index_dir=tmp_path)
    run.payloads.append(named)
    report = await world.sweep(LONG, index_dir=tmp_path)
    assert report.quarantined.objects == 0


async def test_a_history_deleted_during_its_read_does_not_count_as_read(tmp_path: Path) -> None:
    class Flickering(FakeNamespace):
        is_cut = True

        async def read_events(
            self, workflow_id: str, run_id: str, after: int
        ) -> AsyncIterator[list[HistoryEvent]]:
            async for page in super().read_events(workflow_id, run_id, after):
                yield page
                if self.is_cut:
                    return

    world = Flickering(MemoryBlobStore())
    run = world.start("w0")
    for _ in range(12):
        run.payloads.append(await world.large("w0"))
    world.close(run)
    await world.sweep(LONG, index_dir=tmp_path)
    world.is_cut = False
    for _ in range(2):
        await world.sweep(LONG, index_dir=tmp_path)
    assert await world.keys() == await world.reachable()


class NestedPayloadNamespace(FakeNamespace):
    """Its events hold payloads where others do not look."""

    extra: HistoryEvent | None = None

    async def read_events(
        self, workflow_id: str, run_id: str, after: int
    ) -> AsyncIterator[list[HistoryEvent]]:
        async for page in super().read_events(workflow_id, run_id, after):
            yield page
            if self.extra is not None and page:
                self.extra.event_id = page[0].event_id
                yield [self.extra]


def _signal(named: Payload) -> HistoryEvent:
    header = Header(fields={"trace": named})
    attributes = WorkflowExecutionSignaledEventAttributes(signal_name="s", header=header)
    return HistoryEvent(workflow_execution_signaled_event_attributes=attributes)


def _failure(named: Payload) -> HistoryEvent:
    inner = ApplicationFailureInfo(type="T", details=Payloads(payloads=[named]))
    failure = Failure(cause=Failure(application_failure_info=inner))
    attributes = ActivityTaskFailedEventAttributes(failure=failure)
    return HistoryEvent(activity_task_failed_event_attributes=attributes)


def _attributes(named: Payload) -> HistoryEvent:
    failure = Failure(encoded_attributes=named)
    attributes = ActivityTaskFailedEventAttributes(failure=failure)
    return HistoryEvent(activity_task_failed_event_attributes=attributes)


@pytest.mark.guarantee(106)
@pytest.mark.parametrize("event", [_signal, _failure, _attributes])
async def test_refs_in_headers_and_failures_count(event) -> None:  # type: ignore[no-untyped-def]
    world = NestedPayloadNamespace(MemoryBlobStore())
    world.start("w0")
    named = await world.large("w0")
    world.extra = event(named)
    for _ in range(SWEEPS):
        assert not (await world.sweep()).incomplete
    assert await world.keys() == await world._keys(named)


async def test_refs_in_heartbeats_count_while_the_activity_runs() -> None:
    world, run = await build_namespace()
    run.heartbeat = await world.large("w0")
    for _ in range(SWEEPS):
        await world.sweep()
    assert await world._keys(run.heartbeat) <= await world.keys()
    run.heartbeat = None
    for _ in range(SWEEPS):
        await world.sweep()
    assert await world.keys() == await world.reachable()


async def test_a_reset_run_reaches_earlier_heads(tmp_path: Path) -> None:
    world, run = await build_namespace()
    past, head = list(run.payloads[:3]), run.head
    for _ in range(6):
        run.payloads.append(await world.append(run, 2000))
    await world.sweep(index_dir=tmp_path)
    world.close(run)
    again = world.start("w0")  # Its history begins as the other's did.
    again.payloads = past
    world.delete(run)
    for _ in range(SWEEPS):
        assert not (await world.sweep(index_dir=tmp_path)).incomplete
    assert await world.keys() == await world.reachable()
    assert head is not None
    again.payloads.append(await world.append(again, 300))
    for _ in range(SWEEPS):
        await world.sweep(index_dir=tmp_path)
    assert await world.keys() == await world.reachable()


class MaskingCodec(PayloadCodec):
    """A team's own codec. Nothing can be read in what it writes."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(
                metadata={"encoding": b"binary/masked"},
                data=bytes(each ^ 0x5A for each in one.SerializeToString()),
            )
            for one in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(bytes(each ^ 0x5A for each in one.data))
            if one.metadata["encoding"] == b"binary/masked"
            else one
            for one in payloads
        ]


async def sweep_with_codec(
    world: FakeNamespace, codec: PayloadCodec, packs: PackStore
) -> SweepReport:
    options = SweepOptions(retention=AT_ONCE)
    return await Sweep(world, codec, packs, options, allow_short_quarantine=True).run()


async def test_refs_hidden_by_a_team_codec_are_found_with_it_and_keep_all_without() -> None:
    world, run = await build_namespace()
    plain = EverlongCodec(world.packs, inline_bytes_max=1024)
    world.codec = plain.with_inner(MaskingCodec())
    for _ in range(3):
        run.payloads.append(await world.append(run, 400))
    before = await world.keys()
    assert "binary/masked" in (await sweep_with_codec(world, plain, world.packs)).incomplete[0]
    assert await world.keys() == before
    for _ in range(SWEEPS):
        assert not (await sweep_with_codec(world, world.codec, world.packs)).incomplete
    run.payloads = [(await world.codec.decode([each]))[0] for each in run.payloads]
    assert await world.keys() == before == await world.reachable()


@pytest.mark.guarantee(106)
async def test_a_sealed_store_is_swept_across_a_rotation_and_not_without_the_old_key() -> None:
    world = FakeNamespace(MemoryBlobStore())
    run = world.start("w0")

    def use(*names: str) -> PackStore:
        packs = PackStore(world.store, Keyring({name: KEYS[name] for name in names}))
        world.packs = packs
        world.codec = EverlongCodec(packs, inline_bytes_max=1024)
        return packs

    for names in (("k1",), ("k2", "k1")):
        use(*names)
        for _ in range(3):
            run.payloads.append(await world.append(run, 400))
        run.payloads.append(await world.large("w0"))
        await world.large("w0")  # Unreachable.
    before = await world.keys()
    packs = use("k2")
    report = await sweep_with_codec(world, world.codec, packs)
    assert report.incomplete
    assert "k1" in report.incomplete[0]
    assert await world.keys() == before
    packs = use("k2", "k1")
    for _ in range(SWEEPS):
        report = await sweep_with_codec(world, EverlongCodec(packs), packs)
        assert not report.incomplete
    left = await world.keys()
    assert len(before) - len(left) == 2
    for each in run.payloads:
        await EverlongCodec(packs).decode([each])


@pytest.mark.parametrize(
    "metadata",
    [
        {"encoding": b"json/external-storage-reference"},
        {
            "encoding": b"json/protobuf",
            "messageType": ExternalStorageReference.DESCRIPTOR.full_name.encode(),
        },
    ],
    ids=["old", "new"],
)
async def test_references_of_the_sdks_external_storage_lead_to_our_packs(
    metadata: dict[str, bytes],
) -> None:
    world, run = await build_namespace()
    named = await world.large("w0")
    other = {"driver_name": "mine", "claim": {"key": base64.b64encode(bytes(90)).decode()}}
    ours = {"driver_name": "everlong", "claim": {"ref": base64.b64encode(named.data).decode()}}
    for claim in (other, ours):
        run.payloads.append(Payload(metadata=metadata, data=json.dumps(claim).encode()))
    for _ in range(SWEEPS):
        assert not (await world.sweep()).incomplete
    assert await world._keys(named) <= await world.keys()


async def test_the_stores_clock_dates_a_copy_of_a_sweeper_with_a_wrong_clock() -> None:
    class Dated(MemoryBlobStore):
        async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
            async for info in super().list(prefix):
                yield dataclasses.replace(info, modified_ms=int(1000 * time.time()) - 1000)

    world, _ = await build_namespace(Dated())
    named = await world.large("w0")
    [key] = await world._keys(named)
    await world.store.put(quarantine.build_copy_key(key, 1, "0123abcd"), await world.store.get(key))
    report = await world.sweep(NOTHING_YET)
    assert (report.purged.objects, report.in_quarantine.objects) == (0, 1)
