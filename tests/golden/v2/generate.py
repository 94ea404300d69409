"""Wrote the files beside it, once: `python -m tests.golden.v2.generate DIRECTORY`.

They are never written again: what is committed is what a release has written. What is sealed has a
salt of its own, so another run gives other bytes that decode to the same.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload
from temporalio.converter import WorkflowSerializationContext

from everlong.codecs import EverlongCodec
from everlong.models import Entry, Kind, Message, SegmentRef
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.objects import object_key, thread_key
from everlong.storage.packstore import PackStore

KEYS: Final = {"2026-11": bytes(range(32))}
LOG: Final = b"".join(
    b"2026-11-16T07:%02d:%02d INFO request %d served\n" % (i // 60 % 60, i % 60, i * i)
    for i in range(1200)
)
# The second begins and ends as the first does, so most of it lies in the first one's pack.
FIRST: Final = Payload(metadata={"encoding": b"json/plain", "extra": b"\x00\xff"}, data=LOG)
SECOND: Final = Payload(
    metadata={"encoding": b"json/plain"},
    data=LOG[:30_000]
    + b"".join(b"a line that is new: %d\n" % (i * i) for i in range(800))
    + LOG[30_000:],
)
EMPTY: Final = Payload(metadata={"encoding": b"binary/null"})
INLINE: Final = Payload(metadata={"encoding": b"json/plain"}, data=LOG[:2000])
BODY: Final = "A message that is too long for its entry. " * 40


async def write(directory: Path) -> None:
    """Write all files."""
    directory.mkdir(parents=True, exist_ok=True)
    for kind, keys in (("plain", None), ("sealed", KEYS)):
        await _write_payloads(directory, kind, keys)
    await _write_journal(directory)


async def _write_payloads(directory: Path, kind: str, keys: dict[str, bytes] | None) -> None:
    context = WorkflowSerializationContext(namespace="default", workflow_id="ops-7")
    store = MemoryBlobStore()
    codec = EverlongCodec(store, keys=keys).with_context(context)
    packs: list[str] = []
    for name, payload in (("first", FIRST), ("second", SECOND)):
        [ref] = await codec.encode([payload])
        _save(directory / f"ref-{kind}-{name}.bin", ref)
        [key] = {info.key async for info in store.list("")} - set(packs)
        packs.append(key)
        (directory / f"pack-{kind}-{name}.bin").write_bytes(await store.get(key))
    bare = MemoryBlobStore()
    [ref] = await EverlongCodec(bare, keys=keys, inline_bytes_max=0).encode([EMPTY])
    _save(directory / f"ref-{kind}-empty.bin", ref)
    [key] = [info.key async for info in bare.list("")]
    (directory / f"pack-{kind}-empty.bin").write_bytes(await bare.get(key))
    [inline] = await codec.encode([INLINE])
    _save(directory / f"inline-{kind}.bin", inline)


async def _write_journal(directory: Path) -> None:
    store = MemoryBlobStore()
    journal = Journal(PackStore(store), thread_key("default", "ops-7"))
    message = Message(role="user", text=BODY)
    entry = Entry(seq=1, kind=Kind.MESSAGE, time_ms=1763276400000, size_bytes=0, message=message)
    head, _ = await journal.append(None, [entry])
    [stored] = await journal.read(head)
    if stored.ref is None:
        raise AssertionError("a long message is an object of its own")
    (directory / "journal-head.bin").write_bytes(TypeAdapter(SegmentRef).dump_json(head))
    (directory / "journal-segment.bin").write_bytes(await store.get(object_key(head.ref)))
    (directory / "journal-body.bin").write_bytes(await store.get(object_key(stored.ref)))


def _save(path: Path, payload: Payload) -> None:
    path.write_bytes(payload.SerializeToString(deterministic=True))


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
