"""What a thread does outside its workflow: model calls and tools."""

from everlong.activities.agent import AgentActivities

__all__ = ["AgentActivities"]
