"""Real clients of OpenAI and Anthropic, on a server that speaks their formats."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from everlong.agents import Reply, tool
from everlong.agents.providers import ProviderModel
from everlong.errors import ModelUnavailable
from everlong.models import Message, ToolCall
from tests.support import fake_provider
from tests.support.fake_provider import Json, ProviderServer

CHAT, RESPONSES, CLAUDE = "openai-chat:gpt-5", "openai:gpt-5", "anthropic:claude-sonnet-5"
FORMATS: dict[str, Callable[..., Json]] = {
    CHAT: fake_provider.chat,
    RESPONSES: fake_provider.responses,
    CLAUDE: fake_provider.anthropic,
}
every_format = pytest.mark.parametrize("name", [CHAT, RESPONSES, CLAUDE])

Opener = Callable[..., ProviderModel]
ASK = [Message(role="user", text="hi")]


@tool
def read(path: str, lines: int = 10) -> str:
    """Read a file.

    Args:
        path: which one
    """
    return path


@pytest.fixture
async def open_models(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opener]:
    """Make models that speak to a server, and close them in the end."""
    models: list[ProviderModel] = []
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def open_model(server: ProviderServer, model: object, **settings: Any) -> ProviderModel:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-anthropic")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        models.append(ProviderModel(model, settings))
        return models[-1]

    yield open_model
    for model in models:
        await model.close()


def to_message(reply: Reply) -> Message:
    return Message(
        role="assistant", text=reply.text, tool_calls=reply.tool_calls, native=reply.native
    )


def results(calls: Sequence[ToolCall]) -> list[Message]:
    return [
        Message(role="tool", text=f"result of {call.id}", call_id=call.id, tool=call.tool)
        for call in calls
    ]


async def converse(model: ProviderModel) -> list[Reply]:
    """Three model calls: two tools at once, one more, and the answer."""
    conversation = [Message(role="summary", text="Before."), *ASK]
    replies = []
    for _ in range(3):
        reply = await model.reply("Be brief.", conversation, [read])
        replies.append(reply)
        conversation += [to_message(reply), *results(reply.tool_calls)]
    return replies


TWO = [("call_a", "read", '{"path": "a"}'), ("call_b", "read", '{"path": "b", "lines": 3}')]
ONE = [("call_c", "read", "{}")]


@every_format
async def test_tool_calls_round_trip_over_several_turns(name: str, open_models: Opener) -> None:
    made = FORMATS[name]
    async with ProviderServer(made("Two.", TWO), made("", ONE), made("All read.")) as server:
        replies = await converse(open_models(server, name))
    assert [reply.text for reply in replies] == ["Two.", "", "All read."]
    calls = [[(call.id, call.tool) for call in reply.tool_calls] for reply in replies]
    assert calls == [[("call_a", "read"), ("call_b", "read")], [("call_c", "read")], []]
    assert json.loads(replies[0].tool_calls[1].arguments) == {"path": "b", "lines": 3}
    for reply in replies:
        assert (reply.tokens, reply.input_tokens) == (1100, 1000)
        assert 0 < reply.cost_usd < 0.1
        assert reply.native is not None
        assert reply.native["kind"] == "response"
    assert len(server.requests) == 3


def schema() -> Json:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "path": {"type": "string", "description": "which one"},
            "lines": {"type": "integer", "default": 10},
        },
        "required": ["path"],
    }


async def request_reply(name: str, open_models: Opener, **settings: Any) -> list[Json]:
    made = FORMATS[name]
    async with ProviderServer(made("Two.", TWO), made("", ONE), made("All read.")) as server:
        await converse(open_models(server, name, **settings))
    return [request.body for request in server.requests]


async def test_chat_completions_get_roles_ids_and_schema(open_models: Opener) -> None:
    *_, last = await request_reply(CHAT, open_models, max_tokens=500)
    messages = last["messages"]
    assert [each["role"] for each in messages] == [
        "system",
        "user",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
    ]
    assert [each["content"] for each in messages[:3]] == ["Be brief.", "Before.", "hi"]
    assert [each["id"] for each in messages[3]["tool_calls"]] == ["call_a", "call_b"]
    assert messages[3]["content"] == "Two."
    assert [each["tool_call_id"] for each in messages[4:6]] == ["call_a", "call_b"]
    assert messages[5]["content"] == "result of call_b"
    [definition] = last["tools"]
    assert definition["function"]["name"] == "read"
    assert definition["function"]["description"] == "Read a file."
    assert definition["function"]["parameters"] == schema()
    assert last["model"] == "gpt-5"
    assert last["max_completion_tokens"] == 500
    assert not last["stream"]


async def test_the_responses_api_gets_items_with_their_ids(open_models: Opener) -> None:
    *_, last = await request_reply(RESPONSES, open_models)
    assert last["instructions"] == "Be brief."
    calls = [each for each in last["input"] if each.get("type") == "function_call"]
    outputs = [each for each in last["input"] if each.get("type") == "function_call_output"]
    assert [(each["call_id"], each["id"]) for each in calls] == [
        ("call_a", "fc_0"),
        ("call_b", "fc_1"),
        ("call_c", "fc_0"),
    ]
    assert [each["call_id"] for each in outputs] == ["call_a", "call_b", "call_c"]
    assert last["tools"][0]["parameters"] == schema()
    assert not last["stream"]


@pytest.mark.parametrize("max_tokens", [1024, 64_000])
async def test_anthropic_messages_alternate(max_tokens: int, open_models: Opener) -> None:
    *_, last = await request_reply(CLAUDE, open_models, max_tokens=max_tokens)
    # Replies that may be long are streamed by the library; what comes of it is the same.
    assert last["stream"] is (max_tokens > 21_333)
    assert last["system"] == [{"type": "text", "text": "Be brief."}]
    roles = [each["role"] for each in last["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    blocks = [[block["type"] for block in each["content"]] for each in last["messages"]]
    assert blocks[0] == ["text", "text"]
    assert blocks[1] == ["text", "tool_use", "tool_use"]
    assert blocks[2] == ["tool_result", "tool_result"]
    assert [each["tool_use_id"] for each in last["messages"][2]["content"]] == ["call_a", "call_b"]
    assert last["messages"][1]["content"][2]["input"] == {"path": "b", "lines": 3}
    assert last["tools"][0]["input_schema"] == schema()


@pytest.mark.guarantee(51)
@pytest.mark.parametrize("max_tokens", [1024, 64_000])
async def test_thinking_is_returned_to_anthropic_with_its_signature(
    max_tokens: int, open_models: Opener
) -> None:
    first = fake_provider.anthropic("", ONE, thinking=("Hm.", "c2lnbmF0dXJl"))
    async with ProviderServer(first, fake_provider.anthropic("Done.")) as server:
        model = open_models(server, CLAUDE, max_tokens=max_tokens)
        reply = await model.reply("", ASK, [read])
        # As the journal keeps it: through JSON and back.
        kept = Message(
            role="assistant",
            tool_calls=reply.tool_calls,
            native=json.loads(json.dumps(reply.native)),
        )
        await model.reply("", [*ASK, kept, *results(reply.tool_calls)], [read])
    assert reply.text == ""
    assistant = server.requests[1].body["messages"][1]["content"]
    assert assistant[0] == {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmF0dXJl"}
    assert assistant[1]["type"] == "tool_use"


async def test_encrypted_reasoning_is_returned_to_openai(open_models: Opener) -> None:
    first = fake_provider.responses("", ONE, reasoning="b3BhcXVl")
    async with ProviderServer(first, fake_provider.responses("Done.")) as server:
        model = open_models(server, RESPONSES)
        reply = await model.reply("", ASK, [read])
        await model.reply("", [*ASK, to_message(reply), *results(reply.tool_calls)], [read])
    assert server.requests[0].body["include"] == ["reasoning.encrypted_content"]
    reasoning = server.requests[1].body["input"][1]
    assert (reasoning["type"], reasoning["encrypted_content"]) == ("reasoning", "b3BhcXVl")


async def test_replies_of_one_provider_are_readable_by_another(open_models: Opener) -> None:
    thought = fake_provider.anthropic("Two.", TWO, thinking=("Hm.", "c2lnbmF0dXJl"))
    async with ProviderServer(thought) as server:
        reply = await open_models(server, CLAUDE).reply("", ASK, [read])
    async with ProviderServer(fake_provider.chat("Done.")) as server:
        model = open_models(server, CHAT)
        answer = await model.reply(
            "", [*ASK, to_message(reply), *results(reply.tool_calls)], [read]
        )
    assert answer.text == "Done."
    assert "c2lnbmF0dXJl" not in json.dumps(server.requests[0].body)


async def test_a_model_object_with_its_own_base_url_is_used(open_models: Opener) -> None:
    async with ProviderServer(fake_provider.error(500), fake_provider.chat("Here.")) as server:
        provider = OpenAIProvider(base_url=f"{server.url}/own", api_key="own-key")
        model = open_models(server, OpenAIChatModel("llama", provider=provider))
        with pytest.raises(
            ModelUnavailable, match="model 'openai:llama': the provider answered with status 500"
        ):
            await model.reply("", ASK, [])
        assert (await model.reply("", ASK, [])).text == "Here."
    assert [each.path for each in server.requests] == ["/own/chat/completions"] * 2
    assert server.requests[0].headers["authorization"] == "Bearer own-key"


async def test_settings_of_the_agent_override_those_of_the_model(open_models: Opener) -> None:
    async with ProviderServer(fake_provider.chat("Here.")) as server:
        provider = OpenAIProvider(base_url=server.url, api_key="own-key")
        settings = {"temperature": 0.25, "seed": 7}
        model = OpenAIChatModel("llama", provider=provider, settings=settings)  # type: ignore[arg-type] # a TypedDict
        await open_models(server, model, seed=8).reply("", ASK, [])
    assert (server.requests[0].body["temperature"], server.requests[0].body["seed"]) == (0.25, 8)


@every_format
async def test_a_reply_without_usage_or_with_an_unknown_model_costs_nothing(
    name: str, open_models: Opener
) -> None:
    async with ProviderServer({**FORMATS[name]("Hi."), "model": "of-no-provider"}) as server:
        reply = await open_models(server, name).reply("", ASK, [])
    assert (reply.tokens, reply.cost_usd) == (1100, 0.0)


async def test_invalid_call_ids_are_replaced_deterministically(open_models: Opener) -> None:
    odd = [("x" * 65, "read", ""), ("twice", "read", '{"path":'), ("twice", "read", "null")]
    async with ProviderServer(fake_provider.chat(None, odd)) as server:
        model = open_models(server, CHAT)
        first, second = await model.reply("", ASK, [read]), await model.reply("", ASK, [read])
        ids = [call.id for call in first.tool_calls]
        assert ids[1] == "twice"
        assert len(set(ids)) == 3
        assert all(len(each) <= 64 for each in ids)
        assert [call.id for call in second.tool_calls] == ids
        assert [call.arguments for call in first.tool_calls] == ["{}", '{"path":', "null"]
        await model.reply("", [*ASK, to_message(first), *results(first.tool_calls)], [read])
    sent = server.requests[2].body["messages"]
    assert [each["id"] for each in sent[1]["tool_calls"]] == ids
    assert [each["tool_call_id"] for each in sent[2:]] == ids
    for call in sent[1]["tool_calls"]:
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
