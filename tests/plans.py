"""A model of the packs that plans lead to, to check what the encoder remembers against."""

import zlib

from everlong import limits
from everlong.codecs.matching import Plan, _chunk_id
from everlong.codecs.memory import ThreadMemory
from everlong.storage.objects import thread_key
from everlong.storage.packs import Pack, build_pack
from tests.payloads import noise

THREAD = thread_key("default", "ops-7")


class Store:
    """Packs that are durable, and the payload that a plan stands for."""

    def __init__(self) -> None:
        self.packs: dict[bytes, bytes] = {}
        self.streams: dict[bytes, bytes] = {}

    def payload(self, plan: Plan) -> bytes:
        own = b"".join(plan.contents.stream)
        streams = [own, *(self.streams[name] for name in plan.contents.sources)]
        parts = [streams[s][start : start + n] for s, start, n in plan.contents.extents]
        assert [len(part) for part in parts] == [n for _, _, n in plan.contents.extents]
        return b"".join(parts)

    def add(self, plan: Plan) -> bytes:
        name, pack = build_pack(plan.contents, THREAD, None)
        self.packs[name] = pack
        self.streams[name] = b"".join(plan.contents.stream)
        return name

    def open(self, name: bytes) -> Pack:
        return Pack(self.packs[name], name, THREAD, None)

    def learn(self, memory: ThreadMemory, name: bytes, now: float) -> None:
        pack = self.open(name)
        sources = [self.open(each) for each in pack.sources]
        memory.learn(pack, sources, pack.assemble(sources), now)


def check(store: Store, memory: ThreadMemory, plan: Plan, data: bytes) -> None:
    """See that a plan gives its payload, within the bounds."""
    if plan.same_as is not None:
        pack = store.open(plan.same_as.name)
        assert pack.assemble([store.open(each) for each in pack.sources]) == data
        return
    contents = plan.contents
    assert store.payload(plan) == data
    assert (contents.size_bytes, contents.crc) == (len(data), zlib.crc32(data))
    assert plan.packs == 1 + len(contents.sources) <= limits.PACKS_MAX
    assert len(set(contents.sources)) == len(contents.sources)
    for number, name in enumerate(contents.sources, 1):
        used = sum(extent.length for extent in contents.extents if extent.source == number)
        assert used >= limits.SPARSE_RATIO * len(store.streams[name])
    check_memory(store, memory)


def check_memory(store: Store, memory: ThreadMemory) -> None:
    """See that all that is remembered lies where it is said to lie."""
    assert len(memory._recent) <= limits.ENCODER_RECENT_MAX
    assert len({recent.name for recent in memory._recent}) == len(memory._recent)
    for recent in memory._recent:
        parts = [
            store.streams[run.pack.name][run.start :][: run.length]
            for run in recent.runs
            if run.pack
        ]
        assert b"".join(parts) == recent.data
    assert len(memory._index) <= limits.ENCODER_CHUNKS_MAX
    for chunk_id, (pack, start) in memory._index.items():
        [length] = {n for at, n, each in pack.chunks if (at, each) == (start, chunk_id)}
        assert _chunk_id(memoryview(store.streams[pack.name])[start : start + length]) == chunk_id


def planned(memory: ThreadMemory, data: bytes, now: float = 0.0, key_id: str = "") -> Plan:
    """Plan and commit under a name of its own."""
    plan = memory.plan(b"", data, key_id, now)
    if plan.same_as is None:
        name = noise(32, zlib.crc32(data) + int(now) + hash(key_id))
        memory.commit(plan, name, now)
    return plan


def new_bytes(plan: Plan) -> int:
    return sum(map(len, plan.contents.stream))
