"""What a check found."""

import dataclasses
from typing import Final, Literal, TypeAlias

Status: TypeAlias = Literal["ok", "skipped", "warning", "failed"]
_RANK: Final[dict[Status, int]] = {"ok": 0, "skipped": 1, "warning": 2, "failed": 3}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of `everlong doctor`."""

    check: str
    """What was checked."""
    status: Status
    text: str
    """What was found, with a figure."""
    fix: str = ""
    """What to do about it, in words."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something that is wrong with what was checked."""

    status: Status
    text: str
    fix: str


def finding(check: str, text: str, problems: list[Problem]) -> Finding:
    """Return one finding of all that is wrong with a thing; its status is that of the worst."""
    worst: Status = max((each.status for each in problems), key=_RANK.__getitem__, default="ok")
    fixes = dict.fromkeys(each.fix for each in problems)
    return Finding(
        check, worst, "; ".join([text, *(each.text for each in problems)]), " ".join(fixes)
    )
