"""Loop workflow that continues as new by `should_continue_as_new`.

Imported into the workflow sandbox: keep its imports few.
"""

from datetime import timedelta

from temporalio import workflow

from everlong import Policy
from everlong.workflows import should_continue_as_new
from tests.support.loop_workflows import numbered_result

RESULT_BYTES = 40_000
STEPS = 12
# Four results of 40,000 bytes exceed it; three do not.
POLICY = Policy(run_offloaded_bytes_max=140_000)


@workflow.defn
class SizedLoop:
    """Continues as new by the policy; returns the steps after which it did."""

    def __init__(self) -> None:
        self._notes = 0

    @workflow.run
    async def run(self, step: int, rolled_at: list[int], notes: int = 0) -> list[int]:
        await workflow.wait_condition(lambda: self._notes >= notes)
        while step < STEPS:
            await workflow.execute_activity(
                numbered_result,
                args=[step, RESULT_BYTES],
                start_to_close_timeout=timedelta(seconds=30),
            )
            step += 1
            await workflow.wait_condition(workflow.all_handlers_finished)
            if should_continue_as_new(POLICY):
                workflow.continue_as_new(args=[step, [*rolled_at, step]])
        return rolled_at

    @workflow.update
    async def note(self, text: str) -> int:
        self._notes += 1
        return len(text)

    @note.validator
    def _check(self, text: str) -> None:
        if text.startswith("refuse"):
            raise ValueError("refused")
