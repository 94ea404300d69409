"""What a thread does outside its workflow: model calls and tools. What doctors ask, and sweeps."""

from everlong.activities.agent import AgentActivities
from everlong.activities.doctor import CheckActivities
from everlong.activities.sweep import SweepActivities

__all__ = ["AgentActivities", "CheckActivities", "SweepActivities"]
