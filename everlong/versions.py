"""Versions of Everlong, the SDK and Python in this process, and whether they were tested together.

`pyproject.toml` allows newer minor versions of the SDK than were tested. Such a version is used with a
warning: Everlong probes the private APIs that it needs, and switches off features that lack one.
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
"""Tested versions of the SDK; `make test-sdk` runs the tests with another one."""
_LOG: Final = logging.getLogger(__name__)
# A bound of a range such as `<2,>=1.33`.
_BOUND: Final = re.compile(r"(>=|<)\s*([0-9.]+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Versions:
    """The versions in a process."""

    everlong: str
    sdk: str
    sdk_wanted: str
    """Range that the package requires, as in `<2,>=1.33`; empty if unknown."""
    python: str

    @property
    def sdk_fits(self) -> bool:
        """Whether this version of the SDK is in the range that the package requires."""
        return fits(self.sdk, self.sdk_wanted)

    @property
    def sdk_tested(self) -> bool:
        """Whether this Everlong was tested with this version of the SDK."""
        return fits(self.sdk, SDK_TESTED)


def get_sdk_version() -> str:
    """Return the installed version of the SDK."""
    return _read_version(SDK)


def get_versions() -> Versions:
    """Return the versions in this process."""
    return Versions(
        everlong=_read_version("everlong"),
        sdk=get_sdk_version(),
        sdk_wanted=_read_wanted(),
        python=platform.python_version(),
    )


@functools.cache
def warn_of_untested_sdk(sdk: str) -> None:
    """Log a warning, once in a process, if Everlong was not tested with this version of the SDK."""
    if not fits(sdk, SDK_TESTED):
        _LOG.warning(
            "this everlong was tested with %s%s, but %s is installed. Features that do not work with it "
            "are switched off at start, each with a warning",
            *(SDK, SDK_TESTED, sdk),
        )


def fits(version: str, wanted: str) -> bool:
    """Return whether a version satisfies bounds of the form `<2,>=1.33`."""
    number = _parse_number(version)
    bounds = _BOUND.findall(wanted)
    return all((number >= _parse_number(bound)) == (sign == ">=") for sign, bound in bounds)


def _parse_number(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version without trailing zeros, so that 1.35 equals 1.35.0."""
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _read_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # Run from a checkout that is not installed.
        return "unknown"


def _read_wanted() -> str:
    try:
        requirements = metadata.requires("everlong") or []
    except metadata.PackageNotFoundError:
        return ""
    for each in requirements:
        if found := re.fullmatch(rf"{SDK}\s*([<>=][^;]*?)\s*", each):
            return found[1]
    return ""
