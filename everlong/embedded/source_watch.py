"""Source watch: finds the Python files that changed, for `everlong dev --reload`.

It compares modification times and opens no file. Files and directories are bounded: a watch in a large
directory costs no more than one in a project.
"""

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

POLL_SECONDS: Final = 0.5
FILES_MAX: Final = 2_000
DIRECTORIES_MAX: Final = 500
"""With 2,000 files a poll takes 10 ms: 2% of a core."""
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_ENVIRONMENT: Final = "pyvenv.cfg"
_Stamp = tuple[int, int]


class SourceWatch:
    """The Python files below some directories, as they were when they were last looked at."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        # `is_complete`: the bounds leave no file out.
        self._seen, self.is_complete = _scan(roots)

    @property
    def files(self) -> int:
        """The number of watched files."""
        return len(self._seen)

    def find_changes(self) -> set[Path]:
        """Return the files that were written, created or deleted since the last call."""
        before = self._seen
        self._seen, self.is_complete = _scan(self.roots)
        return {
            path
            for path in before.keys() | self._seen.keys()
            if before.get(path) != self._seen.get(path)
        }

    async def wait_for_change(self) -> list[Path]:
        """Wait until files have changed and no more do: an editor may write several."""
        changed: set[Path] = set()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            new = await asyncio.to_thread(self.find_changes)
            if changed and not new:
                return sorted(changed)
            changed |= new


def find_roots(agents: Iterable[str], directory: Path) -> list[Path]:
    """Return the directories with the code of agents, `module:agent`: first the working directory.

    A package that is installed like any other does not change, so it is left out.
    """
    found = [directory]
    for path in agents:
        top = path.partition(":")[0].partition(".")[0]
        if (directory / top).is_dir() or (directory / f"{top}.py").is_file():
            continue
        # Only finds the top-level name: imports nothing.
        spec = (
            importlib.util.find_spec(top) if top and top not in sys.builtin_module_names else None
        )
        places = list(spec.submodule_search_locations or ()) if spec else []
        if spec and spec.origin and not places:
            places = [str(Path(spec.origin).parent)]
        found += [Path(place) for place in places if not _SKIPPED & set(Path(place).parts)]
    return list(dict.fromkeys(found))


def _scan(roots: Iterable[Path]) -> tuple[dict[Path, _Stamp], bool]:
    """Return the Python files below some directories, those near a root first, and if these are all.

    Hidden directories, environments and installed packages are skipped.
    """
    found: dict[Path, _Stamp] = {}
    waiting = deque(roots)
    for _ in range(DIRECTORIES_MAX):
        if not waiting:
            return found, True
        for entry in _list_directory(waiting.popleft()):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _SKIPPED and not entry.name.startswith("."):
                    waiting.append(Path(entry.path))
            elif entry.name.endswith(".py"):
                with contextlib.suppress(OSError):  # It was deleted since it was listed.
                    stat = entry.stat()
                    found[Path(entry.path)] = (stat.st_mtime_ns, stat.st_size)
                if len(found) == FILES_MAX:
                    return found, False
    return found, not waiting


def _list_directory(path: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(path) as entries:
            listed = sorted(entries, key=lambda each: each.name)
    except OSError:  # Deleted, or not ours to read.
        return []
    return [] if any(entry.name == _ENVIRONMENT for entry in listed) else listed
