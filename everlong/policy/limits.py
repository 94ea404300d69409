"""Limits of a thread: compares its usage with its policy's bounds."""

import dataclasses

from pydantic.dataclasses import dataclass

from everlong.policy.policy import Policy


@dataclass(frozen=True, kw_only=True)
class LimitHit:
    """The bound that a thread reached, and the action taken. Data of a `limit` entry."""

    limit: str
    """Name of the policy's field, as in `steps_max`."""
    value: float
    bound: float
    action: str
    """`pause`, `stop` or `archive`."""

    @property
    def reason(self) -> str:
        """The reason in words, for the status."""
        return f"{self.limit}: {self.value:g} of {self.bound:g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """What a thread has used. Each field is named like its limit, without `_max`."""

    steps: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    thread_bytes: int = 0
    step_bytes: int = 0
    context_bytes: int = 0
    failed_turns: int = 0
    same_failure: int = 0
    no_progress_steps: int = 0


def limit_hit(policy: Policy, usage: Usage) -> LimitHit | None:
    """Return the first limit that the usage reaches, or None."""
    for field in dataclasses.fields(usage):
        limit = f"{field.name}_max"
        value: float = getattr(usage, field.name)
        bound: float | None = getattr(policy, limit)
        if bound is not None and value >= bound:
            return LimitHit(limit=limit, value=value, bound=bound, action=policy.action(limit))
    return None
