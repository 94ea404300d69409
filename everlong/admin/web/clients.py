"""Clients of requests: whether one is still connected."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from fastapi import HTTPException, Request

CLIENT_GONE: Final = 499
"""The status in the log of a request whose client has closed its connection. Others use the same."""
T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; cancel it when the client disconnects.

    The body of the request has to be read already: after it, the next message is the disconnect.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise HTTPException(
            CLIENT_GONE, "The client has disconnected, so its request was cancelled."
        )
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
