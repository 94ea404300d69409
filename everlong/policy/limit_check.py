"""Limit check: compares a thread's usage and repetitions with the limits of its policy.

Pure functions: same input, same answer, also in a replay.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Final

from pydantic.dataclasses import dataclass

from everlong import limits
from everlong.policy.policy import Policy

# The calls of one reply, so that a step whose calls all fail is remembered as a whole.
_FAILURES_MAX: Final = limits.TOOL_CALLS_MAX
_RECENT_MAX: Final = 8


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


def find_limit_hit(policy: Policy, usage: Usage) -> LimitHit | None:
    """Return the first limit that the usage reaches, or None."""
    for field in dataclasses.fields(usage):
        limit = f"{field.name}_max"
        value: float = getattr(usage, field.name)
        bound: float | None = getattr(policy, limit)
        if bound is not None and value >= bound:
            return LimitHit(limit=limit, value=value, bound=bound, action=policy.action(limit))
    return None


# Loops: an agent that repeats the same calls or failures.


@dataclass(frozen=True, kw_only=True)
class RepeatedFailure:
    """A call that failed in the same way before, with the number of failures."""

    call: str
    failure: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Streaks:
    """What a thread has repeated so far. Calls and results are short digests."""

    failed_turns: int = 0
    """Turns in a row that ended without an answer."""
    refused_steps: int = 0
    """Steps in a row in which every call named an unknown tool or had invalid arguments."""
    failures: tuple[RepeatedFailure, ...] = ()
    """Calls that failed and have not succeeded since, the newest last."""
    no_progress_steps: int = 0
    """Steps in a row that only repeated a recent one: same calls, same results."""
    recent: tuple[str, ...] = ()
    """Digests of the last steps."""

    @property
    def same_failure(self) -> int:
        """Highest number of equal failures of one call since it last succeeded."""
        return max((repeated.count for repeated in self.failures), default=0)


@dataclasses.dataclass(frozen=True)
class ObservedCall:
    """One tool call of a step, with its outcome."""

    call: str
    result: str
    outcome: str
    """`ok`, `failed` or `refused`."""


def count_step(streaks: Streaks, calls: Sequence[ObservedCall]) -> Streaks:
    """Return the streaks after a step. All of its calls have a result."""
    failures = streaks.failures
    for observed in dict.fromkeys(calls):  # Equal calls count once per step.
        failures = _record(failures, observed)
    whole = ",".join(f"{observed.call}={observed.result}" for observed in calls)
    step = hashlib.blake2b(whole.encode(), digest_size=4).hexdigest()
    repeats = step in streaks.recent
    refused = all(observed.outcome == "refused" for observed in calls)
    return dataclasses.replace(
        streaks,
        refused_steps=streaks.refused_steps + 1 if refused else 0,
        failures=failures,
        no_progress_steps=streaks.no_progress_steps + 1 if repeats else 0,
        recent=(*streaks.recent, step)[-_RECENT_MAX:],
    )


def count_turn(streaks: Streaks, *, failed: bool) -> Streaks:
    """Return the streaks after a turn. An answer is progress, so it resets them."""
    if failed:
        return dataclasses.replace(streaks, failed_turns=streaks.failed_turns + 1, refused_steps=0)
    return Streaks()


def _record(
    failures: tuple[RepeatedFailure, ...], observed: ObservedCall
) -> tuple[RepeatedFailure, ...]:
    before = [each for each in failures if each.call == observed.call]
    others = tuple(each for each in failures if each.call != observed.call)
    if observed.outcome == "ok":
        return others
    same = [each.count for each in before if each.failure == observed.result]
    repeated = RepeatedFailure(call=observed.call, failure=observed.result, count=sum(same) + 1)
    return (*others, repeated)[-_FAILURES_MAX:]
