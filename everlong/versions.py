"""Versions that run here, and whether this Everlong was tested with this SDK.

`pyproject.toml` lets newer minor versions of the SDK in. One that was not tested is used with a
warning: Everlong tries the private APIs that it needs, and does without those that are missing.
"""

import dataclasses
import functools
import logging
import platform
import re
from importlib import metadata
from typing import Final

SDK: Final = "temporalio"
SDK_TESTED: Final = ">=1.33,<1.36"
"""Versions of the SDK that the tests were run with: `make test-sdk` runs them with another one."""
_LOG: Final = logging.getLogger(__name__)
# A bound of a range such as `<2,>=1.33`.
_BOUND: Final = re.compile(r"(>=|<)\s*([0-9.]+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Versions:
    """What a process runs."""

    everlong: str
    sdk: str
    sdk_wanted: str
    """Range that the package requires, as in `<2,>=1.33`; empty if it is not known."""
    python: str

    @property
    def sdk_fits(self) -> bool:
        """Whether this version of the SDK is in the range that the package requires."""
        return fits(self.sdk, self.sdk_wanted)

    @property
    def sdk_tested(self) -> bool:
        """Whether this Everlong was tested with this version of the SDK."""
        return fits(self.sdk, SDK_TESTED)


def sdk_version() -> str:
    """Return the version of the SDK that is installed."""
    return _version(SDK)


def versions() -> Versions:
    """Return what this process runs."""
    return Versions(
        everlong=_version("everlong"),
        sdk=sdk_version(),
        sdk_wanted=_wanted(),
        python=platform.python_version(),
    )


@functools.cache
def warn_of_untested_sdk(sdk: str) -> None:
    """Log a warning, once in a process, if Everlong was not tested with this version of the SDK."""
    if not fits(sdk, SDK_TESTED):
        _LOG.warning(
            "this everlong was tested with %s%s, and %s is installed. What it needs of the SDK is tried "
            "at start: a feature that cannot work is switched off, with a warning of its own",
            *(SDK, SDK_TESTED, sdk),
        )


def fits(version: str, wanted: str) -> bool:
    """Return whether a version lies within bounds of the form `<2,>=1.33`."""
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
