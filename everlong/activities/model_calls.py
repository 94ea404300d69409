"""Model calls: builds the context, calls the model, checks its reply, and records both.

Spans and metrics follow OpenTelemetry's GenAI conventions.
"""

import asyncio
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from opentelemetry.trace import SpanKind
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from everlong import compaction, limits
from everlong.activities.builtin_tools import BUILTINS, find_builtin
from everlong.activities.tool_calls import ToolThreads, bound_call
from everlong.agents import Agent, Reply, TakeText, Tool, can_stream
from everlong.agents.agent import RESERVED_NAMES
from everlong.models import (
    CallOptions,
    Context,
    Message,
    ModelCall,
    StepInfo,
    ToolCall,
    WantedCall,
    call_digest,
    make_printable,
)
from everlong.policy import Policy
from everlong.storage.context_store import LoadedContext
from everlong.telemetry.spans import AGENT, CHAT, PROVIDER, ResumeSummary, get_error_type
from everlong.telemetry.steps import StepRecorder, get_provider_and_model

# Replies.

# Attempts at a model whose reply is empty, since it may have been cut off. Then the turn ends.
_EMPTY_REPLIES_MAX = 3


def check_reply(reply: Reply) -> Message:
    """Return a reply as a message that can be stored; raise if it cannot be used."""
    message = Message(
        role="assistant",
        text=_replace_surrogates(reply.text or ""),  # Providers give None if there are tool calls.
        tool_calls=tuple(
            ToolCall(
                id=_replace_surrogates(call.id),
                tool=_replace_surrogates(call.tool),
                arguments=_replace_surrogates(call.arguments),
            )
            for call in reply.tool_calls
        ),
        native=reply.native,
    )
    calls = message.tool_calls
    if not calls and not message.text.strip():
        raise ApplicationError(
            "its reply is empty",
            type="EmptyReply",
            non_retryable=activity.info().attempt >= _EMPTY_REPLIES_MAX,
        )
    if len(calls) > limits.TOOL_CALLS_MAX:
        raise ValueError(
            f"its reply has {len(calls)} tool calls; the maximum is {limits.TOOL_CALLS_MAX}"
        )
    if len({call.id for call in calls}) != len(calls):
        raise ValueError("it gave two tool calls the same id")
    names = [name for call in calls for name in (call.id, call.tool)]
    if any(not name or len(name) > limits.CALL_NAME_CHARS_MAX for name in names):
        raise ValueError(
            f"it gave a tool call no id or name, or one over {limits.CALL_NAME_CHARS_MAX} characters"
        )
    check_costs(reply)
    size_bytes = len(to_json(message))
    if size_bytes > limits.TEXT_BYTES_MAX:
        raise ValueError(
            f"its reply has {size_bytes} bytes; the maximum is {limits.TEXT_BYTES_MAX}"
        )
    return message


def check_costs(reply: Reply) -> None:
    """Reject negative token counts and non-finite costs."""
    if reply.tokens < 0 or not 0 <= reply.cost_usd < math.inf:
        raise ValueError(f"it reports {reply.tokens} tokens and a cost of {reply.cost_usd} dollars")


async def build_wanted_calls(
    agent: Agent, calls: Sequence[ToolCall], threads: ToolThreads, policy: Policy
) -> tuple[WantedCall, ...]:
    """Return the calls in the form that the workflow gets.

    A team's own function may decide whether a call needs approval. It runs in a thread, with a timeout.
    """
    if not any(_has_rule(agent, call) for call in calls):
        return tuple(_build_wanted_call(agent, call, policy) for call in calls)
    try:
        async with asyncio.timeout(limits.APPROVAL_RULE_SECONDS_MAX):
            return tuple(
                [
                    await threads.run(partial(_build_wanted_call, agent, call, policy))
                    for call in calls
                ]
            )
    except TimeoutError:
        activity.logger.warning("needs_approval timed out; approval is required")
        return tuple(_build_wanted_call(agent, call, policy, unsure=True) for call in calls)


def _has_rule(agent: Agent, call: ToolCall) -> bool:
    """Return whether a function decides if a call needs approval."""
    tool = find_builtin(call.tool) or agent.find_tool(call.tool)
    return tool is not None and not isinstance(tool.needs_approval, bool)


def _build_wanted_call(
    agent: Agent, call: ToolCall, policy: Policy, *, unsure: bool = False
) -> WantedCall:
    tool = find_builtin(call.tool) or agent.find_tool(call.tool)
    if tool is None:
        options = CallOptions()
    elif unsure:
        ruled = tool.needs_approval is not False
        options = dataclasses.replace(tool.call_options, needs_approval=ruled)
    else:
        options = tool.options(call.arguments)
    if tool is not None and call.tool not in RESERVED_NAMES:
        options = _apply_rules(tool, call, options, policy)
    asks = options.needs_approval or options.once
    return WantedCall(
        call_id=call.id,
        tool=call.tool,
        preview=make_printable(call.arguments, limits.CALL_PREVIEW_CHARS_MAX) if asks else "",
        digest=call_digest(call.tool, call.arguments),
        options=options,
    )


def _apply_rules(tool: Tool, call: ToolCall, options: CallOptions, policy: Policy) -> CallOptions:
    """Return a call's options with the approvals that the policy asks for in addition."""
    needed = policy.count_approvals(tool.name)
    if not needed:
        return options
    try:
        tool.parse(call.arguments)
    except Exception:  # noqa: BLE001 - user code; the call is rejected, or refused before it runs
        return options
    # 0 stands for all approvers, and no policy can ask for more people than these.
    most = options.approvals_needed and max(options.approvals_needed, needed)
    return dataclasses.replace(options, needs_approval=True, approvals_needed=most)


def build_step_info(call: ModelCall, context_bytes: int, resumed: ResumeSummary) -> StepInfo:
    """Return what the journal records of a model call in addition to the reply."""
    return StepInfo(
        number=call.steps,
        thread_bytes=call.thread_bytes,
        context_bytes=context_bytes,
        resume_ms=round(resumed.ms, 1),
        resume_cause=resumed.cause,
        resume_events=resumed.events,
    )


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, for example from undecodable bytes: they cannot be stored."""
    return text.encode(errors="replace").decode()


# The context of a model call.


def build_messages(past: LoadedContext, agent: Agent) -> list[Message]:
    """Return the messages that the model reads."""

    def result_bytes_max(name: str) -> int:
        tool = find_builtin(name) or agent.find_tool(name)
        return limits.SHOWN_BYTES_MAX if tool is None else tool.max_result_bytes

    return compaction.build_context(
        past.base, past.items, past.policy, past.now_ms, result_bytes_max
    )


def find_evicted(past: LoadedContext) -> tuple[str, ...]:
    """Return the keys of facts beyond the caps that no entry has recorded as evicted.

    Parallel calls of one reply do not see each other's facts, so together they can exceed the caps.
    """
    no_caps = past.policy.with_changes(
        {"memory_facts_max": 1000, "memory_bytes_max": 64 * limits.KIB}
    )
    added = compaction.list_facts(past.base, past.items, no_caps, past.now_ms)
    held = {
        fact.key for fact in compaction.list_facts(past.base, past.items, past.policy, past.now_ms)
    }
    gone = [fact.key for fact in added if fact.key not in held]
    return tuple(gone[: limits.EXPIRED_KEYS_MAX])


# Roles of the conventions. A provider gets a compacted past as the first message of the user.
_ROLES: Final = {"failure": "user", "summary": "user"}


async def chat(
    recorder: StepRecorder,
    agent: Agent,
    context: Context,
    messages: Sequence[Message],
    on_text: TakeText | None = None,
    *,
    compacted: bool = False,
) -> tuple[Reply, Message]:
    """Call the model; return its reply, and the reply as a message that can be stored.

    `on_text` takes the text while it comes, if the model can stream. `compacted` says whether the
    messages begin with a compacted past.
    """
    tools = (*agent.callable_tools, *BUILTINS)

    async def ask() -> tuple[Reply, Message]:
        model = agent.resolved_model
        async with bound_call(f"model of agent {agent.name!r}"):
            if on_text is not None and can_stream(model):
                reply = await model.stream_reply(agent.instructions, messages, tools, on_text)
            else:
                reply = await model.reply(agent.instructions, messages, tools)
            return reply, check_reply(reply)

    return await _record_model_call(recorder, agent, context, messages, ask, compacted=compacted)


async def summarise(
    recorder: StepRecorder, agent: Agent, context: Context, messages: Sequence[Message]
) -> Reply:
    """Ask the model for a summary, with no tools."""

    async def ask() -> tuple[Reply, Message]:
        async with bound_call(f"summary by the model of agent {agent.name!r}"):
            reply = await agent.resolved_model.reply(agent.instructions, messages, ())
            check_costs(reply)
            return reply, Message(role="assistant", text=reply.text)

    reply, _ = await _record_model_call(recorder, agent, context, messages, ask)
    return reply


async def _record_model_call(
    recorder: StepRecorder,
    agent: Agent,
    context: Context,
    messages: Sequence[Message],
    ask: Callable[[], Awaitable[tuple[Reply, Message]]],
    *,
    compacted: bool = False,
) -> tuple[Reply, Message]:
    provider, model = get_provider_and_model(agent)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": CHAT,
        "gen_ai.request.model": model,
        PROVIDER: provider,
    }
    labels = {**attributes, AGENT: agent.name}
    attributes["gen_ai.output.type"] = "text"  # Agents request no other type.
    if compacted:  # The conventions know only true: without the attribute nothing is known.
        attributes["gen_ai.conversation.compacted"] = True
    meters = recorder.telemetry.meters
    started = time.monotonic()
    try:
        with recorder.open_span(f"{CHAT} {model}", context, attributes, SpanKind.CLIENT) as span:
            reply, message = await ask()
            output_tokens = max(0, reply.tokens - reply.input_tokens)
            if span.is_recording():
                span.set_attributes(_describe_reply(reply, message))
                if recorder.telemetry.record_contents:
                    span.set_attributes(_describe_contents(agent, messages, message))
            # Inside the span, so that the exemplars of these metrics point to it.
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


def _describe_reply(reply: Reply, message: Message) -> dict[str, Any]:
    """Return the span attributes of a reply, without its contents."""
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


def _describe_contents(
    agent: Agent, messages: Sequence[Message], message: Message
) -> dict[str, Any]:
    """Return the span attributes with the contents of a model call."""
    return {
        "gen_ai.system_instructions": agent.instructions[: limits.CONTENTS_BYTES_MAX],
        "gen_ai.input.messages": format_contents(messages),
        "gen_ai.output.messages": format_contents([message]),
    }


def format_contents(messages: Sequence[Message]) -> str:
    """Return messages in the format of the conventions: the newest, up to `CONTENTS_BYTES_MAX`."""
    found: list[bytes] = []
    left_bytes = limits.CONTENTS_BYTES_MAX
    for message in reversed(messages):
        written = to_json(_build_content(message))
        left_bytes -= len(written) + 1
        if left_bytes < 0:
            break
        found.append(written)
    return "[" + ",".join(each.decode() for each in reversed(found)) + "]"


def _build_content(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if message.role == "tool":
        parts.append(
            {"type": "tool_call_response", "id": message.call_id, "response": message.text}
        )
    elif message.text:
        kind = "compaction" if message.role == "summary" else "text"
        parts.append({"type": kind, "content": message.text})
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.tool, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return {"role": _ROLES.get(message.role, message.role), "parts": parts}
