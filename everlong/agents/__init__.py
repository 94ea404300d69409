"""Agents, models and tools: plain objects that live in the worker's process.

Workflow code never sees them; it knows an agent by name only.
"""

from everlong.agents.agent import RESERVED_NAMES, Agent
from everlong.agents.model import Model, Reply, StreamingModel, TakeText, can_stream
from everlong.agents.tools import (
    CallInfo,
    FunctionTool,
    OutcomeUnknown,
    Tool,
    ToolOptions,
    current_call,
    set_current_call,
    tool,
)

__all__ = [
    "RESERVED_NAMES",
    "Agent",
    "CallInfo",
    "FunctionTool",
    "Model",
    "OutcomeUnknown",
    "Reply",
    "StreamingModel",
    "TakeText",
    "Tool",
    "ToolOptions",
    "can_stream",
    "current_call",
    "set_current_call",
    "tool",
]
