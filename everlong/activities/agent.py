"""The activities of a thread: `everlong.call_model`, `everlong.run_tool`, `everlong.append_journal`.

Each may run more than once for one step (a worker is killed, a result is lost). What they store is
named by its content and counts only once the workflow has the ref, so a second run does no harm to
the thread. A tool's own effects are at-least-once.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from everlong import limits
from everlong.activities.pulse import held, pulse
from everlong.agents import Agent, Reply, Tool
from everlong.models import (
    APPEND_JOURNAL,
    CALL_MODEL,
    HELD,
    RUN_TOOL,
    Append,
    Appended,
    Kind,
    Message,
    ModelCall,
    ModelTurn,
    SegmentRef,
    ToolCall,
    ToolName,
    ToolResult,
    ToolRun,
    printable,
)
from everlong.storage.journal import Journal
from everlong.storage.objects import thread_key
from everlong.storage.packstore import PackStore

# What is wrong with a tool's arguments, as told to the model. Pydantic quotes a part of the input.
_COMPLAINT_CHARS_MAX: Final = 2000


class AgentActivities:
    """The activities of the agents that one worker runs."""

    def __init__(self, packs: PackStore, agents: Iterable[Agent]) -> None:
        self._packs = packs
        self._agents = {agent.name: agent for agent in agents}
        # Tools have threads of their own: one that hangs must not keep the store from its threads.
        self._tool_threads = concurrent.futures.ThreadPoolExecutor(
            limits.TOOL_THREADS_MAX, thread_name_prefix="everlong-tool"
        )

    @activity.defn(name=CALL_MODEL)
    async def call_model(self, call: ModelCall) -> ModelTurn:
        """Load the context, ask the model, and journal the tail and the reply together."""
        agent = self._agent(call.agent)
        journal = self._journal()
        async with pulse() as living:
            entries = [*await living.briefly(lambda: journal.read(call.head)), *call.tail]
            messages = await living.briefly(lambda: journal.messages(entries))
            async with _bounded(f"model of agent {agent.name!r}"):
                reply = _checked(await agent.model.reply(agent.instructions, messages, agent.tools))
            now_ms = _now_ms()

            async def journal_reply() -> tuple[SegmentRef, int]:
                seq = entries[-1].seq + 1
                entry, body_bytes = await journal.message_entry(seq, Kind.REPLY, reply, now_ms)
                head, segment_bytes = await journal.append(call.head, [*call.tail, entry])
                return head, body_bytes + segment_bytes

            head, written_bytes = await living.patiently(journal_reply)
        return ModelTurn(
            head=head,
            tool_calls=tuple(
                ToolName(call_id=each.id, tool=each.tool) for each in reply.tool_calls
            ),
            context_bytes=sum(each.size_bytes for each in entries),
            written_bytes=written_bytes,
        )

    @activity.defn(name=RUN_TOOL)
    async def run_tool(self, run: ToolRun) -> ToolResult:
        """Run one tool call of the newest reply and store what it returns."""
        agent = self._agent(run.agent)
        journal = self._journal()
        async with pulse() as living:
            # The call's arguments may be large, so they come from the journal, not from history.
            newest = await living.briefly(lambda: journal.newest(run.head))
            [reply] = await living.briefly(lambda: journal.messages([newest]))
            call = _find_call(reply, run.call)
            async with _bounded(f"tool {call.tool!r}"):
                text = await self._run(agent, call)
            message = Message(role="tool", text=text, call_id=call.id)
            now_ms = _now_ms()
            entry, written_bytes = await living.patiently(
                lambda: journal.message_entry(run.seq, Kind.TOOL_RESULT, message, now_ms)
            )
        return ToolResult(entry=entry, written_bytes=written_bytes)

    @activity.defn(name=APPEND_JOURNAL)
    async def append_journal(self, append: Append) -> Appended:
        """Journal entries that no model call will."""
        journal = self._journal()
        async with pulse() as living:
            head, written_bytes = await living.briefly(
                lambda: journal.append(append.head, append.entries)
            )
        return Appended(head=head, written_bytes=written_bytes)

    async def _run(self, agent: Agent, call: ToolCall) -> str:
        """Run a tool. What the model got wrong is returned to it; what the tool raises is retried."""
        wanted = agent.tool(call.tool)
        if wanted is None:
            names = [each.name for each in agent.tools]
            return f"error: there is no tool {call.tool!r}. The tools are {names}."
        try:
            parsed = wanted.arguments.model_validate_json(call.arguments or "{}")
        except ValidationError as error:
            return f"error: the arguments do not fit. {error}"[:_COMPLAINT_CHARS_MAX]
        arguments = {name: getattr(parsed, name) for name in wanted.arguments.model_fields}
        text = _utf8(await self._call(wanted, arguments))
        size_bytes = len(to_json(text))
        if size_bytes > limits.TEXT_BYTES_MAX:
            return (
                f"error: the result has {size_bytes} bytes; {limits.TEXT_BYTES_MAX} is the most. Ask "
                "for a part of it."
            )
        return text

    async def _call(self, wanted: Tool, arguments: dict[str, object]) -> str:
        result: object
        if inspect.iscoroutinefunction(wanted.function):
            result = wanted.function(**arguments)
        else:
            # A tool that blocks must not stop the heartbeats, nor other activities.
            blocking = functools.partial(wanted.function, **arguments)
            in_context = functools.partial(contextvars.copy_context().run, blocking)
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._tool_threads, in_context)
        text = await result if inspect.isawaitable(result) else result
        if not isinstance(text, str):
            raise TypeError(
                f"tool {wanted.name!r} returned {type(text).__name__}; a tool returns str"
            )
        return text

    def _agent(self, name: str) -> Agent:
        try:
            return self._agents[name]
        except KeyError:
            raise held(
                f"a worker runs no agent {name!r}, only {sorted(self._agents)}. Start one that has "
                "it, on this task queue."
            ) from None

    def _journal(self) -> Journal:
        info = activity.info()
        return Journal(self._packs, thread_key(info.namespace, info.workflow_id or ""))


@contextlib.asynccontextmanager
async def _bounded(what: str) -> AsyncIterator[None]:
    """Bound a call of the user's code in time, and in what its failure leaves in history.

    How often it is tried is the workflow's retry policy; a user's `ApplicationError` may say no.
    """
    try:
        async with asyncio.timeout(limits.CALL_SECONDS_MAX):
            yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - it is not our code
        activity.logger.warning("%s failed", what, exc_info=True)
        reason = f"{what} failed: {type(error).__name__}: {error}"
        theirs = error if isinstance(error, ApplicationError) else ApplicationError("")
        kind = theirs.type or type(error).__name__
        # The cause is not attached: it may be of any size.
        raise ApplicationError(
            printable(reason, 2 * limits.REASON_CHARS_MAX),
            type=kind if kind != HELD else "ApplicationError",  # That word is ours.
            non_retryable=theirs.non_retryable,
            next_retry_delay=theirs.next_retry_delay,
        ) from None


def _checked(reply: Reply) -> Message:
    """Return a reply as a message that can be stored, or raise what is wrong with it."""
    message = Message(
        role="assistant",
        text=_utf8(reply.text or ""),  # Providers give None beside tool calls.
        tool_calls=tuple(
            ToolCall(id=_utf8(call.id), tool=_utf8(call.tool), arguments=_utf8(call.arguments))
            for call in reply.tool_calls
        ),
    )
    calls = message.tool_calls
    if len(calls) > limits.TOOL_CALLS_MAX:
        raise ValueError(f"it asked for {len(calls)} tools; {limits.TOOL_CALLS_MAX} is the most")
    if len({call.id for call in calls}) != len(calls):
        raise ValueError("it gave two tool calls the same id")
    names = [name for call in calls for name in (call.id, call.tool)]
    if any(not name or len(name) > limits.CALL_NAME_CHARS_MAX for name in names):
        raise ValueError(
            f"it gave a tool call no id or name, or one over {limits.CALL_NAME_CHARS_MAX} characters"
        )
    size_bytes = len(to_json(message))
    if size_bytes > limits.TEXT_BYTES_MAX:
        raise ValueError(f"its reply has {size_bytes} bytes; {limits.TEXT_BYTES_MAX} is the most")
    return message


def _find_call(reply: Message, wanted: ToolName) -> ToolCall:
    for call in reply.tool_calls:
        if call.id == wanted.call_id:
            return call
    raise ApplicationError(
        f"the newest reply of the journal holds no call {wanted.call_id!r}",
        type="CallNotFound",
        non_retryable=True,
    )


def _utf8(text: str) -> str:
    """Replace lone surrogates, as from undecodable bytes: they cannot be stored."""
    return text.encode(errors="replace").decode()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
