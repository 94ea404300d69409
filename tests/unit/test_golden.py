"""Bytes that an earlier version wrote are read for ever. The files are never edited."""

from pathlib import Path

from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload

from everlong.codecs import EverlongCodec
from everlong.models import Kind, Message, Segment, ToolCall
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.objects import thread_key, unseal

GOLDEN = Path(__file__).parents[1] / "golden"
LOG = b"".join(b"2026-11-16T07:00:%02d INFO request %d served\n" % (i % 60, i) for i in range(200))
PAYLOAD = Payload(metadata={"encoding": b"json/plain", "extra": b"\x00\xff"}, data=LOG)
DIGEST = "8f4a553f5fb254a7cc8a686d77940bf15e258dd1d5b946551cacc1c63223fcf2"


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def test_objects_of_version_1() -> None:
    assert unseal(golden("v1/object-stored.bin")) == b"hello"
    assert unseal(golden("v1/object-zstd.bin")) == LOG


async def test_payloads_of_version_1() -> None:
    store = MemoryBlobStore()
    await store.put(
        f"v1/{thread_key('default', 'ops-7')}/{DIGEST}", golden("v1/payload-ref-object.bin")
    )
    payloads = [
        Payload.FromString(golden(name)) for name in ("v1/payload-inline.bin", "v1/payload-ref.bin")
    ]
    assert await EverlongCodec(store).decode(payloads) == [PAYLOAD, PAYLOAD]


def test_journal_segments_of_version_1() -> None:
    segment = TypeAdapter(Segment).validate_json(unseal(golden("v1/segment.bin")))
    assert segment.before == ()
    assert [entry.kind for entry in segment.entries] == [Kind.MESSAGE, Kind.REPLY]
    call = ToolCall(id="c1", tool="read_log", arguments='{"service":"api"}')
    assert segment.entries[1].message == Message(role="assistant", text="Look.", tool_calls=(call,))


def test_every_golden_file_is_opened_by_a_test() -> None:
    source = Path(__file__).read_text()
    files = [path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*") if path.is_file()]
    assert files
    assert all(f'"{name}"' in source for name in files)
