"""Reference model of packs, to check the encoder's plans and its memory against."""

import zlib

from everlong import limits
from everlong.codecs import pack_layout
from everlong.codecs.matcher import _chunk_id
from everlong.codecs.pack_layout import Plan
from everlong.codecs.thread_memory import ThreadMemory
from everlong.models import thread_key
from everlong.storage.pack_store import ReadResult
from everlong.storage.packs import Pack, build_pack
from tests.support.sample_payloads import noise

THREAD = thread_key("default", "ops-7")


class Store:
    """Durable packs, and the payloads that plans describe."""

    def __init__(self) -> None:
        self.packs: dict[bytes, bytes] = {}
        self.streams: dict[bytes, bytes] = {}

    def payload(self, plan: Plan) -> bytes:
        """Build the pack, and read the payload back through it and its sources."""
        name, data = build_pack(plan.contents, THREAD, None)
        reading = self._read(Pack(data, name, THREAD, None))
        assert plan.packs == 1 + len(reading.sources)
        return reading.data

    def add(self, plan: Plan) -> bytes:
        name, pack = build_pack(plan.contents, THREAD, None)
        self.packs[name] = pack
        self.streams[name] = b"".join(plan.contents.stream)
        return name

    def open(self, name: bytes) -> Pack:
        return Pack(self.packs[name], name, THREAD, None)

    def read(self, name: bytes) -> ReadResult:
        return self._read(self.open(name))

    def learn(self, memory: ThreadMemory, name: bytes, now: float) -> None:
        memory.learn(self.read(name), now)

    def _read(self, pack: Pack) -> ReadResult:
        names, extents = pack.resolve(None if pack.base is None else self.open(pack.base))
        sources = [self.open(each) for each in names]
        return ReadResult(pack, sources, extents, pack.assemble(sources, extents))


def check(store: Store, memory: ThreadMemory, plan: Plan, data: bytes) -> None:
    """Assert that a plan gives its payload, within the bounds."""
    if plan.same_as is not None:
        assert store.read(plan.same_as.name).data == data
        return
    contents = plan.contents
    assert store.payload(plan) == data
    assert (contents.size_bytes, contents.crc) == (len(data), zlib.crc32(data))
    assert plan.packs <= pack_layout.packs_max(len(data))
    assert len(set(contents.sources)) == len(contents.sources)
    packs = {run.pack for run in plan.runs}
    used: dict[bytes, int] = {}
    for run in plan.runs:
        if run.pack is not None:
            assert run.pack.dictionary is None or run.pack.dictionary in packs
            used[run.pack.name] = used.get(run.pack.name, 0) + run.length
    for name, used_bytes in used.items():
        assert used_bytes >= limits.SPARSE_RATIO * len(store.streams[name])
    check_memory(store, memory)


def check_memory(store: Store, memory: ThreadMemory) -> None:
    """Assert that each remembered chunk is at its remembered place."""
    lists = sum(recent.is_list for recent in memory._recent)
    assert lists <= limits.ENCODER_LISTS_MAX
    assert len(memory._recent) - lists <= limits.ENCODER_SINGLES_MAX
    assert len({recent.name for recent in memory._recent}) == len(memory._recent)
    for recent in memory._recent:
        parts = [
            store.streams[run.pack.name][run.start :][: run.length]
            for run in recent.runs
            if run.pack
        ]
        assert recent.data is None or b"".join(parts) == recent.data
    assert len(memory._index) <= limits.ENCODER_CHUNKS_MAX
    for chunk_id, (pack, start) in memory._index.items():
        [length] = {n for at, n, each in pack.chunks if (at, each) == (start, chunk_id)}
        assert _chunk_id(memoryview(store.streams[pack.name])[start : start + length]) == chunk_id


def plan_and_commit(memory: ThreadMemory, data: bytes, now: float = 0.0, key_id: str = "") -> Plan:
    """Plan a payload and commit it under a new name."""
    plan = memory.plan(b"", data, key_id, now)
    if plan.same_as is None:
        name = noise(32, zlib.crc32(data) + int(now) + hash(key_id))
        memory.commit(plan, name, now)
    return plan


def new_bytes(plan: Plan) -> int:
    return plan.new_bytes
