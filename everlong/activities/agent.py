"""The activities of a thread: `everlong.call_model`, `everlong.run_tool`, `everlong.append_journal`.

Each may run more than once for one step (a worker is killed, a result is lost). What they store is
named by its content and counts only once the workflow has the ref, so a second run does no harm to
the thread. A tool's own effects are at-least-once.
"""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Iterable, Iterator

from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from everlong import limits
from everlong.activities.heartbeat import heartbeating
from everlong.agents import Agent, Reply
from everlong.models import (
    APPEND_JOURNAL,
    CALL_MODEL,
    RUN_TOOL,
    Append,
    Appended,
    Kind,
    Message,
    ModelCall,
    ModelTurn,
    ToolCall,
    ToolName,
    ToolResult,
    ToolRun,
)
from everlong.storage import BlobStore
from everlong.storage.journal import Journal
from everlong.storage.objects import thread_key


class AgentActivities:
    """The activities of the agents that one worker runs."""

    def __init__(self, store: BlobStore, agents: Iterable[Agent]) -> None:
        self._store = store
        self._agents = {agent.name: agent for agent in agents}

    @activity.defn(name=CALL_MODEL)
    async def call_model(self, call: ModelCall) -> ModelTurn:
        """Load the context, ask the model, and journal the tail and the reply with one PUT."""
        agent = self._agent(call.agent)
        journal = self._journal()
        async with heartbeating():
            entries = [*await journal.read(call.head), *call.tail]
            messages = await journal.messages(entries)
            with _bounded_attempts(f"model of agent {agent.name!r}"):
                reply = _checked(await agent.model.reply(agent.instructions, messages, agent.tools))
            message = Message(role="assistant", text=reply.text, tool_calls=reply.tool_calls)
            seq = entries[-1].seq + 1
            entry, body_bytes = await journal.message_entry(seq, Kind.REPLY, message, _now_ms())
            head, segment_bytes = await journal.append(call.head, [*call.tail, entry])
        return ModelTurn(
            head=head,
            tool_calls=tuple(
                ToolName(call_id=each.id, tool=each.tool) for each in reply.tool_calls
            ),
            context_bytes=sum(each.size_bytes for each in entries),
            written_bytes=body_bytes + segment_bytes,
        )

    @activity.defn(name=RUN_TOOL)
    async def run_tool(self, run: ToolRun) -> ToolResult:
        """Run one tool call of the newest reply and store what it returns."""
        agent = self._agent(run.agent)
        journal = self._journal()
        async with heartbeating():
            # The call's arguments may be large, so they come from the journal, not from history.
            [reply] = await journal.messages([await journal.newest(run.head)])
            call = next(each for each in reply.tool_calls if each.id == run.call.call_id)
            with _bounded_attempts(f"tool {call.tool!r}"):
                text = await _run(agent, call)
            message = Message(role="tool", text=text, call_id=call.id)
            entry, written_bytes = await journal.message_entry(
                run.seq, Kind.TOOL_RESULT, message, _now_ms()
            )
        return ToolResult(entry=entry, written_bytes=written_bytes)

    @activity.defn(name=APPEND_JOURNAL)
    async def append_journal(self, append: Append) -> Appended:
        """Journal entries that no model call will."""
        async with heartbeating():
            head, written_bytes = await self._journal().append(append.head, append.entries)
        return Appended(head=head, written_bytes=written_bytes)

    def _agent(self, name: str) -> Agent:
        try:
            return self._agents[name]
        except KeyError:
            # Retried: a worker that has the agent may take the next attempt.
            raise ApplicationError(
                f"this worker runs no agent {name!r}, only {sorted(self._agents)}. Start a worker "
                "that has it, on this task queue.",
                type="AgentNotFound",
            ) from None

    def _journal(self) -> Journal:
        info = activity.info()
        return Journal(self._store, thread_key(info.namespace, info.workflow_id or ""))


@contextlib.contextmanager
def _bounded_attempts(what: str) -> Iterator[None]:
    """Let what fails be retried, but not for ever. Store faults are outside, and hold the thread."""
    try:
        yield
    except Exception as error:
        attempts = activity.info().attempt
        if attempts < limits.ACTIVITY_ATTEMPTS_MAX:
            raise
        raise ApplicationError(
            f"{what} failed {attempts} times, last with {type(error).__name__}: {error}",
            type="GaveUp",
            non_retryable=True,
        ) from error


def _checked(reply: Reply) -> Reply:
    if len(reply.tool_calls) > limits.TOOL_CALLS_MAX:
        raise ApplicationError(
            f"the model asked for {len(reply.tool_calls)} tools at once; {limits.TOOL_CALLS_MAX} is "
            "the most that one step runs",
            type="TooManyToolCalls",
        )
    names = [name for call in reply.tool_calls for name in (call.id, call.tool)]
    if any(not name or len(name) > limits.CALL_NAME_CHARS_MAX for name in names):
        raise ApplicationError(
            "the model gave a tool call no id or name, or one of more than "
            f"{limits.CALL_NAME_CHARS_MAX} characters",
            type="BadToolCall",
        )
    if len({call.id for call in reply.tool_calls}) != len(reply.tool_calls):
        raise ApplicationError("the model gave two tool calls the same id", type="BadToolCall")
    return reply


async def _run(agent: Agent, call: ToolCall) -> str:
    """Run a tool. What the model got wrong is returned to it; what the tool raises is retried."""
    wanted = agent.tool(call.tool)
    if wanted is None:
        names = [each.name for each in agent.tools]
        return f"error: there is no tool {call.tool!r}. The tools are {names}."
    try:
        parsed = wanted.arguments.model_validate_json(call.arguments or "{}")
    except ValidationError as error:
        return f"error: the arguments do not fit. {error}"
    arguments = {name: getattr(parsed, name) for name in wanted.arguments.model_fields}
    result: object
    if inspect.iscoroutinefunction(wanted.function):
        result = wanted.function(**arguments)
    else:
        # A tool that blocks must not stop the heartbeats, nor other activities.
        result = await asyncio.to_thread(wanted.function, **arguments)
    text = await result if inspect.isawaitable(result) else result
    if not isinstance(text, str):
        raise TypeError(f"tool {wanted.name!r} returned {type(text).__name__}; a tool returns str")
    return text


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
