"""Calls that wait for people over all threads, oldest first: approvals and unknown outcomes."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from temporalio.client import Client

from everlong import limits
from everlong.admin.entries import EntrySummary, summarise_entry
from everlong.client.lookup import ANSWER_SECONDS_MAX
from everlong.client.status import list_outcomes as read_outcomes
from everlong.client.status import list_pending, load_arguments, open_journal, read_status
from everlong.client.visibility import ThreadRow, read_rows
from everlong.errors import EverlongError, NoWorker
from everlong.models import AGENT_WORKFLOW, Approval, UnknownOutcome, Vote
from everlong.models.search_attributes import PENDING
from everlong.storage.pack_store import PackStore

T = TypeVar("T")

_QUERY: Final = (
    f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus = 'Running' AND {PENDING.name} > 0"
)
THREADS_MAX: Final = 100
"""Most threads to query, 8 at a time. Each query reaches a worker: seconds in all if all are cold."""
_AT_ONCE: Final = 8
ARGUMENTS_BYTES_MAX: Final = 32 * limits.KIB
"""Most bytes of one call's arguments: more than an approver reads before deciding."""
_CONTEXT_ENTRIES: Final = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaitingApproval:
    """A pending approval, with the call's arguments and the entries before it."""

    thread_id: str
    agent: str
    approval: Approval
    arguments: str
    """The whole arguments, up to 32 KiB; only their beginning if `problem` says so."""
    arguments_bytes: int
    context: tuple[EntrySummary, ...]
    """Last entries of the thread before the request."""
    problem: str = ""
    """Why the arguments or the context cannot be shown; empty if they can."""
    needed: int = 1
    """Number of people who must approve."""
    votes: tuple[Vote, ...] = ()
    """Who has approved so far."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaitingOutcome:
    """A call whose outcome is unknown, with its arguments and the entries before it."""

    thread_id: str
    agent: str
    outcome: UnknownOutcome
    arguments: str
    """The whole arguments, up to 32 KiB; only their beginning if `problem` says so."""
    arguments_bytes: int
    context: tuple[EntrySummary, ...]
    problem: str = ""
    """Why the arguments or the context cannot be shown; empty if they can."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApprovalPage:
    """Pending approvals, oldest first."""

    waiting: tuple[WaitingApproval, ...]
    threads: int
    """Threads with pending approvals, by visibility, which lags by a second or so."""
    not_asked: int
    """Number of threads beyond the first 100, which were not queried."""
    problems: dict[str, str]
    """Threads that did not answer, with the reason."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutcomePage:
    """Unknown outcomes, oldest first."""

    waiting: tuple[WaitingOutcome, ...]
    threads: int
    """Threads with calls that wait for people, by visibility, which lags by a second or so."""
    not_asked: int
    """Number of threads beyond the first 100, which were not queried."""
    problems: dict[str, str]
    """Threads that did not answer, with the reason."""


async def list_approvals(client: Client, packs: PackStore) -> ApprovalPage:
    """Return all pending approvals. Only threads that have some are queried."""
    found = await _ask_threads(
        client, lambda row: _load_approvals(client, packs, row.thread_id, row.agent)
    )
    waiting = sorted(found.items, key=lambda each: (each.approval.asked_ms, each.approval.id))
    return ApprovalPage(
        waiting=tuple(waiting),
        threads=found.threads,
        not_asked=found.not_asked,
        problems=found.problems,
    )


async def list_outcomes(client: Client, packs: PackStore) -> OutcomePage:
    """Return all unknown outcomes. Only threads with calls that wait for people are queried."""
    found = await _ask_threads(
        client, lambda row: _load_outcomes(client, packs, row.thread_id, row.agent)
    )
    waiting = sorted(found.items, key=lambda each: (each.outcome.asked_ms, each.outcome.id))
    return OutcomePage(
        waiting=tuple(waiting),
        threads=found.threads,
        not_asked=found.not_asked,
        problems=found.problems,
    )


@dataclasses.dataclass(frozen=True)
class _Found(Generic[T]):
    """What threads have answered."""

    items: list[T]
    threads: int
    not_asked: int
    problems: dict[str, str]


async def _ask_threads(
    client: Client, load: Callable[[ThreadRow], Awaitable[list[T]]]
) -> _Found[T]:
    """Ask the threads with calls that wait for people, a bounded number at a time."""
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

    async def ask(row: ThreadRow) -> list[T]:
        async with places:
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    return await load(row)
            except TimeoutError:
                problems[row.thread_id] = str(
                    NoWorker(f"thread {row.thread_id!r} did not answer in time")
                )
            except EverlongError as error:
                problems[row.thread_id] = str(error)
            return []

    groups = await asyncio.gather(*map(ask, rows[:THREADS_MAX]))
    return _Found(
        [each for group in groups for each in group],
        len(rows),
        max(0, len(rows) - THREADS_MAX),
        problems,
    )


async def list_thread_approvals(
    client: Client, packs: PackStore, thread_id: str
) -> tuple[WaitingApproval, ...]:
    """Return the pending approvals of one thread, with whole arguments and context."""
    return tuple(await _load_approvals(client, packs, thread_id))


async def list_thread_outcomes(
    client: Client, packs: PackStore, thread_id: str
) -> tuple[WaitingOutcome, ...]:
    """Return the unknown outcomes of one thread, with whole arguments and context."""
    return tuple(await _load_outcomes(client, packs, thread_id))


async def _load_outcomes(
    client: Client, packs: PackStore, thread_id: str, agent: str = ""
) -> list[WaitingOutcome]:
    found = []
    for outcome in await read_outcomes(client, thread_id):
        shown = await _load_call(client, packs, thread_id, outcome)
        found.append(
            WaitingOutcome(thread_id=thread_id, agent=agent, outcome=outcome, **vars(shown))
        )
    return found


async def _load_approvals(
    client: Client, packs: PackStore, thread_id: str, agent: str = ""
) -> list[WaitingApproval]:
    found = []
    for approval in await list_pending(client, thread_id):
        shown = await _load_call(client, packs, thread_id, approval)
        waiting = WaitingApproval(
            thread_id=thread_id,
            agent=agent,
            approval=approval,
            needed=approval.needed,
            votes=approval.votes,
            **vars(shown),
        )
        found.append(waiting)
    return found


@dataclasses.dataclass(frozen=True)
class _ShownCall:
    """What a person reads of a call before the decision."""

    arguments: str
    arguments_bytes: int
    context: tuple[EntrySummary, ...]
    problem: str


async def _load_call(
    client: Client, packs: PackStore, thread_id: str, approval: Approval | UnknownOutcome
) -> _ShownCall:
    arguments, problem = approval.arguments, ""
    context: tuple[EntrySummary, ...] = ()
    try:
        arguments = await load_arguments(client, packs, thread_id, approval)
    except EverlongError as error:
        problem = f"Only the beginning of the arguments can be shown: {error}"
    try:
        context = await _load_context(client, packs, thread_id, approval)
    except EverlongError as error:
        problem = problem or f"The entries before the call cannot be shown: {error}"
    # JSON may hold lone surrogates. Show them escaped, not replaced: the approver must see them.
    data = arguments.encode(errors="backslashreplace")
    return _ShownCall(
        data[:ARGUMENTS_BYTES_MAX].decode(errors="ignore"), len(data), context, problem
    )


async def _load_context(
    client: Client, packs: PackStore, thread_id: str, approval: Approval | UnknownOutcome
) -> tuple[EntrySummary, ...]:
    """Return the entries before the call, up to the reply that requests it."""
    seq = int(approval.id.partition("-")[0])
    head = (await read_status(client, thread_id)).head
    entries = await open_journal(client, packs, thread_id).read(
        head, max(1, seq - _CONTEXT_ENTRIES + 1), seq
    )
    return tuple(map(summarise_entry, entries))
