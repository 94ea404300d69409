"""The `everlong.Doctor` workflow: has workers say what they are. It ends whatever they answer."""

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior

from everlong.models import CHECK, DOCTOR_WORKFLOW, Checked, Checkup

# A worker that is well answers within milliseconds; what it does by itself is bounded at 5 s.
_CHECK: Final = timedelta(seconds=10)


@workflow.defn(name=DOCTOR_WORKFLOW, sandboxed=False)
class DoctorWorkflow:
    """One check-up. Who asked reads the answers in the history, where it finds their workers too."""

    @workflow.run
    async def run(self, checkup: Checkup) -> None:
        """Run the activities at once, so that more than one worker gets one of them."""
        checks = [
            workflow.execute_activity(
                CHECK,
                checkup.check,
                result_type=Checked,
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
    """A check-up. The doctor names a version by an override, which comes before the behaviour."""

    @workflow.run
    async def run(self, checkup: Checkup) -> None:
        """See `DoctorWorkflow`."""
        await super().run(checkup)
