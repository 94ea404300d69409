"""Findings of checks: a status, a text and a remedy."""

import dataclasses
from typing import Final, Literal, TypeAlias

Status: TypeAlias = Literal["ok", "skipped", "warning", "failed"]
_RANK: Final[dict[Status, int]] = {"ok": 0, "skipped": 1, "warning": 2, "failed": 3}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of `everlong doctor`."""

    check: str
    """Name of the check."""
    status: Status
    text: str
    """The finding, with a figure."""
    fix: str = ""
    """Remedy, in words; empty if none is needed."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem that a check found."""

    status: Status
    text: str
    fix: str


def combine_problems(check: str, text: str, problems: list[Problem]) -> Finding:
    """Return one finding about a check's problems, with the status of the worst."""
    worst: Status = max((each.status for each in problems), key=_RANK.__getitem__, default="ok")
    fixes = dict.fromkeys(each.fix for each in problems)
    return Finding(
        check, worst, "; ".join([text, *(each.text for each in problems)]), " ".join(fixes)
    )
