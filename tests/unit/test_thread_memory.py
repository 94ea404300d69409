"""Encoder memory of a thread: it saves bytes, it expires, and it is bounded."""

import sys

import pytest

from everlong import limits
from everlong.codecs.thread_memory import ThreadMemories, ThreadMemory
from tests.support.pack_model import Store, check, new_bytes, plan_and_commit
from tests.support.sample_payloads import noise

SECONDS = limits.ENCODER_SECONDS_MAX


@pytest.mark.guarantee(9)
def test_only_appended_bytes_are_written() -> None:
    memory = ThreadMemory()
    body = noise(500_000)
    plan_and_commit(memory, body)
    assert new_bytes(plan_and_commit(memory, body + noise(900, 1))) == 900
    assert new_bytes(plan_and_commit(memory, noise(2000, 2) + body)) < 64 * 1024
    assert (
        new_bytes(plan_and_commit(memory, body[:250_000] + b"in between" + body[250_000:])) < 3000
    )
    half = memory.plan(b"", body[250_000:] + body[:250_000], "", 0.0)
    assert new_bytes(half) < 64 * 1024


@pytest.mark.parametrize("result_bytes", [20_000, 500_000])
def test_one_off_payloads_do_not_cause_a_list_to_be_rewritten(
    result_bytes: int,
) -> None:
    memory = ThreadMemory()
    body = noise(300_000)
    plan_and_commit(memory, body)
    for step in range(10):
        body += noise(1000, 100 + step)
        assert new_bytes(plan_and_commit(memory, body)) < 20_000
        for result in range(5):
            plan_and_commit(memory, noise(result_bytes, 1000 + 10 * step + result))


def test_two_lists_grow_independently() -> None:
    memory = ThreadMemory()
    lists = [noise(200_000, 1), noise(200_000, 2)]
    for step in range(12):
        for which in range(2):
            lists[which] += noise(1000, 10 * step + which + 100)
            plan = plan_and_commit(memory, lists[which])
            assert step == 0 or new_bytes(plan) < 20_000


@pytest.mark.guarantee(9)
@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_an_equal_payload_is_not_written_twice(size: int) -> None:
    memory = ThreadMemory()
    others = [plan_and_commit(memory, noise(3000 + n, 9 + n)) for n in range(2)]
    first = plan_and_commit(memory, noise(size))
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


def test_equal_payloads_encoded_at_once_are_remembered_once() -> None:
    memory = ThreadMemory()
    plan_and_commit(memory, noise(9000, 1))
    plans = [memory.plan(b"", noise(9000, 2), "", 0.0) for _ in range(5)]
    for plan in plans:
        memory.commit(plan, b"n" * 32, 0.0)
    assert [recent.size_bytes for recent in memory._recent] == [9000, 9000]


@pytest.mark.guarantee(11)
@pytest.mark.parametrize("data", [b"", noise(5000), noise(200_000)])
def test_a_pack_unnamed_for_long_is_not_referenced(data: bytes) -> None:
    memory = ThreadMemory()
    plan_and_commit(memory, data)
    for extended in (data, data + noise(2000, 1), noise(2000, 2) + data):
        plan = memory.plan(b"", extended, "", SECONDS + 1)
        assert plan.same_as is None
        assert not plan.contents.sources
    fresh = memory.plan(b"", data, "", SECONDS - 1)
    assert fresh.same_as is None or not fresh.contents.sources


def test_a_payload_without_own_bytes_ages_too() -> None:
    memory = ThreadMemory()
    body = noise(300_000)
    plan_and_commit(memory, body)
    part = plan_and_commit(memory, body[:100_000])
    assert new_bytes(part) == 0
    for step in range(1, 10):
        now = step * SECONDS / 2
        plan_and_commit(memory, body + noise(100 * step, 5), now)
    assert memory.plan(b"", body[:100_000], "", now).same_as is None


def test_using_a_pack_keeps_it_young() -> None:
    memory = ThreadMemory()
    body = noise(200_000)
    plan_and_commit(memory, body)
    for step in range(1, 6):
        body += noise(1000, step)
        assert new_bytes(plan_and_commit(memory, body, now=step * SECONDS * 0.9)) < 10_000


@pytest.mark.guarantee(22)
def test_no_pack_of_the_old_key_is_referenced_after_a_rotation() -> None:
    memory = ThreadMemory()
    body = noise(200_000)
    plan_and_commit(memory, body, key_id="old")
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


@pytest.mark.guarantee(22)
def test_a_pack_read_with_an_old_key_is_not_referenced() -> None:
    store, memory = Store(), ThreadMemory()
    name = store.add(memory.plan(b"", noise(50_000), "", 0.0))
    memory = ThreadMemory()
    store.learn(memory, name, 0.0)
    assert memory.plan(b"", noise(50_000), "", 0.0).same_as is not None
    assert memory.plan(b"", noise(50_000), "new", 0.0).same_as is None
    store.learn(memory, name, 0.0)
    plan_and_commit(memory, noise(9000, 3), key_id="new")
    store.learn(memory, name, 0.0)
    assert memory.plan(b"", noise(50_000), "new", 0.0).same_as is None
    assert memory.plan(b"", noise(9000, 3), "new", 0.0).same_as is not None


@pytest.mark.guarantee(11)
def test_the_memory_of_a_thread_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ENCODER_CHUNKS_MAX", 20)
    monkeypatch.setattr(limits, "ENCODER_SINGLES_MAX", 4)
    memory = ThreadMemory()
    for seed in range(12):
        plan_and_commit(memory, noise(100_000, seed))
        assert len(memory._recent) <= 4
        assert len(memory._index) <= 20
    assert 400_000 <= memory.cost_bytes < 420_000


@pytest.mark.guarantee(9)
def test_eight_lists_grow_independently_with_results_between_them() -> None:
    memory = ThreadMemory()
    lists = [noise(100_000, which) for which in range(8)]
    for step in range(6):
        for which in range(8):
            result = noise(9000, 100 * step + which + 1000)
            plan_and_commit(memory, result)
            lists[which] += noise(500, 100 * step + which + 5000) + result
            plan = plan_and_commit(memory, lists[which])
            assert step == 0 or new_bytes(plan) <= 9500


@pytest.mark.guarantee(9)
def test_a_result_is_found_in_the_list_that_holds_it_to_the_byte() -> None:
    memory = ThreadMemory()
    body = noise(50_000)
    plan_and_commit(memory, body)
    for size in (1024, 5000, 30_000, 600_000):
        result = noise(size, size)
        plan_and_commit(memory, result)
        body += b"before" + result + b"after"
        plan = memory.plan(b"", body, "", 0.0)
        held = sum(run.length for run in plan.runs if run.pack is not None)
        # A merge may write again what is small; nothing of it is new.
        moved = sum(length for _, _, length, _ in plan.moved)
        assert len(body) - held - moved == len(b"beforeafter")
        plan_and_commit(memory, body)


def test_head_and_tail_of_a_result_are_found_where_its_middle_was_cut_out() -> None:
    memory = ThreadMemory()
    body, result = noise(50_000), noise(200_000, 1)
    plan_and_commit(memory, body)
    plan_and_commit(memory, result)
    shown = body + b"{" + result[:40_000] + b" ... " + result[-20_000:] + b"}"
    assert new_bytes(memory.plan(b"", shown, "", 0.0)) < 100


@pytest.mark.guarantee(11)
def test_a_list_is_continued_without_its_bytes() -> None:
    store, memory = Store(), ThreadMemory()
    body = noise(300_000)
    for step in range(40):
        body += noise(1000, step + 1)
        data = b"[" + body + b"]"
        plan = memory.plan(b"", data, "", 0.0)
        check(store, memory, plan, data)
        assert step == 0 or new_bytes(plan) - sum(each[2] for each in plan.moved) < 1010
        memory.commit(plan, store.add(plan), 0.0)
        dropped = memory.drop_data()
        assert step == 0 or dropped > 290_000
        assert memory.find(memory._recent[-1].name, "") is None
    assert memory.cost_bytes < 30_000


@pytest.mark.guarantee(11)
def test_marks_never_match_a_different_list() -> None:
    memory = ThreadMemory()
    body = noise(100_000)
    plan_and_commit(memory, body)
    plan_and_commit(memory, body + noise(10, 1))
    memory.drop_data()
    assert new_bytes(memory.plan(b"", body[:50] + b"x" + body[51:] + noise(900, 2), "", 0.0)) > 900
    changed = body[:-5000] + b"x" + body[-4999:]
    assert new_bytes(memory.plan(b"", changed, "", 0.0)) >= 4096


@pytest.mark.guarantee(11)
def test_the_memory_of_all_threads_is_bounded_and_bytes_go_before_threads() -> None:
    memory = ThreadMemories(1_000_000)
    for number in range(50):
        plan_and_commit(memory.get(f"thread {number}"), noise(100_000, number))
        plan_and_commit(memory.get(f"thread {number}"), noise(100_000, number) + noise(2000, 99))
        memory.get("thread 0")
        memory.trim(f"thread {number}")
        assert sum(each.cost_bytes for each in memory._threads.values()) <= 1_000_000
        assert memory.cost_bytes <= 1_000_000
    assert len(memory._threads) == 50
    assert memory.stats.dropped_bytes > 3_000_000
    assert memory.stats.forgotten_threads == 0
    for number in range(50):
        data = noise(100_000, number) + noise(2000, 99) + noise(3000, 98)
        assert new_bytes(memory.get(f"thread {number}").plan(b"", data, "", 0.0)) < 6000


@pytest.mark.guarantee(11)
def test_threads_are_forgotten_when_even_digests_do_not_fit() -> None:
    memory = ThreadMemories(200_000)
    for number in range(60):
        plan_and_commit(memory.get(f"thread {number}"), noise(50_000, number))
        memory.trim(f"thread {number}")
        assert memory.cost_bytes <= 200_000
    assert 10 < len(memory._threads) < 60
    assert memory.stats.forgotten_threads == 60 - len(memory._threads)
    assert "thread 59" in memory._threads
    assert memory.get("thread 0").was_forgotten
    assert not memory.get("thread 59").was_forgotten


@pytest.mark.guarantee(11)
def test_threads_without_durable_objects_are_bounded_too() -> None:
    memory = ThreadMemories(1_000_000)
    for number in range(5000):
        memory.get(f"thread {number}")
        memory.trim(f"thread {number}")
    assert len(memory._threads) < 1000
    assert sys.getsizeof(memory._threads) < 1_000_000


def test_the_memory_shows_no_payload() -> None:
    memory = ThreadMemory()
    secret = b"hunter2 " * 1000
    plan = plan_and_commit(memory, secret)
    for shown in (memory, plan, plan.contents, memory._recent[0]):
        assert "hunter2" not in repr(shown)
