"""Activities: steps of threads, check-ups of workers, sweeps, notifications."""

from everlong.activities.agent import AgentActivities
from everlong.activities.doctor import CheckActivities
from everlong.activities.notify import NotifyActivities
from everlong.activities.sweep import SweepActivities

__all__ = ["AgentActivities", "CheckActivities", "NotifyActivities", "SweepActivities"]
