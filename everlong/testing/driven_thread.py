"""`DrivenThread`: the handle of a thread that a test drives.

Its waits are bounded, and end at once with the error if the script, the recording or the approver of the
test is wrong.
"""

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from temporalio.client import Client

from everlong.client.diagnosis import Report
from everlong.client.progress import ThreadProgress
from everlong.client.thread import ThreadHandle
from everlong.errors import NotAnswered
from everlong.models import Approval, Message
from everlong.testing.recorded_spans import RecordedSpans
from everlong.testing.time_skip import skip_time

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolRecord:
    """A tool call of a thread, with its result."""

    tool: str
    arguments: dict[str, Any]
    """The arguments; empty if the model's text was no JSON object."""
    result: str | None
    """What the model read, in full; None while there is no result."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One reply of the model, and the calls that it made."""

    text: str
    calls: tuple[ToolRecord, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadSizes:
    """Sizes of a thread, in bytes."""

    history_bytes: int
    """History of all its runs."""
    stored_bytes: int
    """Objects in the store."""
    context_bytes: int
    """Context of the last model call, and what was added since."""


class FailureWatch:
    """The first error of a test's own parts: its script, its recording, its approver."""

    def __init__(self) -> None:
        self._failed = asyncio.Event()
        self.error: BaseException | None = None
        self.is_raised = False
        """Whether a wait of the test has raised it."""

    def report(self, error: BaseException) -> None:
        """Keep an error, which ends the waits of the test."""
        if self.error is None:
            self.error = error
            self._failed.set()

    async def guard(self, awaitable: Awaitable[T]) -> T:
        """Await something; raise an error that is reported meanwhile instead."""
        work = asyncio.ensure_future(awaitable)
        failing = asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait((work, failing), return_when=asyncio.FIRST_COMPLETED)
            if self.error is not None:
                self.is_raised = True
                raise self.error
            return await work
        finally:
            failing.cancel()
            work.cancel()
            await asyncio.gather(work, failing, return_exceptions=True)


class DrivenThread(ThreadHandle):
    """A thread of the agent that a test runs. It starts with its first message.

    All verbs of `ThreadHandle` are here, such as `ask`, `send`, `decide`, `journal` and `fork`. A wait
    without `seconds_max` is bounded by that of `run_agent`, which makes this handle.
    """

    def __init__(
        self,
        client: Client,
        thread_id: str,
        *,
        task_queue: str,
        agent: str,
        seconds_max: float,
        spans: RecordedSpans,
        failures: FailureWatch,
        restart: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(client, thread_id, task_queue=task_queue)
        self.spans = spans
        """Spans of the worker and of this client."""
        self._agent = agent
        self._seconds_max = seconds_max
        self._failures = failures
        self._restart = restart

    def other(self, thread_id: str) -> "DrivenThread":
        """Return another thread of the same agent and worker, which need not exist yet."""
        return DrivenThread(
            self.client,
            thread_id,
            task_queue=self.task_queue,
            agent=self._agent,
            seconds_max=self._seconds_max,
            spans=self.spans,
            failures=self._failures,
            restart=self._restart,
        )

    async def ask(
        self,
        text: str,
        *,
        agent: str | None = None,
        seconds_max: float | None = None,
        on_progress: Callable[[ThreadProgress], None] | None = None,
        on_wait: Report | None = None,
    ) -> str:
        """Send a message and return the answer. The first message starts the thread."""
        asking = super().ask(
            text,
            agent=agent or self._agent,
            seconds_max=seconds_max or self._seconds_max,
            on_progress=on_progress,
            on_wait=on_wait,
        )
        return await self._failures.guard(asking)

    async def send(
        self,
        text: str,
        *,
        agent: str | None = None,
        message_id: str = "",
        by: str = "",
        seconds_max: float | None = None,
        on_wait: Report | None = None,
        labels: Sequence[str] = (),
    ) -> int:
        """Send a message and return its number, for `wait`. The first message starts the thread."""
        sending = super().send(
            text,
            agent=agent or self._agent,
            message_id=message_id,
            by=by,
            seconds_max=seconds_max or self._seconds_max,
            on_wait=on_wait,
            labels=labels,
        )
        return await self._failures.guard(sending)

    async def wait(
        self,
        number: int | None = None,
        *,
        seconds_max: float | None = None,
        on_progress: Callable[[ThreadProgress], None] | None = None,
        on_wait: Report | None = None,
    ) -> str:
        """Return the answer to a message by its number; without one, to the newest."""
        waiting = super().wait(
            number,
            seconds_max=seconds_max or self._seconds_max,
            on_progress=on_progress,
            on_wait=on_wait,
        )
        return await self._failures.guard(waiting)

    async def wait_until(
        self,
        done: Callable[[ThreadProgress], bool],
        *,
        seconds_max: float | None = None,
        on_progress: Callable[[ThreadProgress], None] | None = None,
    ) -> ThreadProgress:
        """Wait until the thread's progress satisfies `done`."""
        waiting = super().wait_until(
            done, seconds_max=seconds_max or self._seconds_max, on_progress=on_progress
        )
        return await self._failures.guard(waiting)

    async def wait_for_approvals(
        self, count: int = 1, *, seconds_max: float | None = None
    ) -> list[Approval]:
        """Wait until at least this many calls wait for an approval, and return them."""
        await self.wait_until(lambda progress: progress.pending >= count, seconds_max=seconds_max)
        return await self.approvals()

    async def skip_time(self, seconds: float, *, seconds_max: float | None = None) -> None:
        """Move the thread's clock on: deadlines of approvals pass, and an idle thread rests.

        Timers that become due fire in order, and the thread does what follows from them before the clock
        goes on. Only this thread's clock moves: tools, models and their timeouts keep the real time.
        Raises `ConfigError` on a server that does not skip time; the one of `everlong_env` does.
        """
        bound = seconds_max or self._seconds_max
        try:
            async with asyncio.timeout(bound):
                await self._failures.guard(skip_time(self.client, self.id, seconds))
        except TimeoutError:
            raise NotAnswered(
                f"the clock of thread {self.id!r} did not move {seconds:g} s within {bound:g} s. Work "
                "in progress stops it: a model call, a tool, a sub-agent."
            ) from None

    async def restart_worker(self) -> None:
        """Stop the worker and start another, which has no thread in memory.

        The next message resumes the thread: `spans.find("everlong.resume")`.
        """
        await self._restart()

    async def steps(self) -> list[Step]:
        """Return the model's replies in order, each with its tool calls and their results."""
        found: list[tuple[Message, dict[str, str]]] = []
        for message in await self.messages():
            if message.role == "assistant":
                found.append((message, {}))
            elif message.role == "tool" and found:
                found[-1][1][message.call_id] = message.text
        return [_build_step(reply, results) for reply, results in found]

    async def tool_calls(self) -> list[ToolRecord]:
        """Return the tool calls of all steps, in order."""
        return [call for step in await self.steps() for call in step.calls]

    async def sizes(self) -> ThreadSizes:
        """Return the thread's sizes in the history, the store and the context."""
        size, status = await self.size(), await self.status()
        return ThreadSizes(
            history_bytes=size.history_bytes,
            stored_bytes=size.blob_bytes,
            context_bytes=status.context_bytes,
        )


def _build_step(reply: Message, results: dict[str, str]) -> Step:
    calls = tuple(
        ToolRecord(
            tool=call.tool,
            arguments=_parse_arguments(call.arguments),
            result=results.get(call.id),
        )
        for call in reply.tool_calls
    )
    return Step(text=reply.text, calls=calls)


def _parse_arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
