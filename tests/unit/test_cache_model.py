"""Model test of the cache: after any calls and damage it answers as a dict would."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from everlong.errors import BlobMissing
from everlong.storage.cache import CachedBlobStore
from everlong.storage.memory import MemoryBlobStore
from tests.support.scale import scaled

MEMORY_BOUND = 8 * 1024
DISK_BOUND = 64 * 1024
NUMBERS = st.integers(0, 19)


def make_key(number: int) -> str:
    return f"v1/thread/{number}"


def make_content(number: int) -> bytes:
    """Return the fixed content of a name: from no bytes to more than the memory bound."""
    return bytes([number, 255 - number]) * (number * number * 20)


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.disk = Path(tempfile.mkdtemp(prefix="everlong-test-"))
        self.behind = MemoryBlobStore()
        self.model: dict[str, bytes] = {}
        self.restart()

    def teardown(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.disk)

    def files(self) -> list[Path]:
        return sorted(path for path in self.disk.rglob("*") if path.is_file())

    async def outcome(self, number: int, start: int | None, length: int) -> bytes | None:
        try:
            if start is None:
                return await self.cached.get(make_key(number))
            return await self.cached.get_range(make_key(number), start, length)
        except BlobMissing:
            return None

    def expected(self, number: int, start: int | None, length: int) -> bytes | None:
        data = self.model.get(make_key(number))
        return data if data is None or start is None else data[start : start + length]

    @rule()
    def restart(self) -> None:
        self.cached = CachedBlobStore(
            self.behind,
            memory_bytes_max=MEMORY_BOUND,
            disk=self.disk,
            disk_bytes_max=DISK_BOUND,
        )

    @rule(number=NUMBERS)
    def put(self, number: int) -> None:
        self.loop.run_until_complete(self.cached.put(make_key(number), make_content(number)))
        self.model[make_key(number)] = make_content(number)

    @rule(number=NUMBERS)
    def another_process_puts(self, number: int) -> None:
        self.loop.run_until_complete(self.behind.put(make_key(number), make_content(number)))
        self.model[make_key(number)] = make_content(number)

    @rule(
        reads=st.lists(
            st.tuples(NUMBERS, st.none() | st.integers(0, 20_000), st.integers(0, 20_000)),
            min_size=1,
            max_size=8,
        )
    )
    def get_at_once(self, reads: list[tuple[int, int | None, int]]) -> None:
        async def run() -> list[bytes | None]:
            return await asyncio.gather(*(self.outcome(*read) for read in reads))

        assert self.loop.run_until_complete(run()) == [self.expected(*read) for read in reads]

    @rule(numbers=st.lists(NUMBERS, max_size=4))
    def delete(self, numbers: list[int]) -> None:
        self.loop.run_until_complete(self.cached.delete(make_key(number) for number in numbers))
        for number in numbers:
            self.model.pop(make_key(number), None)

    @rule()
    def list_all(self) -> None:
        async def run() -> dict[str, int]:
            return {info.key: info.size_bytes async for info in self.cached.list("v1/")}

        expected = {key: len(data) for key, data in self.model.items()}
        assert self.loop.run_until_complete(run()) == expected

    @rule(which=st.integers(0, 99), place=st.integers(0, 20_000), how=st.integers(0, 4))
    def damage(self, which: int, place: int, how: int) -> None:
        files = self.files()
        if not files:
            return
        path = files[which % len(files)]
        content = bytearray(path.read_bytes())
        place %= max(len(content), 1)
        if how == 0 and content:
            content[place] ^= 1 + which
        elif how == 1:
            content = content[:place]
        elif how == 2:
            other = files[
                (which + 1) % len(files)
            ].read_bytes()  # No longer: the bound is not ours.
            content[: len(other)] = other[: len(content)]
        elif how == 3:
            path.unlink()
            return
        else:
            shutil.rmtree(path.parent)
            return
        path.write_bytes(content)

    @invariant()
    def bounds_hold(self) -> None:
        assert self.cached.stats().memory_bytes <= MEMORY_BOUND
        sizes = [path.stat().st_size for path in self.files()]
        assert sum(-(-size // 4096) * 4096 for size in sizes) <= DISK_BOUND


TestModel = pytest.mark.guarantee(14)(Model.TestCase)
TestModel.settings = settings(max_examples=scaled(20, 60), stateful_step_count=40, deadline=None)
