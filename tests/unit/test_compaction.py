"""Compaction: always within its budget, the same bytes every time, and nothing torn apart."""

import dataclasses
import gc
import json
import time
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong import compaction
from everlong.compaction import (
    Item,
    Snapshot,
    build_summary_prompt,
    compact,
    dump,
    load,
    measure_messages,
)
from everlong.compaction.collector import pause_collector
from everlong.compaction.renderer import FRAME_BYTES_MAX, SUMMARY_FRAME_BYTES_MAX
from everlong.compaction.snapshot import NoteKind
from everlong.compaction.text import MARK_BYTES_MAX, format_mark
from everlong.errors import BlobCorrupt, UnknownVersion
from everlong.models import Fact, Kind, MemoryChange, ToolCall
from everlong.policy import Policy
from tests.support.conversations import Thread, build_shown_context, check_pairs, conversations
from tests.support.scale import scaled

KIB = 1024
ALL = 10**9
SMALL = Policy(compact_at_bytes=4 * KIB, compact_to_bytes=2 * KIB)


def summarise_entry(base: Snapshot, now_ms: int = 0) -> str:
    first = build_shown_context(base, now_ms=now_ms)[0]
    assert first.role == "summary"
    return first.text


def long_thread(steps: int = 60, size: int = 2000) -> Thread:
    thread = Thread()
    thread.user(
        "Find out why src/app/checkout.py is slow. Later on, please rotate the staging key."
    )
    for n in range(steps):
        thread.step(
            f"grep -n step{n} src/app/checkout.py", f"match {n}\n" + "x y z\n" * (size // 6)
        )
    return thread


budgets = st.sampled_from([2 * KIB, 3 * KIB, 8 * KIB, 64 * KIB])


@pytest.mark.guarantee(60)
@settings(max_examples=scaled(50, 150), deadline=None)
@given(conversations(), budgets, st.sampled_from(["", "A summary.", "s" * 9000]), st.data())
def test_any_context_fits_its_budget_with_pairs_and_the_user_message(
    items: list[Item], budget: int, summary: str, data: st.DataObject
) -> None:
    policy = Policy(tool_result_ttl_seconds=30, reply_ttl_seconds=40, failure_ttl_seconds=20)
    half = data.draw(st.integers(0, len(items)))
    base = compact(
        None, items[:half], policy, 20_000, keep_from_seq=ALL, to_bytes=budget, summary=summary
    )
    rest = [item for item in items if item.entry.seq > base.upto_seq]
    base = compact(base, rest, policy, 25_000, keep_from_seq=ALL, to_bytes=budget)
    assert load(dump(base)) == base
    for now_ms in (25_000, 45_000, 10**9):
        for result_bytes_max in (1, 500, 1 << 40):
            messages = build_shown_context(base, (), policy, now_ms, result_bytes_max)
            assert measure_messages(messages) <= budget
            check_pairs(messages)
    rest = [item for item in items if item.entry.seq > base.upto_seq]
    messages = build_shown_context(base, rest, policy, 25_000)
    check_pairs(messages)
    users = [item.message for item in items if item.message and item.message.role == "user"]
    if users:
        newest = [message for message in messages if message.role == "user"][-1]
        assert newest == users[-1] or "recall(seq=" in newest.text


@pytest.mark.guarantee(60)
@settings(max_examples=scaled(30, 60), deadline=None)
@given(conversations(), budgets, st.integers(0, 60_000))
def test_compacting_again_with_nothing_new_gives_the_same_bytes(
    items: list[Item], budget: int, later_ms: int
) -> None:
    policy = Policy(tool_result_ttl_seconds=10, failure_ttl_seconds=5)
    once = compact(None, items, policy, 20_000, keep_from_seq=ALL, to_bytes=budget)
    assert dump(compact(once, (), policy, 20_000, keep_from_seq=ALL, to_bytes=budget)) == dump(once)
    # Only expired entries are removed. After that, nothing changes.
    later = compact(once, (), policy, 20_000 + later_ms, keep_from_seq=ALL, to_bytes=budget)
    again = compact(later, (), policy, 20_000 + later_ms, keep_from_seq=ALL, to_bytes=budget)
    assert dump(again) == dump(later)


@pytest.mark.parametrize(
    "text",
    [
        "w" * 1_000_000,
        "a/" * 500_000,
        "😀" * 250_000,
        "\n" * 1_000_000,
        '"' * 1_000_000,
        "1." * 500_000,
    ],
    ids=["one word", "one path", "emoji", "lines", "quotes", "numbers"],
)
def test_a_megabyte_of_anything_fits_into_two_kibibytes_in_well_under_a_second(text: str) -> None:
    thread = Thread()
    thread.user(text)
    thread.step(text, text, text=text)
    thread.says(text)
    begun = time.process_time()
    base = compact(None, thread.items, SMALL, thread.now_ms, keep_from_seq=ALL)
    # Four texts of a megabyte and an argument.
    assert time.process_time() - begun < 3.0
    messages = build_shown_context(base)
    assert measure_messages(messages) <= 2 * KIB
    [user] = [message for message in messages if message.role == "user"]
    assert "recall(seq=1)" in user.text


def test_the_garbage_collector_is_paused_until_the_last_compaction_ends() -> None:
    assert gc.isenabled()
    with pause_collector():
        compact(None, long_thread().items, SMALL, 0, keep_from_seq=ALL)
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        compact(None, long_thread().items, SMALL, 0, keep_from_seq=ALL)
        assert not gc.isenabled(), "the process had disabled it"
    finally:
        gc.enable()
    with pytest.raises(ValueError, match="fails"), pause_collector():
        raise ValueError("fails")
    assert gc.isenabled()


def test_a_budget_under_two_kibibytes_is_refused() -> None:
    with pytest.raises(ValueError, match="2048"):
        compact(None, (), SMALL, 0, keep_from_seq=1, to_bytes=2047)


def test_entries_of_the_step_under_way_are_left_as_they_are() -> None:
    thread = long_thread()
    seq = thread.calls(("bash", {"command": "now"}), ("bash", {"command": "too"}))
    thread.result(f"{seq}-0", "first")
    base = compact(None, thread.items, SMALL, thread.now_ms, keep_from_seq=seq)
    assert base.upto_seq == seq - 1
    assert "now" not in summarise_entry(base)
    *_, reply, first, second = build_shown_context(base, thread.items)
    assert [call.id for call in reply.tool_calls] == [first.call_id, second.call_id]
    assert first.text == "first"


@pytest.mark.parametrize("offset", [1, 2])
def test_a_step_is_never_compacted_without_its_results(offset: int) -> None:
    thread = long_thread()
    seq = thread.calls(("bash", {"command": "now"}), ("bash", {"command": "too"}))
    thread.result(f"{seq}-0", "first")
    thread.result(f"{seq}-1", "second")
    base = compact(None, thread.items, SMALL, thread.now_ms, keep_from_seq=seq + offset)
    assert base.upto_seq == seq - 1
    messages = build_shown_context(base, thread.items)
    check_pairs(messages)
    assert [message.text for message in messages[-2:]] == ["first", "second"]


def test_the_last_steps_and_the_user_message_stay_verbatim() -> None:
    thread = long_thread(steps=100)
    base = compact(None, thread.items, Policy(), thread.now_ms, keep_from_seq=ALL)
    messages = build_shown_context(base)
    assert messages[1] == thread.items[0].message
    window = messages[2:]
    assert window == [item.message for item in thread.items[-len(window) :]]
    assert len(window) >= 10


def test_a_context_that_fits_stays_as_it_is() -> None:
    thread = long_thread(steps=20)
    base = compact(None, thread.items, Policy(), thread.now_ms, keep_from_seq=ALL)
    messages = build_shown_context(base)[1:]
    assert messages == [item.message for item in thread.items]


def test_every_call_that_left_the_window_is_a_line_with_its_seq_and_outcome() -> None:
    thread = long_thread(steps=100)
    thread.step("make deploy", "error: no such target")
    for n in range(20):
        thread.step(f"cat {n}.txt", "done " * 400)
    base = compact(None, thread.items, Policy(compact_to_bytes=16 * KIB), 0, keep_from_seq=ALL)
    text = summarise_entry(base)
    for n in range(100):
        assert f"\n{3 + 2 * n} bash grep -n step{n} src/app/checkout.py -> 2kB" in text
    assert "bash make deploy -> error: no such target\n" in text
    assert text.index("step1 ") < text.index("step99 ")


def test_calls_that_repeat_are_one_line_with_all_their_seqs() -> None:
    thread = Thread()
    thread.user("wait for it")
    for _ in range(5):
        thread.step("systemctl status web", "active")
    for n in range(100):
        thread.step(f"cat {n}.txt", "done " * 100)
    base = compact(None, thread.items, Policy(compact_to_bytes=16 * KIB), 0, keep_from_seq=ALL)
    assert "\n11,9,7,5,3 bash systemctl status web -> active\n" in summarise_entry(base)


def test_decided_approvals_are_decisions_and_pending_ones_are_open() -> None:
    thread = Thread()
    thread.user("Deploy it.")
    thread.note(Kind.ASKED, id="2-0", tool="deploy", arguments='{"env": "prod"}', asked_ms=0)
    thread.note(Kind.ASKED, id="2-1", tool="page", arguments='{"who": "ops"}', asked_ms=0)
    thread.note(Kind.DECIDED, id="2-1", approve=False, by="chief", escalated=True)
    thread.note(Kind.DECIDED, id="2-0", approve=True, by="Dana", reason="the tests pass")
    base = compact(None, thread.items, SMALL, 0, keep_from_seq=ALL)
    text = summarise_entry(base)
    opened, _, decided = text.partition("Decided:\n")
    assert '3 approval 2-1: page {"who": "ops"}\n' in opened
    assert decided.startswith('5 Dana approved deploy {"env": "prod"} (2-0): the tests pass\n')
    assert "2-0: deploy" not in text
    thread.note(Kind.DECIDED, id="2-1", approve=False, by="deadline")
    base = compact(base, thread.items, SMALL, 0, keep_from_seq=ALL)
    assert '6 deadline denied page {"who": "ops"} (2-1)\n' in summarise_entry(base)
    assert "Open:" not in summarise_entry(base)


def test_a_request_is_open_until_it_is_reported_done() -> None:
    thread = long_thread(steps=5)
    thread.says("The query was slow.")
    thread.user("And now?")
    base = compact(None, thread.items, SMALL, 0, keep_from_seq=ALL)
    assert "Open:\n1 user: Later on, please rotate the staging key.\n" in summarise_entry(base)
    thread.says("The staging key is rotated, as you had asked for later: done.")
    thread.user("Thanks.")
    base = compact(base, thread.items, SMALL, 0, keep_from_seq=ALL)
    assert "Open:" not in summarise_entry(base)
    assert "rotate the staging key." in summarise_entry(base)


@pytest.mark.guarantee(60)
def test_omitted_parts_are_named_with_entries_for_recall() -> None:
    thread = long_thread(steps=200)
    base = compact(None, thread.items, SMALL, 0, keep_from_seq=ALL)
    last = summarise_entry(base).splitlines()[-1]
    assert last.startswith("[Left out for space, up to entry ")
    assert "tool calls" in last
    assert "Later on, please rotate the staging key." in build_shown_context(base)[1].text


def test_facts_stay_verbatim_until_they_expire() -> None:
    fact = Fact(key="region", text="eu-west-1, never us-east-1", time_ms=0, expires_ms=5_000_000)
    thread = Thread()
    thread.note(Kind.MEMORY, **compaction.dump_change(MemoryChange(remembered=fact)))
    thread.items += long_thread().items[1:]
    base = compact(None, thread.items, SMALL, 1, keep_from_seq=ALL)
    for _ in range(5):
        base = compact(base, (), SMALL, 2, keep_from_seq=ALL)
    line = "- region: eu-west-1, never us-east-1\n"
    assert line in summarise_entry(base, 4_999_999)
    assert line not in summarise_entry(base, 5_000_000)
    assert compact(base, (), SMALL, 5_000_000, keep_from_seq=ALL).facts == ()


def test_excess_facts_are_counted_and_leave_room() -> None:
    policy = Policy(memory_bytes_max=64 * KIB, memory_facts_max=1000)
    facts = tuple(
        Fact(key=f"k{n:03}", text="x" * 90, time_ms=n, importance=1 + n % 5) for n in range(200)
    )
    base = Snapshot(upto_seq=0, time_ms=0, budget_bytes=64 * KIB, facts=facts)
    thread = long_thread()
    base = compact(base, thread.items, policy, 0, keep_from_seq=ALL, to_bytes=2 * KIB)
    messages = build_shown_context(base, policy=policy)
    assert measure_messages(messages) <= 2 * KIB
    assert base.facts == facts
    text = messages[0].text
    assert "- k199: " in text
    assert "- k195: " not in text
    assert "- (facts that do not fit: " in text


def test_frame_and_marks_fit_their_reserve_for_any_seq() -> None:
    seq = 999_999_999_999
    kinds = typing.get_args(NoteKind)
    base = Snapshot(
        upto_seq=seq, time_ms=0, budget_bytes=2 * KIB, dropped=dict.fromkeys(kinds, seq)
    )
    assert len(kinds) == 9
    assert len(summarise_entry(base).encode()) <= FRAME_BYTES_MAX
    with_summary = dataclasses.replace(base, summary="s", summary_seq=seq)
    more = len(summarise_entry(with_summary)) - len(summarise_entry(base))
    assert more - 1 <= SUMMARY_FRAME_BYTES_MAX
    assert len(format_mark(seq, seq)) <= MARK_BYTES_MAX


def test_a_models_summary_is_bounded_and_the_evidence_stays() -> None:
    thread = long_thread()
    base = compact(
        None, thread.items, Policy(), thread.now_ms, keep_from_seq=ALL, summary="so it was " * 9000
    )
    text = summarise_entry(base)
    assert f"Summary, up to entry {base.upto_seq}:\nso it was so it was" in text
    assert len(base.summary.encode()) <= Policy().compact_to_bytes // 4
    assert "-> 2kB" in text
    again = compact(base, (), Policy(), thread.now_ms, keep_from_seq=ALL, summary="short")
    assert again.summary == "short"


def test_the_request_for_a_summary_is_bounded_and_ends_with_the_newest_messages() -> None:
    thread = long_thread(steps=300)
    thread.user("the newest message")
    base = compact(None, thread.items[:300], Policy(), 0, keep_from_seq=ALL)
    request = build_summary_prompt(base, thread.items, Policy(), 0, bytes_max=20_000)
    assert len(request.encode()) <= 20_000
    assert request.startswith("Summarise this work")
    assert request.endswith("user: the newest message\n")
    assert "Entries 1 to " in request
    assert len(build_summary_prompt(None, thread.items, Policy(), 0).encode()) <= 256 * KIB


def test_a_snapshot_of_another_version_is_refused_without_quoting_it() -> None:
    base = compact(None, long_thread().items, SMALL, 0, keep_from_seq=ALL)
    content = json.loads(dump(base))
    assert content["version"] == 1
    with pytest.raises(UnknownVersion, match=r"version 2; this Everlong reads version 1"):
        load(json.dumps({**content, "version": 2}).encode())
    with pytest.raises(UnknownVersion) as raised:
        load(json.dumps({**content, "version": "s3cret"}).encode())
    assert "s3cret" not in str(raised.value)
    for data in (b"", b"[]", b"{}", b"\xff", json.dumps({"version": 1, "s3cret": 1}).encode()):
        with pytest.raises(BlobCorrupt) as corrupt:
            load(data)
        assert "s3cret" not in str(corrupt.value)
        assert corrupt.value.__cause__ is None
        assert corrupt.value.__suppress_context__


def test_a_native_reply_of_a_provider_is_kept_unchanged() -> None:
    thread = Thread()
    thread.user("hello")
    native = {"kind": "response", "parts": [{"part_kind": "thinking", "content": "hm"}]}
    thread.add(Kind.REPLY, "Hi.", native=native)
    base = load(dump(compact(None, thread.items, SMALL, 0, keep_from_seq=ALL)))
    assert build_shown_context(base)[-1].native == native
    large = dataclasses.replace(
        thread.items[1].message,
        native={"parts": ["x" * 9000]},  # type: ignore[type-var] # a message
    )
    items = [thread.items[0], Item(thread.items[1].entry, large)]
    base = compact(None, items, SMALL, 0, keep_from_seq=ALL)
    assert measure_messages(build_shown_context(base)) <= 2 * KIB
    assert build_shown_context(base)[-1].text == "Hi."


@pytest.mark.guarantee(60)
def test_a_call_with_unparsable_arguments_can_be_compacted() -> None:
    """Brackets in a text must not hide those that are nested."""
    thread = Thread()
    thread.user("go")
    nested = '{"note":"' + "]" * 5000 + '","b":' + "[" * 5000 + "]" * 5000 + "}"
    call = ToolCall(id="a", tool="bash", arguments=nested)
    thread.add(Kind.REPLY, "so be it", tool_calls=(call,))
    thread.result("a", "error: the arguments are invalid")
    base = compact(None, thread.items, SMALL, 0, keep_from_seq=ALL)
    for number in range(30):
        thread.step(f"make {number}", "done " * 100)
    base = compact(base, thread.items[base.upto_seq :], SMALL, 0, keep_from_seq=ALL)
    assert measure_messages(build_shown_context(base)) <= 2 * KIB


@pytest.mark.guarantee(60)
def test_a_request_reported_as_not_done_stays_open() -> None:
    thread = Thread()
    thread.user("Later, rotate the staging credentials. Later, renew the wildcard certificate.")
    thread.says("The staging credentials are not rotated, the vault refused.")
    thread.says("I took care of it: the wildcard certificate is renewed and done.")
    for _ in range(5):
        thread.user("thanks " * 200)
    text = summarise_entry(compact(None, thread.items, SMALL, 0, keep_from_seq=ALL))
    listed = text.split("Log:")[0]
    assert "Later, rotate the staging credentials." in listed
    assert "Later, renew the wildcard certificate." not in listed


def test_an_approval_cut_off_by_a_fork_is_closed() -> None:
    thread = Thread()
    thread.user("restart it")
    thread.calls(("restart", {"service": "db"}))
    thread.note(Kind.ASKED, id="2-1-5f0c", tool="restart", arguments='{"service": "db"}')
    thread.note(Kind.FORK, thread_id="a", seq=3)
    thread.user("do something else")
    thread.says("fine")
    text = summarise_entry(compact(None, thread.items, SMALL, 0, keep_from_seq=ALL))
    assert "Open:" not in text
    assert "approval 2-1-5f0c: restart" in text


def test_unnamed_equal_calls_are_counted() -> None:
    thread = Thread()
    thread.user("wait for it")
    for _ in range(40):
        thread.step("systemctl status web", "active")
    base = compact(None, thread.items[:40], SMALL, 0, keep_from_seq=ALL)
    for _ in range(5):
        thread.user("next " * 100)
    base = compact(base, thread.items[base.upto_seq :], SMALL, 0, keep_from_seq=ALL)
    [line] = [line for line in summarise_entry(base).splitlines() if "systemctl" in line]
    *seqs, more = line.split(" ")[0].split(",")
    assert (len(seqs), more) == (13, "+27")


@pytest.mark.guarantee(60)
def test_many_requests_and_completions_compact_quickly() -> None:
    thread = Thread()
    thread.user("\n".join(f"TODO: rename widget number{n} of shelf{n}" for n in range(2000)))
    thread.says("\n".join(f"Done: widget number{n} of shelf{n} is renamed" for n in range(2000)))
    started = time.process_time()
    compact(None, thread.items, SMALL, 0, keep_from_seq=ALL)
    assert time.process_time() - started < 5
