"""Hub of the live channel in the admin server: takes workers' posts, and gives events to listeners.

It keeps text only of threads that have listeners, so its memory follows from the bounds on listeners.
All of it is in one process: behind a balancer, a listener gets the output of workers that post to the
same server.
"""

import asyncio
import contextlib
import json
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from typing import Final, TypeAlias

from everlong import limits
from everlong.live.models import (
    PROGRESS_CHARS_MAX,
    SILENT_SECONDS,
    TEXT_CHARS_MAX,
    LiveAnswer,
    LiveEvent,
    LivePost,
    LiveStep,
)

LISTENERS_MAX: Final = 256
"""Half of the admin server's connections."""
LISTENERS_PER_USER_MAX: Final = 64
"""A browser has one for each open thread page."""
QUEUE_EVENTS_MAX: Final = 256
QUEUE_CHARS_MAX: Final = 2 * TEXT_CHARS_MAX
"""Events that wait for one listener: 12 s of the fastest output. A slower listener is dropped."""
CHARS_MAX: Final = 16 * limits.MIB
"""Text of all threads together: 128 of the longest replies. Text has 1 to 4 bytes a character."""
STEPS_PER_THREAD_MAX: Final = 100
"""Steps that a thread remembers: a reply and calls of tools. A listener begins with two events of each,
which its queue has room for."""
LISTEN_SECONDS_MAX: Final = 900.0
"""Time of one connection. A client then connects again, and is authenticated again."""
PING_SECONDS: Final = 15.0
"""A proxy closes a connection that is silent for longer: most wait 60 s."""
_REAP_SECONDS: Final = 1.0

Key: TypeAlias = tuple[str, str]
"""Namespace and thread id."""


class TooManyListeners(Exception):
    """No more listeners are accepted."""


class _Step:
    """The newest attempt of a model call or a tool call."""

    def __init__(self, report: LiveStep) -> None:
        self.report = report
        self.text = ""
        self.state = "new"
        self.heard = time.monotonic()

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    def describe(self) -> dict[str, str | int | bool]:
        report = self.report
        found: dict[str, str | int | bool] = {
            "step": report.id,
            "kind": report.kind,
            "attempt": report.attempt,
        }
        if report.kind == "reply":
            return found | {"seq": report.seq}
        return found | {"call_id": report.call_id, "tool": report.tool}

    def list_events(self) -> Iterator[LiveEvent]:
        """Yield the events that bring a new listener up to date."""
        if not self.is_running:
            return
        yield LiveEvent("start", self.describe())
        if not self.text:
            return
        if self.report.kind == "tool":
            yield LiveEvent("progress", self.describe() | {"text": self.text})
        else:
            yield LiveEvent("delta", self.describe() | {"offset": 0, "text": self.text})


class _Thread:
    """A thread with listeners."""

    def __init__(self) -> None:
        self.listeners: set[Listener] = set()
        self.steps: OrderedDict[str, _Step] = OrderedDict()
        """By `reply`, or by the id of the tool call."""

    def publish(self, name: str, step: _Step, **more: str | int | bool) -> None:
        event = LiveEvent(name, step.describe() | more)  # type: ignore[arg-type] # a literal of ours
        for listener in list(self.listeners):
            listener.put(event)


class Listener:
    """One subscriber to one thread."""

    def __init__(self, key: Key, user: str) -> None:
        self.key = key
        self.user = user
        self.is_closed = False
        self._events: deque[LiveEvent] = deque()
        self._chars = 0
        self._news = asyncio.Event()

    def put(self, event: LiveEvent) -> None:
        """Queue an event. A listener that is too slow loses its queue, and ends."""
        if self.is_closed:
            return
        self._events.append(event)
        self._chars += _count_chars(event)
        if len(self._events) > QUEUE_EVENTS_MAX or self._chars > QUEUE_CHARS_MAX:
            self._events.clear()
            self.close("slow")
        self._news.set()

    def close(self, reason: str) -> None:
        """End the listener: after what is queued it gets `dropped`, with the reason."""
        if not self.is_closed:
            self.is_closed = True
            self._events.append(LiveEvent("dropped", {"reason": reason}))
            self._news.set()

    async def next(self, seconds_max: float) -> list[LiveEvent]:
        """Return the queued events; wait for the first, and return none when the time is over."""
        if not self._events:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds_max):
                    await self._news.wait()
        found = list(self._events)
        self._events.clear()
        self._chars = 0
        return found


class LiveHub:
    """Listeners by thread, and the running steps of threads that have some."""

    def __init__(self) -> None:
        self._threads: dict[Key, _Thread] = {}
        self._listeners: set[Listener] = set()
        self._chars = 0
        self._is_closed = False

    @property
    def listeners(self) -> int:
        """Number of listeners."""
        return len(self._listeners)

    @property
    def chars(self) -> int:
        """Characters of text in memory, without the queues of listeners."""
        return self._chars

    # Workers.

    def take(self, post: LivePost) -> LiveAnswer:
        """Take a worker's report, and return how much of each step's text is known here."""
        chars: dict[str, int] = {}
        ended: list[str] = []
        for report in post.steps:
            thread = self._threads.get((post.namespace, report.thread_id))
            if thread is None:
                continue  # It has no listeners.
            step = self._find_step(thread, report)
            if step is None or not self._update(thread, step, report):
                ended.append(report.id)
            else:
                chars[report.id] = len(step.text)
        return LiveAnswer(chars=chars, ended=tuple(ended))

    def _find_step(self, thread: _Thread, report: LiveStep) -> _Step | None:
        """Return the step of a report; None if a later attempt has begun."""
        slot = report.call_id if report.kind == "tool" else ""
        known = thread.steps.get(slot)
        if known is not None and known.report.id == report.id:
            return known
        if known is not None:
            if _get_order(known.report) >= _get_order(report):
                return None
            self._end(thread, known, "cut", reason="retried")
        step = thread.steps[slot] = _Step(report)
        thread.steps.move_to_end(slot)
        while len(thread.steps) > STEPS_PER_THREAD_MAX:
            _, oldest = thread.steps.popitem(last=False)
            self._forget_text(oldest)
        return step

    def _update(self, thread: _Thread, step: _Step, report: LiveStep) -> bool:
        """Apply a report; return False if the worker should send no more of the step."""
        step.heard = time.monotonic()
        if step.state in ("done", "failed", "full"):
            return False
        if step.state != "running":  # New, or taken for interrupted before.
            step.state = "running"
            thread.publish("start", step)
        if report.kind == "tool":
            self._take_progress(thread, step, report.text[:PROGRESS_CHARS_MAX])
        elif not self._take_text(thread, step, report):
            return False
        if report.state == "cut":
            self._end(thread, step, "cut", reason="failed")
        elif report.state == "done":
            self._end(thread, step, "done")
        return True

    def _take_progress(self, thread: _Thread, step: _Step, text: str) -> None:
        if text and text != step.text:
            self._chars += len(text) - len(step.text)
            step.text = text
            thread.publish("progress", step, text=text)

    def _take_text(self, thread: _Thread, step: _Step, report: LiveStep) -> bool:
        have = len(step.text)
        if report.offset > have:
            return True  # A gap: the answer says what is missing.
        piece = report.text[have - report.offset :][: TEXT_CHARS_MAX - have]
        if not piece:
            return True
        if self._chars + len(piece) > CHARS_MAX:
            self._end(thread, step, "cut", reason="full")
            return False
        step.text += piece
        self._chars += len(piece)
        thread.publish("delta", step, offset=have, text=piece)
        return True

    def _end(self, thread: _Thread, step: _Step, name: str, *, reason: str = "") -> None:
        self._forget_text(step)
        was_running = step.is_running
        step.state = "done" if name == "done" else reason
        if was_running:
            thread.publish(name, step, **({"reason": reason} if reason else {}))

    def _forget_text(self, step: _Step) -> None:
        self._chars -= len(step.text)
        step.text = ""

    def end_silent(self) -> None:
        """End the steps whose worker has not reported them for too long: it was probably killed."""
        before = time.monotonic() - SILENT_SECONDS
        for thread in self._threads.values():
            for step in thread.steps.values():
                if step.is_running and step.heard < before:
                    self._end(thread, step, "cut", reason="silent")

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """End silent steps until the server stops."""

        async def reap() -> None:
            while True:
                await asyncio.sleep(_REAP_SECONDS)
                self.end_silent()

        reaper = asyncio.create_task(reap())
        try:
            yield
        finally:
            reaper.cancel()
            self.close()

    # Listeners.

    @contextlib.contextmanager
    def listen(self, namespace: str, thread_id: str, user: str) -> Iterator[Listener]:
        """Subscribe to a thread, which need not exist. Raises `TooManyListeners`."""
        of_user = sum(each.user == user for each in self._listeners)
        if len(self._listeners) >= LISTENERS_MAX or of_user >= LISTENERS_PER_USER_MAX:
            raise TooManyListeners
        listener = Listener((namespace, thread_id), user)
        thread = self._threads.setdefault(listener.key, _Thread())
        thread.listeners.add(listener)
        self._listeners.add(listener)
        listener.put(LiveEvent("open", {"thread_id": thread_id}))
        for step in thread.steps.values():
            for event in step.list_events():
                listener.put(event)
        if self._is_closed:
            listener.close("stopping")
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            thread.listeners.discard(listener)
            if not thread.listeners:
                self._threads.pop(listener.key, None)
                for step in thread.steps.values():
                    self._forget_text(step)

    def close(self) -> None:
        """End all listeners: the server stops, and would wait for their connections."""
        self._is_closed = True
        for listener in self._listeners:
            listener.close("stopping")


def _get_order(report: LiveStep) -> tuple[int, int]:
    return report.order, report.attempt


def _count_chars(event: LiveEvent) -> int:
    return len(str(event.data.get("text", "")))


async def stream_events(
    listener: Listener, seconds_max: float = LISTEN_SECONDS_MAX
) -> AsyncIterator[bytes]:
    """Yield a listener's events in the format of server-sent events, until it is closed."""
    ends = time.monotonic() + seconds_max
    while True:
        left = ends - time.monotonic()
        events = await listener.next(max(0.0, min(PING_SECONDS, left)))
        if events:
            yield b"".join(map(format_event, events))
        if events and events[-1].name == "dropped":
            return
        if time.monotonic() >= ends:
            return
        if not events:
            yield b": ping\n\n"


def format_event(event: LiveEvent) -> bytes:
    """Return an event in the format of server-sent events. JSON has no line breaks of its own."""
    data = json.dumps(event.data, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate could not be encoded; the journal replaces it in the same way.
    return f"event: {event.name}\ndata: {data}\n\n".encode(errors="replace")
