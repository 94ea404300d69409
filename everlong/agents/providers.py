"""Models of providers, through pydantic-ai's direct requests. The only file that imports pydantic-ai.

One call is one request: the clients' own retries are off, since Temporal's go on where a worker has
been killed. What a provider sends is kept whole (`Reply.native`), because thinking and its signatures
have to be sent back as they came.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model as PydanticModel
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from everlong import limits
from everlong.agents.model import Reply
from everlong.agents.tools import Tool
from everlong.errors import ConfigError, EverlongError, ModelRefused, ModelUnavailable
from everlong.models import Kind, Message, body_of, message_of, printable

# What is quoted of a provider's own words: enough for a reason, too little for a prompt.
_QUOTED_CHARS_MAX: Final = 200
_RETRYABLE_STATUSES: Final = frozenset({408, 409, 425, 429})

NOT_RUN: Final = "[The turn ended before this call had a result.]"
NOT_SHOWN: Final = "[Earlier messages are not shown.]"
# Anthropic refuses a request in which any text is blank.
NO_OUTPUT: Final = "(no output)"
# What every provider takes: a thread's agent may change its model.
_CALL_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.CALL_NAME_CHARS_MAX}}}")


class ProviderModel:
    """A provider's model. Making one builds the client; nothing is sent before the first `reply`."""

    def __init__(self, model: object, settings: Mapping[str, Any] | None = None) -> None:
        self._named = isinstance(model, str)
        self._model = _built(model)
        self._name = model if isinstance(model, str) else self._model.model_id
        # Settings of a call replace those of the model, so its own word on retries is kept here.
        chosen = {**(self._model.settings or {}), **(settings or {})}
        if "max_retries" not in self._model.unsupported_settings:
            chosen.setdefault("max_retries", 0)
        self._settings = cast("ModelSettings", chosen)
        self._entered = 0

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """See `Model`. A reply may be empty; whether to ask again is for the caller to say.

        Raises `ModelUnavailable`, which is worth another try, and `ModelRefused`.
        """
        request = request_messages(instructions, messages)
        parameters = ModelRequestParameters(
            function_tools=[_definition(each) for each in tools],
            instruction_parts=[InstructionPart(content=instructions)] if instructions else None,
        )
        try:
            # Also after `close`: a client that is closed is replaced only here.
            if not self._entered:
                await self._model.__aenter__()
                self._entered += 1
            response = await model_request(
                self._model,
                request,
                model_settings=self._settings,
                model_request_parameters=parameters,
            )
            reply = _reply_of(response)
        except Exception as error:  # noqa: BLE001 - clients raise anything for a reply they cannot read
            # Not chained: errors of clients hold requests and replies at length.
            raise self._translated(error) from None
        self._check(response, reply)
        return reply

    async def close(self) -> None:
        """Close the client's connections, if it is not the user's own. A later call opens new ones."""
        while self._entered:
            self._entered -= 1
            await self._model.__aexit__(None, None, None)

    def _translated(self, error: Exception) -> EverlongError:
        match error:
            case exceptions.FallbackExceptionGroup():
                every = [self._translated(each) for each in error.exceptions]
                return next(
                    (each for each in every if isinstance(each, ModelUnavailable)), every[0]
                )
            case exceptions.ModelTimeoutError() | exceptions.ModelRequestTimeout():
                return self._unavailable("no reply in time", error)
            case exceptions.ModelConnectionError():
                return self._unavailable("the provider cannot be reached", error)
        status = error.status_code if isinstance(error, exceptions.ModelHTTPError) else None
        if refusal := self._refusal(error, status):
            return refusal
        if status is not None:
            return self._unavailable(f"the provider answered with status {status}", error)
        kind = type(error).__name__
        return self._unavailable(f"the provider gave no usable reply ({kind})", error)

    def _refusal(self, error: Exception, status: int | None) -> ModelRefused | None:
        """Return what to raise for an error that the same call will always meet."""
        match error:
            case exceptions.ModelQuotaExceededError():
                return self._refused("the account has no quota or credit left: top it up")
            case exceptions.ModelContextWindowExceededError():
                return ModelRefused(
                    f"model {self._name!r}: the context is larger than the model takes. Lower "
                    "compact_at_bytes in the policy, or compact the thread.",
                    context_too_large=True,
                )
            case exceptions.ModelAuthenticationError():
                return self._bad_key(status)
            case exceptions.ContentFilterError():
                return self._refused("the provider's content filter withheld the reply")
            case exceptions.UserError():
                return self._refused(f"the request cannot be made: {_said(str(error))}")
            case exceptions.ModelRequestRejectedError():
                return self._refused(f"the provider rejects the request: {_said(error.body)}")
        if status is None or status >= 500 or status in _RETRYABLE_STATUSES:
            return None
        return self._refused(f"the provider answered with status {status}")

    def _bad_key(self, status: int | None) -> ModelRefused:
        where = _key_name(self._name) if self._named else "the key that it was made with"
        return ModelRefused(
            f"the provider refused the API key of model {self._name!r} (status {status}): check {where}"
        )

    def _refused(self, reason: str) -> ModelRefused:
        return ModelRefused(f"model {self._name!r}: {reason}")

    def _unavailable(self, reason: str, error: Exception) -> ModelUnavailable:
        asked = getattr(error, "retry_after", None)
        seconds = None if asked is None else min(asked, limits.RETRY_AFTER_SECONDS_MAX)
        return ModelUnavailable(f"model {self._name!r}: {reason}", retry_after_seconds=seconds)

    def _check(self, response: ModelResponse, reply: Reply) -> None:
        """Raise for a reply that is not all of one, or that another try would not better."""
        if response.state == "suspended":
            raise self._refused("replies that are made in the background are not supported")
        if response.state != "complete" or _broke_off(response):
            raise ModelUnavailable(f"model {self._name!r}: the reply broke off")
        if reply.text or reply.tool_calls:
            return
        if response.finish_reason == "content_filter":
            raise self._refused("the model or its provider's filter declined to answer")
        if response.finish_reason == "length":
            raise self._refused("the reply was cut off before it began: raise max_tokens")


def _broke_off(response: ModelResponse) -> bool:
    """Whether a stream ended early. The library streams what may be long, and takes any end for one."""
    reason = response.finish_reason or (response.provider_details or {}).get("finish_reason")
    return response.provider_name == "anthropic" and not reason


def request_messages(instructions: str, messages: Sequence[Message]) -> list[ModelMessage]:
    """Return a conversation as a provider takes it: requests and responses in turn, calls paired.

    A call without a result gets one that says so, a result without a call becomes text, and no text
    is blank. Each would be refused by a provider, for good, and with it the thread.
    """
    found: list[ModelMessage] = []
    for message in _paired(messages):
        if isinstance(message, ModelResponse):
            # What stood before it, or between two, has expired.
            if not found or isinstance(found[-1], ModelResponse):
                found.append(ModelRequest(parts=[UserPromptPart(NOT_SHOWN)]))
            found.append(message)
        elif found and isinstance(found[-1], ModelRequest):
            found[-1] = ModelRequest(parts=[*found[-1].parts, *message.parts])
        else:
            found.append(message)
    for request in found:
        if isinstance(request, ModelRequest):
            # Results come before anything else that is said to the model after its calls.
            request.parts = sorted(request.parts, key=lambda part: part.part_kind != "tool-return")
            request.instructions = instructions or None
    return found


def _paired(messages: Iterable[Message]) -> Iterator[ModelMessage]:
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
        yield from _unanswered(waiting)
        waiting = {call.id: call.tool for call in message.tool_calls}
        yield _without_blanks(_native(message))
    yield from _unanswered(waiting)


def _unanswered(waiting: Mapping[str, str]) -> Iterator[ModelMessage]:
    for call_id, tool in waiting.items():
        yield ModelRequest(parts=[ToolReturnPart(tool, NOT_RUN, tool_call_id=call_id)])


def _native(message: Message) -> ModelMessage:
    try:
        return ModelMessagesTypeAdapter.validate_python([body_of(message)])[0]
    except ValidationError:
        # Stored by another version of the library: what it said is known without its format.
        plain = body_of(dataclasses.replace(message, native=None))
        return ModelMessagesTypeAdapter.validate_python([plain])[0]


def _without_blanks(message: ModelMessage) -> ModelMessage:
    """Return a message whose texts say something. One that has nothing else to say keeps one."""
    if not isinstance(message, ModelResponse):
        return message
    kept = [
        part for part in message.parts if not isinstance(part, TextPart) or part.content.strip()
    ]
    # A response may not end with its thinking.
    if not any(isinstance(part, TextPart | ToolCallPart) for part in kept):
        kept.append(TextPart(NO_OUTPUT))
    return dataclasses.replace(message, parts=kept)


def _definition(tool: Tool) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name, description=tool.description, parameters_json_schema=tool.schema
    )


def _reply_of(response: ModelResponse) -> Reply:
    used: set[str] = set()
    for number, part in enumerate(response.parts):
        if isinstance(part, ToolCallPart):
            part.args = _arguments(part)
            part.tool_call_id = _call_id(part.tool_call_id, number, used)
            used.add(part.tool_call_id)
    # By way of bytes: what cannot be encoded is found here, and not when it is stored.
    [body] = json.loads(ModelMessagesTypeAdapter.dump_json([response], exclude_none=True))
    body["usage"] = {key: value for key, value in body["usage"].items() if value}
    message = message_of(Kind.REPLY, body)
    return Reply(
        text=message.text,
        tool_calls=message.tool_calls,
        tokens=response.usage.total_tokens,
        input_tokens=response.usage.input_tokens,
        cost_usd=_cost_usd(response),
        native=body,
        model=response.model_name or "",
        response_id=response.provider_response_id or "",
        finish_reason=response.finish_reason or "",
    )


def _arguments(call: ToolCallPart) -> str:
    """Return the arguments as JSON text. What a model wrote wrongly stays as it is: it is told so."""
    return (call.args if isinstance(call.args, str) else call.args_as_json_str()) or "{}"


def _call_id(call_id: str, number: int, used: set[str]) -> str:
    """Return the id of a call, or one of ours if it is too long, odd, or there twice."""
    if _CALL_ID.fullmatch(call_id) and call_id not in used:
        return call_id
    digest = hashlib.blake2b(call_id.encode(errors="replace"), digest_size=8)
    return f"call_{number}_{digest.hexdigest()}"


def _cost_usd(response: ModelResponse) -> float:
    """Return the price by the list that the library brings along; 0 for what is not on it."""
    try:
        return float(response.cost().total_price)
    except (AssertionError, LookupError, ValueError):
        return 0.0


def _built(model: object) -> PydanticModel[Any]:
    if isinstance(model, PydanticModel):
        return model
    if not isinstance(model, str):
        raise ConfigError(
            f"a {type(model).__name__} is no model. Give a name as in 'openai:gpt-5', or a Model of "
            "pydantic-ai."
        )
    try:
        return infer_model(model)
    except ImportError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - clients differ in what they raise for a missing key
        reason = str(error).partition(" To try Pydantic AI without")[0]
    raise ConfigError(f"model {model!r} cannot be used: {printable(reason, _QUOTED_CHARS_MAX * 2)}")


_KEY_NAMES: Final = {
    "azure": "AZURE_OPENAI_API_KEY",
    "bedrock": "the AWS credentials",
    "cohere": "CO_API_KEY",
    "google-cloud": "the Google Cloud credentials",
    "huggingface": "HF_TOKEN",
    "openai-chat": "OPENAI_API_KEY",
    "openai-responses": "OPENAI_API_KEY",
}


def _key_name(model: str) -> str:
    provider = model.partition(":")[0]
    return _KEY_NAMES.get(provider) or f"{provider.upper().replace('-', '_')}_API_KEY"


def _said(body: object) -> str:
    """Return the provider's own reason, and not much of it."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    words = inner.get("message", "") if isinstance(inner, dict) else inner
    return printable(str(words or "no reason given"), _QUOTED_CHARS_MAX)
