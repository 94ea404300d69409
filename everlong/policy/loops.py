"""Loop detection: recognises an agent that repeats the same calls or failures.

Pure transitions: each function takes the streaks so far and returns the new ones.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Final

from pydantic.dataclasses import dataclass

from everlong import limits

# As many as one reply may call, so that calls which all fail in every step are all remembered.
_FAILURES_MAX: Final = limits.TOOL_CALLS_MAX
_RECENT_MAX: Final = 8


@dataclass(frozen=True, kw_only=True)
class Repeated:
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
    failures: tuple[Repeated, ...] = ()
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
class Observed:
    """One tool call of a step, with its outcome."""

    call: str
    result: str
    outcome: str
    """`ok`, `failed` or `refused`."""


def after_step(streaks: Streaks, calls: Sequence[Observed]) -> Streaks:
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


def after_turn(streaks: Streaks, *, failed: bool) -> Streaks:
    """Return the streaks after a turn. An answer is progress, so it resets them."""
    if failed:
        return dataclasses.replace(streaks, failed_turns=streaks.failed_turns + 1, refused_steps=0)
    return Streaks()


def _record(failures: tuple[Repeated, ...], observed: Observed) -> tuple[Repeated, ...]:
    before = [each for each in failures if each.call == observed.call]
    others = tuple(each for each in failures if each.call != observed.call)
    if observed.outcome == "ok":
        return others
    same = [each.count for each in before if each.failure == observed.result]
    repeated = Repeated(call=observed.call, failure=observed.result, count=sum(same) + 1)
    return (*others, repeated)[-_FAILURES_MAX:]
