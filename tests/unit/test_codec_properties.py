"""Properties of the codec: decode returns what any worker encoded, in any order."""

import asyncio
import dataclasses
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyfastcdc import FastCDC
from temporalio.api.common.v1 import Payload

from everlong import limits
from everlong.codecs import EverlongCodec, matcher
from everlong.codecs.refs import PackRef, is_ref, parse_ref
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, open_packs
from tests.support.sample_payloads import KEY_1, KEY_2, activity, noise, read_objects, workflow
from tests.support.scale import scaled

KeyMap = dict[str, bytes] | None
KEYS: dict[str, KeyMap] = {
    "none": None,
    "one": {"k1": KEY_1},
    "rotated": {"k2": KEY_2, "k1": KEY_1},
    "back": {"k1": KEY_1, "k2": KEY_2},
}

metadata = st.dictionaries(
    st.text(max_size=20) | st.sampled_from(["encoding", "messageType"]),
    st.binary(max_size=50)
    | st.sampled_from([b"json/plain", b"binary/everlong", b"binary/everlong-ref"]),
    max_size=4,
)
blobs = st.one_of(
    st.binary(max_size=2000),
    st.integers(0, 60_000).map(lambda n: (b"line of a log\n" * 5000)[:n]),
    st.integers(0, 60_000).map(noise),
    st.just(b""),
)


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    payload = Payload(metadata=draw(metadata), data=draw(blobs))
    for size in draw(st.lists(st.integers(0, 1 << 40), max_size=2)):
        payload.external_payloads.add().size_bytes = size
    return payload


INLINE = st.sampled_from([0, 100, limits.INLINE_BYTES_MAX])


@pytest.mark.guarantee(5)
@settings(max_examples=scaled(50, 150), deadline=None)
@given(st.lists(payloads(), max_size=5), INLINE, st.sampled_from(list(KEYS)))
async def test_decode_returns_what_was_encoded(
    items: list[Payload], inline_bytes_max: int, keys: str
) -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store, inline_bytes_max=inline_bytes_max, keys=KEYS[keys])
    for each in (codec, codec.with_context(workflow())):
        encoded = await each.encode(items)
        assert await codec.decode(encoded) == items
        assert await EverlongCodec(store, keys=KEYS[keys]).decode(encoded) == items
        # A caller may encode a payload that is already encoded, without knowing it.
        assert await codec.decode(await codec.decode(await each.encode(encoded))) == items


@dataclasses.dataclass(frozen=True)
class Step:
    """Something that happens to a list, and to who encodes it."""

    edit: str
    place: int
    seed: int
    size: int
    thread: int
    event: str


steps = st.builds(
    Step,
    edit=st.sampled_from(
        ["append", "append", "first", "insert", "delete", "swap", "repeat", "shrink", "empty"]
    ),
    place=st.integers(0, 100),
    seed=st.integers(0, 9),
    size=st.sampled_from([0, 1, 90, 400, 2500, 9000]),
    thread=st.integers(0, 2),
    event=st.sampled_from(
        ["none"] * 6
        + ["forget", "rotate", "read", "at once", "drop memory", "drop disk", "harm disk"]
    ),
)


def apply_edit(items: list[bytes], step: Step) -> list[bytes]:
    at = step.place * len(items) // 100
    item = noise(step.size, step.seed)
    edits: dict[str, Callable[[], list[bytes]]] = {
        "append": lambda: [*items, item],
        "first": lambda: [item, *items],
        "insert": lambda: [*items[:at], item, *items[at:]],
        "delete": lambda: [*items[:at], *items[at + 1 :]],
        "swap": lambda: [*items[at:], *items[:at]],
        "repeat": lambda: [*items[: at + 2], *items[at:]],
        "shrink": lambda: items[:at],
        "empty": list,
    }
    return edits[step.edit]()


class World:
    """Processes that share a store, and a directory for copies, one after another."""

    def __init__(self, disk: Path, inline_bytes_max: int, keys: str) -> None:
        self.disk = disk
        self.inline_bytes_max = inline_bytes_max
        self.keys = KEYS[keys]
        self.store = MemoryBlobStore()
        self.encoded: list[tuple[Payload, Payload]] = []
        self.restart()

    def restart(self) -> None:
        packs = open_packs(self.store, keys=self.keys, cache_dir=self.disk)
        self.codec = EverlongCodec(packs, inline_bytes_max=self.inline_bytes_max)

    def happen(self, event: str) -> None:
        if event == "rotate" and self.keys is not None:
            self.keys = dict(reversed(self.keys.items())) if len(self.keys) > 1 else KEYS["rotated"]
        if event in ("forget", "rotate", "drop memory", "drop disk", "harm disk"):
            self.restart()
        if event == "drop disk":
            shutil.rmtree(self.disk, ignore_errors=True)
        if event == "harm disk":
            for path in self.disk.rglob("*"):
                if path.is_file():
                    path.write_bytes(path.read_bytes()[:-1] + b"x")

    async def encode(self, thread: int, items: list[Payload]) -> None:
        codec = self.codec.with_context(workflow(f"thread {thread}"))
        self.encoded += zip(await codec.encode(items), items, strict=True)

    async def check(self, codec: EverlongCodec) -> None:
        refs = [each for each, _ in self.encoded]
        assert await codec.decode(refs) == [item for _, item in self.encoded]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sizes smaller, so that a small example meets every case."""
    monkeypatch.setattr(limits, "MATCH_BYTES_MIN", 64)
    monkeypatch.setattr(limits, "PACKS_MAX", 6)
    cutter = FastCDC(avg_size=256, min_size=64, max_size=1024)
    monkeypatch.setattr(matcher, "_CUTTER", cutter)
    monkeypatch.setattr(matcher, "CRC_BYTES", 512)


async def play(disk: Path, script: list[Step], inline_bytes_max: int, keys: str) -> None:
    world = World(disk, inline_bytes_max, keys)
    lists: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for number, step in enumerate(script):
        world.happen(step.event)
        before = lists[step.thread]
        lists[step.thread] = items = apply_edit(before, step)
        item = Payload(metadata={"encoding": b"json/plain"}, data=b"".join(items))
        if step.event == "at once":
            others = [Payload(data=b"".join(items[n:])) for n in range(3)]
            await asyncio.gather(
                *(world.encode(step.thread, [each]) for each in (item, *others)),
                world.encode((step.thread + 1) % 3, [item]),
            )
        else:
            await world.encode(step.thread, [item])
        if step.event == "read":
            ref, expected = world.encoded[step.place * number // 100]
            reader = world.codec.with_context(activity(f"thread {step.thread}"))
            assert await reader.decode([ref]) == [expected]
    await world.check(world.codec)
    await world.check(EverlongCodec(open_packs(world.store, keys=world.keys, cache_dir=disk)))
    cold = PackStore(world.store, world.codec.packs.keyring)
    await world.check(EverlongCodec(cold))
    for ref, _ in world.encoded:
        found = parse_ref(ref) if is_ref(ref) else None
        if isinstance(found, PackRef):
            reading = await cold.read(found.thread, found.pack, found.size_bytes)
            assert found.packs == 1 + len(reading.sources) <= limits.PACKS_MAX
            # A key that is taken away takes nothing with it that a newer one has written.
            assert {each.key_id for each in reading.sources} <= {found.key_id}


@pytest.mark.guarantee(5)
@pytest.mark.usefixtures("small")
@settings(max_examples=scaled(40, 120), deadline=None)
@given(st.lists(steps, min_size=1, max_size=20), INLINE, st.sampled_from(list(KEYS)))
async def test_no_sequence_of_lists_and_faults_loses_a_byte(
    script: list[Step], inline_bytes_max: int, keys: str
) -> None:
    disk = Path(tempfile.mkdtemp(prefix="everlong-test-"))
    try:
        await play(disk, script, inline_bytes_max, keys)
    finally:
        shutil.rmtree(disk, ignore_errors=True)


@settings(max_examples=15, deadline=None)
@given(st.lists(steps, min_size=1, max_size=12))
async def test_no_sequence_at_typical_sizes_loses_a_byte(script: list[Step]) -> None:
    disk = Path(tempfile.mkdtemp(prefix="everlong-test-"))
    large = [dataclasses.replace(step, size=20 * step.size) for step in script]
    try:
        await play(disk, large, limits.INLINE_BYTES_MAX, "one")
    finally:
        shutil.rmtree(disk, ignore_errors=True)


@pytest.mark.guarantee(13)
async def test_no_object_of_a_thread_is_stored_under_another() -> None:
    store = MemoryBlobStore()
    codec = EverlongCodec(store)
    body = noise(50_000)
    refs: list[tuple[Payload, bytes]] = []
    for thread in ("a", "b", "a", "b"):
        body += noise(2000, len(refs))
        [ref] = await codec.with_context(workflow(thread)).encode([Payload(data=body)])
        refs.append((ref, body))
    objects = await read_objects(store)
    for ref, data in refs:
        found = parse_ref(ref)
        alone = MemoryBlobStore()
        for key, stored_bytes in objects.items():
            if found.thread in key:
                await alone.put(key, stored_bytes)
        assert await EverlongCodec(alone).decode([ref]) == [Payload(data=data)]
