"""Temporal workflows. Deterministic: no clock, no random, no I/O, no large bodies."""

from everlong.workflows.agent import AgentWorkflow
from everlong.workflows.doctor import DoctorWorkflow
from everlong.workflows.size_policy import should_continue_as_new
from everlong.workflows.sweeper import SweeperWorkflow
from everlong.workflows.thread import Thread

__all__ = ["AgentWorkflow", "DoctorWorkflow", "SweeperWorkflow", "Thread", "should_continue_as_new"]
