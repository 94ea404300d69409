"""Sender of live output: posts the running steps of one process, from an OS thread of its own.

It never blocks a step, and a step never fails because of it: text is kept in memory within bounds, and
dropped if the admin server is away. While no listener follows a thread, the server only learns once a
second that its steps run, so that a listener who comes later gets the text so far.
"""

import dataclasses
import http.client
import logging
import math
import random
import secrets
import threading
import time
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from everlong import limits
from everlong.live.connection import ERRORS, build_headers, build_path, open_connection
from everlong.live.models import (
    FLUSH_SECONDS,
    PIECE_CHARS_MAX,
    POST_CHARS_MAX,
    POST_PATH,
    POST_STEPS_MAX,
    PROGRESS_CHARS_MAX,
    REFRESH_SECONDS,
    SILENT_SECONDS,
    TEXT_CHARS_MAX,
    LiveAnswer,
    LivePost,
    LiveServer,
    LiveStep,
    StepState,
)
from everlong.models import make_printable

STEPS_MAX: Final = 1024
"""Steps at a time. A process that runs more reports only the first ones."""
CHARS_MAX: Final = 16 * limits.MIB
"""Text of all running replies: 128 of the longest. Beyond it, further text is not sent."""
LISTENED_SECONDS: Final = 5.0
"""Time after the server last named a listener, in which news is posted at once."""
POST_SECONDS_MAX: Final = 2.0
"""Bound of each wait of a request. The admin server answers from memory."""
PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 30.0
"""Bounds of the pause after a failed post. It doubles with each further failure."""
REFUSED_SECONDS: Final = 60.0
"""Pause after an answer that a retry would not change: a person has to act."""
CLOSE_SECONDS_MAX: Final = 1.0
"""Time that `close` waits for the last post."""
ANSWER_BYTES_MAX: Final = 64 * limits.KIB
"""Four times an answer about `POST_STEPS_MAX` steps, of 60 bytes each."""

_ROLE: Final = "Give the worker a token with the role worker, in EVERLONG_LIVE_TOKEN"
_PLACE: Final = "Check EVERLONG_LIVE_URL"
_REMEDIES: Final = {
    **dict.fromkeys((401, 403), _ROLE),
    **dict.fromkeys((301, 302, 303, 307, 308, 404, 405), _PLACE),
    **dict.fromkeys((413, 415, 422), "Use the same version of Everlong on both sides"),
}
"""What to do about an answer that a retry would not change."""
_STALE: Final = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)
_ANSWER: Final = TypeAdapter(LiveAnswer)
_UNREPORTED: Final = LiveStep(
    id="0" * 16, thread_id="-", kind="reply", attempt=1, order=0, state="done"
)
_LOG: Final = logging.getLogger(__name__)


class _Rejected(Exception):
    """The server did not take a post."""

    def __init__(self, reason: str, *, is_refused: bool = False) -> None:
        super().__init__(reason)
        self.is_refused = is_refused


class StepOutput:
    """Output of one attempt of a step. Its methods may be called from any thread, and never raise."""

    def __init__(self, sender: "LiveSender", namespace: str, step: LiveStep) -> None:
        self._sender = sender
        self.namespace = namespace
        self.step = step
        self.text = ""
        """The reply so far; for a tool, its newest progress."""
        self.pieces: list[str] = []
        """Pieces of the reply that are not in `text` yet: joining each at once would copy the text."""
        self.chars = 0
        self.state: StepState = "running"
        self.sent: int | None = None
        """Characters of the reply that the server has; None if no listener follows the thread."""
        self.is_changed = False
        """Whether the server lacks the newest progress."""
        self.posted_at = -math.inf
        self.is_answered = False
        """Whether the server has answered a post, so that `sent` is known."""
        self.ended_at = math.inf

    def add(self, text: str) -> None:
        """Add a piece of the reply's text."""
        self._sender.take_text(self, text)

    def show(self, text: str) -> None:
        """Replace the progress of a tool."""
        self._sender.take_progress(self, text)

    def end(self, state: Literal["done", "cut"]) -> None:
        """End the attempt: `done`, or `cut` if it has failed. What comes later is ignored."""
        self._sender.end_step(self, state)

    def has_more(self) -> bool:
        """Whether a listener lacks something of the output so far."""
        if self.state != "running" or self.posted_at == -math.inf:
            return True
        return self.sent is not None and (self.is_changed or self.sent < self.chars)

    def build_report(self, chars_max: int) -> LiveStep:
        """Return what to post: the next piece of the text, if a listener follows the thread."""
        if self.pieces:
            self.text += "".join(self.pieces)
            self.pieces.clear()
        if self.sent is None:
            return dataclasses.replace(self.step, state=self.state)
        if self.step.kind == "tool":
            return dataclasses.replace(self.step, text=self.text, state=self.state)
        piece = self.text[self.sent : self.sent + min(PIECE_CHARS_MAX, chars_max)]
        is_whole = self.sent + len(piece) >= len(self.text)
        # The state is the last thing that the server learns of a step.
        state = "running" if self.state == "done" and not is_whole else self.state
        return dataclasses.replace(self.step, offset=self.sent, text=piece, state=state)


class LiveSender:
    """Posts the steps of this process to one admin server, over one connection at most."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._outputs: dict[str, StepOutput] = {}
        """By the step's id."""
        self._chars = 0
        self._has_news = False
        self._listened_until = -math.inf
        self._posted_at = -math.inf
        self._paused_until = -math.inf
        self._failures = 0
        self._connection: http.client.HTTPConnection | None = None

    # Steps. These methods return within microseconds: no request is made with the lock held.

    def open_step(self, namespace: str, **fields: Any) -> StepOutput:
        """Begin to report an attempt of a step, with the fields of `LiveStep` except its id."""
        try:
            step = LiveStep(id=secrets.token_hex(8), **fields)
        except ValidationError:
            # An id beyond the bounds of the wire: the step runs, and is not reported.
            return StepOutput(self, namespace, _UNREPORTED)
        output = StepOutput(self, namespace, step)
        with self._lock:
            if len(self._outputs) < STEPS_MAX:
                self._outputs[step.id] = output
                self._start()
                self._note_news()
        return output

    def take_text(self, output: StepOutput, text: str) -> None:
        """See `StepOutput.add`."""
        with self._lock:
            if output.step.id not in self._outputs or output.state != "running":
                return
            room = min(TEXT_CHARS_MAX - output.chars, CHARS_MAX - self._chars)
            # A lone surrogate could not be encoded; the journal replaces it in the same way.
            piece = text[:room].encode(errors="replace").decode()
            output.pieces.append(piece)
            output.chars += len(piece)
            self._chars += len(piece)
            if output.sent is not None:
                self._note_news()

    def take_progress(self, output: StepOutput, text: str) -> None:
        """See `StepOutput.show`."""
        shown = make_printable(str(text), PROGRESS_CHARS_MAX)
        with self._lock:
            if output.step.id not in self._outputs or output.state != "running":
                return
            output.text, output.is_changed = shown, True
            if output.sent is not None:
                self._note_news()

    def end_step(self, output: StepOutput, state: Literal["done", "cut"]) -> None:
        """See `StepOutput.end`."""
        now = time.monotonic()
        with self._lock:
            if output.step.id not in self._outputs or output.state != "running":
                return
            output.state, output.ended_at = state, now
            if output.is_answered:
                is_unwatched = output.sent is None
            else:
                # A new step may have listeners, so it is reported if others have some. One whose first
                # post is under way is kept until the answer.
                is_unwatched = output.posted_at == -math.inf and now >= self._listened_until
            if is_unwatched:
                self._forget(output)
            else:
                self._note_news()

    def close(self) -> None:
        """Post the last news and end the thread; a later step starts it again. It may block for 1 s."""
        with self._lock:
            thread, self._is_closing = self._thread, True
        self._wake.set()
        if thread is not None:
            thread.join(CLOSE_SECONDS_MAX)

    def _note_news(self) -> None:
        # One wake-up for each post, however many pieces come before it.
        if not self._has_news:
            self._has_news = True
            self._wake.set()

    def _start(self) -> None:
        self._is_closing = False
        if self._thread is None:
            # A daemon: a request that hangs must not keep the process from ending.
            thread = threading.Thread(target=self._run, name="everlong-live", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # The process may have no more threads, or it ends.
                _LOG.warning("live output is off for now; threads are not affected: %s", error)
            else:
                self._thread = thread

    def _forget(self, output: StepOutput) -> None:
        if self._outputs.pop(output.step.id, None) is not None:
            self._chars -= output.chars if output.step.kind == "reply" else 0

    # The thread.

    def _run(self) -> None:
        while True:
            self._wake.clear()
            with self._lock:
                if self._is_closing:
                    break
                wait_seconds = self._compute_wait_seconds(time.monotonic())
            if wait_seconds is None or wait_seconds > 0:
                self._wake.wait(wait_seconds)
            else:
                self._post_due()
        self._post_due()
        self._disconnect()
        with self._lock:
            self._thread = None
            if self._outputs and not self._is_closing:
                self._start()  # A step has begun since.

    def _compute_wait_seconds(self, now: float) -> float | None:
        """Return the time until the next post; None if there is nothing to report."""
        if not self._outputs:
            self._has_news = False  # The next step wakes the thread.
            return None
        is_urgent = self._has_news and now < self._listened_until
        next_at = self._posted_at + (FLUSH_SECONDS if is_urgent else REFRESH_SECONDS)
        return max(next_at, self._paused_until) - now

    def _post_due(self) -> None:
        now = time.monotonic()
        with self._lock:
            posted = self._build_reports(now)
        if not posted:
            return
        steps = tuple(report for _, report in posted)
        post = LivePost(namespace=posted[0][0].namespace, steps=steps)
        try:
            answer = self._request(to_json(post))
        except (*ERRORS, _Rejected, ValueError) as error:
            self._disconnect()
            with self._lock:
                self._pause(error, posted)
        else:
            with self._lock:
                self._take_answer(answer, posted)

    def _build_reports(self, now: float) -> list[tuple[StepOutput, LiveStep]]:
        """Return what to post: steps with news, and those that are due to be reported again."""
        self._has_news, self._posted_at = False, now
        due = [
            each
            for each in self._outputs.values()
            if each.has_more() or each.posted_at + REFRESH_SECONDS <= now
        ]
        due.sort(key=lambda each: each.posted_at)
        left = POST_CHARS_MAX
        posted: list[tuple[StepOutput, LiveStep]] = []
        for output in due:
            if output.namespace != due[0].namespace or len(posted) == POST_STEPS_MAX:
                self._has_news = True  # In the next post.
                continue
            report = output.build_report(left)
            left -= len(report.text)
            output.posted_at, output.is_changed = now, False
            posted.append((output, report))
        # A listener sees the end of a step before the start of the next.
        posted.sort(key=lambda each: each[1].order)
        return posted

    def _take_answer(self, answer: LiveAnswer, posted: list[tuple[StepOutput, LiveStep]]) -> None:
        if self._failures:
            _LOG.info("live output is on again")
        self._failures, self._paused_until = 0, -math.inf
        if answer.chars:
            self._listened_until = time.monotonic() + LISTENED_SECONDS
        for output, report in posted:
            have = answer.chars.get(report.id)
            # Clamped, so that a server cannot ask for what does not exist.
            output.sent = None if have is None else max(0, min(have, output.chars))
            output.is_answered = True
            if report.id in answer.ended or report.state != "running":
                self._forget(output)
            elif output.state != "running" and output.sent is None:
                self._forget(output)  # No listener follows the thread any more.
            elif output.has_more():
                self._has_news = True

    def _pause(self, error: Exception, posted: list[tuple[StepOutput, LiveStep]]) -> None:
        """Stop posting for a while, and drop what has ended before that."""
        now = time.monotonic()
        refused = isinstance(error, _Rejected) and error.is_refused
        seconds = min(PAUSE_SECONDS_MIN * 2 ** min(self._failures, 10), PAUSE_SECONDS_MAX)
        # Jitter, so that many workers do not come back at the same moment.
        seconds = REFUSED_SECONDS if refused else seconds * random.uniform(0.5, 1.0)  # noqa: S311
        self._paused_until = now + seconds
        if not self._failures:
            _LOG.warning(
                "live output is off for now; threads are not affected. The admin server at %s: %s",
                self._server.url,
                error if isinstance(error, _Rejected) else type(error).__name__,
            )
        self._failures += 1
        for output, _ in posted:
            output.is_changed, self._has_news = True, True
        for output in list(self._outputs.values()):
            if output.ended_at <= now - SILENT_SECONDS:
                self._forget(output)

    # The connection.

    def _request(self, body: bytes) -> LiveAnswer:
        is_reused = self._connection is not None
        try:
            return self._exchange(body)
        except _STALE:
            # The server closes a connection that was idle for some seconds.
            if not is_reused:
                raise
        self._disconnect()
        return self._exchange(body)

    def _exchange(self, body: bytes) -> LiveAnswer:
        if self._connection is None:
            self._connection = open_connection(self._server, POST_SECONDS_MAX)
        headers = {"Content-Type": "application/json", **build_headers(self._server)}
        self._connection.request("POST", build_path(self._server, POST_PATH), body, headers)
        response = self._connection.getresponse()
        found = response.read(ANSWER_BYTES_MAX + 1)
        if response.status != http.client.OK:
            raise _Rejected(
                f"it answered with status {response.status}. {_REMEDIES.get(response.status, '')}",
                is_refused=response.status in _REMEDIES,
            )
        if len(found) > ANSWER_BYTES_MAX:
            raise _Rejected("its answer is too large", is_refused=True)
        return _ANSWER.validate_json(found)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
