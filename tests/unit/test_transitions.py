from hypothesis import given
from hypothesis import strategies as st

from everlong.models import Kind, Message, ThreadState, ToolName, ToolResult
from everlong.workflows import transitions

texts = st.text(alphabet="abc", min_size=1, max_size=5)


@given(st.lists(texts, max_size=8))
def test_messages_are_taken_up_in_order_and_each_is_dealt_with_once(messages: list[str]) -> None:
    state = ThreadState()
    for text in messages:
        assert transitions.why_refused(state, text) == ""
        state = transitions.queue(state, text)
    while state.inbox:
        state = transitions.end_turn(transitions.begin_turn(state, time_ms=1))
    assert [entry.message and entry.message.text for entry in state.tail] == messages
    assert [entry.seq for entry in state.tail] == list(range(1, len(messages) + 1))
    assert state.counters.messages == state.counters.answered == len(messages)


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_results_are_kept_without_gaps_and_the_rest_stays_to_be_run(done: list[bool]) -> None:
    calls = tuple(ToolName(call_id=str(i), tool="t") for i in range(len(done)))
    state = transitions.queue(ThreadState(calls=calls), "question")
    state = transitions.begin_turn(state, time_ms=1)
    results = {
        call: ToolResult(
            entry=transitions.new_entry(
                99 + i, Kind.TOOL_RESULT, Message(role="tool", call_id=call.call_id), 1
            ),
            written_bytes=10,
        )
        for i, call in enumerate(calls)
        if done[i]
    }
    after = transitions.after_tools(state, results)
    assert [entry.seq for entry in after.tail] == list(range(1, 2 + sum(done)))
    kept = [entry.message.call_id for entry in after.tail[1:] if entry.message]
    assert kept == [call.call_id for call in results]
    assert after.calls == tuple(call for i, call in enumerate(calls) if not done[i])
    assert after.counters.tool_calls == sum(done)
    assert after.counters.written_bytes == 10 * sum(done)


def test_an_inbox_that_is_emptied_loses_nothing() -> None:
    state = transitions.queue(transitions.queue(ThreadState(), "one"), "two")
    after = transitions.empty_inbox(state, time_ms=1)
    assert after.inbox == ()
    assert [entry.message and entry.message.text for entry in after.tail] == ["one", "two"]
