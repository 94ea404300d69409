"""Activities: model calls, tools and compactions of threads; check-ups of workers; sweeps."""

from everlong.activities.agent import AgentActivities
from everlong.activities.doctor import CheckActivities
from everlong.activities.sweep import SweepActivities

__all__ = ["AgentActivities", "CheckActivities", "SweepActivities"]
