"""Failure loops: an agent that does the same again and again, and pays for it each time."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Final

from pydantic.dataclasses import dataclass

from everlong import limits

# All calls of a reply, so that those which fail in every step do not make each other forgotten.
_FAILURES_MAX: Final = limits.TOOL_CALLS_MAX
_RECENT_MAX: Final = 8


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """A call that failed in the same way before, and how often."""

    call: str
    failure: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Streaks:
    """What a thread has done over and over. Calls and results are known by short digests."""

    failed_turns: int = 0
    """Turns in a row that ended without an answer."""
    refused_steps: int = 0
    """Steps in a row whose calls were all unknown, or did not fit the tool's signature."""
    failures: tuple[Repeated, ...] = ()
    """Calls that failed last, and have not succeeded since."""
    no_progress_steps: int = 0
    """Steps in a row that only repeated one of the last: same calls, same results."""
    recent: tuple[str, ...] = ()
    """The last steps."""

    @property
    def same_failure(self) -> int:
        """How often a call has failed in the same way since it last succeeded."""
        return max((repeated.count for repeated in self.failures), default=0)


@dataclasses.dataclass(frozen=True)
class Observed:
    """One tool call of a step, and how it went."""

    call: str
    result: str
    outcome: str
    """`ok`, `failed` or `refused`."""


def after_step(streaks: Streaks, calls: Sequence[Observed]) -> Streaks:
    """Take in a step whose calls all have a result."""
    failures = streaks.failures
    for observed in dict.fromkeys(calls):  # Equal ones count once a step.
        failures = _with(failures, observed)
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
    """Take in the end of a turn. An answer is progress."""
    if failed:
        return dataclasses.replace(streaks, failed_turns=streaks.failed_turns + 1, refused_steps=0)
    return Streaks()


def _with(failures: tuple[Repeated, ...], observed: Observed) -> tuple[Repeated, ...]:
    before = [each for each in failures if each.call == observed.call]
    others = tuple(each for each in failures if each.call != observed.call)
    if observed.outcome == "ok":
        return others
    same = [each.count for each in before if each.failure == observed.result]
    repeated = Repeated(call=observed.call, failure=observed.result, count=sum(same) + 1)
    return (*others, repeated)[-_FAILURES_MAX:]
