"""What a thread does outside its workflow: model calls and tools. And what doctors ask."""

from everlong.activities.agent import AgentActivities
from everlong.activities.checking import CheckActivities

__all__ = ["AgentActivities", "CheckActivities"]
