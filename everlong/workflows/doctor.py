"""The `everlong.Doctor` workflow: asks workers for their versions, keys and store.

It completes whatever they answer, or if none does.
"""

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior

from everlong.models import CHECK, DOCTOR_WORKFLOW, CheckResult, Checkup

# A healthy worker answers within milliseconds, and its own checks end after 5 s.
_CHECK: Final = timedelta(seconds=10)


@workflow.defn(name=DOCTOR_WORKFLOW, sandboxed=False)
class DoctorWorkflow:
    """One check-up. The client reads the answers, and the workers that gave them, from the history."""

    @workflow.run
    async def run(self, checkup: Checkup) -> None:
        """Run the activities at the same time, so that several workers get one each."""
        checks = [
            workflow.execute_activity(
                CHECK,
                checkup.check,
                result_type=CheckResult,
                schedule_to_close_timeout=_CHECK,
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
            for _ in range(checkup.times)
        ]
        await asyncio.gather(*checks, return_exceptions=True)


@workflow.defn(
    name=DOCTOR_WORKFLOW, sandboxed=False, versioning_behavior=VersioningBehavior.AUTO_UPGRADE
)
class VersionedDoctorWorkflow(DoctorWorkflow):
    """A check-up of a versioned worker. The client selects a version by an override, which wins."""

    @workflow.run
    async def run(self, checkup: Checkup) -> None:
        """See `DoctorWorkflow`."""
        await super().run(checkup)
