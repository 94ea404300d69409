"""Scratch folders of queries. The owning process holds a lock; a folder without a lock is removed.

A folder holds message content, so it must be removed also after its process was killed.
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
    """Make a folder for one query, and remove it afterwards."""
    # It gets its final name once it is locked, so that no other process takes it for an orphan.
    made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    folder = made.with_name(made.name.removeprefix("."))
    with _open_folder(made) as descriptor:
        try:
            with contextlib.suppress(
                OSError
            ):  # Without file locks no other process gets one either.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield made.rename(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def clear_orphans() -> None:
    """Remove the folders of processes that have ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Another process holds it, or it belongs to another user, or it was removed meanwhile.
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
