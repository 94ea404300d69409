"""Writes the golden files, bytes of each stored format: `python -m tests.golden.generate`.

Before the first tag they are written again whenever a format changes. From then on they stay as they
are, and a new version of a format gets a folder of its own. What is sealed has a random salt, so
another run gives other bytes that decode to the same.
"""

import asyncio
import base64
import dataclasses
import json
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload
from temporalio.converter import WorkflowSerializationContext

from everlong.archive.manifest import MANIFEST, make_archive_key
from everlong.codecs import EverlongCodec
from everlong.models import Entry, Kind, Message, SegmentRef, build_entry, thread_key
from everlong.models.grants import Grant, digest_arguments
from everlong.models.tools import EDITED_ARGUMENTS, EditedArguments
from everlong.storage.agent_grants import PREFIX, AgentGrants
from everlong.storage.encryption_keys import Keyring
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from tests.support.sample_archive import build_thread

HERE: Final = Path(__file__).parent / "v1"
KEYS: Final = {"2026-11": bytes(range(32))}
LOG: Final = b"".join(
    b"2026-11-16T07:%02d:%02d INFO request %d served\n" % (i // 60 % 60, i % 60, i * i)
    for i in range(1200)
)
# The second begins and ends as the first does, so most of it is stored in the first one's pack.
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
RESULT: Final = Message(role="tool", text="A long result. " * 60, call_id="c1", tool="read")
FORKED: Final = {"thread_id": "ops-7", "seq": 300}
TIME_MS: Final = 1763276400000


async def write(directory: Path) -> None:
    """Write payloads and a journal."""
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
    """Write a journal of folded and merged segments, and a fork of it, with all their objects."""
    store = MemoryBlobStore()
    packs = PackStore(store)
    journal = Journal(packs, thread_key("default", "ops-7"))
    head: SegmentRef | None = None
    for first in range(1, 298, 33):
        entries = [_entry(seq) for seq in range(first, first + 33)]
        head, _ = await journal.append(head, entries)
    shown, _ = await journal.write_body_entry(Kind.TOOL_RESULT, RESULT, TIME_MS, seq=300)
    for entries in (
        [_entry(298, Kind.REPLY, BODY)],
        [_entry(299), dataclasses.replace(shown, original=shown.ref)],
        [_entry(301, Kind.FAILURE, BODY)],
    ):
        head, _ = await journal.append(head, entries)
    if head is None:
        raise AssertionError("nothing was appended")
    fork = Journal(packs, thread_key("default", "ops-7-fork"))
    forked = Entry(seq=301, kind=Kind.FORK, time_ms=TIME_MS, size_bytes=30, data=FORKED)
    branch, _ = await fork.fork(head, 300, forked)
    (directory / "journal-head.bin").write_bytes(TypeAdapter(SegmentRef).dump_json(head))
    (directory / "journal-fork.bin").write_bytes(TypeAdapter(SegmentRef).dump_json(branch))
    objects = {
        info.key: base64.b64encode(await store.get(info.key)).decode()
        async for info in store.list("")
    }
    (directory / "journal-objects.bin").write_text(json.dumps(objects, indent=0))


async def write_archives(directory: Path) -> None:
    """Write a small archive of every kind of entry, plain and sealed."""
    for kind, keys in (("plain", None), ("sealed", Keyring(KEYS))):
        store = MemoryBlobStore()
        manifest = await (await build_thread(PackStore(store, keys))).write_archive()
        listed = make_archive_key(manifest.thread, manifest.archive_id, MANIFEST)
        (directory / f"archive-{kind}-manifest.bin").write_bytes(await store.get(listed))
        (directory / f"archive-{kind}-file.bin").write_bytes(await store.get(manifest.file_key))


GRANT: Final = Grant(
    id="a-0123456789abcdef",
    tool="restart",
    arguments_digest=digest_arguments("restart", {"service": "api", "force": False}),
    arguments='{"service": "api"}',
    by="ann",
    granted_ms=TIME_MS,
    expires_ms=TIME_MS + 1,
    thread_id="ops-7",
    agent="ops",
)
EDITED: Final = EditedArguments(arguments={"service": "api", "force": True}, by="ann")


async def write_decisions(directory: Path) -> None:
    """Write a grant of an agent, plain and sealed, and arguments that a person has changed."""
    for kind, keys in (("plain", None), ("sealed", Keyring(KEYS))):
        store = MemoryBlobStore()
        await AgentGrants(PackStore(store, keys), "default").add(GRANT, TIME_MS)
        [info] = [info async for info in store.list(PREFIX)]
        (directory / f"grant-{kind}.bin").write_bytes(await store.get(info.key))
    (directory / "edited-arguments.bin").write_bytes(EDITED_ARGUMENTS.dump_json(EDITED))


async def _write_all() -> None:
    await write(HERE)
    await write_archives(HERE)
    await write_decisions(HERE)


def _entry(seq: int, kind: Kind = Kind.MESSAGE, text: str = "") -> Entry:
    roles = {Kind.MESSAGE: "user", Kind.REPLY: "assistant", Kind.FAILURE: "failure"}
    message = Message(role=roles[kind], text=text or f"line {seq}")
    entry = build_entry(seq, kind, message, TIME_MS + seq)
    return dataclasses.replace(entry, tokens=10, cost_usd=0.5) if kind == Kind.REPLY else entry


def _save(path: Path, payload: Payload) -> None:
    path.write_bytes(payload.SerializeToString(deterministic=True))


if __name__ == "__main__":
    asyncio.run(_write_all())
