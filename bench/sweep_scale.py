"""`python -m bench.sweep_scale`: how a sweep lists a large store.

A fake store generates the listing of any number of objects, page by page as S3 does, without holding
them. Each measurement runs in its own process, to measure its peak memory. With `--s3`, a real S3 server
on this machine is listed instead, with objects of a few bytes.
"""

import argparse
import asyncio
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Final

from everlong import limits
from everlong.storage import open_store
from everlong.storage.base import BlobInfo, BlobStore, get_range_lister
from everlong.storage.file import FileBlobStore
from everlong.storage.pack_store import PackStore
from everlong.sweep.index import SweepIndex
from everlong.sweep.listing import Listing, StoredListing
from tests.support.s3_server import start_s3_server

_PAGE: Final = 1000
_PER_THREAD: Final = 500
_THREADS_MAX: Final = 16**32
_NAMES_MAX: Final = 16**64
_MODIFIED_MS: Final = 1_790_000_000_000
_SECONDS_MAX: Final = 3600.0


class SyntheticStore(FileBlobStore):
    """Synthetic objects of threads that do not exist; all other objects are in a directory."""

    def __init__(self, root: Path, objects: int, page_seconds: float, dies_after: float) -> None:
        super().__init__(root)
        self._threads = math.ceil(objects / _PER_THREAD)
        self._page_seconds = page_seconds
        self._dies_after = dies_after
        self.requests = 0
        self.listed = 0

    @property
    def lists_ranges(self) -> bool:
        """See `RangeLister`."""
        return True

    async def list_range(
        self, folder: str, after: str, before: str
    ) -> AsyncGenerator[BlobInfo, None]:
        """See `RangeLister`."""
        self.requests += 1
        await asyncio.sleep(self._page_seconds)
        if folder != "v1/":
            return
        digits = after.removeprefix(folder)[:32].ljust(32, "0")
        number = int(digits, 16) * self._threads // _THREADS_MAX
        count = 0
        for thread in range(max(0, number - 1), self._threads):
            for each in range(_PER_THREAD):
                key = self._key(thread, each)
                if key >= before:
                    return
                if key <= after:
                    continue
                if count and count % _PAGE == 0:
                    self.requests += 1
                    await asyncio.sleep(self._page_seconds)
                count += 1
                self._count()
                yield BlobInfo(key, 10_000, _MODIFIED_MS)

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """See `BlobStore`."""
        if prefix == "v1/":
            async for info in self.list_range(prefix, prefix, f"{prefix}z"):
                yield info
            return
        async for info in super().list(prefix):
            yield info

    def _key(self, thread: int, number: int) -> str:
        place = thread * (_THREADS_MAX // self._threads)
        name = number * (_NAMES_MAX // _PER_THREAD) + thread
        return f"v1/{place:032x}/{name:064x}.pack"

    def _count(self) -> None:
        self.listed += 1
        if self.listed > self._dies_after:
            _print(json.dumps({"listed": self.listed, "requests": self.requests}))
            os.kill(os.getpid(), signal.SIGKILL)


class OneStream(SyntheticStore):
    """The same store, with unordered listings."""

    @property
    def lists_ranges(self) -> bool:
        """See `RangeLister`."""
        return False


async def _list(store: BlobStore, index_dir: Path) -> dict[str, Any]:
    started, used = time.monotonic(), time.process_time()
    index = SweepIndex(index_dir, "bench")
    stored = StoredListing(store, PackStore(store), "sweep/bench", "bench")
    listing = Listing(index, store, lambda _: None, stored)
    await listing.run(_MODIFIED_MS + 1)
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - used
    objects = index.scalar("SELECT COUNT(*) FROM objects")
    index.close()
    return {
        "objects": objects,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "disk_bytes": _measure_disk(index_dir),
    }


def _measure_disk(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.iterdir())


async def _list_synthetic(arguments: argparse.Namespace) -> dict[str, Any]:
    kind = OneStream if arguments.one_stream else SyntheticStore
    dies_after = arguments.dies_after or math.inf
    store = kind(arguments.data / "store", arguments.objects, arguments.page_seconds, dies_after)
    limits.SWEEP_LISTING_KEEP_SECONDS = arguments.keep_seconds  # type: ignore[misc]
    limits.SWEEP_LISTING_PART = arguments.part  # type: ignore[misc]
    found = await _list(store, arguments.data / arguments.index)
    return {**found, "listed": store.listed, "requests": store.requests}


def _measure_process(data: Path, arguments: argparse.Namespace, *more: str) -> dict[str, Any]:
    command = [
        *(sys.executable, "-m", "bench.sweep_scale", "--data", str(data)),
        *("--objects", str(arguments.objects), "--page-seconds", str(arguments.page_seconds)),
        *more,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _compare(arguments: argparse.Namespace) -> None:
    half = str(arguments.objects // 2)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        _print_result("in one stream", _measure_process(data / "a", arguments, "--one-stream"))
        _print_result("in 16 shards", _measure_process(data / "b", arguments))
        _print_result(
            "killed half-way", _measure_process(data / "c", arguments, "--dies-after", half)
        )
        _print_result("goes on, same disk", _measure_process(data / "c", arguments))
        # At this size a listing is too short to be kept. A part is a few seconds of a shard's listing.
        kept = ("--keep-seconds", "0", "--part", str(max(1000, arguments.objects // 100)))
        found = _measure_process(data / "d", arguments, "--dies-after", half, *kept)
        _print_result("killed half-way", found)
        found = _measure_process(data / "d", arguments, "--index", "other", *kept)
        _print_result("goes on, other disk", found)


async def _compare_s3(count: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as data,
        start_s3_server(Path(data)) as weed,
    ):
        os.environ.update(weed.environ)
        store = open_store(weed.url("sweep"))
        if get_range_lister(store) is None:
            raise RuntimeError("the store lists no ranges")
        made_up = SyntheticStore(Path(folder, "made-up"), count, 0, math.inf)
        started = time.monotonic()
        slots = asyncio.Semaphore(32)

        async def put(key: str) -> None:
            async with slots:
                await store.put(key, b"x")

        keys = [info.key async for info in made_up.list("v1/")]
        for first in range(0, len(keys), 1000):
            await asyncio.gather(*map(put, keys[first : first + 1000]))
        _print_result(
            "put", {"objects": len(keys), "seconds": round(time.monotonic() - started, 1)}
        )
        started = time.monotonic()
        listed = [info.key async for info in store.list("v1/")]
        plain = {"objects": len(listed), "seconds": round(time.monotonic() - started, 2)}
        _print_result("one stream, no index", plain)
        limits.SWEEP_SCOUT_OBJECTS = 1000  # type: ignore[misc]
        for shards in (1, 2, 4, 8, 16):
            limits.STORE_READS_MAX = shards  # type: ignore[misc]
            found = await _list(store, Path(folder, f"index-{shards}"))
            if found["objects"] != len(listed):
                raise RuntimeError(f"{found['objects']} of {len(listed)} objects were found")
            rate = round(found["objects"] / found["seconds"])
            _print_result(f"{shards} shards at a time", {**found, "objects_per_second": rate})


def _print_result(what: str, found: dict[str, Any]) -> None:
    _print(f"{what:24} {json.dumps(found)}")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the measurements, or one of them in this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--page-seconds", type=float, default=0.0)
    parser.add_argument("--keep-seconds", type=float, default=limits.SWEEP_LISTING_KEEP_SECONDS)
    parser.add_argument("--part", type=int, default=limits.SWEEP_LISTING_PART)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--index", default="index")
    parser.add_argument("--one-stream", action="store_true")
    parser.add_argument("--dies-after", type=float)
    arguments = parser.parse_args()
    if arguments.s3:
        asyncio.run(_compare_s3(arguments.objects))
    elif arguments.data is None:
        _compare(arguments)
    else:
        found = asyncio.run(_list_synthetic(arguments))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        _print(json.dumps({**found, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
