"""Query slots: one user never keeps the others from querying."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from fastapi import HTTPException

from everlong.admin.web.routes.queries import (
    RUNNING_MAX,
    RUNNING_PER_USER_MAX,
    WAITING_PER_USER_MAX,
    QuerySlots,
)


class SlotHolder:
    """Takes slots, each in a task of its own, and holds each until its task is cancelled."""

    def __init__(self, slots: QuerySlots) -> None:
        self._slots = slots
        self.held: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, user: str, count: int = 1) -> None:
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._hold(user)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _hold(self, user: str) -> None:
        async with self._slots.hold(user):
            self.held.append(user)
            try:
                await asyncio.sleep(3600)
            finally:
                self.held.remove(user)

    async def cancel(self, index: int = 0) -> None:
        task = self.tasks.pop(index)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, HTTPException):
            await task
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def open_holder(wait_seconds: float = 60) -> AsyncIterator[SlotHolder]:
    asker = SlotHolder(QuerySlots(wait_seconds))
    try:
        yield asker
    finally:
        while asker.tasks:
            await asker.cancel()


@pytest.mark.guarantee(102)
async def test_a_user_with_two_queries_leaves_slots_to_others() -> None:
    async with open_holder() as asker:
        await asker.ask("ana", 4)
        assert asker.held == ["ana"] * RUNNING_PER_USER_MAX
        await asker.ask("bob")
        assert "bob" in asker.held


async def test_a_free_slot_goes_to_the_user_with_the_fewest_queries() -> None:
    async with open_holder() as asker:
        await asker.ask("ana", 2)
        await asker.ask("bob", 1)
        await asker.ask("eve", 1)
        assert len(asker.held) == RUNNING_MAX
        await asker.ask("bob", 1)  # Waits first, and runs one already.
        await asker.ask("zoe", 1)
        await asker.cancel(0)
        assert sorted(asker.held) == ["ana", "bob", "eve", "zoe"]
        await asker.cancel(0)
        assert sorted(asker.held) == ["bob", "bob", "eve", "zoe"]


async def test_a_request_that_waits_too_long_is_asked_to_retry() -> None:
    slots = QuerySlots(0.05)
    async with slots.hold("ana"), slots.hold("ana"):
        started = time.monotonic()
        with pytest.raises(HTTPException, match="You are running 2 queries already") as refused:
            async with slots.hold("ana"):
                pass
        assert time.monotonic() - started < 5
        assert refused.value.status_code == 429
        assert refused.value.headers == {"retry-after": "5"}
        async with slots.hold("bob"), slots.hold("bob"):
            with pytest.raises(HTTPException, match="Too many queries are running"):
                async with slots.hold("eve"):
                    pass
    async with slots.hold("ana"):
        pass


async def test_waiting_requests_of_a_user_are_bounded() -> None:
    async with open_holder() as asker:
        await asker.ask("ana", RUNNING_PER_USER_MAX + WAITING_PER_USER_MAX + 1)
        assert asker.tasks[-1].done()
        with pytest.raises(HTTPException):
            await asker.tasks.pop()


async def test_a_slot_granted_to_a_cancelled_waiter_is_not_lost() -> None:
    async with open_holder() as asker:
        await asker.ask("ana", 3)
        # Both at once: the slot is handed out before the one who waits for it has noticed its end.
        asker.tasks[0].cancel()
        asker.tasks[2].cancel()
        await asyncio.wait([asker.tasks[0], asker.tasks[2]])
        assert asker.held == ["ana"]
        await asker.ask("ana", 1)
        assert asker.held == ["ana", "ana"]
