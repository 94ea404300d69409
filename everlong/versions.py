"""Which versions run here, and whether this Everlong was tried with this SDK."""

import dataclasses
import platform
import re
from importlib import metadata
from typing import Final

SDK: Final = "temporalio"
# What our own requirement of the SDK consists of, as in `<1.36,>=1.35`.
_BOUND: Final = re.compile(r"(>=|<)\s*([0-9.]+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Versions:
    """What a process runs."""

    everlong: str
    sdk: str
    sdk_wanted: str
    """As in `<1.36,>=1.35`; empty if our own package does not say."""
    python: str

    @property
    def sdk_fits(self) -> bool:
        """Whether this Everlong was tried with this version of the SDK."""
        return fits(self.sdk, self.sdk_wanted)


def versions() -> Versions:
    """Return what this process runs."""
    return Versions(
        everlong=_version("everlong"),
        sdk=_version(SDK),
        sdk_wanted=_wanted(),
        python=platform.python_version(),
    )


def fits(version: str, wanted: str) -> bool:
    """Tell whether a version lies within bounds of the form `<1.36,>=1.35`."""
    number = _number(version)
    bounds = _BOUND.findall(wanted)
    return all((number >= _number(bound)) == (sign == ">=") for sign, bound in bounds)


def _number(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with, without zeros at their end: 1.35 is 1.35.0."""
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # Run from a directory that nobody installed.
        return "unknown"


def _wanted() -> str:
    try:
        requirements = metadata.requires("everlong") or []
    except metadata.PackageNotFoundError:
        return ""
    for each in requirements:
        if found := re.fullmatch(rf"{SDK}\s*([<>=][^;]*?)\s*", each):
            return found[1]
    return ""
