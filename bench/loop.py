"""The loop that every agent begins with: a message list, passed whole to an activity at each step."""

from datetime import timedelta
from typing import Final

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from bench import probe
    from everlong.testing import workload

RESULT_BYTES: Final = 20 * 1024


@activity.defn
def call_tool(messages: list[str]) -> str:
    """Return a result that no other step has."""
    return workload.passage(len(messages), RESULT_BYTES)


@workflow.defn
class ListLoop:
    """Takes steps up to the one that it was told last. It is terminated from outside."""

    def __init__(self) -> None:
        self._until = 0

    @workflow.run
    async def run(self) -> None:
        """Keep a list, and pass it on."""
        messages: list[str] = []
        while True:
            await workflow.wait_condition(lambda: len(messages) < self._until)
            _tell("live", len(messages) + 1)
            result = await workflow.execute_activity(
                call_tool, messages, start_to_close_timeout=timedelta(seconds=60)
            )
            messages.append(result)
            _tell("done", len(messages))

    @workflow.signal
    def run_until(self, step: int) -> None:
        """Go on to that step, and wait there."""
        self._until = step


def _tell(what: str, step: int) -> None:
    """Tell it once. A clock has no place in workflow code; this one decides nothing."""
    if not workflow.unsafe.is_replaying():
        with workflow.unsafe.sandbox_unrestricted():
            probe.tell(what, step)
