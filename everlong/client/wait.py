"""Waits for a thread and for its answers. A wait needs no worker.

`ask` waits by the update that carries the message: the thread completes it with the turn. A caller that
shows progress, and any other wait, follows the thread's history.
During a wait, workers and the server may restart, runs may end, and an approval may take days.
"""

import asyncio
import dataclasses
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowUpdateHandle

from everlong.client.diagnosis import Report, Watch
from everlong.client.errors import explain_unreadable, translate_errors
from everlong.client.follower import Follower, ProgressFollower
from everlong.client.progress import ThreadProgress, make_progress
from everlong.client.status import (
    describe_end,
    open_journal,
    read_answer,
    read_status,
    refine_status,
)
from everlong.client.updates import (
    check_startable,
    deliver,
    poll_turn_end,
    start_turn_update,
    store_message,
)
from everlong.errors import (
    MessageRefused,
    NotAnswered,
    NoWorker,
    ServerUnreachable,
    ThreadEnded,
    ThreadPaused,
    TurnFailed,
)
from everlong.models import (
    Kind,
    Message,
    Pause,
    SegmentRef,
    SendMessage,
    Status,
    ThreadStatus,
    TurnEnd,
    seq_after,
)
from everlong.models.thread_ids import quote_id, show_id
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore
from everlong.storage.segments import MESSAGE_KINDS

T = TypeVar("T")
Observation: TypeAlias = tuple[ThreadStatus, WorkflowExecutionDescription]
"""A status, and the server's description from just before it."""

logger = logging.getLogger(__name__)

# Between two queries of a wait for a status, and between two tries to deliver a message.
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 2.0
_REST_SECONDS_MAX: Final = 1.0
# Between two looks at the heartbeats of a thread that has no new events.
_LOOK_SECONDS: Final = 2.0
# Between two queries about a pause that no worker answers.
_UNANSWERED_SECONDS: Final = 60.0
# Entries read at a time where all of them have to be looked at: 32 segments.
SCAN_ENTRIES: Final = 1024


def _ignore(_: object) -> None:
    """Do nothing with a progress or a status."""


def _make_logger(thread_id: str) -> Report:
    """Return what logs a diagnosis, for callers that do not take it themselves."""
    return lambda text: logger.warning("thread %s waits: %s", show_id(thread_id), text)


async def ask(
    client: Client,
    packs: PackStore,
    thread_id: str,
    text: str,
    *,
    task_queue: str,
    agent: str | None = None,
    seconds_max: float | None = None,
    on_progress: Callable[[ThreadProgress], None] | None = None,
    on_wait: Report | None = None,
) -> str:
    """Send a message and return the answer. With an agent, the thread is started if need be.

    It waits for as long as it takes, unless `seconds_max` is given. Raises `TurnFailed` if the turn
    ends without an answer, and `ThreadPaused` if the thread takes no steps: the message stays queued.
    `on_progress` is called with each change that the thread's history shows; without it, a wait costs
    fewer requests. `on_wait` is called with what the thread waits for, if that is no work of its own: a
    worker, a key, an agent. By default it is logged.
    """
    deadline = None if seconds_max is None else time.monotonic() + seconds_max
    await check_startable(client, thread_id, agent)
    message = await store_message(client, packs, thread_id, text)
    async with Watch(client, thread_id, on_wait or _make_logger(thread_id)) as watch:
        delivery = _Delivery(client, thread_id, message, task_queue, agent, deadline, watch)
        if on_progress is not None:
            number = await delivery.queue()
            wait = _Wait(client, thread_id, _compute_left_seconds(deadline), watch)
            return await _wait_for_answer(client, packs, thread_id, number, wait, on_progress)
        handle = await delivery.start()
        wait = _Wait(client, thread_id, _compute_left_seconds(deadline), watch)
        ended = await wait.turn(handle)
        if ended is None:
            number, run_id = await _queue_again(delivery, wait), ""
        elif ended.head is not None:
            with explain_unreadable(thread_id):
                return await _load_text(
                    open_journal(client, packs, thread_id), ended.head, ended.seq
                )
        else:
            number, run_id = ended.number, handle.workflow_run_id or ""
        return await _wait_for_answer(client, packs, thread_id, number, wait, on_progress, run_id)


async def wait_for_answer(
    client: Client,
    packs: PackStore,
    thread_id: str,
    number: int,
    *,
    seconds_max: float | None = None,
    on_progress: Callable[[ThreadProgress], None] | None = None,
    on_wait: Report | None = None,
) -> str:
    """Return the answer to a message that was sent, by its number. See `ask`."""
    async with Watch(client, thread_id, on_wait or _make_logger(thread_id)) as watch:
        wait = _Wait(client, thread_id, seconds_max, watch)
        return await _wait_for_answer(client, packs, thread_id, number, wait, on_progress)


async def _wait_for_answer(
    client: Client,
    packs: PackStore,
    thread_id: str,
    number: int,
    wait: "_Wait",
    on_progress: Callable[[ThreadProgress], None] | None,
    run_id: str = "",
) -> str:
    """Return the answer to a message; `run_id` is a run in which its turn had not ended at first."""
    async for seen in wait.progress(on_progress or _ignore, run_id):
        if seen.answered >= number:
            with explain_unreadable(thread_id):
                return await load_answer(client, packs, thread_id, number, seen)
        if seen.status == Status.PAUSED and not seen.is_busy and (pause := await wait.pause(seen)):
            raise ThreadPaused(
                f"thread {thread_id!r} is paused ({_describe_pause(pause)}). Message {number} stays "
                f"queued; go on with: everlong unpause {quote_id(thread_id)}"
            )
    raise AssertionError("a wait ends with an error only")


async def wait_for_progress(
    client: Client,
    thread_id: str,
    done: Callable[[ThreadProgress], bool],
    *,
    seconds_max: float | None,
    on_progress: Callable[[ThreadProgress], None] | None = None,
) -> ThreadProgress:
    """Wait until a thread's progress satisfies `done`, by its history alone."""
    async for seen in _Wait(client, thread_id, seconds_max).progress(on_progress or _ignore):
        if done(seen):
            return seen
    raise AssertionError("a wait ends with an error only")


async def wait_for_status(
    client: Client,
    thread_id: str,
    done: Callable[[ThreadStatus], bool],
    *,
    seconds_max: float | None,
) -> ThreadStatus:
    """Wait until a thread's status satisfies `done`. It is queried when the history has new events.

    Where a `ThreadProgress` suffices, `wait_for_progress` makes no query.
    """
    async for status, _ in _Wait(client, thread_id, seconds_max).observations():
        if done(status):
            return status
    raise AssertionError("a wait ends with an error only")


class _Wait:
    """One wait for a thread. It ends with `NotAnswered` if the thread has ended or time is over."""

    def __init__(
        self,
        client: Client,
        thread_id: str,
        seconds_max: float | None,
        watch: Watch | None = None,
    ) -> None:
        self._client = client
        self._thread_id = thread_id
        self._seconds_max = seconds_max
        self._begun = time.monotonic()
        self._watch = watch
        self._last_known = ""
        self._is_at_end: Callable[[], Awaitable[bool]]
        self._look_again_at = math.inf
        self._answer: ThreadStatus | None = None
        """The thread's last answer to a query, without what only the server knows."""

    async def turn(self, handle: WorkflowUpdateHandle[TurnEnd]) -> TurnEnd | None:
        """Wait until the thread completes an update of `ask`; return where the turn ended.

        If it has not ended, the thread should be looked at. Returns None if the update is lost.
        """

        def keep(problem: str) -> None:
            self._last_known = f". {problem}"

        return await self._in_time(poll_turn_end(self._client, handle, keep))

    async def progress(
        self, report: Callable[[ThreadProgress], None], run_id: str = ""
    ) -> AsyncIterator[ThreadProgress]:
        """Yield the thread's progress: at first, and with each change. It may begin with a given run."""
        source = ProgressFollower(self._client, self._thread_id, run_id)
        self._is_at_end = source.follower.is_at_end
        last: ThreadProgress | None = None

        def report_held(text: str) -> None:
            # Heartbeats are in no history: the watch reads them now and then.
            if last is not None and last.status == Status.WORKING:
                status = Status.HELD if text else Status.WORKING
                report(dataclasses.replace(last, status=status, held_by=text))

        if self._watch is not None:
            self._watch.on_held = report_held
        while source.is_agent:
            seen = await self._in_time(source.next())
            self._learn(source.follower.problem, seen)
            if seen is not None:
                last = seen
                report(seen)
                if self._watch is not None:
                    self._watch.set_quiet(not seen.is_busy and not seen.held_by)
            if last is not None and (seen is not None or time.monotonic() >= self._look_again_at):
                self._look_again_at = math.inf
                yield last
                self._check_alive(last.ended)
            if seen is not None:
                await self._in_time(asyncio.sleep(self._compute_rest_seconds()))
        # The events of a team's own workflow have another meaning, so its status is queried.
        async for status, description in self.observations():
            seen = make_progress(
                status,
                ended=describe_end(description),
                is_busy=bool(description.raw_description.pending_activities),
            )
            report(seen)
            yield seen

    async def pause(self, seen: ThreadProgress) -> Pause | None:
        """Return why a thread is paused; None if it is not, or no longer.

        A pause by a person is in the history. The details of one by the policy are asked for: by the
        only query of a wait, once it is over.
        """
        if not await self._in_time(self._is_at_end()):
            self._look_again_at = time.monotonic()
            return None
        if not seen.needs_query:
            return seen.pause
        try:
            found = await self._in_time(read_status(self._client, self._thread_id))
        except (NoWorker, ServerUnreachable):
            self._look_again_at = time.monotonic() + _UNANSWERED_SECONDS
            return seen.pause
        return (found.pause or Pause()) if found.status == Status.PAUSED else None

    async def observations(self) -> AsyncIterator[Observation]:
        """Query a thread at first, and whenever its history has new events."""
        follower = Follower(self._client, self._thread_id)
        self._is_at_end = follower.is_at_end
        await self._in_time(follower.next())
        news = asyncio.ensure_future(follower.next())
        try:
            while True:
                seen = await self._in_time(self._observe())
                if seen is not None:
                    yield seen
                    self._check_alive(describe_end(seen[1]))
                await self._in_time(asyncio.sleep(self._compute_pause_seconds()))
                while seen is not None and not (news.done() and news.result()):
                    if follower.has_ended:
                        break
                    if news.done():
                        news = asyncio.ensure_future(follower.next())
                    await self._in_time(asyncio.wait([news], timeout=_LOOK_SECONDS))
                    if (fresh := await self._in_time(self._refresh(seen))) is not None:
                        seen = fresh
                        yield seen
                if news.done():
                    news.result()  # It may have failed.
                    news = asyncio.ensure_future(follower.next())
        finally:
            news.cancel()

    async def _observe(self) -> Observation | None:
        """Look at the thread once; None if no worker or no server answers."""
        try:
            with translate_errors(self._thread_id):
                description = await self._client.get_workflow_handle(self._thread_id).describe()
            answer = await read_answer(self._client, description)
        except NoWorker as error:
            self._last_known = f". {error}"
            with translate_errors(self._thread_id):
                described = await self._client.get_workflow_handle(self._thread_id).describe()
            self._check_alive(describe_end(described))
            return None
        except ServerUnreachable as error:
            self._last_known = f". {error}"
            return None
        self._answer = answer
        status = await self._refine(answer, description)
        self._learn("", make_progress(status))
        return status, description

    async def _refresh(self, seen: Observation) -> Observation | None:
        """Return the status with new attempts and heartbeats, if any: no event has them."""
        status, description = seen
        if not description.raw_description.pending_activities or self._answer is None:
            return None
        with translate_errors(self._thread_id):
            described = await self._client.get_workflow_handle(self._thread_id).describe()
        fresh = await self._refine(self._answer, described)
        return None if fresh == status else (fresh, description)

    async def _refine(
        self, answer: ThreadStatus, description: WorkflowExecutionDescription
    ) -> ThreadStatus:
        activities = description.raw_description.pending_activities
        return await refine_status(self._client, answer, activities)

    async def _in_time(self, awaitable: Awaitable[T]) -> T:
        """Await something until the time of the wait is over."""
        try:
            async with asyncio.timeout(self._compute_left_seconds()) as timeout:
                return await awaitable
        except TimeoutError:
            # A codec or a store may have a time-out of its own.
            if not timeout.expired():
                raise
            raise self._make_timeout_error() from None

    def _compute_left_seconds(self) -> float | None:
        if self._seconds_max is None:
            return None
        # A moment at least, so that what is there already is found.
        return max(_PAUSE_SECONDS_MIN, self._begun + self._seconds_max - time.monotonic())

    def _compute_pause_seconds(self) -> float:
        """Return how long to wait before the next query: a twentieth of the time so far, in bounds."""
        return compute_pause_seconds(time.monotonic() - self._begun)

    def _compute_rest_seconds(self) -> float:
        """Return how long to wait before the next long poll, so that a busy thread costs few of them.

        A step writes about six batches of events, each of which would end a long poll. A rest makes
        the wait at most a twentieth longer.
        """
        return min((time.monotonic() - self._begun) / 20, _REST_SECONDS_MAX)

    def _learn(self, problem: str, seen: ThreadProgress | None) -> None:
        """Keep the last known reason, for the error if time runs out."""
        if problem:
            self._last_known = f". {problem}"
        elif seen is not None and seen.held_by:  # Between two tries it says nothing.
            self._last_known = f". It was held last by: {seen.held_by}"

    def _make_timeout_error(self) -> NotAnswered:
        last_known, watch = self._last_known, self._watch
        if watch is not None and watch.latest is not None:
            last_known = f". It waits: {watch.latest.text}"
        elif watch is not None and watch.held_by:
            last_known = f". It was held last by: {watch.held_by}"
        return NotAnswered(
            f"thread {self._thread_id!r} is not done after {self._seconds_max:.0f} s. It goes on by "
            f"itself; see how far it is with: everlong show {quote_id(self._thread_id)}{last_known}"
        )

    def _check_alive(self, ended: str) -> None:
        if ended:
            raise NotAnswered(
                f"thread {self._thread_id!r} has ended before that: {ended}. Start a new one, or go on "
                f"from its journal with: everlong fork {quote_id(self._thread_id)} SEQ NEW_ID"
            )


def compute_pause_seconds(elapsed_seconds: float) -> float:
    """Return how long to wait before the next try: a twentieth of the time so far, within bounds."""
    return min(max(_PAUSE_SECONDS_MIN, elapsed_seconds / 20), _PAUSE_SECONDS_MAX)


async def load_answer(
    client: Client,
    packs: PackStore,
    thread_id: str,
    number: int,
    found: ThreadStatus | ThreadProgress,
) -> str:
    """Return the answer to a message whose turn has ended, reading no other entry where possible."""
    journal = open_journal(client, packs, thread_id)
    seqs = [each.seq for each in found.answers if each.number == number]
    if found.head is None:
        raise TurnFailed("the message has no turn yet")
    seq = seqs[0] if seqs else await _find_end_of_turn(journal, found.head, number)
    return await _load_text(journal, found.head, seq)


async def _load_text(journal: Journal, head: SegmentRef, seq: int) -> str:
    """Return the answer that an entry holds; raise `TurnFailed` if it holds none."""
    entry = await journal.entry(head, seq)
    [message] = await journal.messages([entry], whole=True)
    return _get_text(message)


def find_answer(conversation: Sequence[Message], number: int) -> str:
    """Return the text that ended the turn of message `number`; raise `TurnFailed` if none did."""
    turn = 0
    last = Message(role="failure", text="the message has no turn yet")
    for message in conversation:
        turn += message.role == "user"
        if turn == number:
            last = message
    return _get_text(last)


def _get_text(message: Message) -> str:
    if message.role == "failure":
        raise TurnFailed(message.text)
    if message.role != "assistant" or message.tool_calls:
        raise TurnFailed("the turn was broken off before the model answered")
    return message.text


async def _find_end_of_turn(journal: Journal, head: SegmentRef, number: int) -> int:
    """Return the seq of the last message of a turn that ended long ago."""
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
    return last.seq


@dataclasses.dataclass(frozen=True)
class _Delivery:
    """Delivers a message, however long it takes until a worker takes it. It is one message."""

    client: Client
    thread_id: str
    message: SendMessage
    task_queue: str
    agent: str | None
    deadline: float | None
    watch: Watch

    async def queue(self, update_id: str = "") -> int:
        """Queue the message; return its number at once."""
        return await self._until_taken(partial(deliver, update_id=update_id))

    async def start(self) -> WorkflowUpdateHandle[TurnEnd]:
        """Queue the message by an update that completes with its turn."""
        return await self._until_taken(start_turn_update)

    async def _until_taken(self, send: Callable[..., Awaitable[T]]) -> T:
        started = time.monotonic()
        while True:
            now = time.monotonic()
            left = None if self.deadline is None else max(self.deadline - now, 0.1)
            try:
                return await send(
                    self.client,
                    self.thread_id,
                    self.message,
                    task_queue=self.task_queue,
                    agent=self.agent,
                    seconds_max=left,
                    watch=self.watch,
                )
            except (NoWorker, ServerUnreachable):
                if self.deadline is not None and time.monotonic() >= self.deadline:
                    raise
            await asyncio.sleep(compute_pause_seconds(now - started))


async def _queue_again(delivery: _Delivery, wait: _Wait) -> int:
    """Return the number of a message whose update is lost: terminated with its run, reset, or deleted.

    The thread knows the message by its id. The update has another id, because after a reset the server
    may hold the first update for the new run, and it would wait for the answer again.
    """
    # Without an agent: a thread that has been deleted must not be started again.
    delivery = dataclasses.replace(delivery, agent=None)
    try:
        return await delivery.queue(str(uuid.uuid4()))
    except (ThreadEnded, MessageRefused):
        # It has taken the message before, so it has ended since, or is about to.
        async for _ in wait.progress(_ignore):
            pass
        raise


def _compute_left_seconds(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _describe_pause(pause: Pause) -> str:
    by = f"by {pause.by}" if pause.by else "by an unnamed caller"
    return f"{by}: {pause.reason}" if pause.reason else by
