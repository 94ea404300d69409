"""Errors of providers: each takes one request, and its reason says what to do."""

import asyncio
import itertools
import socket
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from everlong.agents.providers import ProviderModel
from everlong.errors import ConfigError, EverlongError, ModelRefused, ModelUnavailable
from tests.support import fake_provider
from tests.support.fake_provider import ProviderServer, Response
from tests.unit.test_providers import (
    ASK,
    CHAT,
    CLAUDE,
    FORMATS,
    ONE,
    RESPONSES,
    Opener,
    every_format,
    open_models,
)

__all__ = ["open_models"]  # A fixture.


async def failure(server: ProviderServer, model: ProviderModel) -> EverlongError:
    """Ask once; return what is raised. Exactly one request is made of it."""
    with pytest.raises(EverlongError) as caught:
        await model.reply("Be brief.", ASK, [])
    assert len(server.requests) == 1
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "sk-" not in str(caught.value)
    assert len(str(caught.value)) < 400
    return caught.value


def make_not_found(body: fake_provider.Json | bytes) -> Response:
    return Response(status=404, body=body)


@pytest.mark.guarantee(51)
@every_format
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_transient_errors_are_retryable(name: str, status: int, open_models: Opener) -> None:
    async with ProviderServer(fake_provider.error(status)) as server:
        error = await failure(server, open_models(server, name))
    assert isinstance(error, ModelUnavailable)
    assert str(error) == f"model {name!r}: the provider answered with status {status}"
    assert error.retry_after_seconds is None


@pytest.mark.guarantee(51)
@every_format
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after_ms": "1500"}, 1.5),
        ({"retry_after": "86400"}, 300.0),
        ({"retry_after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry_after": "soon"}, None),
    ],
)
async def test_a_rate_limit_gives_the_retry_delay(
    name: str, headers: dict[str, str], seconds: float | None, open_models: Opener
) -> None:
    async with ProviderServer(fake_provider.error(429, **headers)) as server:
        error = await failure(server, open_models(server, name))
    assert isinstance(error, ModelUnavailable)
    assert error.retry_after_seconds == seconds


@pytest.mark.guarantee(51)
@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    ("name", "key"),
    [(CHAT, "OPENAI_API_KEY"), (RESPONSES, "OPENAI_API_KEY"), (CLAUDE, "ANTHROPIC_API_KEY")],
)
async def test_a_rejected_key_is_named_and_not_shown(
    name: str, key: str, status: int, open_models: Opener
) -> None:
    async with ProviderServer(
        fake_provider.error(status, "Incorrect API key: sk-openai")
    ) as server:
        error = await failure(server, open_models(server, name))
    assert isinstance(error, ModelRefused)
    assert str(error) == (
        f"the provider refused the API key of model {name!r} (status {status}): check {key}"
    )


async def test_a_rejected_key_of_a_model_object_names_no_variable(open_models: Opener) -> None:
    async with ProviderServer(fake_provider.error(401)) as server:
        provider = OpenAIProvider(base_url=server.url, api_key="sk-own")
        error = await failure(
            server, open_models(server, OpenAIChatModel("llama", provider=provider))
        )
    assert str(error).endswith("check the key that it was made with")


@pytest.mark.parametrize(
    ("name", "status"),
    [*itertools.product(FORMATS, (400, 422)), (CHAT, 404), (CLAUDE, 404)],
)
async def test_a_rejected_request_is_not_retried_and_reports_the_reason(
    name: str, status: int, open_models: Opener
) -> None:
    async with ProviderServer(
        fake_provider.error(status, "no such thing\n" + "x" * 5000)
    ) as server:
        error = await failure(server, open_models(server, name))
    assert isinstance(error, ModelRefused)
    assert not error.context_too_large
    assert "rejects the request: no such thing xxx" in str(error)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        # What llama.cpp, vLLM (FastAPI) and a Go program answer at a path that they do not have.
        (make_not_found({"error": {"code": 404, "message": "File Not Found"}}), "File Not Found"),
        (make_not_found({"detail": "Not Found"}), "Not Found"),
        (make_not_found(b"404 page not found"), "404 page not found"),
        (Response(status=405, body={"detail": "Method Not Allowed"}), "Method Not Allowed"),
        (Response(status=501), "no reason given"),
    ],
)
async def test_a_server_without_the_responses_api_gets_the_name_that_works(
    response: Response, reason: str, open_models: Opener
) -> None:
    async with ProviderServer(response) as server:
        error = await failure(server, open_models(server, "openai:qwen3"))
    assert [request.path for request in server.requests] == ["/v1/responses"]
    assert isinstance(error, ModelRefused)
    assert str(error) == (
        f"model 'openai:qwen3': the server answered /responses with status {response.status}: {reason}. "
        "'openai' names the Responses API: if the server at OPENAI_BASE_URL speaks only chat "
        "completions, use 'openai-chat:qwen3'"
    )


async def test_a_server_that_answers_every_path_is_asked_again_with_the_name_that_may_work(
    open_models: Opener,
) -> None:
    unexpected = {"error": "Unexpected endpoint or method. (POST /v1/responses)"}  # LM Studio.
    async with ProviderServer(unexpected) as server:
        error = await failure(server, open_models(server, "openai:qwen3"))
    assert isinstance(error, ModelUnavailable)
    assert str(error).endswith("use 'openai-chat:qwen3'")


async def test_the_name_that_an_error_gives_works_without_a_key(
    open_models: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ProviderServer(fake_provider.chat("Hi.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        model = ProviderModel("openai-chat:qwen3")
        reply = await model.reply("", ASK, [])
        await model.close()
    assert reply.text == "Hi."
    assert [request.path for request in server.requests] == ["/v1/chat/completions"]


def test_openai_itself_is_not_said_to_lack_an_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    unknown = ModelHTTPError(404, "gpt-6", {"message": "The model `gpt-6` does not exist"})
    error = ProviderModel("openai:gpt-6")._translate(unknown)
    assert str(error) == "model 'openai:gpt-6': the provider answered with status 404"


@every_format
async def test_any_other_rejection_is_not_retried(name: str, open_models: Opener) -> None:
    async with ProviderServer(fake_provider.error(418)) as server:
        error = await failure(server, open_models(server, name))
    assert isinstance(error, ModelRefused)
    assert "status 418" in str(error)


def make_error(status: int, kind: str, message: str) -> Response:
    inner = {"type": kind, "code": kind, "message": message}
    return Response(status=status, body={"type": "error", "error": inner})


@pytest.mark.parametrize(
    ("name", "response"),
    [
        (CHAT, make_error(400, "context_length_exceeded", "too long")),
        (RESPONSES, make_error(400, "context_length_exceeded", "too long")),
        (CLAUDE, make_error(400, "invalid_request_error", "prompt is too long: 3 > 2")),
    ],
)
async def test_an_oversized_context_is_recognized(
    name: str, response: Response, open_models: Opener
) -> None:
    async with ProviderServer(response) as server:
        error = await failure(server, open_models(server, name))
    assert isinstance(error, ModelRefused)
    assert error.context_too_large
    assert "compact_at_bytes" in str(error)


@pytest.mark.parametrize(
    ("name", "response"),
    [
        (CHAT, make_error(429, "insufficient_quota", "pay")),
        (CLAUDE, make_error(400, "invalid_request_error", "Your credit balance is too low")),
    ],
)
async def test_an_exhausted_quota_is_not_retried(
    name: str, response: Response, open_models: Opener
) -> None:
    async with ProviderServer(response) as server:
        error = await failure(server, open_models(server, name))
    assert isinstance(error, ModelRefused)
    assert "no quota or credit left" in str(error)


MALFORMED: dict[str, Response] = {
    "html": Response(body=b"<html>busy</html>"),
    "text": Response(body=b"busy", headers={"content-type": "text/plain"}),
    "cut": Response(body=b'{"id": "x", "choi'),
    "nothing": Response(body=b""),
    "null": Response(body=b"null"),
    "object": Response(body=b"{}"),
    "list": Response(body=b"[]"),
    "latin": Response(body=b'{"id": "\xff"}'),
}


@every_format
@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("max_tokens", [1024, 64_000])
async def test_an_unreadable_reply_is_retryable(
    name: str, kind: str, max_tokens: int, open_models: Opener
) -> None:
    async with ProviderServer(MALFORMED[kind]) as server:
        error = await failure(server, open_models(server, name, max_tokens=max_tokens))
    assert isinstance(error, ModelUnavailable)
    assert "busy" not in str(error)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (CHAT, {"choices": []}),
        (CHAT, {"choices": None}),
        (CHAT, {"choices": [{"index": 0, "finish_reason": "stop"}]}),
        (RESPONSES, {"output": None}),
        (RESPONSES, {"status": "failed", "error": {"code": "server_error", "message": "oops"}}),
        (RESPONSES, {"status": "in_progress"}),
        (CLAUDE, {"content": None}),
        (CLAUDE, {"stop_reason": None}),
    ],
)
async def test_an_incomplete_reply_is_retryable(
    name: str, change: dict[str, Any], open_models: Opener
) -> None:
    async with ProviderServer({**FORMATS[name]("Hi."), **change}) as server:
        error = await failure(server, open_models(server, name, max_tokens=1024))
    assert isinstance(error, ModelUnavailable)


@every_format
async def test_an_empty_reply_is_returned(name: str, open_models: Opener) -> None:
    async with ProviderServer(FORMATS[name]("")) as server:
        reply = await open_models(server, name).reply("", ASK, [])
    assert (reply.text, reply.tool_calls, reply.tokens) == ("", (), 1100)
    assert len(server.requests) == 1


@every_format
async def test_a_reply_that_cannot_be_stored_is_retryable(name: str, open_models: Opener) -> None:
    async with ProviderServer(FORMATS[name]("lone \ud800")) as server:
        error = await failure(server, open_models(server, name))
    assert isinstance(error, ModelUnavailable)


@pytest.mark.parametrize(
    ("name", "reply", "reason"),
    [
        (CHAT, fake_provider.chat("", finish="length"), "raise max_tokens"),
        (CHAT, fake_provider.chat("", finish="content_filter"), "declined to answer"),
        (CLAUDE, fake_provider.anthropic("", stop="max_tokens"), "raise max_tokens"),
        (CLAUDE, fake_provider.anthropic("", stop="refusal"), "declined to answer"),
    ],
)
async def test_a_refusal_of_the_model_is_not_retried(
    name: str, reply: fake_provider.Json, reason: str, open_models: Opener
) -> None:
    async with ProviderServer(reply) as server:
        error = await failure(server, open_models(server, name))
    assert isinstance(error, ModelRefused)
    assert reason in str(error)


@pytest.mark.parametrize("events", range(1, 8))
async def test_an_interrupted_stream_is_no_reply(events: int, open_models: Opener) -> None:
    whole = fake_provider.encode_stream(fake_provider.anthropic("Let me look.", ONE)).split(b"\n\n")
    assert len(whole) == 10
    cut = b"".join(event + b"\n\n" for event in whole[:events])
    broken = Response(body=cut, headers={"content-type": "text/event-stream"})
    async with ProviderServer(broken) as server:
        error = await failure(server, open_models(server, CLAUDE))
    assert isinstance(error, ModelUnavailable)


@every_format
async def test_a_call_to_a_hanging_provider_times_out(name: str, open_models: Opener) -> None:
    async with ProviderServer(Response(hang=True)) as server:
        error = await failure(server, open_models(server, name, timeout=0.2))
    assert isinstance(error, ModelUnavailable)
    assert str(error).endswith("no reply in time")


@every_format
async def test_a_cancelled_call_ends_at_once(name: str, open_models: Opener) -> None:
    async with ProviderServer(Response(hang=True)) as server:
        call = asyncio.ensure_future(open_models(server, name).reply("", ASK, []))
        async with asyncio.timeout(10):
            while not server.requests:
                await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call


@every_format
async def test_an_unreachable_provider_is_retryable(name: str, open_models: Opener) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound without a listener: connections are refused.
        server = ProviderServer(fake_provider.error(500))
        server.url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ModelUnavailable, match="the provider cannot be reached"):
            await open_models(server, name).reply("", ASK, [])


async def test_one_recoverable_model_of_several_makes_an_error_retryable(
    open_models: Opener,
) -> None:
    async with ProviderServer(fake_provider.error(400), fake_provider.error(503)) as server:
        provider = OpenAIProvider(base_url=server.url, api_key="sk-own")
        first, second = (OpenAIChatModel(name, provider=provider) for name in ("a", "b"))
        with pytest.raises(ModelUnavailable, match="status 503"):
            await open_models(server, FallbackModel(first, second)).reply("", ASK, [])
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("openai:gpt-5", "OPENAI_API_KEY.* A local server needs no key, but .* OPENAI_BASE_URL"),
        (CLAUDE, "ANTHROPIC_API_KEY"),
        ("cohere:command", r"pip install .*cohere"),
        ("gpt-5-of-nobody", "Unknown model"),
        ("nobody:gpt-5", "Unknown model"),
        (5, "a int is not a model"),
    ],
)
def test_a_model_that_cannot_be_built_says_what_to_set_or_install(
    model: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=message) as caught:
        ProviderModel(model)
    assert "test model" not in str(caught.value)
