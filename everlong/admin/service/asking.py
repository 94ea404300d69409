"""Waiting for a thread, and for its answer: by queries, which add nothing to its history.

Workers and the server may come and go meanwhile, runs may end, people may take days to approve.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from temporalio.client import Client

from everlong.admin.service.diagnosis import Report, Watch
from everlong.admin.service.sending import deliver, stored_message
from everlong.admin.service.translating import readable, translated
from everlong.admin.service.watching import (
    WORKER_SECONDS_MAX,
    Observation,
    ended_as,
    journal_of,
    observe,
)
from everlong.errors import NotAnswered, NoWorker, ServerUnreachable, ThreadPaused, TurnFailed
from everlong.models import (
    Entry,
    Kind,
    Message,
    SegmentRef,
    SendMessage,
    ThreadStatus,
    seq_after,
)
from everlong.storage.journal import Journal
from everlong.storage.packstore import PackStore
from everlong.storage.segments import MESSAGE_KINDS

logger = logging.getLogger(__name__)

_POLL_SECONDS_MIN: Final = 0.1
_POLL_SECONDS_MAX: Final = 2.0
# Somebody who waits for longer than this waits for a person.
_LONG_SECONDS: Final = 600.0
_LONG_POLL_SECONDS: Final = 10.0
# Entries read at a time where all of them have to be looked at: 32 segments.
SCAN_ENTRIES: Final = 1024


def _ignore(_: ThreadStatus) -> None:
    """Do nothing with a status."""


def _log(thread_id: str) -> Report:
    """Return what logs a diagnosis, for callers that do not take it themselves."""
    return lambda text: logger.warning("thread %s waits: %s", thread_id, text)


async def ask(
    client: Client,
    packs: PackStore,
    thread_id: str,
    text: str,
    *,
    task_queue: str,
    agent: str | None = None,
    seconds_max: float | None = None,
    on_status: Callable[[ThreadStatus], None] = _ignore,
    on_wait: Report | None = None,
) -> str:
    """Send a message and return the answer. With an agent, the thread is started if need be.

    It waits for as long as it takes, unless `seconds_max` is given. Raises `TurnFailed` if the turn
    ends without an answer, and `ThreadPaused` if the thread takes no steps: the message stays queued.
    `on_wait` is called with what the thread waits for, if that is no work of its own: a worker, a key,
    an agent. By default it is logged.
    """
    deadline = None if seconds_max is None else time.monotonic() + seconds_max
    message = await stored_message(client, packs, thread_id, text)
    async with Watch(client, thread_id, on_wait or _log(thread_id)) as watch:
        number = await _delivered(client, thread_id, message, task_queue, agent, deadline, watch)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return await _answered(client, packs, thread_id, number, left, on_status, watch)


async def wait_for_answer(
    client: Client,
    packs: PackStore,
    thread_id: str,
    number: int,
    *,
    seconds_max: float | None = None,
    on_status: Callable[[ThreadStatus], None] = _ignore,
    on_wait: Report | None = None,
) -> str:
    """Return the answer to a message that was sent, by its number. See `ask`."""
    async with Watch(client, thread_id, on_wait or _log(thread_id)) as watch:
        return await _answered(client, packs, thread_id, number, seconds_max, on_status, watch)


async def _answered(
    client: Client,
    packs: PackStore,
    thread_id: str,
    number: int,
    seconds_max: float | None,
    on_status: Callable[[ThreadStatus], None],
    watch: Watch,
) -> str:
    async for seen in observations(client, thread_id, seconds_max, watch):
        on_status(seen.status)
        if seen.status.counters.answered >= number:
            with readable(thread_id):
                return await answer_to(client, packs, thread_id, number, seen.status)
        if seen.status.status == "paused" and not seen.is_busy:
            raise ThreadPaused(
                f"thread {thread_id!r} is paused ({_why_paused(seen.status)}). Message {number} stays "
                f"queued; go on with: everlong unpause {thread_id}"
            )
    raise AssertionError("observations end with an error only")


async def wait_for_status(
    client: Client,
    thread_id: str,
    done: Callable[[ThreadStatus], bool],
    *,
    seconds_max: float | None,
    on_status: Callable[[ThreadStatus], None] = _ignore,
) -> ThreadStatus:
    """Poll a thread until its status is as wanted."""
    async for seen in observations(client, thread_id, seconds_max):
        on_status(seen.status)
        if done(seen.status):
            return seen.status
    raise AssertionError("observations end with an error only")


async def observations(
    client: Client, thread_id: str, seconds_max: float | None, watch: Watch | None = None
) -> AsyncIterator[Observation]:
    """Look at a thread again and again; raise `NotAnswered` once it has ended or time is over.

    What a `watch` has found is in that error.
    """
    started = time.monotonic()
    last_known = ""
    while True:
        try:
            seen = await observe(client, thread_id)
        except NoWorker as error:
            last_known = f". {error}"
            _check_alive(thread_id, await _ended(client, thread_id))
        except ServerUnreachable as error:
            last_known = f". {error}"
        else:
            yield seen
            _check_alive(thread_id, seen.ended)
            if seen.status.held_by:  # Between two tries it may say nothing.
                last_known = f". It was held last by: {seen.status.held_by}"
        elapsed = time.monotonic() - started
        pause_seconds = poll_seconds(elapsed)
        if seconds_max is not None:
            if elapsed >= seconds_max:
                break
            pause_seconds = min(pause_seconds, seconds_max - elapsed)
        await asyncio.sleep(pause_seconds)
    if watch is not None and watch.latest is not None:
        last_known = f". It waits: {watch.latest.text}"
    raise NotAnswered(
        f"thread {thread_id!r} is not done after {seconds_max:.0f} s. It goes on by itself; see how "
        f"far it is with: everlong show {thread_id}{last_known}"
    )


def poll_seconds(elapsed_seconds: float) -> float:
    """Return how long to wait before the next look: a twentieth of the time so far, within bounds."""
    if elapsed_seconds >= _LONG_SECONDS:
        return _LONG_POLL_SECONDS
    return min(max(_POLL_SECONDS_MIN, elapsed_seconds / 20), _POLL_SECONDS_MAX)


async def answer_to(
    client: Client, packs: PackStore, thread_id: str, number: int, status: ThreadStatus
) -> str:
    """Return the answer to a message whose turn has ended, reading no other entry where possible."""
    journal = journal_of(client, packs, thread_id)
    seqs = [each.seq for each in status.answers if each.number == number]
    if status.head is None:
        raise TurnFailed("the message has no turn yet")
    if seqs:
        entry = await journal.entry(status.head, seqs[0])
    else:
        entry = await _end_of_turn(journal, status.head, number)
    [message] = await journal.messages([entry], whole=True)
    return _text_of(message)


def answer(conversation: Sequence[Message], number: int) -> str:
    """Return the text that ended the turn of message `number`; raise `TurnFailed` if none did."""
    turn = 0
    last = Message(role="failure", text="the message has no turn yet")
    for message in conversation:
        turn += message.role == "user"
        if turn == number:
            last = message
    return _text_of(last)


def _text_of(message: Message) -> str:
    if message.role == "failure":
        raise TurnFailed(message.text)
    if message.role != "assistant" or message.tool_calls:
        raise TurnFailed("the turn was broken off before the model answered")
    return message.text


async def _end_of_turn(journal: Journal, head: SegmentRef, number: int) -> Entry:
    """Return the last message of a turn that ended long ago."""
    turn, last = 0, None
    for first_seq in range(1, seq_after(head), SCAN_ENTRIES):
        for entry in await journal.read(head, first_seq, first_seq + SCAN_ENTRIES - 1):
            turn += entry.kind == Kind.MESSAGE
            if turn == number and entry.kind in MESSAGE_KINDS:
                last = entry
        if turn > number:
            break
    if last is None:
        raise TurnFailed("the message has no turn yet")
    return last


async def _delivered(
    client: Client,
    thread_id: str,
    message: SendMessage,
    task_queue: str,
    agent: str | None,
    deadline: float | None,
    watch: Watch,
) -> int:
    """Queue a message, however long it takes until a worker takes it. It is one message."""
    started = time.monotonic()
    while True:
        now = time.monotonic()
        left = WORKER_SECONDS_MAX if deadline is None else deadline - now
        try:
            return await deliver(
                client,
                thread_id,
                message,
                task_queue=task_queue,
                agent=agent,
                seconds_max=min(max(left, 0.1), WORKER_SECONDS_MAX),
                watch=watch,
            )
        except (NoWorker, ServerUnreachable):
            if deadline is not None and time.monotonic() >= deadline:
                raise
        await asyncio.sleep(poll_seconds(now - started))


async def _ended(client: Client, thread_id: str) -> str:
    with translated(thread_id):
        return ended_as(await client.get_workflow_handle(thread_id).describe())


def _check_alive(thread_id: str, ended: str) -> None:
    if ended:
        raise NotAnswered(
            f"thread {thread_id!r} has ended before that: {ended}. Start a new one, or go on from its "
            f"journal with: everlong fork {thread_id} SEQ NEW_ID"
        )


def _why_paused(status: ThreadStatus) -> str:
    pause = status.pause
    if pause is None:
        return "nobody says why"
    by = f"by {pause.by}" if pause.by else "by somebody"
    return f"{by}: {pause.reason}" if pause.reason else by
