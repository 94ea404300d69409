"""How long what nothing reaches is kept, by class."""

from typing import Annotated, Final

from pydantic import Field
from pydantic.dataclasses import dataclass

from everlong import limits

_DAY: Final = 24 * 3600.0
_Seconds = Annotated[float, Field(ge=0, le=100 * 365 * _DAY)]

# A pack may be named by an encoder that remembers it, and by a payload that is on its way into a
# history.
QUARANTINE_SECONDS_MIN: Final = limits.ENCODER_PACK_SECONDS_MAX + limits.SWEEP_ON_ITS_WAY_SECONDS
"""What is quarantined for less may be named again after it is gone."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Time that passes before a sweep takes what no history, fork or schedule reaches any more."""

    payload_seconds: _Seconds = _DAY
    """Payloads of histories, from when they were written to when they may be quarantined."""

    journal_seconds: _Seconds = _DAY
    """Segments, bodies and snapshots of journals, in the same way."""

    archive_seconds: _Seconds | None = None
    """Archives, from when they were written; None keeps them for ever. Nothing reaches an archive, so
    this alone decides."""

    quarantine_seconds: _Seconds = 7 * _DAY
    """From quarantine to the end. Until then a read, or the next sweep, puts back what is needed."""

    def find_problem(self) -> str:
        """Say why this could lose what is still needed; empty if it cannot."""
        if self.quarantine_seconds >= QUARANTINE_SECONDS_MIN:
            return ""
        return (
            f"quarantine_seconds is {self.quarantine_seconds:g}: workers may name a pack again up to "
            f"{QUARANTINE_SECONDS_MIN:g} s after a sweep has found it unreachable. Give at least that."
        )


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY}
_FIELDS: Final = ("payload", "journal", "archive", "quarantine")


def parse_seconds(text: str) -> float:
    """Return a time as people write it: `90s`, `30m`, `6h`, `7d`. `ValueError` for what is none."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.replace(".", "", 1).isdecimal():
        raise ValueError(f"{text!r} is no time; write 90s, 30m, 6h or 7d")
    return float(number) * _UNITS[unit]


def parse_retention(text: str) -> Retention:
    """Return what is written as `payload=1d,archive=never,quarantine=7d`; the rest is as ever."""
    values: dict[str, float | None] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = part.partition("=")
        if name not in _FIELDS or not equals:
            raise ValueError(f"{part!r} is not understood; write {'=…, '.join(_FIELDS)}=…")
        is_for_ever = name == "archive" and value == "never"
        values[f"{name}_seconds"] = None if is_for_ever else parse_seconds(value)
    return Retention(**values)  # type: ignore[arg-type] # only archives have None
