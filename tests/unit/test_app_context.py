"""The app context's connection: made once, and waited for no longer than a request may take."""

import asyncio

import pytest
from temporalio.client import Client

from everlong.admin.web import AppContext
from everlong.admin.web import context as context_module
from everlong.errors import ServerUnreachable
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore


async def test_requests_to_a_silent_server_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context_module, "CONNECT_SECONDS_MAX", 0.05)

    async def connect() -> Client:
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    context = AppContext(connect, PackStore(MemoryBlobStore()), task_queue="q")
    async with asyncio.timeout(5):
        # All at once, and not one after the other.
        found = await asyncio.gather(
            *(context.client() for _ in range(200)), return_exceptions=True
        )
    assert {type(each) for each in found} == {ServerUnreachable}


class Connection:
    """Stands for a client."""


async def test_a_server_that_answers_gets_one_connection() -> None:
    made: list[Connection] = []

    async def connect() -> Client:
        await asyncio.sleep(0)
        made.append(Connection())
        if len(made) == 1:
            raise ServerUnreachable("not yet")
        return made[-1]  # type: ignore[return-value]

    context = AppContext(connect, PackStore(MemoryBlobStore()), task_queue="q")
    with pytest.raises(ServerUnreachable):
        await context.client()
    found = await asyncio.gather(*(context.client() for _ in range(10)))
    assert set(map(id, found)) == {id(made[1])}
    assert len(made) == 2
