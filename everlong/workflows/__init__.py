"""Temporal workflows. Deterministic: no clock, no random, no I/O, no large bodies."""

from everlong.workflows.agent import AgentWorkflow

__all__ = ["AgentWorkflow"]
