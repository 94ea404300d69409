"""Folders of queries. The process that has one holds its lock; one that nobody holds is cleared.

What was said in threads lies in there, so it has to go also where a process was killed.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PREFIX: Final = "everlong-query-"


@contextlib.contextmanager
def make_scratch_folder() -> Iterator[Path]:
    """Make a folder for one query, which is gone after it."""
    # It gets its name once it is locked: until then nobody takes it for left behind.
    made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    folder = made.with_name(made.name.removeprefix("."))
    with _open_folder(made) as descriptor:
        try:
            with contextlib.suppress(OSError):  # Without locks nobody else gets one either.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield made.rename(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def clear_orphans() -> None:
    """Remove the folders of processes that are no more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Somebody holds it, or it is another user's, or it is gone by now.
        with contextlib.suppress(OSError), _open_folder(folder) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_uid == os.geteuid():
                shutil.rmtree(folder)


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
