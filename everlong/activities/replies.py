"""What comes back from a model: checked, journalled, and looked up again when its tools run."""

import asyncio
import dataclasses
import hashlib
import math
from collections.abc import Sequence
from functools import partial

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from everlong import limits
from everlong.activities.builtins import builtin
from everlong.activities.user_code import ToolThreads
from everlong.agents import Agent, CallInfo, Reply, Tool
from everlong.models import (
    CallOptions,
    Kind,
    Message,
    ModelCall,
    SegmentRef,
    StepInfo,
    ToolCall,
    ToolRun,
    WantedCall,
    call_digest,
    printable,
)
from everlong.storage.history import Reader
from everlong.telemetry.resumes import ResumeSummary

# What is wrong with a tool's arguments, as told to the model. Pydantic quotes a part of the input.
_COMPLAINT_CHARS_MAX = 2000
# A model that says nothing is asked again: it may have been cut off. Then the turn ends.
_EMPTY_REPLIES_MAX = 3


def checked(reply: Reply) -> Message:
    """Return a reply as a message that can be stored, or raise what is wrong with it."""
    message = Message(
        role="assistant",
        text=_utf8(reply.text or ""),  # Providers give None beside tool calls.
        tool_calls=tuple(
            ToolCall(id=_utf8(call.id), tool=_utf8(call.tool), arguments=_utf8(call.arguments))
            for call in reply.tool_calls
        ),
        native=reply.native,
    )
    calls = message.tool_calls
    if not calls and not message.text.strip():
        raise ApplicationError(
            "it answered with nothing",
            type="EmptyReply",
            non_retryable=activity.info().attempt >= _EMPTY_REPLIES_MAX,
        )
    if len(calls) > limits.TOOL_CALLS_MAX:
        raise ValueError(f"it asked for {len(calls)} tools; {limits.TOOL_CALLS_MAX} is the most")
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
        raise ValueError(f"its reply has {size_bytes} bytes; {limits.TEXT_BYTES_MAX} is the most")
    return message


def check_costs(reply: Reply) -> None:
    """Raise if what a reply says that it has cost cannot be counted."""
    if reply.tokens < 0 or not 0 <= reply.cost_usd < math.inf:
        raise ValueError(f"it says that it took {reply.tokens} tokens and {reply.cost_usd} dollars")


async def all_wanted(
    agent: Agent, calls: Sequence[ToolCall], threads: ToolThreads
) -> tuple[WantedCall, ...]:
    """Return calls as the workflow hears of them.

    What says whether one needs approval may be a team's own function, so it has a thread, and a bound.
    """
    if not any(_has_rule(agent, call) for call in calls):
        return tuple(_wanted(agent, call) for call in calls)
    try:
        async with asyncio.timeout(limits.APPROVAL_RULE_SECONDS_MAX):
            return tuple([await threads.run(partial(_wanted, agent, call)) for call in calls])
    except TimeoutError:
        activity.logger.warning("needs_approval takes too long; a person is asked")
        return tuple(_wanted(agent, call, unsure=True) for call in calls)


async def lacks_approval(tool: Tool, run: ToolRun, call: ToolCall, threads: ToolThreads) -> bool:
    """Tell whether a person has yet to be asked about a call.

    Whether it is so was found out where the reply came in: maybe by a worker that did not have the
    tool, or of a release in which it did not ask.
    """
    if run.approved or tool.needs_approval is False:
        return False
    try:
        async with asyncio.timeout(limits.APPROVAL_RULE_SECONDS_MAX):
            return (await threads.run(partial(tool.options, call.arguments))).needs_approval
    except TimeoutError:
        return True


def _has_rule(agent: Agent, call: ToolCall) -> bool:
    """Tell whether a function decides if a call needs approval."""
    tool = builtin(call.tool) or agent.tool(call.tool)
    return tool is not None and not isinstance(tool.needs_approval, bool)


def _wanted(agent: Agent, call: ToolCall, *, unsure: bool = False) -> WantedCall:
    tool = builtin(call.tool) or agent.tool(call.tool)
    if tool is None:
        options = CallOptions()
    elif unsure:
        ruled = tool.needs_approval is not False
        options = dataclasses.replace(tool.call_options, needs_approval=ruled)
    else:
        options = tool.options(call.arguments)
    asks = options.needs_approval
    return WantedCall(
        call_id=call.id,
        tool=call.tool,
        preview=printable(call.arguments, limits.CALL_PREVIEW_CHARS_MAX) if asks else "",
        digest=call_digest(call.tool, call.arguments),
        options=options,
    )


def step_info(call: ModelCall, context_bytes: int, resumed: ResumeSummary) -> StepInfo:
    """Return what the journal says of a model call, beside the reply."""
    return StepInfo(
        number=call.steps,
        thread_bytes=call.thread_bytes,
        context_bytes=context_bytes,
        resume_ms=round(resumed.ms, 1),
        resume_cause=resumed.cause,
        resume_events=resumed.events,
    )


async def find_call(reader: Reader, run: ToolRun) -> tuple[SegmentRef, ToolCall]:
    """Return the call with its arguments, from the newest reply of the journal."""
    head = run.context.head
    if head is None:
        raise _no_call(run)
    entry = await reader.journal.last(head, Kind.REPLY)
    messages = [] if entry is None else await reader.journal.messages([entry])
    for message in messages:
        for call in message.tool_calls:
            if call.id == run.call_id:
                return head, call
    raise _no_call(run)


def call_info(agent: Agent, head: SegmentRef, call: ToolCall) -> CallInfo:
    """Return what a tool may know of its call."""
    info = activity.info()
    thread_id = info.workflow_id or ""
    # The journal's head names all that led to the call: another branch has another.
    name = f"{info.namespace}\0{thread_id}\0{head.ref.digest}\0{call.id}"
    return CallInfo(
        thread_id=thread_id,
        agent=agent.name,
        call_id=call.id,
        idempotency_key=hashlib.blake2b(name.encode(), digest_size=16).hexdigest(),
        attempt=info.attempt,
    )


def complaint(error: ValidationError) -> str:
    """Say to a model what is wrong with its arguments."""
    return f"the arguments do not fit. {error}"[:_COMPLAINT_CHARS_MAX]


def _no_call(run: ToolRun) -> ApplicationError:
    return ApplicationError(
        f"the newest reply of the journal holds no call {run.call_id!r}",
        type="CallNotFound",
        non_retryable=True,
    )


def _utf8(text: str) -> str:
    """Replace lone surrogates, as from undecodable bytes: they cannot be stored."""
    return text.encode(errors="replace").decode()
