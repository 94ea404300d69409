"""Operational state fits its bound in the worst case that the limits admit."""

import pytest
from pydantic import TypeAdapter
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter

from everlong import Policy, ThreadStart, limits
from everlong.models import (
    Counters,
    Entry,
    Kind,
    Message,
    Ref,
    SegmentRef,
    ThreadState,
    ToolName,
    printable,
)

WIDE = "\U0001f600"  # Four bytes in UTF-8, the most that a printable character takes in JSON.
REF = Ref(
    thread="a" * 32,
    digest="b" * 64,
    size_bytes=limits.OBJECT_BYTES_MAX,
    kind=Kind.TOOL_RESULT,
    preview=WIDE * limits.PREVIEW_CHARS_MAX,
)
HEAD = SegmentRef(ref=REF, first_seq=10**12, count=10**12)


def entries() -> dict[str, Entry]:
    base = {"seq": 10**12, "kind": Kind.TOOL_RESULT, "time_ms": 10**13, "size_bytes": 10**9}
    call_id = WIDE * limits.CALL_NAME_CHARS_MAX
    reason = "error: " + WIDE * limits.REASON_CHARS_MAX
    short = Message(role="tool", call_id="c", text="x" * (limits.ENTRY_BODY_BYTES_MAX - 60))
    return {
        "ref": Entry(**base, ref=REF),  # type: ignore[arg-type] # a plain dict of fields
        "short message": Entry(**base, message=short),  # type: ignore[arg-type]
        "failure": Entry(
            **base,  # type: ignore[arg-type]
            message=Message(role="tool", call_id=call_id, text=reason),
        ),
    }


@pytest.mark.parametrize("kind", ["ref", "short message", "failure"])
def test_the_fullest_state_fits_its_bound(kind: str) -> None:
    state = ThreadState(
        head=HEAD,
        tail=(entries()[kind],) * limits.TOOL_CALLS_MAX,
        inbox=("x" * (limits.INBOX_BYTES_MAX - 2),),
        in_turn=True,
        turn_steps=10**9,
        counters=Counters(written_bytes=10**15, context_bytes=10**15),
        last_failure=WIDE * limits.REASON_CHARS_MAX,
    )
    assert len(TypeAdapter(ThreadState).dump_json(state)) <= limits.STATE_BYTES_MAX


def test_a_state_with_half_of_its_tools_done_fits_too() -> None:
    name = WIDE * limits.CALL_NAME_CHARS_MAX
    half = limits.TOOL_CALLS_MAX // 2
    state = ThreadState(
        head=HEAD,
        tail=(entries()["failure"],) * half,
        calls=(ToolName(call_id=name, tool=name),) * half,
        inbox=("x" * (limits.INBOX_BYTES_MAX - 2),),
        last_failure=WIDE * limits.REASON_CHARS_MAX,
    )
    assert len(TypeAdapter(ThreadState).dump_json(state)) <= limits.STATE_BYTES_MAX


def test_many_short_messages_fit_as_well_as_one_long_one() -> None:
    waiting = limits.INBOX_BYTES_MAX // 4  # A character, two quotes and a comma each.
    state = ThreadState(
        head=HEAD,
        tail=(entries()["failure"],) * limits.TOOL_CALLS_MAX,
        inbox=("x",) * waiting,
        last_failure=WIDE * limits.REASON_CHARS_MAX,
    )
    assert len(TypeAdapter(ThreadState).dump_json(state)) <= limits.STATE_BYTES_MAX


def test_a_state_with_a_message_in_its_turn_fits_too() -> None:
    message = Message(role="user", text="x" * limits.MESSAGE_BYTES_MAX)
    entry = Entry(seq=1, kind=Kind.MESSAGE, time_ms=1, size_bytes=1, message=message)
    state = ThreadState(
        head=HEAD, tail=(entry, entries()["failure"]), inbox=("x" * limits.INBOX_BYTES_MAX,)
    )
    assert len(TypeAdapter(ThreadState).dump_json(state)) <= limits.STATE_BYTES_MAX


@pytest.mark.parametrize("converter", [DataConverter.default, pydantic_data_converter])
async def test_models_cross_both_converters_of_the_sdk(converter: DataConverter) -> None:
    start = ThreadStart(
        agent="ops",
        policy=Policy(run_events_max=99),
        state=ThreadState(head=HEAD, tail=tuple(entries().values()), inbox=("hi",)),
    )
    [back] = await converter.decode(await converter.encode([start]), [ThreadStart])
    assert back == start


async def test_a_start_needs_only_the_agents_name() -> None:
    [payload] = await DataConverter.default.encode([{"agent": "ops"}])
    assert await DataConverter.default.decode([payload], [ThreadStart]) == [
        ThreadStart(agent="ops")
    ]


def test_printable_text_needs_no_escapes_but_quotes() -> None:
    assert printable("a\nb\x00c" + "d" * 100, 6) == "a b cd"
