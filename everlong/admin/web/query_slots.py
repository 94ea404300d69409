"""Query slots: how many queries run at once, in all and for each user.

A user may run two, so that one user alone never keeps the others from querying. A query that finds no
slot waits a short time. A slot that becomes free goes to the waiting user who runs the fewest.
"""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from fastapi import HTTPException

RUNNING_MAX: Final = 4
"""Each takes up to 768 MiB of memory and a core for 30 s, in a process of its own."""
RUNNING_PER_USER_MAX: Final = 2
WAITING_PER_USER_MAX: Final = 4
WAIT_SECONDS: Final = 5.0


class QuerySlots:
    """The slots of one server."""

    def __init__(self, wait_seconds: float = WAIT_SECONDS) -> None:
        self._wait_seconds = wait_seconds
        self._running: collections.Counter[str] = collections.Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @contextlib.asynccontextmanager
    async def hold(self, user: str) -> AsyncIterator[None]:
        """Hold a slot; answer 429 if none becomes free in time."""
        await self._take(user)
        try:
            yield
        finally:
            self._release(user)

    async def _take(self, user: str) -> None:
        if sum(each == user for each, _ in self._waiting) >= WAITING_PER_USER_MAX:
            raise self._refusal(user)
        waiter = (user, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._hand_out()
        try:
            async with asyncio.timeout(self._wait_seconds):
                await waiter[1]
        except BaseException as error:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:  # It got a slot at the moment when it gave up.
                self._release(user)
            if isinstance(error, TimeoutError):
                raise self._refusal(user) from None
            raise

    def _release(self, user: str) -> None:
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        self._hand_out()

    def _hand_out(self) -> None:
        """Give free slots to those who wait: to the user with the fewest first, then in order."""
        while self._running.total() < RUNNING_MAX:
            able = [
                (user, future)
                for user, future in self._waiting
                # A future that is done is of a request that gives up at this moment.
                if self._running[user] < RUNNING_PER_USER_MAX and not future.done()
            ]
            if not able:
                return
            first = min(able, key=lambda each: self._running[each[0]])
            self._waiting.remove(first)
            self._running[first[0]] += 1
            first[1].set_result(None)

    def _refusal(self, user: str) -> HTTPException:
        if self._running[user] >= RUNNING_PER_USER_MAX:
            text = f"You run {RUNNING_PER_USER_MAX} queries already. Cancel one, or try again."
        else:
            text = f"Too many queries are running ({RUNNING_MAX} in all). Try again in a moment."
        return HTTPException(429, text, {"retry-after": "5"})
