"""Driver of one thread for tests, with invariants that it checks of every thread at the end."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Protocol

from temporalio.client import WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer

from everlong import Agent, Policy, Reply, limits
from everlong.embedded import TemporalServer
from everlong.models import (
    CONFIGURE_UPDATE,
    DECIDE_UPDATE,
    PENDING_QUERY,
    STATUS_QUERY,
    STOP_SIGNAL,
    Approval,
    Configure,
    Decide,
    Entry,
    Kind,
    Message,
    ThreadStatus,
    ToolCall,
    thread_key,
)
from everlong.storage import BlobStore
from everlong.storage.journal import Journal
from everlong.testing import ScriptedModel
from everlong.workflows import AgentWorkflow
from tests.support.scripted_agents import results
from tests.support.threads import Threads, open_threads

MESSAGES = {Kind.MESSAGE, Kind.REPLY, Kind.TOOL_RESULT, Kind.FAILURE}


def call_then_answer(*calls: ToolCall) -> ScriptedModel:
    """Return a model that calls these tools in one reply, and answers with their results."""

    def script(turn: Sequence[Message]) -> Reply:
        seen = results(turn)
        return Reply(text=" | ".join(seen)) if seen else Reply(tool_calls=calls)

    return ScriptedModel(script)


@dataclasses.dataclass
class DrivenThread:
    """One thread that a test drives."""

    threads: Threads
    thread_id: str

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self.threads.client.get_workflow_handle(self.thread_id, result_type=ThreadStatus)

    def other(self, thread_id: str) -> "DrivenThread":
        return DrivenThread(self.threads, thread_id)

    # Actions of users.

    async def send(self, text: str = "go") -> int:
        return await self.threads.send(self.thread_id, text)

    async def ask(self, text: str = "go") -> str:
        return await self.answer(await self.send(text))

    async def decide(
        self, approval_id: str, approve: bool = True, by: str = "alice", reason: str = ""
    ) -> None:
        decision = Decide(id=approval_id, approve=approve, by=by, reason=reason)
        await self.handle.execute_update(DECIDE_UPDATE, decision)

    async def configure(self, by: str = "", reason: str = "", **changes: Any) -> None:
        argument = Configure(changes=changes, by=by, reason=reason)
        await self.handle.execute_update(CONFIGURE_UPDATE, argument)

    async def stop(self) -> ThreadStatus:
        await self.handle.signal(STOP_SIGNAL)
        return await self.result()

    async def result(self, seconds: float = 90) -> ThreadStatus:
        status: ThreadStatus = await asyncio.wait_for(self.handle.result(), seconds)
        return status

    # Views for users.

    async def query(self, name: str, result_type: Any) -> Any:
        """Query the thread. Retries, since a server under load may see no worker for a moment."""
        deadline = time.monotonic() + 90
        while True:
            try:
                return await self.handle.query(
                    name, result_type=result_type, rpc_timeout=timedelta(seconds=60)
                )
            except RPCError as error:
                if error.status != RPCStatusCode.FAILED_PRECONDITION or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def status(self) -> ThreadStatus:
        found: ThreadStatus = await self.query(STATUS_QUERY, ThreadStatus)
        return found

    async def wait_until(
        self, done: Callable[[ThreadStatus], bool], seconds: float = 90
    ) -> ThreadStatus:
        deadline, pause = time.monotonic() + seconds, 0.03
        while not done(status := await self.status()):
            assert time.monotonic() < deadline, status
            await asyncio.sleep(pause)
            pause = min(0.2, 1.3 * pause)  # A query costs the worker and the server 10 ms.
        return status

    async def wait_for_status(self, status: str) -> ThreadStatus:
        return await self.wait_until(lambda found: found.status == status)

    async def wait_for_answers(self, number: int = 1) -> ThreadStatus:
        return await self.wait_until(lambda found: found.counters.answered >= number)

    async def answer(self, number: int = 1) -> str:
        """Wait for the end of a message's turn; return its answer."""
        status = await self.wait_for_answers(number)
        [seq] = [each.seq for each in status.answers if each.number == number]
        return (await self.messages())[seq].text

    async def pending(self, count: int = 1) -> list[Approval]:
        """Wait until the given number of approvals are pending."""
        await self.wait_until(lambda found: found.pending == count)
        found: list[Approval] = await self.query(PENDING_QUERY, list[Approval])
        return found

    # Stored objects.

    @property
    def journal(self) -> Journal:
        client = self.threads.client
        return Journal(self.threads.plugin.packs, thread_key(client.namespace, self.thread_id))

    async def entries(self, *kinds: Kind) -> list[Entry]:
        found = await self.journal.read((await self.status()).head)
        assert [entry.seq for entry in found] == list(range(1, len(found) + 1))
        return [entry for entry in found if not kinds or entry.kind in kinds]

    async def data(self, kind: Kind) -> list[dict[str, Any]]:
        return [entry.data or {} for entry in await self.entries(kind)]

    async def messages(self, *, whole: bool = False) -> dict[int, Message]:
        """Return the messages of the journal, by seq."""
        spoken = await self.entries(*MESSAGES)
        found = await self.journal.messages(spoken, whole=whole)
        return {entry.seq: message for entry, message in zip(spoken, found, strict=True)}

    async def tool_results(self) -> list[str]:
        """Return the results of tools, in journal order."""
        messages = (await self.messages(whole=True)).values()
        return [message.text for message in messages if message.role == "tool"]

    async def histories(self) -> list[WorkflowHistory]:
        """Return the histories of all runs, newest first."""
        found = []
        run_id: str | None = (await self.handle.describe()).run_id
        while run_id:
            handle = self.threads.client.get_workflow_handle(self.thread_id, run_id=run_id)
            found.append(await handle.fetch_history())
            started = found[-1].events[0].workflow_execution_started_event_attributes
            run_id = started.continued_execution_run_id
        return found

    async def attributes(self) -> dict[str, Any]:
        """Return the search attributes, once the server shows the newest ones."""
        found = (await self.handle.describe()).typed_search_attributes
        return {pair.key.name: pair.value for pair in found}

    async def check(self) -> None:
        """Assert the invariants of every thread: a whole journal, a small state, runs that replay."""
        status = await self.status()
        assert status.state_bytes <= limits.STATE_BYTES_MAX
        asked: list[str] = []
        for message in (await self.messages()).values():
            if message.role == "tool":
                assert asked, "a result without a call"
                # In call order. A turn that was broken off leaves calls without a result.
                while asked.pop(0) != message.call_id:
                    assert asked, "a result that was not asked for, or out of order"
            else:
                asked = [call.id for call in message.tool_calls] or asked
        replayer = Replayer(workflows=[AgentWorkflow], plugins=[self.threads.plugin])
        for history in await self.histories():
            replayed = await replayer.replay_workflow(history, raise_on_replay_failure=False)
            assert replayed.replay_failure is None


@contextlib.asynccontextmanager
async def drive_thread(
    server: TemporalServer,
    store: BlobStore,
    thread_id: str,
    agents: Sequence[Agent],
    policy: Policy | None = None,
    *,
    task_queue: str = "",
    **worker: object,
) -> AsyncIterator[DrivenThread]:
    """Run a worker with these agents, start a thread of `ops`, and check its invariants at the end."""
    async with open_threads(server.address, store, *agents) as threads:
        threads.task_queue = task_queue or threads.task_queue
        async with threads.worker(**worker):
            if policy is not None:
                await threads.start(thread_id, policy)
            thread = DrivenThread(threads, thread_id)
            yield thread
            await thread.check()


class Drive(Protocol):
    """Runs a worker with these agents, for one thread of `ops`."""

    def __call__(
        self,
        agents: list[Agent],
        policy: Policy | None = None,
        *,
        task_queue: str = "",
        **worker: object,
    ) -> AbstractAsyncContextManager[DrivenThread]: ...
