"""Live output of activities: reports an attempt of a step to the live channel while it runs.

It changes nothing of the step. Without a sender, live output is off, and the body gets None.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from temporalio import activity

from everlong.live import LiveSender
from everlong.live.sender import StepOutput
from everlong.models import ToolRun


@contextlib.asynccontextmanager
async def report_reply(
    sender: LiveSender | None, seq: int
) -> AsyncIterator[Callable[[str], None] | None]:
    """Report a model call whose reply will be entry `seq`. Yields what takes pieces of its text."""
    if sender is None:
        yield None
        return
    output = _open_step(sender, kind="reply", seq=seq)
    with _end_with_body(output):
        yield output.add


@contextlib.asynccontextmanager
async def report_tool(
    sender: LiveSender | None, run: ToolRun
) -> AsyncIterator[Callable[[str], None] | None]:
    """Report a tool call. Yields what takes its newest progress."""
    if sender is None:
        yield None
        return
    output = _open_step(sender, kind="tool", call_id=run.call_id, tool=run.tool)
    with _end_with_body(output):
        yield output.show


def _open_step(sender: LiveSender, **fields: Any) -> StepOutput:
    info = activity.info()
    return sender.open_step(
        info.namespace,
        thread_id=info.workflow_id or "",
        attempt=info.attempt,
        # The server's clock, so that attempts on workers whose clocks differ are in order.
        order=int(info.current_attempt_scheduled_time.timestamp() * 1000),
        **fields,
    )


@contextlib.contextmanager
def _end_with_body(output: StepOutput) -> Iterator[None]:
    try:
        yield
    except BaseException:
        output.end("cut")
        raise
    output.end("done")
