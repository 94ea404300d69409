"""The disk tier of the cache: whole objects in a directory that several processes share.

A file holds a checksum of its key and content, so a file that is damaged, truncated or of another key is
a miss, and is removed. Any file may vanish at any time. Nothing is synced: it is a cache.
"""

import contextlib
import errno
import hashlib
import io
import logging
import math
import os
import stat
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

# Version of the directory's layout. Each version has its own directory, so layouts never mix.
_LAYOUT: Final = "cache-1"
_CHECKSUM_BYTES: Final = 32
# A file is charged the blocks that it takes on most disks, and at least 1/131,072 of the bound: a scan
# of 131,072 files takes about 1 s and 33 MB (7 us and 250 bytes each, as measured).
_BLOCK_BYTES: Final = 4096
_FILES_MAX: Final = 1 << 17
# When the bound is reached, the oldest files are deleted down to 4/5 of it.
_FIFTHS_KEPT: Final = 4
# A process sees the files of other processes when it scans: after each 1/20 of the bound that it wrote
# itself, and when its last scan is 10 minutes old. A single process keeps the bound. Each further
# process may exceed it by 1/20, or by one object if that is larger: 4 processes by 15%, measured 10%.
_SCANS: Final = 20
_SCAN_SECONDS: Final = 600.0
# A hit renews a file's modification time, at most once a minute.
_REFRESH_SECONDS: Final = 60.0
# A killed writer leaves its scratch file behind; a scratch file older than an hour is abandoned.
_SCRATCH_SECONDS_MAX: Final = 3600.0
_REPORT_SECONDS: Final = 60.0
# Faults of a single file: it is removed, so that a new file can take its place.
_FILE_FAULTS: Final = {errno.EACCES, errno.EIO, errno.ELOOP, errno.ENXIO}

logger = logging.getLogger(__name__)


class DiskTier:
    """Objects by key, within a bound. Every method blocks; faults of the disk are logged, not raised."""

    def __init__(self, disk: Path, bytes_max: int) -> None:
        self._disk = disk
        self._root = disk / _LAYOUT
        self._bytes_max = bytes_max
        self._bytes_kept = bytes_max * _FIFTHS_KEPT // 5
        self._file_bytes_min = max(_BLOCK_BYTES, bytes_max // _FILES_MAX)
        self._opened = False
        self._lock = threading.Lock()
        self._scanning = threading.Lock()
        self._scanned_at = -math.inf
        self._reported_at = -math.inf
        self._room = 0  # Bytes that may be written before the next scan.
        self._pending = 0  # Bytes that are being written now, which a scan may miss.
        self.hits = 0

    def read(self, key: str) -> bytes | None:
        """Return the object, or None if it is missing or damaged."""
        path = self._path(key)
        try:
            if not self._opened:
                self._open()
            data = self._read(path, key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._report(error)
            if error.errno in _FILE_FAULTS:
                self._remove(path)
            return None
        if data is None:
            self._remove(path)
            return None
        with self._lock:
            self.hits += 1
        return data

    def write(self, key: str, data: bytes) -> None:
        """Cache the object, if it fits or can be made to fit."""
        size_bytes = _CHECKSUM_BYTES + len(data)
        charge = self._charge(size_bytes)
        if charge > self._bytes_kept:
            return
        path = self._path(key)
        try:
            if not self._opened:
                self._open()
            checksum = _compute_checksum(key, data)
            if _is_there(path, checksum, size_bytes) or not self._reserve(charge):
                return
            try:
                self._write(path, checksum, data)
            finally:
                with self._lock:
                    self._pending -= charge
        except OSError as error:
            self._report(error)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove the objects."""
        for key in keys:
            self._remove(self._path(key))

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self._root / name[:2] / name[2:]

    def _open(self) -> None:
        """Create the directory, and check that only this user has access.

        After the first time, `disk` itself is not created again: it may be an unmounted volume.
        """
        if not self._opened:
            self._disk.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.mkdir(mode=0o700, exist_ok=True)
        status = self._root.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"{_LAYOUT!r} in it is a link, or another user's")
        if status.st_mode & 0o077:
            self._root.chmod(0o700)
        self._opened = True

    def _read(self, path: Path, key: str) -> bytes | None:
        with io.FileIO(path, opener=_open_plain) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > self._bytes_max:
                return None
            checksum, data = file.read(_CHECKSUM_BYTES), file.read()
            if checksum != _compute_checksum(key, data):
                return None
            _refresh(file.fileno(), status)
            return data

    def _write(self, path: Path, checksum: bytes, data: bytes) -> None:
        scratch = path.with_name(f".{uuid.uuid4().hex}")
        try:
            descriptor = _create(scratch)
        except FileNotFoundError:
            self._open()
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor = _create(scratch)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(checksum)
                file.write(data)
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)

    def _remove(self, path: Path) -> None:
        try:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
        except OSError as error:
            self._report(error)

    def _reserve(self, charge: int) -> bool:
        """Take `charge` from the remaining room, after a scan if one is due.

        While another OS thread scans, there is no room: its scan might miss a file written now.
        """
        with self._lock:
            if charge <= self._room and time.monotonic() - self._scanned_at < _SCAN_SECONDS:
                self._room -= charge
                self._pending += charge
                return True
        if not self._scanning.acquire(blocking=False):
            return False
        try:
            with self._lock:
                self._room, unseen = 0, self._pending
            if unseen + charge > self._bytes_kept:
                return False
            room = self._bytes_max - self._trim(unseen + charge) - unseen
            with self._lock:
                self._scanned_at = time.monotonic()
                if room < charge:
                    return False
                self._room = min(room, self._bytes_max // _SCANS - unseen) - charge
                self._pending += charge
                return True
        finally:
            self._scanning.release()

    def _trim(self, incoming: int) -> int:
        """Delete the oldest files if `incoming` does not fit; return the bytes that are left."""
        total, files = self._scan()
        if total + incoming <= self._bytes_max:
            return total
        for _, charge, path in sorted(files):
            if total + incoming <= self._bytes_kept:
                break
            Path(path).unlink(missing_ok=True)
            total -= charge
        return total

    def _scan(self) -> tuple[int, list[tuple[int, int, str]]]:
        """Return the bytes here, and time, bytes and path of each file that may be deleted."""
        self._open()
        abandoned = time.time() - _SCRATCH_SECONDS_MAX
        total = 0
        files: list[tuple[int, int, str]] = []
        for entry, status in _walk(self._root):
            scratch = entry.name.startswith(".")
            if scratch and status.st_mtime < abandoned:
                Path(entry).unlink(missing_ok=True)
                continue
            charge = self._charge(status.st_size)
            total += charge
            if not scratch:
                files.append((status.st_mtime_ns, charge, entry.path))
        return total, files

    def _charge(self, size_bytes: int) -> int:
        blocks = -(-size_bytes // _BLOCK_BYTES)
        return max(blocks * _BLOCK_BYTES, self._file_bytes_min)

    def _report(self, error: OSError) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._reported_at < _REPORT_SECONDS:
                return
            self._reported_at = now
        logger.warning(
            "the disk cache %s is not used: %s. Reads go to the store instead. Check that the "
            "directory exists, that this user may write to it, and that the disk is not full.",
            self._disk,
            error.strerror or error,
        )


def _compute_checksum(key: str, data: bytes) -> bytes:
    # No key holds a zero byte, so two different pairs of key and content never give the same input.
    checksum = hashlib.sha256(f"{key}\0".encode())
    checksum.update(data)
    return checksum.digest()


def _open_plain(path: str, flags: int) -> int:
    """Open without following a link, and without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _is_there(path: Path, checksum: bytes, size_bytes: int) -> bool:
    """Return whether the object was written before. A read checks whether it is complete."""
    try:
        with io.FileIO(path, opener=_open_plain) as file:
            status = os.fstat(file.fileno())
            if status.st_size != size_bytes or file.read(_CHECKSUM_BYTES) != checksum:
                return False
            _refresh(file.fileno(), status)
            return True
    except OSError:
        # Mostly the file does not exist. Any other fault appears again when it is written.
        return False


def _refresh(descriptor: int, status: os.stat_result) -> None:
    """Renew a file's modification time, also one in the future, which would outlive all others."""
    if abs(time.time() - status.st_mtime) > _REFRESH_SECONDS:
        # Ignored on a read-only disk: the object is returned anyway.
        with contextlib.suppress(OSError):
            os.utime(descriptor)


def _walk(root: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """Yield the files of each directory in `root`. Files that vanish meanwhile are skipped."""
    with os.scandir(root) as directories:
        for directory in directories:
            if not directory.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if not stat.S_ISDIR(status.st_mode):
                            yield entry, status
