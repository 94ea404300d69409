"""Clients of requests: work ends with the client that asked for it."""

import asyncio

import pytest
from fastapi import HTTPException, Request

from everlong.admin.web.routes.queries import CLIENT_GONE, run_while_connected


def make_request(messages: "asyncio.Queue[dict[str, str]]") -> Request:
    return Request({"type": "http", "method": "POST", "headers": []}, messages.get)


async def test_work_is_cancelled_when_its_client_disconnects() -> None:
    messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    asking = asyncio.create_task(run_while_connected(make_request(messages), work()))
    messages.put_nowait({"type": "http.request"})
    await asyncio.sleep(0.01)
    assert not asking.done()
    messages.put_nowait({"type": "http.disconnect"})
    with pytest.raises(HTTPException) as gone:
        await asking
    assert gone.value.status_code == CLIENT_GONE
    assert ended.is_set()


async def test_results_and_errors_of_the_work_are_passed_on() -> None:
    messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def fail() -> None:
        raise LookupError("as it is")

    async def seven() -> int:
        return 7

    assert await run_while_connected(make_request(messages), seven()) == 7
    with pytest.raises(LookupError, match="as it is"):
        await run_while_connected(make_request(messages), fail())


async def test_work_ends_with_the_task_that_waits_for_it() -> None:
    messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    asking = asyncio.create_task(run_while_connected(make_request(messages), work()))
    await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert ended.is_set()
