"""Bytes of each stored format are read as they were written. From the first tag on they stay."""

import base64
import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload

from everlong.archive import ArchivedJournal, parquet, restore, writer
from everlong.archive import manifest as manifests
from everlong.codecs import EverlongCodec
from everlong.codecs.refs import parse_ref
from everlong.models import Kind, Message, SegmentRef, build_note, thread_key
from everlong.models.tools import EDITED_ARGUMENTS
from everlong.storage.agent_grants import AgentGrants
from everlong.storage.encryption_keys import Keyring
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, pack_key
from everlong.storage.segments import MESSAGE_KINDS
from tests.golden import generate

GOLDEN = Path(__file__).parents[1] / "golden"
THREAD = thread_key("default", "ops-7")

# Ref, pack, and their payload. The second pack refers to the first.
PLAIN = [
    ("v1/ref-plain-first.bin", "v1/pack-plain-first.bin", generate.FIRST),
    ("v1/ref-plain-second.bin", "v1/pack-plain-second.bin", generate.SECOND),
    ("v1/ref-plain-empty.bin", "v1/pack-plain-empty.bin", generate.EMPTY),
]
SEALED = [
    ("v1/ref-sealed-first.bin", "v1/pack-sealed-first.bin", generate.FIRST),
    ("v1/ref-sealed-second.bin", "v1/pack-sealed-second.bin", generate.SECOND),
    ("v1/ref-sealed-empty.bin", "v1/pack-sealed-empty.bin", generate.EMPTY),
]


GRANT_KEY = (
    "grants/v1/734732963cb8ad5efc7bfb764b7d80b0/b1f34d25a26afed5a7805498b61ecf65/"
    "a-0123456789abcdef.json"
)


def read_golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


@pytest.mark.guarantee(8)
@pytest.mark.parametrize(
    ("files", "inline", "keys"),
    [
        (PLAIN, "v1/inline-plain.bin", None),
        (SEALED, "v1/inline-sealed.bin", generate.KEYS),
    ],
    ids=["plain", "sealed"],
)
async def test_golden_payloads_are_read(
    files: list[tuple[str, str, Payload]], inline: str, keys: dict[str, bytes] | None
) -> None:
    store = MemoryBlobStore()
    refs: list[Payload] = []
    packs: list[int] = []
    for name, pack, _ in files:
        refs.append(Payload.FromString(read_golden(name)))
        ref = parse_ref(refs[-1])
        assert ref.key_id == ("" if keys is None else "2026-11")
        await store.put(pack_key(ref.thread, ref.pack), read_golden(pack))
        packs.append(ref.packs)
    assert packs == [1, 2, 1]
    codec = EverlongCodec(store, keys=keys)
    assert await codec.decode(refs) == [payload for _, _, payload in files]
    assert await codec.decode([Payload.FromString(read_golden(inline))]) == [generate.INLINE]


@pytest.mark.guarantee(8)
async def test_a_golden_journal_is_read() -> None:
    store = MemoryBlobStore()
    for key, data in json.loads(read_golden("v1/journal-objects.bin")).items():
        await store.put(key, base64.b64decode(data))
    head = TypeAdapter(SegmentRef).validate_json(read_golden("v1/journal-head.bin"))
    journal = Journal(PackStore(store), THREAD)
    entries = await journal.read(head)
    assert [entry.seq for entry in entries] == list(range(1, 302))
    messages = await journal.messages(entries)
    assert [message.text for message in messages[:297]] == [f"line {n}" for n in range(1, 298)]
    assert messages[297] == Message(role="assistant", text=generate.BODY)
    assert (entries[297].tokens, entries[297].cost_usd) == (10, 0.5)
    assert messages[299] == generate.RESULT
    assert await journal.messages(entries[299:300], whole=True) == [generate.RESULT]
    assert messages[300] == Message(role="failure", text=generate.BODY)
    branch = TypeAdapter(SegmentRef).validate_json(read_golden("v1/journal-fork.bin"))
    fork = Journal(PackStore(store), thread_key("default", "ops-7-fork"))
    branched = await fork.read(branch)
    assert branched[:-1] == entries[:300]
    assert branched[-1].data == generate.FORKED
    assert await fork.messages(branched[:-1]) == messages[:300]


@pytest.mark.guarantee(98)
@pytest.mark.parametrize(
    ("listed", "file", "keys"),
    [
        ("v1/archive-plain-manifest.bin", "v1/archive-plain-file.bin", None),
        ("v1/archive-sealed-manifest.bin", "v1/archive-sealed-file.bin", Keyring(generate.KEYS)),
    ],
    ids=["plain", "sealed"],
)
async def test_golden_archives_are_read(listed: str, file: str, keys: Keyring | None) -> None:
    store = MemoryBlobStore()
    packs = PackStore(store, keys)
    fields = json.loads(read_golden(listed))
    place = f"archive/v1/{fields['thread']}/{fields['archive_id']}"
    await store.put(f"{place}.json", read_golden(listed))
    await store.put(f"{place}.parquet", read_golden(file))
    manifest = await manifests.read(packs, THREAD, fields["archive_id"])
    archive = await writer.verify(packs, None, None, manifest)
    assert (archive.facts.by, archive.facts.status.agent) == ("ann", "ops")
    past = ArchivedJournal(archive)
    entries = await past.read(None)
    assert [entry.seq for entry in entries] == list(range(1, 22))
    spoken = [entry for entry in entries if entry.kind in MESSAGE_KINDS]
    whole = await past.messages(spoken, whole=True)
    shown = await past.messages(spoken)
    assert whole[0] == Message(role="user", text="why is it slow?")
    assert whole[4].text == "x" * 100_000
    assert "everlong" not in whole[4].text
    assert shown[4].text.startswith("x" * 1000)
    assert len(shown[4].text) < 40_000
    [native] = [message for message in whole if message.native is not None]
    assert native.native is not None
    assert native.native["parts"][0]["signature"] == "c2ln"
    assert json.loads(await archive.snapshot(manifest.snapshot_seq))["budget_bytes"] == 4096
    last = build_note(22, Kind.FORK, {"thread_id": "ops-7", "seq": 21}, 1)
    revived = await restore.restore_journal(
        packs, thread_key("default", "b"), archive, last, writer.ignore_progress
    )
    journal = Journal(packs, thread_key("default", "b"))
    again = await journal.read(revived.head)
    copies = [entry for entry in again if entry.kind in MESSAGE_KINDS]
    assert await journal.messages(copies, whole=True) == whole
    assert await journal.messages(copies) == shown
    # The columns are those of today, too: a change of them needs a version of its own.
    assert archive.file.names == parquet.SCHEMA.names


async def test_current_output_has_the_format_of_the_golden_files(tmp_path: Path) -> None:
    """From the first tag on, a change of the format needs a version and files of its own."""
    await generate.write(tmp_path)
    await generate.write_decisions(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name for path in (GOLDEN / "v1").glob("*.bin")}
    assert written.keys() == {name for name in kept if not name.startswith("archive-")}
    for name, data in written.items():
        if name.startswith("ref-plain"):
            # A ref holds the digest of a pack, whose frames another release of zstd may write.
            assert data[:50] == read_golden(f"v1/{name}")[:50]
        assert abs(len(data) - len(read_golden(f"v1/{name}"))) < 200


def test_every_golden_file_is_opened_by_a_test() -> None:
    source = Path(__file__).read_text()
    files = [path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*.bin")]
    assert len(files) > 20
    assert all(f'"{name}"' in source for name in files)
    others = {path.suffix for path in GOLDEN.rglob("*") if path.is_file()}
    assert others <= {".bin", ".py", ".pyc"}


@pytest.mark.guarantee(8)
@pytest.mark.parametrize(
    ("name", "keys"),
    [("v1/grant-plain.bin", None), ("v1/grant-sealed.bin", Keyring(generate.KEYS))],
    ids=["plain", "sealed"],
)
async def test_golden_grants_are_read(name: str, keys: Keyring | None) -> None:
    store = MemoryBlobStore()
    await store.put(GRANT_KEY, read_golden(name))
    assert await AgentGrants(PackStore(store, keys), "default").list("ops") == [generate.GRANT]


def test_golden_changed_arguments_are_read() -> None:
    data = read_golden("v1/edited-arguments.bin")
    assert EDITED_ARGUMENTS.validate_json(data) == generate.EDITED
