"""Names in text: all are found, quickly, and none that a tool wrote stops a sweep."""

import asyncio
import dataclasses
import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong.errors import StoreUnavailable
from everlong.models import Kind, thread_key
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, object_key
from everlong.sweep import links
from everlong.sweep.links import find_links, search
from tests.support.fake_namespace import NAMESPACE, FakeNamespace, FakeRun
from tests.support.journal_builder import entry
from tests.support.sample_payloads import payload
from tests.support.scale import scaled

SWEEPS = 3
NAME, OTHER = "0123456789abcdef" * 4, "fedcba9876543210" * 4
W0 = thread_key(NAMESPACE, "w0")


def ref(thread: str = W0, digest: str = "ab" * 32, kind: str = "segment") -> dict[str, Any]:
    fields = {"thread": thread, "digest": digest, "size_bytes": 1, "kind": kind}
    return {**fields, "preview": ""}


async def build_namespace() -> tuple[FakeNamespace, FakeRun]:
    world = FakeNamespace(MemoryBlobStore())
    run = world.start("w0")
    for _ in range(6):
        run.payloads.append(await world.append(run, 400))
    return world, run


def names(text: str | bytes) -> set[str]:
    data = text.encode() if isinstance(text, str) else text
    return {link.name.hex() for link in find_links(data)}


def test_names_that_touch_other_digits_are_found() -> None:
    assert names(NAME + OTHER) == {NAME, OTHER}
    assert names(f"{NAME}0 a{OTHER}") >= {NAME, OTHER}
    assert names(NAME + OTHER + NAME[::-1]) == {NAME, OTHER, NAME[::-1]}
    # As in protobuf: a field of 64 bytes, and the number of the next field, 6.
    assert NAME in names(b"\x0a\x40" + NAME.encode() + b"\x30\x01")
    # A long row of hex digits, such as a file in hex: the names at its start and its end.
    assert names(NAME + "9" * 10_000 + OTHER) == {NAME, OTHER}


def test_fewer_than_64_digits_are_no_name() -> None:
    assert names(NAME[1:]) == names("") == names(f"{NAME[:40]} {NAME[:40]}") == set()


@given(
    parts=st.lists(st.sampled_from([NAME, OTHER, "x", "0", "f" * 63, " " * 40]), max_size=12),
    slice_bytes=st.integers(1, 200),
)
@settings(max_examples=scaled(60, 200), deadline=None)
def test_chunk_boundaries_make_no_difference(parts: list[str], slice_bytes: int) -> None:
    data = "".join(parts).encode()
    whole = find_links(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "_SLICE_BYTES", slice_bytes)
        assert find_links(data) == whole == asyncio.run(search(data))


@pytest.mark.parametrize(
    "data",
    [
        os.urandom(8 << 20),
        os.urandom(4 << 20).hex().encode(),
        json.dumps(["the quick brown fox jumps over the lazy dog"] * 180_000).encode(),
        b" ".join(os.urandom(32).hex().encode() for _ in range(60_000)),
    ],
    ids=["binary", "hex", "text", "names"],
)
async def test_a_large_payload_does_not_block_the_event_loop(data: bytes) -> None:
    turns, is_over = 0, False

    async def others() -> None:
        nonlocal turns
        while not is_over:
            await asyncio.sleep(0)
            turns += 1

    working = asyncio.create_task(others())
    await search(data)
    is_over = True
    await working
    # A slice has 256 KiB, and takes 2 to 10 ms.
    assert turns >= len(data) // (256 * 1024) - 1


@pytest.mark.guarantee(108)
@pytest.mark.parametrize(
    "value",
    [
        ref("0" * 32),
        ref(),
        [{"before": [{"ref": ref()}], "entries": []}],
        {"result": {"head": {"ref": ref(), "first_seq": 1, "count": 1}}},
        {"head": {"ref": ref("0" * 32), "first_seq": 1, "count": 1}},
    ],
    ids=["of no thread", "of a thread", "a segment", "deeper", "a head of no thread"],
)
async def test_a_tool_result_does_not_stop_a_sweep(value: Any) -> None:
    world, run = await build_namespace()
    run.payloads.append(payload(json.dumps(value).encode()))
    await world.large("w0")
    report = await world.sweep()
    assert not report.incomplete
    assert report.quarantined.objects == 1


@pytest.mark.parametrize("text_bytes", [1, 3000], ids=["short", "long"])
async def test_a_message_text_does_not_stop_a_sweep(text_bytes: int) -> None:
    world = FakeNamespace(MemoryBlobStore())
    run = world.start("w0")
    new = entry(1, "x" * text_bytes, Kind.TOOL_RESULT)
    body = {**(new.body or {}), "before": [{"ref": ref()}], "snapshot": {"ref": ref()}}
    run.head, _ = await Journal(world.packs, W0).append(None, [dataclasses.replace(new, body=body)])
    run.payloads.append(await world.name_head("w0", run.head))
    assert not (await world.sweep()).incomplete
    assert await world.keys() == await world.reachable()


async def test_text_that_names_an_unreadable_object_does_not_stop_a_sweep() -> None:
    world, run = await build_namespace()
    key = f"v1/{W0}/{NAME}.pack"
    await world.store.put(key, b"neither a pack nor anything else")
    run.payloads.append(payload(json.dumps(f"pack {key!r} is damaged").encode()))
    for _ in range(SWEEPS):
        assert not (await world.sweep()).incomplete
    assert key in await world.keys()


async def test_text_that_names_an_orphan_segment_does_not_stop_a_sweep() -> None:
    world, run = await build_namespace()
    assert run.head is not None
    ghost = {"before": [{"ref": ref(), "first_seq": 1, "count": 1}], "entries": [], "version": 2}
    packs = PackStore(world.store)
    named, _ = await packs.write_body(W0, Kind.SEGMENT, json.dumps(ghost).encode())
    run.payloads.append(payload(json.dumps(f"I saw {named.digest}").encode()))
    for _ in range(SWEEPS):
        assert not (await world.sweep()).incomplete
    assert object_key(named) in await world.keys()


@pytest.mark.guarantee(108)
@pytest.mark.parametrize("is_offloaded", [False, True], ids=["inline", "offloaded"])
async def test_a_lost_head_is_reported_with_the_run_that_needs_it(is_offloaded: bool) -> None:
    world, run = await build_namespace()
    assert run.head is not None
    lost = object_key(run.head.ref)
    if is_offloaded:
        world.codec = type(world.codec)(world.packs, inline_bytes_max=0)
    state = {"agent": "ops", "state": {"head": dataclasses.asdict(run.head)}}
    again = world.start("w0", first=await world.encode("w0", payload(json.dumps(state).encode())))
    world.delete(run)
    await world.store.delete([lost])
    await world.large("w0")
    report = await world.sweep()
    assert again.run.run_id in report.incomplete[0]
    assert run.head.ref.digest in report.incomplete[0]
    assert (report.quarantined.objects, report.purged.objects) == (0, 0)


async def test_a_lost_answer_of_a_sub_agent_is_reported() -> None:
    world, run = await build_namespace()
    assert run.head is not None
    world.delete(run)  # The sub-agent's history is gone before its answer was taken over.
    call = {"report": {"child_id": "w0", "head": dataclasses.asdict(run.head)}}
    state = payload(json.dumps({"state": {"calls": [call]}}).encode())
    parent = world.start("parent", first=await world.encode("parent", state))
    gone = world.start("w0")
    for _ in range(SWEEPS):
        assert not (await world.sweep()).incomplete
    assert await world._journal(run.head) == await world.keys()
    await world.store.delete([object_key(run.head.ref)])
    world.delete(gone)
    assert parent.run.run_id in (await world.sweep()).incomplete[0]


async def test_a_store_that_fails_on_objects_named_only_in_text_is_not_trusted() -> None:
    class Failing(MemoryBlobStore):
        fails = ""

        async def get(self, key: str) -> bytes:
            if self.fails and self.fails in key:
                raise StoreUnavailable("try again")
            return await super().get(key)

    store = Failing()
    world = FakeNamespace(store)
    run = world.start("w0")
    named, _ = await world.packs.write_body(W0, Kind.SEGMENT, b"{}")
    run.payloads.append(payload(json.dumps(f"see {named.digest}").encode()))
    store.fails = named.digest
    assert "StoreUnavailable" in (await world.sweep()).incomplete[0]
    store.fails = ""
    assert not (await world.sweep()).incomplete


async def test_every_lost_segment_is_reported() -> None:
    world, run = await build_namespace()
    assert run.head is not None
    store = world.store
    assert isinstance(store, MemoryBlobStore)
    segments = await _segments(world, run)
    assert len(segments) > 1
    for lost in segments:
        data = await store.get(lost)
        await store.delete([lost])
        report = await world.sweep()
        assert any(lost[-69:-5] in reason for reason in report.incomplete), lost
        await store.put(lost, data)
    assert not (await world.sweep()).incomplete


async def _segments(world: FakeNamespace, run: FakeRun) -> list[str]:
    """The keys of the newest segment and those before it."""
    assert run.head is not None
    found, places = [], [run.head]
    while places:
        place = places.pop()
        found.append(object_key(place.ref))
        piece = await Journal(world.packs, W0)._segments.open(place, frozenset({W0}))
        places += piece.segment.before
    return found
