"""Journal messages as a provider gets them."""

import itertools
import json
import re
from collections.abc import Callable
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
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from everlong.agents.providers import NO_OUTPUT, NOT_RUN, NOT_SHOWN, ProviderModel, build_request
from everlong.models import Kind, Message, ToolCall, build_body, parse_message
from tests.support import fake_provider
from tests.support.fake_provider import Json, ProviderServer
from tests.support.scale import scaled

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


def test_results_of_one_reply_share_one_request() -> None:
    sent = build_request("Be brief.", [USER, ASSISTANT, RESULT_A, RESULT_B])
    assert outline(sent) == [
        ["user-prompt"],
        ["text", "tool-call", "tool-call"],
        ["tool-return", "tool-return"],
    ]
    assert isinstance(sent[-1], ModelRequest)
    assert sent[-1].instructions == "Be brief."


def test_a_summary_comes_first() -> None:
    summary = Message(role="summary", text="Much has happened.")
    sent = build_request("", [summary, USER, ANSWER, USER])
    assert outline(sent) == [["user-prompt", "user-prompt"], ["text"], ["user-prompt"]]
    assert [part.content for part in sent[0].parts if isinstance(part, UserPromptPart)] == [
        "Much has happened.",
        "hi",
    ]
    assert isinstance(sent[0], ModelRequest)
    assert sent[0].instructions is None


def test_a_failure_is_sent_as_an_assistant_message() -> None:
    sent = build_request("", [USER, FAILURE, USER])
    assert outline(sent) == [["user-prompt"], ["text"], ["user-prompt"]]
    assert "the model is gone" in str(sent[1].parts[0])


def test_a_call_without_a_result_gets_a_placeholder() -> None:
    for after in ([FAILURE, USER], [USER], []):
        sent = build_request("", [USER, ASSISTANT, RESULT_A, *after])
        returns = {
            part.tool_call_id: part.content
            for part in sent[2].parts
            if isinstance(part, ToolReturnPart)
        }
        assert returns == {"a": "one", "b": NOT_RUN}
        assert [part.part_kind for part in sent[2].parts][:2] == ["tool-return"] * 2


def test_a_result_without_a_call_becomes_text() -> None:
    sent = build_request("", [RESULT_A, USER, ASSISTANT, RESULT_A, RESULT_A, RESULT_B])
    assert outline(sent) == [
        ["user-prompt", "user-prompt"],
        ["text", "tool-call", "tool-call"],
        ["tool-return", "tool-return", "user-prompt"],
    ]
    assert "[Result of an earlier call of read]" in str(sent[0].parts[0])


def test_a_conversation_that_begins_with_a_reply_gets_a_request_first() -> None:
    sent = build_request("", [ANSWER, USER])
    assert outline(sent) == [["user-prompt"], ["text"], ["user-prompt"]]
    assert NOT_SHOWN in str(sent[0].parts[0])


def test_two_replies_in_a_row_have_a_request_between_them() -> None:
    sent = build_request("", [USER, ANSWER, ASSISTANT, RESULT_A, RESULT_B])
    assert [each.kind for each in sent] == ["request", "response"] * 2 + ["request"]
    assert NOT_SHOWN in str(sent[2].parts[0])


NATIVE: dict[str, Any] = {
    "kind": "response",
    "parts": [
        {"part_kind": "thinking", "content": "Hm.", "signature": "s", "provider_name": "anthropic"},
        {"part_kind": "text", "content": "Done."},
    ],
    "model_name": "claude",
    "provider_name": "anthropic",
}


def test_a_native_body_is_sent_unchanged() -> None:
    sent = build_request("", [USER, Message(role="assistant", text="Done.", native=NATIVE)])
    assert isinstance(sent[1], ModelResponse)
    assert sent[1].provider_name == "anthropic"
    [thinking] = [part for part in sent[1].parts if isinstance(part, ThinkingPart)]
    assert (thinking.content, thinking.signature) == ("Hm.", "s")


@pytest.mark.parametrize(
    "native",
    [{"kind": "response", "parts": [{"part_kind": "of-the-future"}]}, {"kind": "x"}, {}],
)
def test_a_native_body_of_another_version_is_sent_in_the_common_format(
    native: dict[str, Any],
) -> None:
    message = Message(role="assistant", text="Look.", tool_calls=CALLS[:1], native=native)
    sent = build_request("", [USER, message, RESULT_A])
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
def test_hand_written_bodies_equal_the_librarys_and_round_trip(
    kind: Kind, message: Message
) -> None:
    [parsed] = ModelMessagesTypeAdapter.validate_json(json.dumps([build_body(message)]))
    assert build_body(message)["kind"] == parsed.kind
    [again] = json.loads(ModelMessagesTypeAdapter.dump_json([parsed], exclude_none=True))
    back = parse_message(kind, again)
    assert back == message
    assert parse_message(kind, build_body(message)) == message
    for part, written in zip(parsed.parts, build_body(message)["parts"], strict=True):
        assert {key: getattr(part, key) for key in written} == written


def open_model(name: str, url: str) -> ProviderModel:
    model: Model[Any]
    if name == "anthropic":
        # Imported here: it takes two seconds of CPU in each test process.
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        model = AnthropicModel("claude", provider=AnthropicProvider(api_key="k", base_url=url))
    else:
        provider = OpenAIProvider(api_key="k", base_url=url)
        model = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[name](
            "gpt", provider=provider
        )
    return ProviderModel(model)


ANSWERS: dict[str, Callable[..., Json]] = {
    "anthropic": fake_provider.anthropic,
    "chat": fake_provider.chat,
    "responses": fake_provider.responses,
}


async def capture_request(name: str, messages: list[Message]) -> Json:
    """Return what a client really sends."""
    async with ProviderServer(ANSWERS[name]("Done.")) as server:
        model = open_model(name, server.url)
        await model.reply("", messages, [])
        await model.close()
    return server.requests[0].body


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [each for inner in value.values() for each in strings(inner)]
    if isinstance(value, list):
        return [each for inner in value for each in strings(inner)]
    return [value] if isinstance(value, str) else []


def blank_natives() -> list[Message]:
    thought = NATIVE["parts"][0]
    blank = {"part_kind": "text", "content": " \n"}
    calls = build_body(Message(role="assistant", tool_calls=CALLS))["parts"]
    return [
        Message(role="assistant", text=" \n", tool_calls=CALLS),
        Message(
            role="assistant",
            text=" \n",
            tool_calls=CALLS,
            native={**NATIVE, "parts": [thought, blank, *calls]},
        ),
    ]


@pytest.mark.parametrize("name", list(ANSWERS))
@pytest.mark.parametrize("result", ["", " \n\t"])
@pytest.mark.parametrize("reply", blank_natives(), ids=["plain", "native"])
async def test_no_provider_is_sent_a_blank_text(name: str, result: str, reply: Message) -> None:
    empty = Message(role="tool", text=result, call_id="a", tool="read")
    body = await capture_request(name, [USER, reply, empty, RESULT_B])
    assert all(each.strip() for each in strings(body))
    texts = strings(body)
    assert texts.count(NO_OUTPUT) == 1
    assert "two" in texts
    if name == "anthropic":
        _, assistant, results = body["messages"]
        blocks = [block["type"] for block in assistant["content"]]
        assert blocks == ["thinking"] * (reply.native is not None) + ["tool_use"] * 2
        first = results["content"][0]
        assert (first["tool_use_id"], first["type"]) == ("a", "tool_result")
        assert NO_OUTPUT in strings(first)


async def test_an_empty_reply_does_not_end_with_its_thinking() -> None:
    native = {**NATIVE, "parts": [NATIVE["parts"][0], {"part_kind": "text", "content": " "}]}
    empty = Message(role="assistant", text=" ", native=native)
    body = await capture_request("anthropic", [USER, empty, USER])
    assert [block["type"] for block in body["messages"][1]["content"]] == ["thinking", "text"]
    assert NO_OUTPUT in strings(body["messages"][1])


@pytest.mark.parametrize("odd", ["functions.read:0", "call|fc", "é", "a b", "x" * 65, "a\n"])
async def test_a_call_id_that_a_provider_rejects_is_replaced(odd: str) -> None:
    calls = [("fine_-1", "read", "{}"), (odd, "read", "{}")]
    async with ProviderServer(fake_provider.chat("", calls)) as server:
        model = open_model("chat", server.url)
        reply = await model.reply("", [USER], [])
        await model.close()
    first, second = [call.id for call in reply.tool_calls]
    assert first == "fine_-1"
    assert re.fullmatch(r"call_1_[0-9a-f]{16}", second)
    assert reply.native is not None
    assert [part["tool_call_id"] for part in reply.native["parts"]] == [first, second]


@pytest.mark.parametrize("name", list(ANSWERS))
async def test_a_closed_model_is_opened_again(name: str) -> None:
    async with ProviderServer(ANSWERS[name]("Done.")) as server:
        model = open_model(name, server.url)
        for _ in range(2):
            assert (await model.reply("", [USER], [])).text == "Done."
            await model.close()
            await model.close()
    assert len(server.requests) == 2


roles = st.sampled_from([USER, ASSISTANT, RESULT_A, RESULT_B, ANSWER, FAILURE])


@pytest.mark.guarantee(51)
@settings(max_examples=scaled(60, 200), deadline=None)
@given(st.lists(roles, max_size=12))
def test_any_conversation_is_sent_in_a_valid_form(messages: list[Message]) -> None:
    sent = build_request("Be brief.", messages)
    dumped = json.dumps([str(part) for each in sent for part in each.parts])
    assert not sent or isinstance(sent[0], ModelRequest)
    for before, after in itertools.pairwise(sent):
        assert before.kind != after.kind
    for number, each in enumerate(sent):
        calls = [part.tool_call_id for part in each.parts if isinstance(part, ToolCallPart)]
        if isinstance(each, ModelRequest):
            returned = [p.tool_call_id for p in each.parts if isinstance(p, ToolReturnPart)]
            asked = sent[number - 1].parts if number else []
            wanted = {part.tool_call_id for part in asked if isinstance(part, ToolCallPart)}
            assert (set(returned), len(returned)) == (wanted, len(wanted))
        elif calls:
            assert isinstance(sent[number + 1], ModelRequest)
    assert dumped.count("one") >= sum(message is RESULT_A for message in messages)
