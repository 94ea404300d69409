"""The tool that counts how often a flow switches between modules."""

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest

from everlong.storage.memory import MemoryBlobStore
from tools.hops import Profile


@pytest.fixture
def profile() -> Iterator[Profile]:
    profile, before = Profile(), sys.getprofile()
    profile.install()
    yield profile
    sys.setprofile(before)
    threading.setprofile(None)


async def test_a_call_into_another_module_is_a_switch(profile: Profile) -> None:
    store = MemoryBlobStore()
    with profile.measure():
        await store.put("v1/a.pack", b"a")
        await store.put("v1/b.pack", b"b")
    assert profile.modules == {"storage/memory.py", "storage/base.py"}
    [(caller, callee)] = profile.switches
    assert (caller, callee[0]) == (("storage/memory.py", "MemoryBlobStore.put"), "storage/base.py")
    assert profile.switches.total() == 2


async def test_a_coroutine_that_continues_is_not_called_again(profile: Profile) -> None:
    calls = 0

    class Slow(MemoryBlobStore):
        async def put(self, key: str, data: bytes) -> bool:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return bool(await super().put(key, data))

    with profile.measure():
        await Slow().put("v1/a.pack", b"a")
    assert calls == 1
    assert profile.switches.total() == 1


def test_nothing_is_counted_outside_of_a_measurement(profile: Profile) -> None:
    asyncio.run(MemoryBlobStore().put("v1/a.pack", b"a"))
    assert not profile.modules
    assert not profile.switches
