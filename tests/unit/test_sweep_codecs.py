"""Sweeps with other codecs before, inside and around ours."""

import dataclasses
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec, WorkflowSerializationContext

from everlong.codecs import EverlongCodec
from everlong.codecs.refs import parse_ref
from everlong.errors import ConfigError
from everlong.models import SweepOptions, SweepReport
from everlong.policy import Retention
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, object_key, open_packs
from everlong.sweep import Sweep
from tests.support.fake_namespace import AT_ONCE, NAMESPACE, FakeNamespace
from tests.support.sample_payloads import payload
from tests.unit.test_sweep_races import MaskingCodec

SWEEPS = 3
LONG = dataclasses.replace(AT_ONCE, quarantine_seconds=3600)
NOTHING_YET = Retention(payload_seconds=3600, journal_seconds=3600, quarantine_seconds=3600)


class OuterCodec(PayloadCodec):
    """A team's codec around another one: it masks also what that one writes."""

    def __init__(self, inner: PayloadCodec) -> None:
        self._inner = inner
        self._mask = MaskingCodec()

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self._mask.encode(await self._inner.encode(payloads))

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self._inner.decode(await self._mask.decode(payloads))


def large() -> Payload:
    return payload(b'"' + os.urandom(20_000).hex().encode() + b'"')


async def sweep_twice(
    world: FakeNamespace,
    codec: PayloadCodec | None,
    retention: Retention = AT_ONCE,
    index_dir: Path | None = None,
) -> SweepReport:
    options = SweepOptions(retention=retention)
    packs = PackStore(world.store)
    return await Sweep(
        world, codec, packs, options, index_dir=index_dir, allow_short_quarantine=True
    ).run()


@pytest.mark.guarantee(106)
def test_an_outer_codec_is_refused_with_a_remedy() -> None:
    world = FakeNamespace(MemoryBlobStore())
    with pytest.raises(ConfigError, match=r"OuterCodec.*EverlongPlugin, last"):
        Sweep(world, OuterCodec(world.codec), world.packs, SweepOptions())


@pytest.mark.parametrize("is_remembered", [True, False], ids=["in memory", "in the store"])
async def test_our_codec_inside_another_hides_nothing(is_remembered: bool) -> None:
    """As where two plugins wrap the converter's codec, and are applied twice."""
    world = FakeNamespace(MemoryBlobStore())
    run = world.start("w0")
    packs = open_packs(world.store)
    context = WorkflowSerializationContext(namespace=NAMESPACE, workflow_id="w0")
    inner = EverlongCodec(packs, inline_bytes_max=512).with_context(context)
    codec = EverlongCodec(packs, inline_bytes_max=512).with_inner(OuterCodec(inner))
    plain = [large() for _ in range(3)]
    run.payloads = await codec.with_context(context).encode([run.payloads[0], *plain])
    world.close(run)
    [run.payloads[-1]] = await codec.with_context(context).encode([run.payloads[-1]])
    before = await world.keys()
    assert len(before) == 3
    if not is_remembered:
        codec = EverlongCodec(packs).with_inner(OuterCodec(EverlongCodec(open_packs(world.store))))
    for _ in range(SWEEPS):
        report = await sweep_twice(world, codec)
        assert not report.incomplete
        assert report.quarantined.objects == 0
    assert await world.keys() == before
    fresh = EverlongCodec(open_packs(world.store)).with_inner(
        OuterCodec(EverlongCodec(PackStore(world.store)))
    )
    assert await fresh.decode(run.payloads[1:4]) == plain


@pytest.mark.guarantee(106)
async def test_text_that_names_a_payload_is_not_its_ref(tmp_path: Path) -> None:
    world = FakeNamespace(MemoryBlobStore())
    run = world.start("w0")
    world.codec = EverlongCodec(world.packs, inline_bytes_max=64).with_inner(MaskingCodec())
    run.payloads[0] = await world.encode("w0", run.payloads[0])
    for _ in range(2):
        named = await world.append(run, 400)  # A payload in the store, masked, names the head.
    ref = parse_ref(named)
    message = f"pack 'v1/{ref.thread}/{ref.pack.hex()}.pack' is missing"
    run.payloads.append(await world.encode("w0", payload(json.dumps(message).encode())))
    await sweep_twice(world, world.codec, NOTHING_YET, tmp_path)
    run.payloads.append(named)
    for _ in range(SWEEPS):
        assert not (await sweep_twice(world, world.codec, index_dir=tmp_path)).incomplete
    assert run.head is not None
    assert object_key(run.head.ref) in await world.keys()


async def test_an_encoding_that_was_called_legible_by_mistake_is_not_remembered(
    tmp_path: Path,
) -> None:
    world = FakeNamespace(MemoryBlobStore())
    run = world.start("w0")
    named = await world.append(run, 400)
    run.payloads.append(payload(zlib.compress(named.data), encoding=b"json/zlib"))
    world.close(run)
    assert (await world.sweep(LONG, index_dir=tmp_path)).incomplete
    mistaken = await world.sweep(LONG, index_dir=tmp_path, encodings=("json/zlib",))
    assert not mistaken.incomplete
    assert (await world.sweep(LONG, index_dir=tmp_path)).incomplete
