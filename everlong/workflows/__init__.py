"""Temporal workflows. Deterministic: no clock, no random, no I/O, no large bodies."""

from typing import Final

from everlong.workflows.agent import AgentWorkflow, VersionedAgentWorkflow
from everlong.workflows.continue_as_new import should_continue_as_new
from everlong.workflows.doctor import DoctorWorkflow, VersionedDoctorWorkflow
from everlong.workflows.notifier import NotifierWorkflow, VersionedNotifierWorkflow
from everlong.workflows.sweeper import SweeperWorkflow, VersionedSweeperWorkflow
from everlong.workflows.thread import Thread

# The server refuses a versioning behaviour from a worker without versioning, so the plain classes have
# none. AUTO_UPGRADE, since a thread lives for months and may wait for days: pinned, it would keep an old
# deployment from draining. Histories have to replay on newer releases anyway.
VERSIONED: Final[dict[type, type]] = {
    AgentWorkflow: VersionedAgentWorkflow,
    DoctorWorkflow: VersionedDoctorWorkflow,
    NotifierWorkflow: VersionedNotifierWorkflow,
    SweeperWorkflow: VersionedSweeperWorkflow,
}
"""Classes that the plugin registers in place of the plain ones on a worker with worker versioning."""

__all__ = [
    "VERSIONED",
    "AgentWorkflow",
    "DoctorWorkflow",
    "NotifierWorkflow",
    "SweeperWorkflow",
    "Thread",
    "should_continue_as_new",
]
