"""Model calls, told of by the GenAI conventions."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from opentelemetry.trace import SpanKind
from pydantic_core import to_json

from everlong import limits
from everlong.activities.builtins import BUILTINS
from everlong.activities.replies import check_costs, checked
from everlong.activities.user_code import bounded
from everlong.agents import Agent, Reply
from everlong.models import Context, Message
from everlong.telemetry.spans import AGENT, CHAT, PROVIDER, get_error_type
from everlong.telemetry.steps import StepRecorder, get_provider_and_model

_ROLES: Final = {"failure": "user"}


async def chat(
    recorder: StepRecorder, agent: Agent, context: Context, messages: Sequence[Message]
) -> tuple[Reply, Message]:
    """Ask the model; return its reply, and that as a message that can be stored."""
    tools = (*agent.callable_tools, *BUILTINS)

    async def ask() -> tuple[Reply, Message]:
        async with bounded(f"model of agent {agent.name!r}"):
            reply = await agent.resolved_model.reply(agent.instructions, messages, tools)
            return reply, checked(reply)

    return await _told(recorder, agent, context, messages, ask)


async def summarise(
    recorder: StepRecorder, agent: Agent, context: Context, messages: Sequence[Message]
) -> Reply:
    """Ask the model for a summary, with no tools."""

    async def ask() -> tuple[Reply, Message]:
        async with bounded(f"summary by the model of agent {agent.name!r}"):
            reply = await agent.resolved_model.reply(agent.instructions, messages, ())
            check_costs(reply)
            return reply, Message(role="assistant", text=reply.text)

    reply, _ = await _told(recorder, agent, context, messages, ask)
    return reply


async def _told(
    recorder: StepRecorder,
    agent: Agent,
    context: Context,
    messages: Sequence[Message],
    ask: Callable[[], Awaitable[tuple[Reply, Message]]],
) -> tuple[Reply, Message]:
    provider, model = get_provider_and_model(agent)
    attributes = {
        "gen_ai.operation.name": CHAT,
        "gen_ai.request.model": model,
        PROVIDER: provider,
    }
    labels = {**attributes, AGENT: agent.name}
    attributes["gen_ai.output.type"] = "text"  # Agents ask for nothing else.
    meters = recorder.telemetry.meters
    started = time.monotonic()
    try:
        with recorder.open_span(f"{CHAT} {model}", context, attributes, SpanKind.CLIENT) as span:
            reply, message = await ask()
            output_tokens = max(0, reply.tokens - reply.input_tokens)
            if span.is_recording():
                span.set_attributes(_answered(reply, message))
                if recorder.telemetry.record_contents:
                    span.set_attributes(_said(agent, messages, message))
            # In the span: it is what their exemplars lead to.
            for kind, tokens in (("input", reply.input_tokens), ("output", output_tokens)):
                usage = {**labels, "gen_ai.token.type": kind}
                meters.record("gen_ai.client.token.usage", tokens, usage)
            if reply.cost_usd:
                cost = {"agent": agent.name, "model": model}
                meters.add("everlong.cost", reply.cost_usd, cost)
            seconds = time.monotonic() - started
            meters.record("gen_ai.client.operation.duration", seconds, labels)
    except BaseException as error:
        failed = {**labels, "error.type": get_error_type(error)}
        seconds = time.monotonic() - started
        meters.record("gen_ai.client.operation.duration", seconds, failed)
        raise
    return reply, message


def _answered(reply: Reply, message: Message) -> dict[str, Any]:
    """Return what a span tells of a reply, apart from its contents."""
    return {
        "gen_ai.usage.input_tokens": reply.input_tokens,
        "gen_ai.usage.output_tokens": max(0, reply.tokens - reply.input_tokens),
        "everlong.cost_usd": reply.cost_usd,
        "everlong.tool_calls": len(message.tool_calls),
        **({"gen_ai.response.model": reply.model} if reply.model else {}),
        **({"gen_ai.response.id": reply.response_id} if reply.response_id else {}),
        **(
            {"gen_ai.response.finish_reasons": [reply.finish_reason]} if reply.finish_reason else {}
        ),
    }


def _said(agent: Agent, messages: Sequence[Message], message: Message) -> dict[str, Any]:
    """Return the contents of a model call."""
    return {
        "gen_ai.system_instructions": agent.instructions[: limits.CONTENTS_BYTES_MAX],
        "gen_ai.input.messages": contents(messages),
        "gen_ai.output.messages": contents([message]),
    }


def contents(messages: Sequence[Message]) -> str:
    """Return messages as the conventions write them: the newest, as many as a span should hold."""
    found: list[bytes] = []
    left_bytes = limits.CONTENTS_BYTES_MAX
    for message in reversed(messages):
        written = to_json(_content(message))
        left_bytes -= len(written) + 1
        if left_bytes < 0:
            break
        found.append(written)
    return "[" + ",".join(each.decode() for each in reversed(found)) + "]"


def _content(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if message.role == "tool":
        parts.append(
            {"type": "tool_call_response", "id": message.call_id, "response": message.text}
        )
    elif message.text:
        parts.append({"type": "text", "content": message.text})
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.tool, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return {"role": _ROLES.get(message.role, message.role), "parts": parts}
