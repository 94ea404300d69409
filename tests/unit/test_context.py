"""Context of a model: bounded results, matching pairs of calls and results, nothing expired."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong import compaction
from everlong.compaction import (
    Item,
    Snapshot,
    estimate_tokens,
    find_next_expiry_ms,
    measure_messages,
    shorten,
)
from everlong.models import Fact, Kind, Message, ToolCall
from everlong.policy import Policy
from tests.support.conversations import Thread, build_shown_context, check_pairs, conversations

NOT_RUN = "[not run: the turn was broken off]"


def test_a_young_thread_is_shown_unchanged() -> None:
    thread = Thread()
    thread.user("hello")
    thread.step("ls", "a\nb", text="Looking.")
    thread.says("Two files.")
    assert build_shown_context(None, thread.items) == [item.message for item in thread.items]


def test_facts_come_first_and_alone_if_nothing_was_compacted() -> None:
    thread = Thread()
    thread.user("hello")
    fact = Fact(key="name", text="Ada", time_ms=0)
    thread.note(Kind.MEMORY, **compaction.dump_change(compaction.remember((), fact, Policy(), 0)))
    first, second = build_shown_context(None, thread.items)
    assert first == Message(role="summary", text="Facts:\n- name: Ada\n")
    assert second.role == "user"


def test_a_long_result_is_shown_as_head_mark_and_tail_at_lines() -> None:
    thread = Thread()
    thread.user("hello")
    lines = [f"line {n}" for n in range(1000)]
    seq = thread.step("cat x", "\n".join(lines))
    [*_, result] = build_shown_context(None, thread.items, result_bytes_max=500)
    assert len(result.text.encode()) <= 500
    head, mark, tail = result.text.partition(f" bytes left out; recall(seq={seq}) shows them ...]")
    assert mark
    shown_head, _, left_out = head.rpartition("[... ")
    assert shown_head.startswith("line 0\nline 1\n")
    assert tail.endswith("\nline 999")
    for part in (*shown_head.splitlines(), *tail.splitlines()):
        assert part in ("", *lines)
    assert int(left_out) == len("\n".join(lines)) - len(shown_head) - len(tail)


def test_a_shortened_result_is_shortened_further_with_one_mark() -> None:
    thread = Thread()
    thread.user("hello")
    text = shorten("é" * 10_000, 4000, seq=3)
    thread.step("cat x", text)
    [*_, result] = build_shown_context(None, thread.items, result_bytes_max=1000)
    assert result.text.count("recall(seq=3)") == 1
    assert len(result.text.encode()) <= 1000
    kept = result.text.count("é")
    assert f"[... {20_000 - 2 * kept} bytes left out" in result.text


@given(st.text(max_size=300), st.integers(0, 400))
def test_shortening_never_makes_longer_nor_goes_over_its_bound(text: str, bytes_max: int) -> None:
    short = shorten(text, bytes_max, seq=7)
    assert len(short.encode()) <= max(bytes_max, 128)
    assert len(short.encode()) <= len(text.encode())
    assert short == text or "recall(seq=7)" in short


def test_a_call_without_a_result_is_marked_as_not_run() -> None:
    thread = Thread()
    thread.user("hello")
    seq = thread.calls(("bash", {}), ("grep", {}))
    thread.result(f"{seq}-1", "found", tool="grep")
    thread.user("go on")
    _, _, first, second, last = build_shown_context(None, thread.items)
    assert (first.call_id, first.text, first.tool) == (f"{seq}-0", NOT_RUN, "bash")
    assert (second.call_id, second.text) == (f"{seq}-1", "found")
    assert last.role == "user"


def test_results_follow_their_calls_in_call_order() -> None:
    thread = Thread()
    seq = thread.calls(("bash", {}), ("bash", {}))
    thread.result(f"{seq}-1", "second")
    thread.user("stop")
    thread.result(f"{seq}-0", "first")
    thread.result("unknown", "an orphan")
    assert [message.text for message in build_shown_context(None, thread.items)] == [
        "",
        "first",
        "second",
        "stop",
    ]


def test_reused_call_ids_keep_results_with_their_calls() -> None:
    thread = Thread()
    for text in ("one", "two"):
        thread.add(Kind.REPLY, tool_calls=(dataclasses.replace(_call(), id="x"),))
        thread.result("x", text)
    assert [message.text for message in build_shown_context(None, thread.items)] == [
        "",
        "one",
        "",
        "two",
    ]


@pytest.mark.guarantee(60)
@settings(max_examples=60)
@given(conversations(), st.integers(0, 20))
def test_calls_and_results_pair_in_any_cut_of_any_journal(items: list[Item], cut: int) -> None:
    messages = build_shown_context(None, items[:cut])
    check_pairs(messages)
    users = [item for item in items[:cut] if item.entry.kind == Kind.MESSAGE]
    if users:
        newest = users[-1].message
        assert [message for message in messages if message.role == "user"][-1] == newest


def test_entries_that_are_no_messages_are_omitted() -> None:
    thread = Thread()
    thread.note(Kind.ASKED, id="1-0", tool="bash", arguments="{}", asked_ms=0)
    thread.note(Kind.DECIDED, id="1-0", approve=True, by="Dana")
    thread.note(Kind.LIMIT, limit="steps_max", value=1, bound=1, action="pause")
    thread.note(Kind.CONTROL, action="pause")
    assert build_shown_context(None, thread.items) == []


def test_an_expired_result_becomes_a_line_that_names_its_entry() -> None:
    thread = Thread()
    thread.user("hello")
    seq = thread.step("ls", "many files")
    policy = Policy(tool_result_ttl_seconds=10)
    until_ms = 1000 * seq + 10_000
    assert build_shown_context(None, thread.items, policy, until_ms - 1)[-1].text == "many files"
    [_, reply, result] = build_shown_context(None, thread.items, policy, until_ms)
    assert result.text == f"[expired; recall(seq={seq}) shows it]"
    assert reply.tool_calls


def test_an_expired_step_is_one_line_and_an_expired_failure_is_none() -> None:
    thread = Thread()
    thread.user("hello")
    thread.step("ls", "many files", text="Looking.")
    thread.add(Kind.FAILURE, "the model was down")
    policy = Policy(
        tool_result_ttl_seconds=1, reply_ttl_seconds=1, failure_ttl_seconds=1, message_ttl_seconds=1
    )
    messages = build_shown_context(None, thread.items, policy, 1_000_000)
    assert [(message.role, message.text) for message in messages] == [
        ("user", "hello"),
        ("assistant", "[expired; recall(seq=2) shows it]"),
    ]
    thread.user("again")
    assert (
        build_shown_context(None, thread.items, policy, 1_000_000)[0].text
        == "[expired; recall(seq=1) shows it]"
    )


def test_a_reply_expires_alone_while_one_of_its_results_has_not() -> None:
    thread = Thread()
    thread.calls(("bash", {"command": "ls"}), text="Looking.")
    thread.result("1-0", "many files")
    messages = build_shown_context(None, thread.items, Policy(reply_ttl_seconds=1), 1_000_000)
    assert [message.text for message in messages] == [
        "[expired; recall(seq=1) shows it]",
        "many files",
    ]
    check_pairs(messages)


def test_the_next_expiry_is_the_earliest_of_the_shown_entries() -> None:
    policy = Policy(tool_result_ttl_seconds=100, failure_ttl_seconds=50, message_ttl_seconds=1)
    thread = Thread()
    thread.user("hello")
    assert find_next_expiry_ms(None, thread.items, policy, thread.now_ms) is None
    result = thread.step("ls", "many files")
    failure = thread.add(Kind.FAILURE, "down")
    expiries = [1000 * failure + 50_000, 1000 * result + 100_000]
    assert find_next_expiry_ms(None, thread.items, policy, thread.now_ms) == expiries[0]
    assert find_next_expiry_ms(None, thread.items, policy, expiries[0]) == expiries[1]
    assert find_next_expiry_ms(None, thread.items, policy, expiries[1]) is None
    fact = Fact(key="k", text="t", time_ms=0, expires_ms=expiries[0] - 1)
    base = Snapshot(upto_seq=0, time_ms=0, budget_bytes=2048, facts=(fact,))
    assert find_next_expiry_ms(base, thread.items, policy, thread.now_ms) == expiries[0] - 1


@settings(max_examples=40)
@given(conversations(), st.sampled_from([1, 5, 20]), st.integers(0, 60_000))
def test_a_context_changes_at_the_next_expiry_and_not_before(
    items: list[Item], ttl: int, now_ms: int
) -> None:
    policy = Policy(
        tool_result_ttl_seconds=ttl, failure_ttl_seconds=ttl + 1, reply_ttl_seconds=ttl + 2
    )
    for base in (None, compaction.compact(None, items, policy, now_ms, keep_from_seq=10_000)):
        rest = items if base is None else []
        until_ms = find_next_expiry_ms(base, rest, policy, now_ms)
        end_ms = 10_000_000 if until_ms is None else until_ms - 1
        assert build_shown_context(base, rest, policy, now_ms) == build_shown_context(
            base, rest, policy, end_ms
        )


def test_sizes_count_texts_names_ids_and_arguments() -> None:
    assert measure_messages([]) == 0
    plain = measure_messages([Message(role="user", text="é")])
    assert measure_messages([Message(role="user", text="ab")]) == plain
    call = Message(role="assistant", tool_calls=(_call(),))
    assert measure_messages([call]) - measure_messages([Message(role="assistant")]) == len(
        "idbash{}"
    )
    assert measure_messages([Message(role="assistant", native={"parts": ["x" * 100]})]) > 100


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abcd", 1), ("abcde", 2), ("éé", 1)])
def test_a_token_is_four_bytes(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


def _call() -> ToolCall:
    return ToolCall(id="id", tool="bash", arguments="{}")
