"""Payloads and packs of unusual shapes: what is written is read back, at a bounded cost."""

import dataclasses
import random
import threading
import zlib
from collections.abc import Iterator

import pytest

from everlong import limits
from everlong.codecs import EverlongCodec, matcher, pack_layout
from everlong.codecs.matcher import KnownPack, RecentPayload, Run
from everlong.codecs.thread_memory import ThreadMemory
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.packs import Contents, Extent, build_contents, build_pack
from tests.support.pack_model import THREAD, Store, check
from tests.support.sample_payloads import noise, payload, workflow


def write_payload(store: Store, memory: ThreadMemory, data: bytes) -> bytes:
    """Write a payload, read it back, and return the name of its pack."""
    plan = memory.plan(b"", data, "", 0.0)
    check(store, memory, plan, data)
    if plan.same_as is not None:
        return plan.same_as.name
    name = store.add(plan)
    memory.commit(plan, name, 0.0)
    return name


@pytest.mark.parametrize("kept", range(1, 9))
@pytest.mark.parametrize("unit", [b" ", b"- ", b"=+=", b"01234567"])
def test_a_shortened_pattern_is_read_back(unit: bytes, kept: int) -> None:
    store, memory = Store(), ThreadMemory()
    start, end = noise(5000), noise(20_000, 1)
    write_payload(store, memory, start + b"#" + (unit * 63)[-63:] + end)
    write_payload(store, memory, start + unit * kept + end + noise(100, 2))


def words(size_bytes: int, chooser: random.Random) -> bytes:
    """Return text in which the same words come again, so that a dictionary saves something."""
    return b" ".join(b"word-%03d" % chooser.randrange(300) for _ in range(size_bytes // 9))


@pytest.mark.parametrize("seed", range(4))
def test_a_payload_of_too_many_runs_reuses_the_dictionaries_of_its_packs(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EXTENTS_MAX", 40)
    store, memory, chooser = Store(), ThreadMemory(), random.Random(seed)
    body = words(20_000, chooser)
    had_too_many = 0
    for _ in range(60):
        for _ in range(chooser.choice([1, 2, 5, 8])):
            at = chooser.randrange(len(body))
            cut = at + chooser.choice([0, 50])
            body = body[:at] + words(chooser.choice([30, 200, 3000]), chooser) + body[cut:]
        body += words(chooser.choice([100, 3000, 9000]), chooser)
        write_payload(store, memory, body)
        had_too_many += len(memory._recent[-1].runs) > 30
    assert had_too_many > 5  # Or else this showed nothing.


@pytest.mark.parametrize("runs", [513, 900, 4000, 300_000])
@pytest.mark.parametrize("shape", ["equal", "growing", "mixed"])
def test_the_number_of_runs_of_a_payload_is_bounded(runs: int, shape: str) -> None:
    pack = KnownPack(b"n" * 32, 0, 2**32, 0.0, 0.0)
    chooser = random.Random(runs)
    lengths = {
        "equal": [1024] * runs,
        "growing": list(range(1, runs + 1)),
        "mixed": [chooser.choice([1024, 50_000]) for _ in range(runs)],
    }[shape]
    given = [
        Run(length, pack if at % 2 else None, 3 * at * 100_000) for at, length in enumerate(lengths)
    ]
    chosen = pack_layout.choose_runs(given)
    left, was_new = 0, False
    for at, run in enumerate(given):
        is_new = run.pack is None or at in chosen
        left += not (is_new and was_new)
        was_new = is_new
    assert left <= limits.EXTENTS_MAX
    assert len(chosen) < runs


class FleetingPayload(RecentPayload):
    """A payload whose bytes are dropped by another thread, after they were looked at so many times."""

    looks = 10**6

    @property
    def data(self) -> bytes | None:
        type(self).looks -= 1
        return self._data if type(self).looks >= 0 else None

    @data.setter
    def data(self, data: bytes | None) -> None:
        self._data = data


@pytest.mark.parametrize("looks", range(12))
def test_bytes_can_be_dropped_during_a_comparison(
    looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, memory = Store(), ThreadMemory()
    start, end = noise(9000), noise(5000, 1)
    monkeypatch.setattr(FleetingPayload, "looks", 10**6)
    monkeypatch.setattr("everlong.codecs.thread_memory.RecentPayload", FleetingPayload)
    write_payload(store, memory, start + end)
    assert isinstance(memory._recent[0], FleetingPayload)
    memory._recent[0].marks = list(matcher._marks(start + end, [4096, 9000]))
    FleetingPayload.looks = looks
    changed = start + noise(2000, 2) + end
    plan = memory.plan(b"", changed, "", 0.0)
    assert memory.cost_bytes > 0
    assert store.payload(plan) == changed


def test_digests_are_computed_without_locking_a_threads_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, is_free = ThreadMemory(), []
    memory.commit(memory.plan(b"", noise(50_000), "", 0.0), b"n" * 32, 0.0)
    marks = matcher._marks

    def look(data: bytes, places: list[int]) -> Iterator[tuple[int, bytes]]:
        is_free.append(not memory._lock.locked())
        return marks(data, places)

    monkeypatch.setattr(matcher, "_marks", look)
    assert memory.drop_data() > 40_000
    assert is_free == [True]


async def test_bytes_are_dropped_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []
    marks = matcher._marks

    def look(data: bytes, places: list[int]) -> Iterator[tuple[int, bytes]]:
        threads.append(threading.current_thread())
        return marks(data, places)

    monkeypatch.setattr(matcher, "_marks", look)
    codec = EverlongCodec(MemoryBlobStore(), encoder_bytes_max=limits.ENCODER_BYTES_MIN)
    for seed in range(8):
        data = noise(200_000, seed)
        await codec.with_context(workflow(f"ops-{seed}")).encode([payload(data)])
    assert threads
    assert threading.main_thread() not in threads


def test_a_pack_with_an_unlisted_dictionary_is_not_learned() -> None:
    store, memory = Store(), ThreadMemory()

    def add(contents: Contents) -> bytes:
        name, data = build_pack(contents, THREAD, None)
        store.packs[name] = data
        return name

    first = add(build_contents(noise(3000, 1)))
    second = add(
        dataclasses.replace(
            build_contents(noise(3000, 2)),
            sources=[first],
            dictionary=Extent(1, 0, 2000),
            dictionary_data=noise(3000, 1)[:2000],
        )
    )
    forged = add(
        Contents(
            envelope=b"\0",
            size_bytes=3000,
            crc=zlib.crc32(noise(3000, 2)),
            extents=[Extent(1, 0, 3000)],
            sources=[second],
        )
    )
    assert store.read(forged).data == noise(3000, 2)
    store.learn(memory, forged, 0.0)
    assert not memory._recent


def test_a_long_dictionary_chain_is_counted_and_not_used() -> None:
    known = KnownPack(b"n" * 32, 0, 5000, 0.0, 0.0)
    for number in range(1, 3000):
        known = KnownPack(b"n" * 32, number, 5000, 0.0, 0.0, dictionary=known)
    assert known.dictionaries == 2999


def test_the_search_for_single_payloads_in_a_large_one_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, searched = ThreadMemory(), 0
    for seed in range(limits.ENCODER_SINGLES_MAX):
        memory.commit(memory.plan(b"", noise(2000, seed), "", 0.0), b"%032d" % seed, 0.0)
    search = matcher.Match._search

    def look(self: matcher.Match, piece: bytes) -> int:
        nonlocal searched
        searched += self._end - self._place
        return search(self, piece)

    monkeypatch.setattr(matcher.Match, "_search", look)
    memory.plan(b"", noise(20_000_000, 50), "", 0.0)
    assert 0 < searched <= 128 * limits.MIB


@pytest.mark.parametrize("shift", [-3000, -1000, -24, 0])
def test_a_single_payload_is_found_where_two_parts_of_a_search_meet(
    shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher, "_SEARCH_PART_BYTES", 10_000)
    store, memory, single = Store(), ThreadMemory(), noise(3000, 1)
    write_payload(store, memory, noise(3000, 9))
    write_payload(store, memory, single)
    large = noise(10_000 + shift, 2) + single + noise(9000, 3)
    plan = memory.plan(b"", large, "", 0.0)
    assert plan.found
    assert sum(length for _, _, length, _ in plan.moved) == len(single)
    assert store.payload(plan) == large


def test_few_payload_digests_of_a_long_thread_remain_after_its_bytes() -> None:
    memory = ThreadMemory()
    for seed in range(100):
        memory.commit(memory.plan(b"", noise(1500, seed), "", 0.0), b"%032d" % seed, 0.0)
    memory.drop_data()
    assert len(memory._repeats) == limits.ENCODER_REPEATS_KEPT
    assert memory.plan(b"", noise(1500, 99), "", 0.0).same_as is not None
