"""What the encoder remembers of a thread: it helps, it grows old, and it is bounded."""

import sys

import pytest

from everlong import limits
from everlong.codecs.memory import EncoderMemory, ThreadMemory
from tests.payloads import noise
from tests.plans import Store, new_bytes, planned

SECONDS = limits.ENCODER_SECONDS_MAX


def test_what_was_appended_is_all_that_is_written() -> None:
    memory = ThreadMemory()
    body = noise(500_000)
    planned(memory, body)
    assert new_bytes(planned(memory, body + noise(900, 1))) == 900
    assert new_bytes(planned(memory, noise(2000, 2) + body)) < 64 * 1024
    assert new_bytes(planned(memory, body[:250_000] + b"in between" + body[250_000:])) < 3000
    half = memory.plan(b"", body[250_000:] + body[:250_000], "", 0.0)
    assert new_bytes(half) < 64 * 1024


@pytest.mark.parametrize("result_bytes", [20_000, 500_000])
def test_one_off_payloads_in_between_do_not_make_a_list_be_written_whole_again(
    result_bytes: int,
) -> None:
    memory = ThreadMemory()
    body = noise(300_000)
    planned(memory, body)
    for step in range(10):
        body += noise(1000, 100 + step)
        assert new_bytes(planned(memory, body)) < 20_000
        for result in range(5):
            planned(memory, noise(result_bytes, 1000 + 10 * step + result))


def test_two_lists_grow_side_by_side() -> None:
    memory = ThreadMemory()
    lists = [noise(200_000, 1), noise(200_000, 2)]
    for step in range(12):
        for which in range(2):
            lists[which] += noise(1000, 10 * step + which + 100)
            plan = planned(memory, lists[which])
            assert step == 0 or new_bytes(plan) < 20_000


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_an_equal_payload_is_not_written_twice(size: int) -> None:
    memory = ThreadMemory()
    others = [planned(memory, noise(3000 + n, 9 + n)) for n in range(2)]
    first = planned(memory, noise(size))
    again = memory.plan(b"", noise(size), "", 0.0)
    assert again.same_as is not None
    assert memory.find(again.same_as.name, "") == (b"", noise(size))
    assert memory.plan(b"other metadata", noise(size), "", 0.0).same_as is None
    assert first.same_as is None
    assert all(other.same_as is None for other in others)


def test_equal_data_with_other_metadata_is_another_payload() -> None:
    memory, data = ThreadMemory(), noise(5000)
    for envelope in (b"a", b"b"):
        memory.commit(memory.plan(envelope, data, "", 0.0), envelope * 32, 0.0)
    same = memory.plan(b"b", data, "", 0.0).same_as
    assert same is not None
    assert same.name == b"b" * 32
    other = memory.plan(b"c", data, "", 0.0)
    assert other.same_as is None
    assert new_bytes(other) == 0


def test_what_is_equal_and_encoded_at_once_is_remembered_once() -> None:
    memory = ThreadMemory()
    planned(memory, noise(9000, 1))
    plans = [memory.plan(b"", noise(9000, 2), "", 0.0) for _ in range(5)]
    for plan in plans:
        memory.commit(plan, b"n" * 32, 0.0)
    assert [len(recent.data) for recent in memory._recent] == [9000, 9000]


@pytest.mark.parametrize("data", [b"", noise(5000), noise(200_000)])
def test_a_pack_that_nobody_named_for_long_is_not_pointed_to(data: bytes) -> None:
    memory = ThreadMemory()
    planned(memory, data)
    for extended in (data, data + noise(2000, 1), noise(2000, 2) + data):
        plan = memory.plan(b"", extended, "", SECONDS + 1)
        assert plan.same_as is None
        assert not plan.contents.sources
    fresh = memory.plan(b"", data, "", SECONDS - 1)
    assert fresh.same_as is None or not fresh.contents.sources


def test_a_payload_of_others_bytes_alone_grows_old_too() -> None:
    memory = ThreadMemory()
    body = noise(300_000)
    planned(memory, body)
    part = planned(memory, body[:100_000])
    assert new_bytes(part) == 0
    for step in range(1, 10):
        now = step * SECONDS / 2
        planned(memory, body + noise(100 * step, 5), now)
    assert memory.plan(b"", body[:100_000], "", now).same_as is None


def test_using_a_pack_keeps_it_young() -> None:
    memory = ThreadMemory()
    body = noise(200_000)
    planned(memory, body)
    for step in range(1, 6):
        body += noise(1000, step)
        assert new_bytes(planned(memory, body, now=step * SECONDS * 0.9)) < 10_000


def test_after_a_rotation_nothing_of_the_old_key_is_pointed_to() -> None:
    memory = ThreadMemory()
    body = noise(200_000)
    planned(memory, body, key_id="old")
    late = memory.plan(b"", body + noise(5000, 1), "old", 0.0)
    assert late.contents.sources
    rotated = memory.plan(b"", body, "new", 0.0)
    assert rotated.same_as is None
    assert not rotated.contents.sources
    # One that was under way with the old key becomes durable only now.
    memory.commit(late, b"l" * 32, 0.0)
    after = memory.plan(b"", body + noise(5000, 1) + noise(5000, 2), "new", 0.0)
    assert after.same_as is None
    assert not after.contents.sources


def test_what_was_read_with_an_old_key_is_not_pointed_to() -> None:
    store, memory = Store(), ThreadMemory()
    name = store.add(memory.plan(b"", noise(50_000), "", 0.0))
    memory = ThreadMemory()
    store.learn(memory, name, 0.0)
    assert memory.plan(b"", noise(50_000), "", 0.0).same_as is not None
    assert memory.plan(b"", noise(50_000), "new", 0.0).same_as is None
    store.learn(memory, name, 0.0)
    planned(memory, noise(9000, 3), key_id="new")
    store.learn(memory, name, 0.0)
    assert memory.plan(b"", noise(50_000), "new", 0.0).same_as is None
    assert memory.plan(b"", noise(9000, 3), "new", 0.0).same_as is not None


def test_the_memory_of_a_thread_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ENCODER_CHUNKS_MAX", 20)
    monkeypatch.setattr(limits, "ENCODER_BYTES_MAX", 1_000_000)
    memory = ThreadMemory()
    for seed in range(12):
        planned(memory, noise(100_000, seed))
        assert len(memory._recent) <= limits.ENCODER_RECENT_MAX
        assert len(memory._index) <= 20
    assert 400_000 <= memory.cost_bytes < 420_000
    planned(memory, noise(300_000, 99))
    assert all(len(recent.data) == 100_000 for recent in memory._recent)


def test_the_memory_of_all_threads_is_bounded_and_the_oldest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ENCODER_BYTES_MAX", 1_000_000)
    memory = EncoderMemory()
    for number in range(50):
        planned(memory.of(f"thread {number}"), noise(100_000, number))
        memory.of("thread 0")
        memory.trim(f"thread {number}")
        assert sum(each.cost_bytes for each in memory._threads.values()) <= 1_000_000
    assert {"thread 0", "thread 49"} <= memory._threads.keys()
    assert "thread 1" not in memory._threads
    assert len(memory._threads) >= 8


def test_threads_of_which_nothing_became_durable_are_bounded_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ENCODER_BYTES_MAX", 1_000_000)
    memory = EncoderMemory()
    for number in range(5000):
        memory.of(f"thread {number}")
    assert len(memory._threads) < 1000
    assert sys.getsizeof(memory._threads) < 1_000_000


def test_nothing_that_is_remembered_shows_a_payload() -> None:
    memory = ThreadMemory()
    secret = b"hunter2 " * 1000
    plan = planned(memory, secret)
    for shown in (memory, plan, plan.contents, memory._recent[0]):
        assert "hunter2" not in repr(shown)
