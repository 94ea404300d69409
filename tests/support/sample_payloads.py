"""Sample payloads for tests of the codec, and damage to stored bytes."""

import hashlib
import random
from functools import lru_cache
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import ActivitySerializationContext, WorkflowSerializationContext

from everlong.storage.memory import MemoryBlobStore
from everlong.testing import workload

KEY_1: Final = bytes(range(32))
KEY_2: Final = bytes(range(100, 132))


@lru_cache(maxsize=512)
def noise(size_bytes: int, seed: int = 0) -> bytes:
    """Return bytes that do not compress, the same for the same seed."""
    return hashlib.shake_256(b"%d" % seed).digest(size_bytes)


@lru_cache(maxsize=512)
def text(size_bytes: int, seed: int = 0) -> bytes:
    """Return bytes like an agent's tool results: zstd compresses them about 4 times."""
    return workload.passage(seed, size_bytes).encode()


def payload(data: bytes, **metadata: bytes) -> Payload:
    return Payload(metadata={"encoding": b"json/plain", **metadata}, data=data)


def workflow(workflow_id: str = "ops-7") -> WorkflowSerializationContext:
    return WorkflowSerializationContext(namespace="default", workflow_id=workflow_id)


def activity(
    workflow_id: str = "ops-7",
    *,
    activity_id: str | None = "1",
    activity_type: str = "think",
    is_local: bool = False,
) -> ActivitySerializationContext:
    return ActivitySerializationContext(
        namespace="default",
        workflow_id=workflow_id,
        workflow_type="Agent",
        activity_type=activity_type,
        activity_task_queue="q",
        is_local=is_local,
        activity_id=activity_id,
    )


def flip_bit(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def bits(data: bytes, most: int, seed: int = 0) -> list[int]:
    """Return all bit positions of small data, or a sample for large data."""
    every = range(8 * len(data))
    return list(every) if len(every) <= most else random.Random(seed).sample(every, most)


async def read_objects(store: MemoryBlobStore) -> dict[str, bytes]:
    """Return all objects of a store, by key."""
    return {info.key: await store.get(info.key) async for info in store.list("")}
