"""File store: blobs on local disk. A file gets its final name only when it is complete and synced."""

import asyncio
import contextlib
import errno
import io
import itertools
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from everlong.errors import BlobMissing, StoreUnavailable
from everlong.limits import MIB
from everlong.storage.base import BlobInfo, check_key, check_object_size

# Directory of unfinished writes, which no listing shows. A killed writer leaves its scratch file
# behind; one that is older than an hour is abandoned.
_SCRATCH: Final = ".partial"
_SCRATCH_SECONDS_MAX: Final = 3600.0
_COPY_BYTES: Final = MIB
# Directories that are known to be durable: about 300 bytes each, at most 1.2 MB.
_SYNCED_MAX: Final = 4096
# Objects of a listing that are in memory at a time.
_LIST_PAGE: Final = 1000
# Errors of kernels and file systems without unnamed files.
_NO_UNNAMED: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})


class FileBlobStore:
    """A `BlobStore` in a directory. Several processes may use the same directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._scratch = root / _SCRATCH
        # Directories whose own names are known to be durable. OS threads may use a set at once; two
        # threads that miss the same directory both sync its parents, which is harmless.
        self._synced: set[str] = set()
        self._has_unnamed = hasattr(os, "O_TMPFILE")  # Linux, until a file system refuses it.
        with self._translate_errors("open"):
            # The store holds conversations, so only this user has access.
            if not root.exists():
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
                _sync_directory(root.parent)
            self._scratch.mkdir(mode=0o700, exist_ok=True)
            probe = self._scratch / f"{uuid.uuid4().hex}.probe"
            self._write_file(probe, b"")
            probe.unlink()
            self._remove_abandoned()

    def __repr__(self) -> str:
        return self._root.as_uri()

    async def put(self, key: str, data: bytes) -> bool | None:
        """See `BlobStore`."""
        return await asyncio.to_thread(self._put, check_key(key), data)

    async def put_file(self, key: str, path: Path) -> None:
        """See `FileUploader`."""
        await asyncio.to_thread(self._put, check_key(key), path)

    async def get(self, key: str) -> bytes:
        """See `BlobStore`."""
        return await asyncio.to_thread(self._read, check_key(key), 0, -1)

    async def get_bounded(self, key: str, bytes_max: int) -> bytes:
        """See `BoundedReader`."""
        return await asyncio.to_thread(self._read, check_key(key), 0, -1, bytes_max)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        return await asyncio.to_thread(self._read, check_key(key), start, length)

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """See `BlobStore`."""
        walk = self._walk(prefix)
        while page := await asyncio.to_thread(lambda: list(itertools.islice(walk, _LIST_PAGE))):
            for info in page:
                yield info

    async def delete(self, keys: Iterable[str]) -> None:
        """See `BlobStore`."""
        await asyncio.to_thread(self._delete, [check_key(key) for key in keys])

    def _put(self, key: str, data: bytes | Path) -> bool:
        # Text instead of `Path`, which takes longer than the system calls.
        path = f"{self._root}/{key}"
        directory = path.rpartition("/")[0]
        with self._translate_errors("write to"):
            is_new = isinstance(data, bytes) and self._put_unnamed(path, directory, data)
            if not is_new:
                is_new = self._put_scratch(path, directory, data)
            # The name is durable once its directory is synced, and a directory once its parent is.
            _sync_directory(directory)
            self._sync_parents(directory)
        return is_new

    def _put_unnamed(self, path: str, directory: str, data: bytes) -> bool:
        """Write a file that has no name until it is complete; return whether that was possible.

        It is impossible if the name exists, if the directory is missing, and on some file systems. It
        takes less CPU time than a scratch file, and a killed writer leaves nothing behind.
        """
        if not self._has_unnamed:
            return False
        try:
            descriptor = os.open(directory, os.O_WRONLY | os.O_TMPFILE, 0o600)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in _NO_UNNAMED:
                raise
            self._has_unnamed = False
            return False
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            _write_all(file, data)
            os.fsync(descriptor)
            try:
                # Python follows the symbolic link in /proc only if a descriptor is given too.
                os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
            except FileExistsError:
                return False
            except OSError:  # No /proc, or no hard links: a scratch file needs neither.
                self._has_unnamed = False
                return False
        return True

    def _put_scratch(self, path: str, directory: str, data: bytes | Path) -> bool:
        """Write a scratch file and give it its name; return whether the name is new."""
        scratch = f"{self._scratch}/{uuid.uuid4().hex}"
        try:
            self._write_file(scratch, data)
            return self._move(scratch, path, directory)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(scratch)  # noqa: PTH108

    def _move(self, scratch: str, path: str, directory: str) -> bool:
        """Give a complete file its name; return whether the name is new."""
        try:
            return _move(scratch, path)
        except FileNotFoundError:  # Rare: most objects are written to an existing directory.
            self._synced.discard(directory)
            Path(directory).mkdir(parents=True, exist_ok=True)
            return _move(scratch, path)

    def _sync_parents(self, directory: str) -> None:
        """Make a directory's own name durable, once for each directory that this store writes to.

        Another process may have created the directory without having synced it yet. So every store syncs
        the parents itself, also of a directory that it found.
        """
        if directory in self._synced:
            return
        parent = Path(directory)
        while parent != self._root:
            parent = parent.parent
            _sync_directory(parent)
        if len(self._synced) >= _SYNCED_MAX:
            self._synced.clear()
        self._synced.add(directory)

    def _read(self, key: str, start: int, length: int, bytes_max: int | None = None) -> bytes:
        with self._translate_errors("read from"):
            try:
                with (self._root / key).open("rb") as file:
                    if bytes_max is not None:
                        check_object_size(key, os.fstat(file.fileno()).st_size, bytes_max)
                    file.seek(start)
                    return file.read(length)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                self._check_root()
                raise BlobMissing(
                    f"blob {key!r} is not in {self!r}. Restore it from a backup of that directory; "
                    "waiting work then continues by itself."
                ) from None

    def _delete(self, keys: Sequence[str]) -> None:
        with self._translate_errors("delete from"):
            self._check_root()
            for key in keys:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    (self._root / key).unlink()

    def _walk(self, prefix: str) -> Iterator[BlobInfo]:
        # A prefix with one more character must be a valid key.
        check_key(f"{prefix}x")
        with self._translate_errors("list"):
            self._check_root()
            # Walk only the directory that the prefix names, not the whole store.
            start = self._root / prefix.rpartition("/")[0]
            for directory, subdirectories, files in os.walk(start, onerror=_raise_unless_gone):
                subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
                for name in files:
                    path = Path(directory, name)
                    key = path.relative_to(self._root).as_posix()
                    if key.startswith(prefix):
                        # A file that was deleted since the directory was read is skipped.
                        with contextlib.suppress(FileNotFoundError):
                            found = path.stat()
                            yield BlobInfo(key, found.st_size, found.st_mtime_ns // 1_000_000)

    def _check_root(self) -> None:
        """Raise if the directory is gone: an unmounted disk must not look like an empty store."""
        if not self._scratch.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the directory is gone")

    def _remove_abandoned(self) -> None:
        oldest = time.time() - _SCRATCH_SECONDS_MAX
        for path in self._scratch.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    @staticmethod
    def _write_file(path: str | Path, data: bytes | Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        # Without a buffer: all bytes are in memory already.
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            if isinstance(data, Path):
                with data.open("rb") as source:
                    while piece := source.read(_COPY_BYTES):
                        _write_all(file, piece)
            else:
                _write_all(file, data)
            os.fsync(descriptor)

    @contextlib.contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"cannot {action} the blob store {self!r}: {error.strerror or error}. Check that the "
                "directory exists, that this user may write to it, and that the disk is not full."
            ) from error


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _write_all(file: io.FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _move(scratch: str, path: str) -> bool:
    """Give a complete file its name; return whether the name is new.

    An existing file of that name is replaced. Its new modification time shows a sweep that the object
    was written again.
    """
    try:
        # Atomic: of two concurrent writers of one name, only one gets True.
        os.link(scratch, path)
    except FileExistsError:
        Path(scratch).replace(path)
        return False
    except OSError:  # The file system has no hard links.
        is_new = not Path(path).exists()
        Path(scratch).replace(path)
        return is_new
    return True


def _sync_directory(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
