"""Our workflows as workers with worker versioning run them: they move on to new deployments.

The server refuses a versioning behaviour from a worker without versioning, so the plain classes have
none, and the plugin registers these in their place where a worker has a version. `AUTO_UPGRADE`, since
a thread lives for months and may wait for days: pinned, it would keep an old deployment from draining.
Histories have to replay on newer releases anyway.
"""

from typing import Final

from temporalio import workflow
from temporalio.common import VersioningBehavior

from everlong.models import (
    AGENT_WORKFLOW,
    DOCTOR_WORKFLOW,
    SWEEPER_WORKFLOW,
    Checkup,
    SweepOptions,
    SweepReport,
    ThreadStart,
    ThreadStatus,
)
from everlong.workflows.agent import AgentWorkflow
from everlong.workflows.doctor import DoctorWorkflow
from everlong.workflows.sweeper import SweeperWorkflow


@workflow.defn(
    name=AGENT_WORKFLOW, sandboxed=False, versioning_behavior=VersioningBehavior.AUTO_UPGRADE
)
class VersionedAgentWorkflow(AgentWorkflow):
    """A thread: its next task goes to the current version."""

    @workflow.init
    def __init__(self, start: ThreadStart) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: ThreadStart) -> ThreadStatus:
        """See `AgentWorkflow`."""
        return await super().run(start)


@workflow.defn(
    name=DOCTOR_WORKFLOW, sandboxed=False, versioning_behavior=VersioningBehavior.AUTO_UPGRADE
)
class VersionedDoctorWorkflow(DoctorWorkflow):
    """A check-up. The doctor names a version by an override, which comes before the behaviour."""

    @workflow.run
    async def run(self, checkup: Checkup) -> None:
        """See `DoctorWorkflow`."""
        await super().run(checkup)


@workflow.defn(
    name=SWEEPER_WORKFLOW, sandboxed=False, versioning_behavior=VersioningBehavior.AUTO_UPGRADE
)
class VersionedSweeperWorkflow(SweeperWorkflow):
    """A sweep, which may take a day: after a rollout its next attempt runs on the new version."""

    @workflow.run
    async def run(self, options: SweepOptions) -> SweepReport:
        """See `SweeperWorkflow`."""
        return await super().run(options)


VERSIONED: Final[dict[type, type]] = {
    AgentWorkflow: VersionedAgentWorkflow,
    DoctorWorkflow: VersionedDoctorWorkflow,
    SweeperWorkflow: VersionedSweeperWorkflow,
}
"""The class to register in place of another, on a worker with versioning."""
