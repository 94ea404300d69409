"""Providers' models, through pydantic-ai's direct requests. The only file that imports pydantic-ai.

One call is one request: the clients' own retries are off, since Temporal's retries survive a killed
worker. A provider's response is kept whole (`Reply.native`), because thinking and its signatures must be
sent back unchanged.
"""

import dataclasses
import hashlib
import json
import logging
import re
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model as PydanticModel
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from everlong import limits
from everlong.agents.model import Reply, TakeText
from everlong.agents.tools import Tool
from everlong.errors import ConfigError, EverlongError, ModelRefused, ModelUnavailable
from everlong.models import Kind, Message, build_body, make_printable, parse_message

# Length of a quote from a provider's error: enough for a reason, too little for a prompt.
_QUOTED_CHARS_MAX: Final = 200
_RETRYABLE_STATUSES: Final = frozenset({408, 409, 425, 429})
# Names that pydantic-ai maps to OpenAI's Responses API, and what a server without it answers.
_RESPONSES_NAMES: Final = frozenset({"openai", "openai-responses"})
_NO_ROUTE_STATUSES: Final = frozenset({404, 405, 501})

# Attempts at streams without an end, before a model is asked for whole replies.
_CUT_STREAMS_MAX: Final = 2
# Rejections that a request without a stream would meet, too.
_NOT_OF_STREAMS: Final = (
    exceptions.ModelContextWindowExceededError,
    exceptions.ModelAuthenticationError,
    exceptions.ModelNotFoundError,
)
_LOG: Final = logging.getLogger(__name__)

NOT_RUN: Final = "[The turn ended before this call had a result.]"
NOT_SHOWN: Final = "[Earlier messages are not shown.]"
# Anthropic refuses a request in which any text is blank.
NO_OUTPUT: Final = "(no output)"
# Call ids that every provider accepts: a thread's agent may change its model.
_CALL_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.CALL_NAME_CHARS_MAX}}}")


class ProviderModel:
    """A provider's model. The constructor builds the client, which sends nothing before `reply`."""

    def __init__(self, model: object, settings: Mapping[str, Any] | None = None) -> None:
        self._named = isinstance(model, str)
        self._model = _build_model(model)
        self._name = model if isinstance(model, str) else self._model.model_id
        # Settings of a call replace the model's settings, so its own `max_retries` is kept here.
        chosen = {**(self._model.settings or {}), **(settings or {})}
        if "max_retries" not in self._model.unsupported_settings:
            chosen.setdefault("max_retries", 0)
        self._settings = cast("ModelSettings", chosen)
        self._entered = 0
        self._streams = True
        self._cut_streams = 0
        """Streams without an end, one after another."""

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """See `Model`. A reply may be empty; the caller decides whether to ask again.

        Raises `ModelUnavailable`, which may be retried, and `ModelRefused`, which may not.
        """
        return await self._ask(instructions, messages, tools, None)

    async def stream_reply(
        self,
        instructions: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        on_text: TakeText,
    ) -> Reply:
        """See `StreamingModel`. A model that cannot stream is asked for the whole reply."""
        return await self._ask(instructions, messages, tools, on_text)

    async def _ask(
        self,
        instructions: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        on_text: TakeText | None,
    ) -> Reply:
        request = build_request(instructions, messages)
        parameters = ModelRequestParameters(
            function_tools=[_build_definition(each) for each in tools],
            instruction_parts=[InstructionPart(content=instructions)] if instructions else None,
        )
        try:
            # Also after `close`: only `__aenter__` replaces a closed client.
            if not self._entered:
                await self._model.__aenter__()
                self._entered += 1
            streamed = None
            if on_text is not None and self._streams:
                streamed = await self._stream(request, parameters, on_text)
            response = streamed or await model_request(
                self._model,
                request,
                model_settings=self._settings,
                model_request_parameters=parameters,
            )
            if on_text is not None and self._streams and streamed is None:
                # Only now: what was refused may have been the request, and not the stream.
                self._stop_streaming("cannot stream, or its server refuses to")
            reply = _build_reply(response)
        except Exception as error:  # noqa: BLE001 - clients raise anything for a reply they cannot read
            # Not chained: clients' errors contain requests and replies.
            raise self._translate(error) from None
        if streamed is not None:
            self._check_end(streamed)
        self._check(response, reply)
        return reply

    async def _stream(
        self,
        request: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        on_text: TakeText,
    ) -> ModelResponse | None:
        """Request a reply as a stream; return None if the model or its server may refuse to stream.

        Some servers do not take the options of a stream, and some models need a verified account for it.
        """
        is_open = False
        try:
            async with model_request_stream(
                self._model,
                request,
                model_settings=self._settings,
                model_request_parameters=parameters,
            ) as stream:
                is_open = True
                await _pass_text(stream, on_text)
                return stream.get()
        # The second: what a FunctionModel without a stream function raises.
        except (NotImplementedError, AssertionError, exceptions.ModelRequestRejectedError) as error:
            if is_open or isinstance(error, _NOT_OF_STREAMS):
                raise
            return None

    def _stop_streaming(self, reason: str) -> None:
        self._streams = False
        _LOG.warning(
            "model %r %s: it is asked for whole replies from now on, and live output shows none of them "
            "before they are complete",
            self._name,
            reason,
        )

    def _check_end(self, response: ModelResponse) -> None:
        """Raise if a provider's stream ended without its end: the reply may be half of one.

        pydantic-ai takes any end of a stream for the end of the reply. A server that never sends an end
        is asked without streams after two attempts, so a thread on it can continue.
        """
        details = response.provider_details or {}
        is_whole = "finish_reason" in details or response.finish_reason == "content_filter"
        if is_whole or not response.provider_name or response.state != "complete":
            self._cut_streams = 0
            return
        self._cut_streams += 1
        if self._cut_streams == _CUT_STREAMS_MAX:
            self._stop_streaming("ends its streams without a finish reason")
        raise ModelUnavailable(f"model {self._name!r}: the reply broke off")

    async def close(self) -> None:
        """Close the client's connections, unless the user passed the client. A later call reopens."""
        while self._entered:
            self._entered -= 1
            await self._model.__aexit__(None, None, None)

    def _translate(self, error: Exception) -> EverlongError:
        match error:
            case exceptions.FallbackExceptionGroup():
                every = [self._translate(each) for each in error.exceptions]
                return next(
                    (each for each in every if isinstance(each, ModelUnavailable)), every[0]
                )
            case exceptions.ModelTimeoutError() | exceptions.ModelRequestTimeout():
                return self._make_unavailable("no reply in time", error)
            case exceptions.ModelConnectionError():
                return self._make_unavailable("the provider cannot be reached", error)
        status = error.status_code if isinstance(error, exceptions.ModelHTTPError) else None
        if status in _NO_ROUTE_STATUSES and (hint := self._make_chat_hint()):
            reason = _quote_reason(getattr(error, "body", None))
            return self._make_refusal(
                f"the server answered /responses with status {status}: {reason}{hint}"
            )
        if refusal := self._find_refusal(error, status):
            return refusal
        if status is not None:
            return self._make_unavailable(f"the provider answered with status {status}", error)
        kind = type(error).__name__
        # Some servers answer a path that they do not have with status 200 and an error.
        return self._make_unavailable(
            f"the provider gave no usable reply ({kind}){self._make_chat_hint()}", error
        )

    def _find_refusal(self, error: Exception, status: int | None) -> ModelRefused | None:
        """Return a `ModelRefused` if every retry of the call would meet the same error."""
        match error:
            case exceptions.ModelQuotaExceededError():
                return self._make_refusal("the account has no quota or credit left: top it up")
            case exceptions.ModelContextWindowExceededError():
                return ModelRefused(
                    f"model {self._name!r}: the context is larger than the model accepts. Lower "
                    "compact_at_bytes in the policy, or compact the thread.",
                    context_too_large=True,
                )
            case exceptions.ModelAuthenticationError():
                return self._make_bad_key(status)
            case exceptions.ContentFilterError():
                return self._make_refusal("the provider's content filter withheld the reply")
            case exceptions.UserError():
                return self._make_refusal(
                    f"the request cannot be made: {_quote_reason(str(error))}"
                )
            case exceptions.ModelRequestRejectedError():
                return self._make_refusal(
                    f"the provider rejects the request: {_quote_reason(error.body)}"
                )
        if status is None or status >= 500 or status in _RETRYABLE_STATUSES:
            return None
        return self._make_refusal(f"the provider answered with status {status}")

    def _make_chat_hint(self) -> str:
        """Return the name to try if the server may lack the Responses API; empty if it is OpenAI's."""
        provider, _, model = self._name.partition(":")
        is_responses = self._named and provider in _RESPONSES_NAMES
        if not is_responses or "//api.openai.com" in (self._model.base_url or ""):
            return ""
        return (
            f". {provider!r} names the Responses API: if the server at OPENAI_BASE_URL speaks only chat "
            f"completions, use 'openai-chat:{model}'"
        )

    def _make_bad_key(self, status: int | None) -> ModelRefused:
        where = _get_key_name(self._name) if self._named else "the key that it was made with"
        return ModelRefused(
            f"the provider refused the API key of model {self._name!r} (status {status}): check {where}"
        )

    def _make_refusal(self, reason: str) -> ModelRefused:
        return ModelRefused(f"model {self._name!r}: {reason}")

    def _make_unavailable(self, reason: str, error: Exception) -> ModelUnavailable:
        asked = getattr(error, "retry_after", None)
        seconds = None if asked is None else min(asked, limits.RETRY_AFTER_SECONDS_MAX)
        return ModelUnavailable(f"model {self._name!r}: {reason}", retry_after_seconds=seconds)

    def _check(self, response: ModelResponse, reply: Reply) -> None:
        """Raise if a reply is incomplete, or empty for a reason that a retry would not change."""
        if response.state == "suspended":
            raise self._make_refusal("background replies are not supported")
        if response.state != "complete" or _is_truncated(response):
            raise ModelUnavailable(f"model {self._name!r}: the reply broke off")
        if reply.text or reply.tool_calls:
            return
        if response.finish_reason == "content_filter":
            raise self._make_refusal("the model or its provider's filter declined to answer")
        if response.finish_reason == "length":
            raise self._make_refusal("the reply was cut off before it began: raise max_tokens")


def _is_truncated(response: ModelResponse) -> bool:
    """Return whether a stream ended early. pydantic-ai streams long replies, and accepts any end."""
    reason = response.finish_reason or (response.provider_details or {}).get("finish_reason")
    return response.provider_name == "anthropic" and not reason


async def _pass_text(events: AsyncIterable[object], on_text: TakeText) -> None:
    """Pass on the text of a reply. Thinking and tool calls are parts of other types."""
    async for event in events:
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            on_text(event.part.content)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            on_text(event.delta.content_delta)


def build_request(instructions: str, messages: Sequence[Message]) -> list[ModelMessage]:
    """Return a conversation that every provider accepts: requests and responses alternate, calls paired.

    A call without a result gets a placeholder, a result without a call becomes text, and no text is
    blank. A provider would reject any of these on every retry, and the thread could never continue.
    """
    found: list[ModelMessage] = []
    for message in _pair_calls(messages):
        if isinstance(message, ModelResponse):
            # The request before this response has expired.
            if not found or isinstance(found[-1], ModelResponse):
                found.append(ModelRequest(parts=[UserPromptPart(NOT_SHOWN)]))
            found.append(message)
        elif found and isinstance(found[-1], ModelRequest):
            found[-1] = ModelRequest(parts=[*found[-1].parts, *message.parts])
        else:
            found.append(message)
    for request in found:
        if isinstance(request, ModelRequest):
            # After a model's calls, their results come before any other part.
            request.parts = sorted(request.parts, key=lambda part: part.part_kind != "tool-return")
            request.instructions = instructions or None
    return found


def _pair_calls(messages: Iterable[Message]) -> Iterator[ModelMessage]:
    waiting: dict[str, str] = {}
    for message in messages:
        if message.role == "tool":
            parts: list[ModelRequestPart]
            if waiting.pop(message.call_id, None) is None:
                text = f"[Result of an earlier call of {message.tool}]\n{message.text}"
                parts = [UserPromptPart(text)]
            else:
                text = message.text if message.text.strip() else NO_OUTPUT
                parts = [ToolReturnPart(message.tool, text, tool_call_id=message.call_id)]
            yield ModelRequest(parts=parts)
            continue
        yield from _answer_open_calls(waiting)
        waiting = {call.id: call.tool for call in message.tool_calls}
        yield _drop_blanks(_to_native(message))
    yield from _answer_open_calls(waiting)


def _answer_open_calls(waiting: Mapping[str, str]) -> Iterator[ModelMessage]:
    for call_id, tool in waiting.items():
        yield ModelRequest(parts=[ToolReturnPart(tool, NOT_RUN, tool_call_id=call_id)])


def _to_native(message: Message) -> ModelMessage:
    try:
        return ModelMessagesTypeAdapter.validate_python([build_body(message)])[0]
    except ValidationError:
        # Stored by another version of pydantic-ai: rebuild it from the text and the calls.
        plain = build_body(dataclasses.replace(message, native=None))
        return ModelMessagesTypeAdapter.validate_python([plain])[0]


def _drop_blanks(message: ModelMessage) -> ModelMessage:
    """Return a message without blank texts; an otherwise empty one gets a placeholder."""
    if not isinstance(message, ModelResponse):
        return message
    kept = [
        part for part in message.parts if not isinstance(part, TextPart) or part.content.strip()
    ]
    # Providers reject a response that ends with thinking.
    if not any(isinstance(part, TextPart | ToolCallPart) for part in kept):
        kept.append(TextPart(NO_OUTPUT))
    return dataclasses.replace(message, parts=kept)


def _build_definition(tool: Tool) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name, description=tool.description, parameters_json_schema=tool.schema
    )


def _build_reply(response: ModelResponse) -> Reply:
    used: set[str] = set()
    for number, part in enumerate(response.parts):
        if isinstance(part, ToolCallPart):
            part.args = _format_arguments(part)
            part.tool_call_id = _make_call_id(part.tool_call_id, number, used)
            used.add(part.tool_call_id)
    # Through bytes, so that text that cannot be encoded fails here, and not when it is stored.
    [body] = json.loads(ModelMessagesTypeAdapter.dump_json([response], exclude_none=True))
    body["usage"] = {key: value for key, value in body["usage"].items() if value}
    message = parse_message(Kind.REPLY, body)
    return Reply(
        text=message.text,
        tool_calls=message.tool_calls,
        tokens=response.usage.total_tokens,
        input_tokens=response.usage.input_tokens,
        cost_usd=_compute_cost_usd(response),
        native=body,
        model=response.model_name or "",
        response_id=response.provider_response_id or "",
        finish_reason=response.finish_reason or "",
    )


def _format_arguments(call: ToolCallPart) -> str:
    """Return the arguments as JSON text. Invalid ones stay unchanged, and the model gets an error."""
    return (call.args if isinstance(call.args, str) else call.args_as_json_str()) or "{}"


def _make_call_id(call_id: str, number: int, used: set[str]) -> str:
    """Return a call's id, or a generated one if it is too long, duplicate, or not portable."""
    if _CALL_ID.fullmatch(call_id) and call_id not in used:
        return call_id
    digest = hashlib.blake2b(call_id.encode(errors="replace"), digest_size=8)
    return f"call_{number}_{digest.hexdigest()}"


def _compute_cost_usd(response: ModelResponse) -> float:
    """Return the cost by pydantic-ai's price list; 0 for a model that is not on it."""
    try:
        return float(response.cost().total_price)
    except (AssertionError, LookupError, ValueError):
        return 0.0


def _build_model(model: object) -> PydanticModel[Any]:
    if isinstance(model, PydanticModel):
        return model
    if not isinstance(model, str):
        raise ConfigError(
            f"a {type(model).__name__} is not a model. Give a name as in 'openai:gpt-5', or a Model of "
            "pydantic-ai."
        )
    try:
        return infer_model(model)
    except ImportError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - clients differ in what they raise for a missing key
        reason = str(error).partition(" To try Pydantic AI without")[0]
        if "`OPENAI_API_KEY`" in reason:
            reason += " A local server needs no key, but its address in OPENAI_BASE_URL."
    raise ConfigError(
        f"model {model!r} cannot be used: {make_printable(reason, _QUOTED_CHARS_MAX * 2)}"
    )


_KEY_NAMES: Final = {
    "azure": "AZURE_OPENAI_API_KEY",
    "bedrock": "the AWS credentials",
    "cohere": "CO_API_KEY",
    "google-cloud": "the Google Cloud credentials",
    "huggingface": "HF_TOKEN",
    "openai-chat": "OPENAI_API_KEY",
    "openai-responses": "OPENAI_API_KEY",
}


def _get_key_name(model: str) -> str:
    provider = model.partition(":")[0]
    return _KEY_NAMES.get(provider) or f"{provider.upper().replace('-', '_')}_API_KEY"


def _quote_reason(body: object) -> str:
    """Return the beginning of the provider's own reason."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    words = inner.get("message", "") if isinstance(inner, dict) else inner
    if isinstance(inner, dict) and not words and isinstance(inner.get("detail"), str):
        words = inner[
            "detail"
        ]  # FastAPI's name, and so vLLM's. As a list, it would repeat the input.
    return make_printable(str(words or "no reason given"), _QUOTED_CHARS_MAX)
