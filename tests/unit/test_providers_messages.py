"""Journal messages as a provider gets them."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from everlong.models import Kind, Message, ToolCall, body_of, message_of
from everlong.providers import NOT_RUN, NOT_SHOWN, request_messages

CALLS = (
    ToolCall(id="a", tool="read", arguments='{"x": 1}'),
    ToolCall(id="b", tool="look", arguments="{}"),
)
USER = Message(role="user", text="hi")
ASSISTANT = Message(role="assistant", text="Let me look.", tool_calls=CALLS)
RESULT_A = Message(role="tool", text="one", call_id="a", tool="read")
RESULT_B = Message(role="tool", text="two", call_id="b", tool="look")
ANSWER = Message(role="assistant", text="Done.")
FAILURE = Message(role="failure", text="the model is gone")


def outline(messages: list[ModelMessage]) -> list[list[str]]:
    return [[part.part_kind for part in message.parts] for message in messages]


def test_results_of_one_reply_are_one_request() -> None:
    sent = request_messages("Be brief.", [USER, ASSISTANT, RESULT_A, RESULT_B])
    assert outline(sent) == [
        ["user-prompt"],
        ["text", "tool-call", "tool-call"],
        ["tool-return", "tool-return"],
    ]
    assert isinstance(sent[-1], ModelRequest)
    assert sent[-1].instructions == "Be brief."


def test_a_summary_is_said_before_the_rest() -> None:
    summary = Message(role="summary", text="Much has happened.")
    sent = request_messages("", [summary, USER, ANSWER, USER])
    assert outline(sent) == [["user-prompt", "user-prompt"], ["text"], ["user-prompt"]]
    assert [part.content for part in sent[0].parts if isinstance(part, UserPromptPart)] == [
        "Much has happened.",
        "hi",
    ]
    assert isinstance(sent[0], ModelRequest)
    assert sent[0].instructions is None


def test_a_failure_is_said_by_the_agents_side() -> None:
    sent = request_messages("", [USER, FAILURE, USER])
    assert outline(sent) == [["user-prompt"], ["text"], ["user-prompt"]]
    assert "the model is gone" in str(sent[1].parts[0])


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    for after in ([FAILURE, USER], [USER], []):
        sent = request_messages("", [USER, ASSISTANT, RESULT_A, *after])
        returns = {
            part.tool_call_id: part.content
            for part in sent[2].parts
            if isinstance(part, ToolReturnPart)
        }
        assert returns == {"a": "one", "b": NOT_RUN}
        assert [part.part_kind for part in sent[2].parts][:2] == ["tool-return"] * 2


def test_a_result_without_a_call_becomes_text() -> None:
    sent = request_messages("", [RESULT_A, USER, ASSISTANT, RESULT_A, RESULT_A, RESULT_B])
    assert outline(sent) == [
        ["user-prompt", "user-prompt"],
        ["text", "tool-call", "tool-call"],
        ["tool-return", "tool-return", "user-prompt"],
    ]
    assert "[Result of an earlier call of read]" in str(sent[0].parts[0])


def test_a_conversation_that_begins_with_a_reply_is_begun_for_it() -> None:
    sent = request_messages("", [ANSWER, USER])
    assert outline(sent) == [["user-prompt"], ["text"], ["user-prompt"]]
    assert NOT_SHOWN in str(sent[0].parts[0])


NATIVE: dict[str, Any] = {
    "kind": "response",
    "parts": [
        {"part_kind": "thinking", "content": "Hm.", "signature": "s", "provider_name": "anthropic"},
        {"part_kind": "text", "content": "Done."},
    ],
    "model_name": "claude",
    "provider_name": "anthropic",
}


def test_a_native_body_is_sent_as_it_came() -> None:
    sent = request_messages("", [USER, Message(role="assistant", text="Done.", native=NATIVE)])
    assert isinstance(sent[1], ModelResponse)
    assert sent[1].provider_name == "anthropic"
    [thinking] = [part for part in sent[1].parts if isinstance(part, ThinkingPart)]
    assert (thinking.content, thinking.signature) == ("Hm.", "s")


@pytest.mark.parametrize(
    "native",
    [{"kind": "response", "parts": [{"part_kind": "of-the-future"}]}, {"kind": "x"}, {}],
)
def test_a_native_body_of_another_version_is_sent_without_its_format(
    native: dict[str, Any],
) -> None:
    message = Message(role="assistant", text="Look.", tool_calls=CALLS[:1], native=native)
    sent = request_messages("", [USER, message, RESULT_A])
    assert outline(sent) == [["user-prompt"], ["text", "tool-call"], ["tool-return"]]


BODIES = [
    (Kind.MESSAGE, USER),
    (Kind.REPLY, ASSISTANT),
    (Kind.REPLY, ANSWER),
    (Kind.REPLY, Message(role="assistant", tool_calls=CALLS)),
    (Kind.REPLY, Message(role="assistant", text="Done.", native=NATIVE)),
    (Kind.TOOL_RESULT, RESULT_A),
    (Kind.FAILURE, FAILURE),
]


@pytest.mark.parametrize(("kind", "message"), BODIES)
def test_bodies_written_by_hand_are_the_librarys_and_come_back_equal(
    kind: Kind, message: Message
) -> None:
    [parsed] = ModelMessagesTypeAdapter.validate_json(json.dumps([body_of(message)]))
    assert body_of(message)["kind"] == parsed.kind
    [again] = json.loads(ModelMessagesTypeAdapter.dump_json([parsed], exclude_none=True))
    back = message_of(kind, again)
    assert back == message
    assert message_of(kind, body_of(message)) == message
    for part, written in zip(parsed.parts, body_of(message)["parts"], strict=True):
        assert {key: getattr(part, key) for key in written} == written


roles = st.sampled_from([USER, ASSISTANT, RESULT_A, RESULT_B, ANSWER, FAILURE])


@settings(max_examples=200, deadline=None)
@given(st.lists(roles, max_size=12))
def test_any_conversation_is_sent_in_a_form_that_providers_take(messages: list[Message]) -> None:
    sent = request_messages("Be brief.", messages)
    said = json.dumps([str(part) for each in sent for part in each.parts])
    assert not sent or isinstance(sent[0], ModelRequest)
    for before, after in itertools.pairwise(sent):
        assert not (isinstance(before, ModelRequest) and isinstance(after, ModelRequest))
    for number, each in enumerate(sent):
        calls = [part.tool_call_id for part in each.parts if isinstance(part, ToolCallPart)]
        if isinstance(each, ModelRequest):
            returned = [p.tool_call_id for p in each.parts if isinstance(p, ToolReturnPart)]
            asked = sent[number - 1].parts if number else []
            wanted = {part.tool_call_id for part in asked if isinstance(part, ToolCallPart)}
            assert (set(returned), len(returned)) == (wanted, len(wanted))
        elif calls:
            assert isinstance(sent[number + 1], ModelRequest)
    assert said.count("one") >= sum(message is RESULT_A for message in messages)
