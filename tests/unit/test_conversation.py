"""Pages of a conversation: which entries they hold, and what they show of them."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.admin.conversation import (
    PAGE_ENTRIES,
    TEXT_CHARS_MAX,
    WINDOW_ENTRIES,
    Item,
    Mark,
    Turn,
    build_items,
    choose_range,
    cut_end,
    cut_start,
    find_place,
    insert_rolls,
)
from everlong.models import (
    Approval,
    Call,
    CompactionNote,
    Decision,
    Entry,
    Kind,
    Message,
    PendingApproval,
    Ref,
    SendMessage,
    SnapshotRef,
    ToolCall,
    ToolResult,
    build_entry,
    build_note,
    parse_message,
)
from everlong.models.state import Unjournalled

BEGAN_MS = 1_763_276_400_000


def say(seq: int, text: str = "hello", kind: Kind = Kind.MESSAGE) -> Entry:
    role = {Kind.MESSAGE: "user", Kind.REPLY: "assistant"}.get(kind, "failure")
    return build_entry(seq, kind, Message(role=role, text=text), BEGAN_MS + seq)


def reply(seq: int, *tools: str) -> Entry:
    calls = tuple(
        ToolCall(id=f"call-{seq}-{tool}", tool=tool, arguments=f'{{"of":"{tool}"}}')
        for tool in tools
    )
    return build_entry(seq, Kind.REPLY, Message(role="assistant", tool_calls=calls), BEGAN_MS + seq)


def result(seq: int, tool: str, text: str = "fine") -> Entry:
    message = Message(role="tool", text=text, call_id=f"call-{tool}", tool=tool)
    return build_entry(seq, Kind.TOOL_RESULT, message, BEGAN_MS + seq)


def note(seq: int, kind: Kind, data: object) -> Entry:
    return build_note(seq, kind, data, BEGAN_MS + seq)


def build(entries: Sequence[Entry], held: Unjournalled | None = None) -> list[Item]:
    messages = {
        entry.seq: parse_message(entry.kind, entry.body)
        for entry in entries
        if entry.body is not None
    }
    return build_items(entries, messages, held)


def turn(item: Item) -> Turn:
    assert isinstance(item, Turn)
    return item


@pytest.mark.parametrize(
    ("arguments", "seqs"),
    [
        ((1_000, None, None, None), (1_000 - PAGE_ENTRIES + 1, 1_000)),
        ((10, None, None, None), (1, 10)),
        ((1_000, 500, None, None), (500 - PAGE_ENTRIES, 499)),
        ((1_000, None, 990, None), (991, 1_000)),
        ((1_000, None, 500, None), (501, 500 + PAGE_ENTRIES)),
        ((1_000, None, None, 950), (950, 1_000)),
        ((1_000, None, None, 5), (1_000 - WINDOW_ENTRIES + 1, 1_000)),
        ((0, None, None, None), (1, 0)),
    ],
)
def test_a_page_has_a_bounded_range(arguments: Any, seqs: tuple[int, int]) -> None:
    assert choose_range(*arguments) == seqs


def seqs(entries: Sequence[Entry]) -> list[int]:
    return [entry.seq for entry in entries]


def test_a_reply_and_its_results_are_on_one_page() -> None:
    entries = [say(1), reply(2, "a", "b"), result(3, "a"), result(4, "b"), reply(5, "c")]
    entries += [result(6, "c"), say(7, "done", Kind.REPLY)]
    assert seqs(cut_start(entries[2:])) == [5, 6, 7]
    assert seqs(cut_start(entries[:4])) == [1, 2, 3, 4]
    assert seqs(cut_end(entries[:6])) == [1, 2, 3, 4]
    # Nothing begins here, and something has to be shown.
    assert seqs(cut_start(entries[2:4])) == [3, 4]
    assert seqs(cut_end(entries[1:4])) == [2, 3, 4]


KINDS = st.lists(st.sampled_from("mrtta"), min_size=1, max_size=60)


def build_journal(kinds: Sequence[str]) -> list[Entry]:
    approval = Approval(id="2-1-5f0c", tool="b", arguments="{}", asked_ms=BEGAN_MS)
    made: list[Entry] = []
    for seq, kind in enumerate(kinds, 1):
        if kind == "a":
            made.append(note(seq, Kind.ASKED, approval))
        elif kind == "t":
            made.append(result(seq, "a"))
        else:
            made.append(say(seq, kind=Kind.REPLY if kind == "r" else Kind.MESSAGE))
    return made


@given(KINDS, st.integers(1, 9))
def test_pages_in_either_direction_hold_each_entry_once(kinds: list[str], size: int) -> None:
    entries = build_journal(kinds)
    found: list[int] = []
    first = len(entries) + 1
    while first > 1:
        page = cut_start(entries[max(0, first - 1 - size) : first - 1])
        found = [*seqs(page), *found]
        first = page[0].seq
    assert found == seqs(entries)
    found, last = [], 0
    while last < len(entries):
        page = entries[last : last + size]
        page = cut_end(page) if last + size < len(entries) else page
        found += seqs(page)
        last = page[-1].seq
    assert found == seqs(entries)


def test_a_damaged_entry_hides_no_other() -> None:
    damaged = Entry(seq=1, kind=Kind.REPLY, time_ms=BEGAN_MS, size_bytes=2, body={})
    unknown = Entry(seq=2, kind=Kind.LIMIT, time_ms=BEGAN_MS, size_bytes=2, data={})
    items = build_items(
        [damaged, unknown, say(3)], {3: Message(role="user", text="hi")}, None, "no"
    )
    assert turn(items[0]).problem == "no"
    assert isinstance(items[1], Mark)
    assert turn(items[2]).body.text == "hi"


def test_results_and_decisions_are_shown_with_their_calls() -> None:
    approval = Approval(id="2-2-5f0c", tool="b", arguments="{}", asked_ms=BEGAN_MS)
    decision = Decision(
        id="2-2-5f0c", tool="b", asked_ms=BEGAN_MS, approve=True, by="ann", reason="fine"
    )
    items = build(
        [
            say(1),
            reply(2, "a", "b"),
            note(3, Kind.ASKED, approval),
            note(4, Kind.DECIDED, decision),
            result(5, "a"),
            result(6, "b", "error: it broke"),
            say(7, "done", Kind.REPLY),
        ]
    )
    assert [item.key for item in items] == ["1", "2", "7"]
    first, second = turn(items[1]).calls
    assert (first.tool, first.state, first.result_seq, first.result) == ("a", "done", 5, "fine")
    assert (second.state, second.result_seq) == ("failed", 6)
    assert [event.text for event in second.events] == [
        "approval asked for",
        "approved by ann: fine",
    ]


def test_entries_without_their_reply_are_shown_by_themselves() -> None:
    approval = Approval(id="2-1-5f0c", tool="b", arguments="{}", asked_ms=BEGAN_MS)
    items = build([note(5, Kind.ASKED, approval), result(6, "a"), say(7)])
    assert [item.key for item in items] == ["5", "6", "7"]
    assert isinstance(items[0], Mark)
    assert turn(items[1]).kind == Kind.TOOL_RESULT


def test_what_the_journal_does_not_have_yet_follows_it() -> None:
    done = ToolResult(entry=result(1, "a"), written_bytes=0)
    child_data = {"thread_id": "ops-7/helper-1"}
    child = ToolResult(entry=Entry(**{**vars(result(1, "d")), "data": child_data}), written_bytes=0)
    held = Unjournalled(
        entries=(say(3, "and this"),),
        calls=(
            Call(id="2-1-aaaa", call_id="x", tool="a", result=done),
            Call(id="2-2-bbbb", call_id="y", tool="b", waits=PendingApproval(asked_ms=BEGAN_MS)),
            Call(id="2-3-cccc", call_id="z", tool="c", child_id="ops-7/helper-2"),
            Call(id="2-4-dddd", call_id="w", tool="d", result=child),
        ),
        inbox=(SendMessage(text="later", by="ann"),),
        messages=3,
    )
    items = build([say(1), reply(2, "a", "b", "c", "d")], held)
    calls = turn(items[1]).calls
    assert [call.state for call in calls] == ["done", "waits", "running", "done"]
    assert [call.result_seq for call in calls] == [None] * 4
    assert [call.child_id for call in calls] == ["", "", "ops-7/helper-2", "ops-7/helper-1"]
    assert calls[1].place == find_place("2-2-bbbb-r1") == "2-2"
    tail, queued = turn(items[2]), turn(items[3])
    assert (tail.key, tail.is_journalled, tail.body.text) == ("3", False, "and this")
    assert (queued.key, queued.number, queued.by) == ("queued-3", 3, "ann")


def test_texts_of_a_page_are_bounded_and_the_newest_are_longest() -> None:
    items = build([say(seq, "x" * 50_000, Kind.REPLY) for seq in range(1, 81)])
    sizes = [len(turn(item).body.text) for item in items]
    assert not any(turn(item).body.is_whole for item in items)
    assert sizes[-1] >= TEXT_CHARS_MAX > sizes[0]
    assert sum(sizes) < 300_000
    # Arguments and results are previews.
    call = turn(build([reply(1, "y" * 100_000), result(2, "y", "z" * 100_000)])[0]).calls[0]
    assert len(call.arguments) <= 160
    assert len(call.result) <= 160


def test_marks_of_new_runs_stand_where_the_runs_began() -> None:
    items = build([say(1), say(2, kind=Kind.REPLY), say(3)])
    found = insert_rolls(items, [BEGAN_MS + 2, BEGAN_MS + 9])
    assert [item.key for item in found] == [
        *("1", "2", f"roll-{BEGAN_MS + 2}", "3", f"roll-{BEGAN_MS + 9}"),
    ]
    assert found[2].seq == 3


def test_a_text_that_cannot_be_read_says_why() -> None:
    [item] = build_items([say(1)], {}, None, "the store has lost it")
    assert turn(item).problem == "the store has lost it"


def test_a_compaction_is_a_mark() -> None:
    ref = Ref(thread="0" * 32, digest="0" * 64, size_bytes=1, kind=Kind.SNAPSHOT)
    data = CompactionNote(
        snapshot=SnapshotRef(ref=ref, upto_seq=1),
        reason="size",
        before_bytes=2048,
        after_bytes=1024,
    )
    [mark] = build([note(2, Kind.COMPACTION, data)])
    assert isinstance(mark, Mark)
    assert mark.text == "context 2.0 KiB -> 1.0 KiB (size)"
