"""Streams of providers: the same reply as without one, and a broken one is a failed attempt."""

import dataclasses
import json
import logging

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from everlong.agents import Reply
from everlong.agents.providers import ProviderModel
from everlong.errors import ModelRefused, ModelUnavailable
from tests.support import fake_provider
from tests.support.fake_provider import ProviderServer, Response, encode_stream
from tests.unit.test_providers import (
    ASK,
    CHAT,
    CLAUDE,
    FORMATS,
    RESPONSES,
    TWO,
    Opener,
    every_format,
    open_models,
    read,
)

__all__ = ["open_models"]  # A fixture.

STREAM = {"content-type": "text/event-stream"}


async def stream(model: ProviderModel) -> tuple[Reply, list[str]]:
    pieces: list[str] = []
    reply = await model.stream_reply("Be brief.", ASK, [read], pieces.append)
    return reply, pieces


def normalize(reply: Reply) -> Reply:
    """Return a reply without what differs between two requests: times, and blanks in JSON."""
    assert reply.native is not None
    native = {key: value for key, value in reply.native.items() if key != "timestamp"}
    details = native.get("provider_details") or {}
    native["provider_details"] = {key: details[key] for key in details if key == "finish_reason"}
    for part in native["parts"]:
        if "args" in part:
            part["args"] = json.loads(part["args"])
    calls = tuple(
        dataclasses.replace(call, arguments=json.dumps(json.loads(call.arguments)))
        for call in reply.tool_calls
    )
    return dataclasses.replace(reply, native=native, tool_calls=calls)


@every_format
async def test_a_streamed_reply_is_the_same_as_a_whole_one(name: str, open_models: Opener) -> None:
    body = FORMATS[name]("Let me look at both.", TWO)
    async with ProviderServer(body) as server:
        # With few tokens: pydantic-ai streams Anthropic's long replies by itself.
        model = open_models(server, name, max_tokens=1024)
        streamed, pieces = await stream(model)
        whole = await model.reply("Be brief.", ASK, [read])
    assert "".join(pieces) == streamed.text == "Let me look at both."
    assert normalize(streamed) == normalize(whole)
    assert [bool(each.body.get("stream")) for each in server.requests] == [True, False]


async def test_text_comes_in_pieces(open_models: Opener) -> None:
    for name in (CHAT, RESPONSES):
        async with ProviderServer(FORMATS[name]("one two three")) as server:
            _, pieces = await stream(open_models(server, name))
        assert [each for each in pieces if each] == ["one ", "two ", "three"]


async def test_thinking_is_not_part_of_the_text(open_models: Opener) -> None:
    body = fake_provider.anthropic("Done.", thinking=("Secret thoughts.", "c2ln"))
    async with ProviderServer(body) as server:
        reply, pieces = await stream(open_models(server, CLAUDE))
    assert "".join(pieces) == "Done."
    assert reply.native is not None
    assert reply.native["parts"][0]["signature"] == "c2ln"


@every_format
async def test_a_stream_that_breaks_is_a_failed_attempt(name: str, open_models: Opener) -> None:
    events = encode_stream(FORMATS[name]("Let me look.")).split(b"\n\n")
    half = b"\n\n".join(events[: 5 if name == RESPONSES else 3]) + b"\n\n"
    pieces: list[str] = []
    async with ProviderServer(Response(body=half, headers=STREAM)) as server:
        model = open_models(server, name)
        with pytest.raises(ModelUnavailable, match="broke off"):
            await model.stream_reply("", ASK, [], pieces.append)
    assert len(server.requests) == 1
    assert "".join(pieces) in "Let me look."


async def test_errors_before_a_stream_are_those_without_one(open_models: Opener) -> None:
    async with ProviderServer(fake_provider.error(401), fake_provider.error(503)) as server:
        model = open_models(server, CHAT)
        with pytest.raises(ModelRefused, match="API key"):
            await stream(model)
        with pytest.raises(ModelUnavailable, match="status 503") as caught:
            await stream(model)
    assert caught.value.__cause__ is None
    assert len(server.requests) == 2


async def test_a_server_whose_streams_have_no_end_is_asked_for_whole_replies(
    open_models: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    body = fake_provider.chat("All read.")
    lines = [each for each in encode_stream(body).split(b"\n\n") if b'"stop"' not in each]
    endless = Response(body=b"\n\n".join(lines), headers=STREAM)
    whole = Response(body=body)
    async with ProviderServer(endless, endless, whole) as server:
        model = open_models(server, CHAT)
        for _ in range(2):
            with pytest.raises(ModelUnavailable, match="broke off"):
                await stream(model)
        reply, pieces = await stream(model)
    assert (reply.text, pieces) == ("All read.", [])
    assert "asked for whole replies" in caplog.text


async def test_a_server_that_refuses_streams_is_asked_for_whole_replies(
    open_models: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = fake_provider.error(400, "your organization must be verified to stream this model")
    whole = fake_provider.responses("All read.")
    async with ProviderServer(refusal, Response(body=json.dumps(whole).encode())) as server:
        model = open_models(server, RESPONSES)
        replies = [await stream(model) for _ in range(2)]
    assert [(reply.text, pieces) for reply, pieces in replies] == [("All read.", [])] * 2
    assert [bool(each.body.get("stream")) for each in server.requests] == [True, False, False]
    assert "its server refuses to: it is asked for whole replies" in caplog.text


async def test_a_rejected_request_does_not_end_streaming(open_models: Opener) -> None:
    rejected = fake_provider.error(400, "max_tokens is too large")
    async with ProviderServer(rejected, rejected, fake_provider.responses("a b")) as server:
        model = open_models(server, RESPONSES)
        with pytest.raises(ModelRefused, match="max_tokens is too large"):
            await stream(model)
        reply, pieces = await stream(model)
    assert reply.text == "a b"
    assert "".join(pieces) == "a b"


async def test_a_model_that_cannot_stream_gives_the_whole_reply() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("whole")])

    model = ProviderModel(FunctionModel(answer))
    for _ in range(2):
        reply, pieces = await stream(model)
        assert (reply.text, pieces) == ("whole", [])
