"""What a growing list costs: to write, and to read by someone who has nothing of it."""

import asyncio
import json

import zstandard
from temporalio.api.common.v1 import Payload

from everlong.codecs import EverlongCodec, merge
from everlong.codecs.refs import PackRef, is_ref, parse_ref
from everlong.storage.memory import MemoryBlobStore
from everlong.testing import workload
from tests.payloads import noise, payload, workflow

STEPS = 200


class MeasuringStore(MemoryBlobStore):
    """Counts calls and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.get_bytes = self.put_bytes = 0

    async def put(self, key: str, data: bytes) -> None:
        self.put_bytes += len(data)
        await super().put(key, data)

    async def get(self, key: str) -> bytes:
        data = await super().get(key)
        self.gets += 1
        self.get_bytes += len(data)
        return data


def messages(index: int) -> list[bytes]:
    return [json.dumps(message).encode() for message in workload.step(index)]


def compressed_bytes(data: bytes) -> int:
    return len(zstandard.ZstdCompressor(level=3).compress(data))


async def test_a_growing_list_is_written_little_more_than_once_and_read_in_a_few_gets() -> None:
    store = MeasuringStore()
    codec = EverlongCodec(store).with_context(workflow())
    parts: list[bytes] = []
    unique_bytes = 0
    for index in range(STEPS):
        new = messages(index)
        unique_bytes += compressed_bytes(b",".join(new))
        parts += new
        data = b"[" + b",".join(parts) + b"]"
        [ref] = await codec.encode([payload(data)])
        found = parse_ref(ref) if is_ref(ref) else None
        if found is None:
            assert index < 3
            continue
        assert isinstance(found, PackRef)
        assert found.packs <= merge.packs_max(len(data))
        if index % 40 == 39:
            cold = MeasuringStore()
            cold._objects = store._objects
            assert await EverlongCodec(cold).decode([ref]) == [payload(data)]
            assert cold.gets == found.packs
            assert cold.get_bytes <= 1.2 * compressed_bytes(data)
    assert store.put_bytes <= 2.5 * unique_bytes


async def encode(codec: EverlongCodec, data: bytes) -> Payload:
    [encoded] = await codec.encode([payload(data)])
    return encoded


async def test_parallel_results_between_two_lists_do_not_make_the_list_be_written_again() -> None:
    store = MeasuringStore()
    codec = EverlongCodec(store).with_context(workflow())
    body = noise(400_000)
    await encode(codec, body)
    new_bytes = len(body)
    for step in range(8):
        results = [noise(30_000, 100 * step + n) for n in range(5)]
        await asyncio.gather(*(encode(codec, result) for result in results))
        new_bytes += sum(map(len, results)) + 1000
        body += b"".join(noise(200, 1000 + 10 * step + n) + results[n] for n in range(5))
        encoded = await encode(codec, body)
        # Once as results, and once more at most when a merge takes them up.
        assert store.put_bytes < 2 * new_bytes
        assert await EverlongCodec(store).decode([encoded]) == [payload(body)]
