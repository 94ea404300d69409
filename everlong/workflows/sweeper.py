"""The `everlong.Sweeper` workflow: one sweep, in activities that each continue the previous one.

The progress of a sweep is in its index, on disk and in the store, and not here or in heartbeats: a
cursor is valid only together with the rows before it. So each activity takes the same options.
"""

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior

from everlong.models import SWEEP, SWEEPER_WORKFLOW, SweepOptions, SweepReport, add_reports

# An activity ends by itself before this (`SWEEP_ACTIVITY_SECONDS_MAX`), and reports that it is
# unfinished.
_SWEEP: Final = timedelta(hours=24)
# The activity reports progress all the time; one call to a store, with its retries, takes seconds.
_HEARTBEAT: Final = timedelta(minutes=2)
_ATTEMPTS_MAX: Final = 5
# 25 days at 20 hours each.
_ACTIVITIES_MAX: Final = 30


@workflow.defn(name=SWEEPER_WORKFLOW, sandboxed=False)
class SweeperWorkflow:
    """One sweep of the namespace that it runs in."""

    @workflow.run
    async def run(self, options: SweepOptions) -> SweepReport:
        """Sweep, and return the report."""
        report = await self._sweep(options)
        for _ in range(_ACTIVITIES_MAX - 1):
            if not report.is_unfinished:
                break
            report = add_reports(report, await self._sweep(options))
        return report

    async def _sweep(self, options: SweepOptions) -> SweepReport:
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


@workflow.defn(
    name=SWEEPER_WORKFLOW, sandboxed=False, versioning_behavior=VersioningBehavior.AUTO_UPGRADE
)
class VersionedSweeperWorkflow(SweeperWorkflow):
    """A sweep, which may take a day: after a rollout its next attempt runs on the new version."""

    @workflow.run
    async def run(self, options: SweepOptions) -> SweepReport:
        """See `SweeperWorkflow`."""
        return await super().run(options)
