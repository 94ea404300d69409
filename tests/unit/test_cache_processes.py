"""Several processes on one directory, one of them killed; several event loops on one cache."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlong.errors import BlobMissing
from everlong.storage.cache import CachedBlobStore
from everlong.storage.memory import MemoryBlobStore

KIB = 1024
BOUND = 2 * 1024 * KIB
KEYS = 200
PROCESSES = 4

# Reads keys at random, of 4 MiB in all, through a directory for 2 MiB; checks every byte.
WORKER = """
import asyncio, hashlib, json, random, sys
from pathlib import Path
from everlong.storage.cache import CachedBlobStore
from everlong.storage.memory import MemoryBlobStore

def content(key):
    return hashlib.sha256(key.encode()).digest() * (int(key[3:]) * 7 % 1250 + 1)

class Computed(MemoryBlobStore):
    async def get(self, key):
        return content(key)

async def main():
    disk, seed, rounds, keys, bound = sys.argv[1], *map(int, sys.argv[2:])
    chance = random.Random(seed)
    cached = CachedBlobStore(
        Computed(), memory_bytes_max=0, disk=Path(disk), disk_bytes_max=bound
    )
    for number in range(rounds):
        names = [f"v1/{min(chance.randrange(keys), chance.randrange(keys))}" for _ in range(8)]
        for name, data in zip(names, await asyncio.gather(*map(cached.get, names))):
            assert data == content(name), f"wrong bytes of {name}"
        if number % 16 == 0:
            await cached.delete(names[:1])
        if number % 8 == 0:
            print(number, flush=True)
    stats = cached.stats()
    print(json.dumps([stats.disk_hits, stats.misses]), flush=True)

asyncio.run(main())
"""


def start(disk: Path, seed: int, rounds: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, *map(str, (disk, seed, rounds, KEYS, BOUND))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def suspend_all(workers: list["subprocess.Popen[str]"]) -> Iterator[None]:
    """Suspend all workers, so that the disk shows the state of one moment."""
    for worker in workers:
        worker.send_signal(signal.SIGSTOP)
    for worker in workers:
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    try:
        yield
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGCONT)


def blocks(disk: Path) -> int:
    sizes = [path.stat().st_size for path in disk.rglob("*") if path.is_file()]
    return sum(-(-size // 4096) * 4096 for size in sizes)


@pytest.mark.guarantee(14)
def test_four_processes_share_a_directory_and_survive_a_kill(tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    # Each may write a twentieth of the bound that the others have not seen yet.
    most = BOUND + PROCESSES * BOUND // 20
    workers = [start(disk, seed, 150) for seed in range(PROCESSES)]
    samples = []
    try:
        victim = workers[0]
        assert victim.stdout is not None
        while victim.stdout.readline() != "64\n":
            assert victim.poll() is None, victim.communicate()
        deadline = time.monotonic() + 120
        while any(worker.poll() is None for worker in workers[1:]):
            assert time.monotonic() < deadline, "they do not end"
            running = [worker for worker in workers if worker.poll() is None]
            with suspend_all(running):
                samples.append(blocks(disk))
                if len(samples) == 5:
                    victim.kill()
            time.sleep(0.03)
        results = [worker.communicate(timeout=10) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert victim.returncode == -signal.SIGKILL
    for worker, (out, err) in list(zip(workers, results, strict=True))[1:]:
        assert (worker.returncode, err) == (0, "")
        hits, misses = json.loads(out.splitlines()[-1])
        assert hits > 300
        assert misses > 100
    assert len(samples) > 5
    assert max(samples) <= most
    assert max(samples) > BOUND // 2, "the bound was never near"


async def test_old_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    worker = start(disk, 1, 1_000_000)
    left: list[Path] = []
    try:
        deadline = time.monotonic() + 60
        while not left and time.monotonic() < deadline:
            time.sleep(0.002)
            with suspend_all([worker]):
                left = list(disk.rglob(".*"))
                if left:
                    worker.kill()
    finally:
        worker.kill()
        worker.communicate()
    assert left, "it was never met while writing"
    before = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}
    for path in left:
        os.utime(path, (time.time() - 3700, time.time() - 3700))
    cached = CachedBlobStore(MemoryBlobStore(), memory_bytes_max=0, disk=disk, disk_bytes_max=BOUND)
    await cached.put("v1/1000", b"x")
    assert list(disk.rglob(".*")) == []
    assert {path for path in before if path.exists()} == set(before) - set(left)


class Loops:
    """One cache, used from several event loops in OS threads; what went wrong is in `wrong`."""

    def __init__(self, disk: Path) -> None:
        self.cached = CachedBlobStore(
            MemoryBlobStore(), memory_bytes_max=20 * KIB, disk=disk, disk_bytes_max=256 * KIB
        )
        self.wrong: list[object] = []

    def run(self, seed: int) -> None:
        try:
            asyncio.run(self.use(seed))
        except BaseException as error:
            self.wrong.append(error)
            raise

    async def use(self, seed: int) -> None:
        for turn in range(300):
            number = (turn * (seed * 2 + 1)) % 40
            key, data = f"v1/{number}", number.to_bytes(2, "big") * 512
            if turn % 3 == 0:
                await self.cached.put(key, data)
            if turn % 50 == 49:
                await self.cached.delete([key])
            with contextlib.suppress(BlobMissing):
                whole, part = await asyncio.gather(
                    self.cached.get(key), self.cached.get_range(key, 2, 2)
                )
                if (whole, part) != (data, data[2:4]):
                    self.wrong.append(key)


def test_several_event_loops_share_one_cache(tmp_path: Path) -> None:
    loops = Loops(tmp_path / "cache")
    threads = [threading.Thread(target=loops.run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert loops.wrong == []
    stats = loops.cached.stats()
    assert stats.memory_bytes <= 20 * KIB
    assert min(stats.memory_hits, stats.disk_hits) > 0
    assert blocks(tmp_path / "cache") <= 256 * KIB
