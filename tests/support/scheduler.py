"""Scheduler of tests over the test processes (`pytest -n 5 --dist loadscope`)."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped] # it has no stubs

ItemT = TypeVar("ItemT")

_ROOT: Final = Path(__file__).parents[2]
_DIVISIBLE: Final = ("tests/faults/", "tests/server/")
_BROWSER: Final = "tests/browser/"
_BROWSERS_MAX: Final = 2
"""Test processes that start a browser with a dashboard, a server and a worker: 4 s of CPU each."""


class Scheduler(LoadScopeScheduling):  # type: ignore[misc] # untyped, as above
    """Gives a free process the next test with a server, or the next file of others.

    Files of unit tests stay whole, since sending tests one by one costs more than they take. So do files
    with a module-scoped fixture: each process that ran a part of one would set it up again. The files of
    browser tests are distributed over two processes.
    """

    def _split_scope(self, nodeid: str) -> str:
        return find_unit(nodeid)


def find_unit(nodeid: str) -> str:
    """Return the name of the unit of work that a test belongs to."""
    file = nodeid.split("::", 1)[0]
    if file.startswith(_BROWSER):
        return f"{_BROWSER}{_list_browser_files().index(file) % _BROWSERS_MAX}"
    return nodeid if _is_divisible(file) else file


def spread(some: Sequence[ItemT], others: Sequence[ItemT]) -> list[ItemT]:
    """Return the items of both lists, each in its order, with `some` evenly distributed."""
    places = [(index + 0.5) / len(some) for index in range(len(some))]
    other_places = [(index + 0.5) / len(others) for index in range(len(others))]
    placed = [*zip(places, some, strict=True), *zip(other_places, others, strict=True)]
    return [item for _, item in sorted(placed, key=lambda each: each[0])]


@functools.cache
def _is_divisible(file: str) -> bool:
    return file.startswith(_DIVISIBLE) and 'scope="module"' not in (_ROOT / file).read_text()


@functools.cache
def _list_browser_files() -> list[str]:
    return sorted(
        path.relative_to(_ROOT).as_posix() for path in (_ROOT / _BROWSER).glob("test_*.py")
    )
