"""The `everlong.Sweeper` workflow: one sweep, as an activity that goes on where it was cut off."""

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy

from everlong.models import SWEEP, SWEEPER_WORKFLOW, SweepOptions, SweepReport

# The first sweep of a large namespace reads all of its histories. What it has read is kept.
_SWEEP: Final = timedelta(hours=24)
# It tells of its progress all the time; one call to a store, with its retries, takes seconds.
_HEARTBEAT: Final = timedelta(minutes=2)
_ATTEMPTS_MAX: Final = 5


@workflow.defn(name=SWEEPER_WORKFLOW, sandboxed=False)
class SweeperWorkflow:
    """One sweep of the namespace that it runs in."""

    @workflow.run
    async def run(self, options: SweepOptions) -> SweepReport:
        """Sweep, and return what was done."""
        report: SweepReport = await workflow.execute_activity(
            SWEEP,
            options,
            result_type=SweepReport,
            start_to_close_timeout=_SWEEP,
            heartbeat_timeout=_HEARTBEAT,
            retry_policy=RetryPolicy(
                maximum_attempts=_ATTEMPTS_MAX,
                non_retryable_error_types=["ConfigError"],
            ),
        )
        return report
