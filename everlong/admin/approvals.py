"""All approvals that wait for a person, over all threads, oldest first."""

import asyncio
import dataclasses
from typing import Final

from temporalio.client import Client

from everlong import limits
from everlong.admin.entries import EntrySummary, summary_of
from everlong.client.lookup import ANSWER_SECONDS_MAX
from everlong.client.status import arguments_of, journal_of, pending, status
from everlong.client.visibility import ThreadRow, read_rows
from everlong.errors import EverlongError, NoWorker
from everlong.models import AGENT_WORKFLOW, Approval
from everlong.storage.pack_store import PackStore

_QUERY: Final = (
    f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus = 'Running' AND "
    "EverlongPendingApprovals > 0"
)
THREADS_MAX: Final = 100
"""Threads that are asked. Each is a query of its worker, 8 at a time: some seconds if all are cold."""
_AT_ONCE: Final = 8
ARGUMENTS_BYTES_MAX: Final = 32 * limits.KIB
"""Of one call: more than somebody reads before they decide."""
_CONTEXT_ENTRIES: Final = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaitingApproval:
    """A call that waits for a person, and what came before it."""

    thread_id: str
    agent: str
    approval: Approval
    arguments: str
    """Whole, up to 32 KiB; their beginning, where `problem` says so."""
    arguments_bytes: int
    context: tuple[EntrySummary, ...]
    """The last entries of the thread before somebody was asked."""
    problem: str = ""
    """Why the arguments or the context cannot be shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApprovalPage:
    """What waits, oldest first."""

    waiting: tuple[WaitingApproval, ...]
    threads: int
    """Threads in which something waits, by visibility, which is a second or so behind."""
    not_asked: int
    """Of these, those beyond the first 100."""
    problems: dict[str, str]
    """Threads that did not answer, and why."""


async def list_approvals(client: Client, packs: PackStore) -> ApprovalPage:
    """Return all approvals that wait. Threads in which none waits are not asked."""
    rows: list[ThreadRow] = []
    token = b""
    while len(rows) < 10 * THREADS_MAX:
        page = await read_rows(client, _QUERY, token)
        rows += page.rows
        token = page.next_token
        if not token:
            break
    rows.sort(key=lambda row: (row.asked_ms or row.started_ms, row.thread_id))
    places = asyncio.Semaphore(_AT_ONCE)
    problems: dict[str, str] = {}

    async def ask(row: ThreadRow) -> list[WaitingApproval]:
        async with places:
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    return await _of_thread(client, packs, row)
            except TimeoutError:
                problems[row.thread_id] = str(
                    NoWorker(f"thread {row.thread_id!r} did not answer in time")
                )
            except EverlongError as error:
                problems[row.thread_id] = str(error)
            return []

    found = [
        each for group in await asyncio.gather(*map(ask, rows[:THREADS_MAX])) for each in group
    ]
    found.sort(key=lambda each: (each.approval.asked_ms, each.approval.id))
    return ApprovalPage(
        waiting=tuple(found),
        threads=len(rows),
        not_asked=max(0, len(rows) - THREADS_MAX),
        problems=problems,
    )


async def list_thread_approvals(
    client: Client, packs: PackStore, thread_id: str
) -> tuple[WaitingApproval, ...]:
    """Return the approvals of one thread, with whole arguments and context."""
    return tuple(
        [
            await _shown(client, packs, thread_id, "", approval)
            for approval in await pending(client, thread_id)
        ]
    )


async def _of_thread(client: Client, packs: PackStore, row: ThreadRow) -> list[WaitingApproval]:
    return [
        await _shown(client, packs, row.thread_id, row.agent, approval)
        for approval in await pending(client, row.thread_id)
    ]


async def _shown(
    client: Client, packs: PackStore, thread_id: str, agent: str, approval: Approval
) -> WaitingApproval:
    arguments, problem = approval.arguments, ""
    context: tuple[EntrySummary, ...] = ()
    try:
        arguments = await arguments_of(client, packs, thread_id, approval)
    except EverlongError as error:
        problem = f"Only the beginning of the arguments can be shown: {error}"
    try:
        context = await _context(client, packs, thread_id, approval)
    except EverlongError as error:
        problem = problem or f"What came before cannot be shown: {error}"
    # A lone surrogate, which JSON may hold, is shown and not replaced: these are what is decided about.
    data = arguments.encode(errors="backslashreplace")
    return WaitingApproval(
        thread_id=thread_id,
        agent=agent,
        approval=approval,
        arguments=data[:ARGUMENTS_BYTES_MAX].decode(errors="ignore"),
        arguments_bytes=len(data),
        context=context,
        problem=problem,
    )


async def _context(
    client: Client, packs: PackStore, thread_id: str, approval: Approval
) -> tuple[EntrySummary, ...]:
    """Return what came before the call, up to the reply that asks for it."""
    seq = int(approval.id.partition("-")[0])
    head = (await status(client, thread_id)).head
    entries = await journal_of(client, packs, thread_id).read(
        head, max(1, seq - _CONTEXT_ENTRIES + 1), seq
    )
    return tuple(map(summary_of, entries))
