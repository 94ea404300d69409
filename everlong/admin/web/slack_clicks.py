"""Clicks on the buttons of Slack messages: takes the decisions, in the background.

Slack expects an answer within 3 s, and a decision waits for a worker. So a click is answered once its
signature is verified, and the outcome is posted to Slack later. A click that is lost with this process
can be made again: an approval is decided once, and both clicks of one request are the same update.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
import traceback
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from everlong.errors import EverlongError, NoWorker, ServerUnreachable
from everlong.models import make_printable
from everlong.notify.sinks import Notify, SinkFailed
from everlong.notify.slack import Callback, CallbackReader, Slack, respond
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import APPROVAL, DECISION, RUN, THREAD

if TYPE_CHECKING:
    from everlong.admin.web.context import AppContext

_LOG: Final = logging.getLogger(__name__)
# More than people click while workers are away for a quarter of an hour.
CLICKS_MAX: Final = 200
SECONDS_MAX: Final = 900.0
_PAUSE_SECONDS: Final = 5.0
_TEXT_CHARS_MAX: Final = 300


class SlackClicks:
    """The clicks that this server is handling."""

    def __init__(
        self, context: "AppContext", notify: Notify, telemetry: Telemetry | None = None
    ) -> None:
        sinks = [sink for sink in notify.sinks if isinstance(sink, Slack) and sink.signing_secret]
        self.reader = CallbackReader(sinks) if sinks else None
        """None if no sink has a signing secret: then no click is accepted."""
        self._context = context
        self._spans = (telemetry or Telemetry()).spans
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, click: Callback) -> bool:
        """Begin to take a decision. False if the server is handling as many as it can."""
        if len(self._tasks) >= CLICKS_MAX:
            return False
        task = asyncio.create_task(self._handle(click))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """End the tasks when the server stops."""
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _handle(self, click: Callback) -> None:
        is_done, text = await self._find_outcome(click)
        try:
            await respond(click, make_printable(text, _TEXT_CHARS_MAX), is_done=is_done)
        except SinkFailed as error:
            _LOG.warning("the outcome of a click was not shown in Slack: %s", error)

    async def _find_outcome(self, click: Callback) -> tuple[bool, str]:
        """Take the decision. Return whether that was done, and a text for the person."""
        if not click.by:
            return False, (
                f"Not decided: your Slack user {click.user} is not among the users that this server "
                "knows. An operator can add it to the notify file."
            )
        try:
            await self._decide(click)
        except (NoWorker, ServerUnreachable):
            return (
                False,
                "Not decided: no worker has taken the decision. Try again once workers run.",
            )
        except EverlongError as error:
            return False, f"Not decided: {error}"
        except Exception as error:  # noqa: BLE001 - a defect; the person has to learn of it
            # Without the message, which may hold contents.
            frames = "".join(traceback.format_tb(error.__traceback__))
            _LOG.error("a click was not handled: %s\n%s", type(error).__name__, frames)
            return False, f"Not decided: {type(error).__name__}. The server's log has the cause."
        verb = "Approved" if click.approve else "Denied"
        return True, f"{verb} by {click.by}: {click.approval_id} of {click.thread_id}"

    async def _decide(self, click: Callback) -> None:
        """Send the decision, again and again while no worker takes it."""
        parent = None
        if click.run_id:
            parent = self._spans.build_context(click.run_id, APPROVAL, click.approval_id)
        span = self._spans.start(
            DECISION,
            {
                THREAD: click.thread_id,
                RUN: click.run_id,
                "everlong.approval.id": click.approval_id,
            },
            run_id=click.run_id,
            parent=parent,
        )
        # The same for each attempt, so that a decision which two attempts deliver is applied once.
        update_id = f"slack-{hashlib.sha256(click.signature.encode()).hexdigest()[:32]}"
        give_up = time.monotonic() + SECONDS_MAX
        with self._spans.use(span):
            while True:
                try:
                    handle = await self._context.thread(click.thread_id)
                    await handle.decide(
                        click.approval_id, approve=click.approve, by=click.by, update_id=update_id
                    )
                except (NoWorker, ServerUnreachable):
                    if time.monotonic() > give_up:
                        raise
                    await asyncio.sleep(_PAUSE_SECONDS)
                else:
                    return
