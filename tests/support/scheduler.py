"""Scheduler of tests over the test processes (`pytest -n 3 --dist loadscope`)."""

import functools
from pathlib import Path
from typing import Final

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped] # it has no stubs

_ROOT: Final = Path(__file__).parents[2]
_DIVISIBLE: Final = ("tests/faults/", "tests/server/")


class Scheduler(LoadScopeScheduling):  # type: ignore[misc] # untyped, as above
    """Gives a free process the next test with a server, or the next file of others.

    Files of unit tests stay whole, since sending tests one by one costs more than they take. So do files
    with a module-scoped fixture: each process that ran a part of one would set it up again.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return nodeid if _is_divisible(file) else file


@functools.cache
def _is_divisible(file: str) -> bool:
    return file.startswith(_DIVISIBLE) and 'scope="module"' not in (_ROOT / file).read_text()
