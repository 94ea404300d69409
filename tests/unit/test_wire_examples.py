"""The examples of docs/reference/wire-format.md are what the code writes and reads."""

import json
import os
import re
from pathlib import Path
from typing import Final

import pytest
import zstandard
from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter

from everlong.codecs import EverlongCodec
from everlong.codecs.payloads import INLINE_ENCODING
from everlong.codecs.refs import ENCODING, parse_ref
from everlong.models import thread_key
from everlong.storage import encryption_keys as keys
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import pack_key
from everlong.storage.packs import build_contents, build_pack
from tests.support.sample_payloads import KEY_1, read_objects, workflow

PAGE: Final = (Path(__file__).parents[2] / "docs" / "reference" / "wire-format.md").read_text()
EXAMPLES: Final = PAGE[PAGE.index("\n## Example\n") :]
THREAD: Final = thread_key("default", "ops-7")
FIRST: Final = "na " * 500
SECOND: Final = "na " * 520 + "Batman"
IS_SAME_ZSTD: Final = zstandard.__version__.startswith("0.25.")


def dumps() -> list[bytes]:
    """Return the bytes of each block in hex, in order."""
    blocks = re.findall(r"```\n(0000  .*?)```", EXAMPLES, re.DOTALL)
    return [b"".join(bytes.fromhex(line[6:53]) for line in block.splitlines()) for block in blocks]


def plain(value: str) -> Payload:
    return DataConverter.default.payload_converter.to_payloads([value])[0]


def ref(data: bytes) -> Payload:
    return Payload(metadata={"encoding": ENCODING}, data=data)


async def test_the_examples_decode_to_the_documented_values() -> None:
    first, first_ref, second, sealed, sealed_ref, inline, sealed_inline = dumps()
    store = MemoryBlobStore()
    names = re.findall(r"`([0-9a-f]{64})`", EXAMPLES)
    await store.put(pack_key(THREAD, bytes.fromhex(names[0])), first)
    await store.put(pack_key(THREAD, bytes.fromhex(names[1])), second)
    await store.put(pack_key(THREAD, parse_ref(ref(sealed_ref)).pack), sealed)
    codec = EverlongCodec(store)
    second_ref = first_ref[:18] + bytes.fromhex(names[1]) + (1568).to_bytes(8, "little") + b"\2\0"
    assert await codec.decode([ref(first_ref), ref(second_ref)]) == [plain(FIRST), plain(SECOND)]
    assert await EverlongCodec(store, keys={"k1": KEY_1}).decode([ref(sealed_ref)]) == [
        plain(FIRST)
    ]
    objects = [Payload(metadata={"encoding": INLINE_ENCODING}, data=inline)]
    assert await codec.decode(objects) == [plain("na " * 100)]
    objects[0].data = sealed_inline
    assert await EverlongCodec(store, keys={"k1": KEY_1}).decode(objects) == [plain("hello")]


@pytest.mark.skipif(not IS_SAME_ZSTD, reason="another version of zstd may write other frames")
async def test_the_encoder_writes_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    first, first_ref, second, sealed, sealed_ref, *_ = dumps()
    store = MemoryBlobStore()
    codec = EverlongCodec(store, inline_bytes_max=0).with_context(workflow())
    [written] = await codec.encode([plain(FIRST)])
    assert written.data == first_ref
    await codec.encode([plain(SECOND)])
    assert set((await read_objects(store)).values()) == {first, second}
    monkeypatch.setattr(os, "urandom", lambda size: bytes(range(0xA0, 0xA0 + size)))
    store = MemoryBlobStore()
    codec = EverlongCodec(store, inline_bytes_max=0, keys={"k1": KEY_1}).with_context(workflow())
    [written] = await codec.encode([plain(FIRST)])
    assert written.data == sealed_ref
    assert set((await read_objects(store)).values()) == {sealed}
    derived = keys.Keys({"k1": KEY_1}).derive("k1", keys.PACK_PURPOSE, sealed[14:30])
    assert derived.hex() in EXAMPLES


@pytest.mark.skipif(not IS_SAME_ZSTD, reason="another version of zstd may write other names")
def test_the_example_segment_references_the_previous_one() -> None:
    newest, before = re.findall(r'^\{"before".*$', EXAMPLES, re.MULTILINE)
    [place] = json.loads(newest)["before"]
    assert len(before) == place["ref"]["size_bytes"]
    assert (
        build_pack(build_contents(before.encode()), THREAD, None)[0].hex() == place["ref"]["digest"]
    )
