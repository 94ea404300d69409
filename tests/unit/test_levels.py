"""Whatever level bytes were compressed with, they are read: a level is the writer's own affair."""

import pytest
import zstandard

from everlong.codecs import EverlongCodec
from everlong.storage import objects, packs
from everlong.storage.memory import MemoryBlobStore
from tests.support.sample_payloads import KEY_1, payload, stored, text, workflow


@pytest.mark.parametrize("keys", [None, {"k1": KEY_1}])
async def test_payloads_of_every_level_point_to_each_other_and_are_read(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, bytes] | None
) -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store, keys=keys).with_context(workflow())
    written, items, sizes = [], [], []
    body = text(60_000)
    for number, level in enumerate((1, 19, 3, 9, -5), 1):
        plain = zstandard.ZstdCompressor(level=level)
        small = zstandard.ZstdCompressor(
            level=level, dict_data=objects._builtin_dictionary(), write_dict_id=False
        )
        for module in (objects, packs):
            monkeypatch.setattr(module, "compressor", lambda _=0, plain=plain: plain)
            monkeypatch.setattr(module, "small_compressor", lambda small=small: small)
        body += text(30_000, number)
        both = [payload(body), payload(text(2000, number))]
        written += await codec.encode(both)
        items += both
        sizes.append(len(written[-1].data))
    monkeypatch.undo()
    assert len(set(sizes)) > 1, "the levels made no difference"
    assert len(await stored(store)) == 5
    assert await EverlongCodec(store, keys=keys).decode(written) == items
