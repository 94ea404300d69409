"""States of threads at an entry, computed from sample journals without a server."""

import dataclasses

import pytest

from everlong import Policy
from everlong.client import time_travel
from everlong.client.time_travel import Timeline
from everlong.compaction import Snapshot, dump
from everlong.errors import EntryNotFound, RefRefused
from everlong.models import (
    Approval,
    CompactionNote,
    ControlNote,
    Counters,
    Decision,
    Entry,
    Fact,
    Kind,
    MemoryChange,
    Message,
    SnapshotRef,
    Status,
    ThreadStatus,
    ToolCall,
    add_up,
    build_entry,
    build_note,
    thread_key,
)
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore

KEY = thread_key("default", "t")
CALL = ToolCall(id="c1", tool="restart", arguments='{"service": "api"}')


def make_entry(seq: int, kind: Kind, text: str = "", **more: object) -> Entry:
    roles = {
        Kind.MESSAGE: "user",
        Kind.REPLY: "assistant",
        Kind.TOOL_RESULT: "tool",
        Kind.FAILURE: "failure",
    }
    message = Message(role=roles[kind], text=text, **more)  # type: ignore[arg-type]
    return build_entry(seq, kind, message, 1000 * seq)


def make_request(seq: int, name: str, **more: object) -> Entry:
    approval = Approval(id=name, tool="restart", arguments="{}", asked_ms=1000 * seq, **more)  # type: ignore[arg-type]
    return build_note(seq, Kind.ASKED, approval, 1000 * seq)


def make_decision(seq: int, name: str, **more: object) -> Entry:
    fields = {"tool": "restart", "asked_ms": 1, "approve": True, "by": "ann", **more}
    decision = Decision(id=name, **fields)  # type: ignore[arg-type]
    return build_note(seq, Kind.DECIDED, decision, 1000 * seq)


def a_turn() -> list[Entry]:
    """A question, a call that is approved, a fact, an answer."""
    reply = dataclasses.replace(
        make_entry(2, Kind.REPLY, tool_calls=(CALL,)), tokens=100, cost_usd=0.25
    )
    fact = Fact(key="api", text="restarted", time_ms=5000)
    return [
        make_entry(1, Kind.MESSAGE, "restart the api"),
        reply,
        make_request(3, "2-1"),
        make_decision(4, "2-1"),
        make_entry(5, Kind.TOOL_RESULT, "done", call_id="c1", tool="restart"),
        build_note(6, Kind.MEMORY, MemoryChange(remembered=fact), 6000),
        dataclasses.replace(make_entry(7, Kind.REPLY, "it is up"), tokens=50, cost_usd=0.5),
    ]


def test_totals_count_each_kind_and_add_to_earlier_totals() -> None:
    entries = a_turn()
    found = add_up(entries)
    assert (found.messages, found.steps, found.tool_calls, found.failures) == (1, 2, 1, 0)
    assert (found.tokens, found.cost_usd) == (150, 0.75)
    assert found.body_bytes == sum(entry.size_bytes for entry in entries)
    for cut in range(len(entries) + 1):
        assert add_up(entries[cut:], add_up(entries[:cut])) == found


def test_an_approval_is_pending_from_request_to_decision() -> None:
    entries = a_turn()
    waits = [bool(time_travel.find_pending(entries[:upto])) for upto in range(len(entries) + 1)]
    assert waits == [False, False, False, True, False, False, False, False]


def test_an_escalated_approval_waits_for_others() -> None:
    entries = [
        make_request(1, "1-1", approvers=("ann",), escalate_to=("bob",), on_deadline="escalate"),
        make_decision(2, "1-1", approve=False, by="deadline", escalated=True),
    ]
    [waiting] = time_travel.find_pending(entries)
    assert waiting.escalated
    assert waiting.approvers == ("bob",)


@pytest.mark.parametrize(
    "end",
    [
        make_entry(2, Kind.REPLY, "never mind"),
        make_entry(2, Kind.FAILURE, "ended by a limit"),
        build_note(2, Kind.CONTROL, ControlNote(action="stop"), 2000),
    ],
    ids=lambda entry: entry.kind,
)
def test_cancelled_calls_have_no_pending_approvals(end: Entry) -> None:
    assert time_travel.find_pending([make_request(1, "1-1")])
    assert not time_travel.find_pending([make_request(1, "1-1"), end])


def test_a_pause_cancels_no_call() -> None:
    paused = build_note(2, Kind.CONTROL, ControlNote(action="pause"), 2000)
    assert time_travel.find_pending([make_request(1, "1-1"), paused])


def test_duplicate_entries_are_added_twice() -> None:
    assert time_travel.find_added(["a", "b"], ["b", "a", "a", "c"]) == ("a", "c")
    assert time_travel.find_added(["a", "a"], ["a"]) == ()


async def load_past(entries: list[Entry]) -> Timeline:
    packs = PackStore(MemoryBlobStore())
    head, _ = await Journal(packs, KEY).append(None, entries)
    return Timeline("t", make_status(head), Journal(packs, KEY))


def make_status(head: object) -> ThreadStatus:
    return ThreadStatus(
        agent="ops",
        status=Status.WAITING,
        counters=Counters(),
        head=head,  # type: ignore[arg-type]
        waiting_messages=0,
        last_failure="",
        policy=Policy(),
    )


@pytest.mark.guarantee(75)
async def test_the_context_at_an_entry_equals_a_model_calls() -> None:
    past = await load_past(a_turn())
    scene = await past.load_scene(5)
    assert [message.role for message in scene.context] == ["user", "assistant", "tool"]
    assert scene.time_ms == 5000
    # In the middle of a step, the call has no result yet: a provider would refuse it without one.
    middle = (await past.load_scene(2)).context
    assert [message.role for message in middle] == ["user", "assistant", "tool"]
    assert "not run" in middle[-1].text
    assert [fact.key for fact in (await past.load_scene(7)).facts] == ["api"]
    assert (await past.load_scene(5)).facts == ()


async def test_the_snapshot_in_force_is_the_newest_at_or_before_an_entry() -> None:
    packs = PackStore(MemoryBlobStore())
    journal = Journal(packs, KEY)
    snapshot = Snapshot(upto_seq=2, time_ms=2000, budget_bytes=1000, summary="they met")
    ref, _ = await packs.write_body(KEY, Kind.SNAPSHOT, dump(snapshot))
    compacted = CompactionNote(
        snapshot=SnapshotRef(ref=ref, upto_seq=2), reason="asked", before_bytes=9, after_bytes=5
    )
    entries = [
        make_entry(1, Kind.MESSAGE, "hello"),
        make_entry(2, Kind.REPLY, "hi"),
        build_note(3, Kind.COMPACTION, compacted, 3000),
        make_entry(4, Kind.MESSAGE, "and now?"),
    ]
    head, _ = await journal.append(None, entries)
    past = Timeline("t", make_status(head), Journal(packs, KEY))
    assert (await past.load_scene(2)).snapshot is None
    assert [each.text for each in (await past.load_scene(2)).context] == ["hello", "hi"]
    for seq in (3, 4):
        scene = await past.load_scene(seq)
        assert scene.snapshot is not None
        assert scene.context[0].role == "summary"
        assert "they met" in scene.context[0].text
        assert "hello" not in [each.text for each in scene.context]
    assert (await past.load_scene(4)).context[-1].text == "and now?"


@pytest.mark.guarantee(13)
async def test_a_snapshot_of_an_unrelated_thread_is_not_read() -> None:
    packs = PackStore(MemoryBlobStore())
    strange = thread_key("default", "other")
    data = dump(Snapshot(upto_seq=1, time_ms=0, budget_bytes=1000, summary="secret"))
    ref, _ = await packs.write_body(strange, Kind.SNAPSHOT, data)
    compacted = CompactionNote(
        snapshot=SnapshotRef(ref=ref, upto_seq=1), reason="asked", before_bytes=9, after_bytes=5
    )
    entries = [
        make_entry(1, Kind.MESSAGE, "hello"),
        build_note(2, Kind.COMPACTION, compacted, 2000),
    ]
    head, _ = await Journal(packs, KEY).append(None, entries)
    with pytest.raises(RefRefused):
        await Timeline("t", make_status(head), Journal(packs, KEY)).load_scene(2)


@pytest.mark.parametrize("seq", [-1, 0, 8])
async def test_an_unknown_entry_is_named(seq: int) -> None:
    past = await load_past(a_turn())
    with pytest.raises(EntryNotFound, match=f"1 to 7, and no {seq}"):
        await past.load_scene(seq)


async def test_a_journal_without_entries_says_so() -> None:
    past = Timeline("t", make_status(None), Journal(PackStore(MemoryBlobStore()), KEY))
    with pytest.raises(EntryNotFound, match="holds no entries yet"):
        await past.load_totals(1)


async def test_totals_at_an_entry_are_those_of_all_before_it() -> None:
    entries = a_turn()
    past = await load_past(entries)
    assert await past.load_totals(5) == add_up(entries[:5])
    assert [each.id for each in await past.load_pending(3)] == ["2-1"]
    assert await past.load_pending(1) == ()
