"""Retention: how long a sweep keeps unreachable objects, by class."""

from typing import Annotated, Final

from pydantic import Field
from pydantic.dataclasses import dataclass

from everlong import limits

_DAY: Final = 24 * 3600.0
_Seconds = Annotated[float, Field(ge=0, le=100 * 365 * _DAY)]

# After a sweep finds a pack unreachable, an encoder that remembers it may still refer to it, and a
# payload that names it may still be on its way into a history.
QUARANTINE_SECONDS_MIN: Final = limits.ENCODER_PACK_SECONDS_MAX + limits.SWEEP_ON_ITS_WAY_SECONDS
"""Shortest safe quarantine. After a shorter one, a history could name a pack that is already deleted."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Time before a sweep takes objects that no history, fork or schedule reaches any more."""

    payload_seconds: _Seconds = _DAY
    """Least age of a history's unreachable payload before it is quarantined."""

    journal_seconds: _Seconds = _DAY
    """Least age of a journal's unreachable segments, bodies and snapshots before they are
    quarantined."""

    archive_seconds: _Seconds | None = None
    """Age at which archives are quarantined; None keeps them forever. Nothing refers to an archive, so
    age alone decides."""

    quarantine_seconds: _Seconds = 7 * _DAY
    """Time from quarantine to deletion. Until then a read, or the next sweep, restores a needed
    object."""

    def find_problem(self) -> str:
        """Return why this retention could lose needed objects; empty if it cannot."""
        if self.quarantine_seconds >= QUARANTINE_SECONDS_MIN:
            return ""
        return (
            f"quarantine_seconds is {self.quarantine_seconds:g}: workers may refer to a pack up to "
            f"{QUARANTINE_SECONDS_MIN:g} s after a sweep found it unreachable. Give at least that."
        )


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY}
_FIELDS: Final = ("payload", "journal", "archive", "quarantine")


def parse_seconds(text: str) -> float:
    """Parse a duration such as `90s`, `30m`, `6h` or `7d`. Raises `ValueError` for anything else."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.replace(".", "", 1).isdecimal():
        raise ValueError(f"{text!r} is not a duration; write 90s, 30m, 6h or 7d")
    return float(number) * _UNITS[unit]


def parse_retention(text: str) -> Retention:
    """Parse a retention such as `payload=1d,archive=never,quarantine=7d`; the rest keeps its default."""
    values: dict[str, float | None] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = part.partition("=")
        if name not in _FIELDS or not equals:
            raise ValueError(f"{part!r} is not understood; write {'=…, '.join(_FIELDS)}=…")
        is_never = name == "archive" and value == "never"
        values[f"{name}_seconds"] = None if is_never else parse_seconds(value)
    return Retention(**values)  # type: ignore[arg-type] # only archives have None
