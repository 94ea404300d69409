"""Pure decisions about a thread: same input, same answer, on every machine and replay."""

from everlong.policy.policy import Policy
from everlong.policy.roll import RollReason, RunSize, roll_reason

__all__ = ["Policy", "RollReason", "RunSize", "roll_reason"]
