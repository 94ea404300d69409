"""Bounds of a wait: its own time-out, those of others inside it, and resets of a thread that ends."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import cast

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import PayloadCodec

from everlong.client import archives
from everlong.client.wait import _Wait, wait_for_progress
from everlong.errors import NotAnswered
from tests.unit.test_follower import Server, page
from tests.unit.test_progress import History


class SlowKeys(PayloadCodec):
    """A codec whose own time-out is over."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise TimeoutError("no key within 1 s")


@pytest.mark.parametrize("seconds_max", [None, 60.0])
async def test_a_codec_timeout_does_not_end_the_wait(seconds_max: float | None) -> None:
    server = Server(page(*History().events))
    server.data_converter = dataclasses.replace(pydantic_data_converter, payload_codec=SlowKeys())
    with pytest.raises(TimeoutError, match="no key within 1 s"):
        await wait_for_progress(
            cast("Client", server), "ops-7", lambda _: True, seconds_max=seconds_max
        )


async def test_a_silent_server_does_not_prolong_a_wait() -> None:
    server = Server(page(*History().task().send(1).signal("pause").task().events))
    wait = _Wait(cast("Client", server), "ops-7", 0.2)

    async def forever() -> bool:
        await asyncio.Event().wait()
        return True

    async with asyncio.timeout(30):
        async for seen in wait.progress(lambda _: None):
            assert seen.status == "paused"
            wait._is_at_end = forever
            with pytest.raises(NotAnswered, match="is not done after"):
                await wait.pause(seen)
            break


class _Follower:
    """Follows a thread that has ended."""

    has_ended = False

    def __init__(self, *_: object) -> None:
        pass

    async def next(self) -> None:
        self.has_ended = True


async def test_an_archive_waits_through_a_reset_for_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = ["", "", "run-3"]

    async def ended_run(*_: object) -> str:
        return ended.pop(0)

    monkeypatch.setattr(archives, "Follower", _Follower)
    monkeypatch.setattr(archives, "_find_ended_run", ended_run)
    monkeypatch.setattr(archives, "_RESET_PAUSE_SECONDS", 0.0, raising=False)
    async with asyncio.timeout(30):
        assert await archives._wait_for_end(cast("Client", None), "ops-7", 5.0) == "run-3"


async def test_archiving_a_repeatedly_reset_thread_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ended_run(*_: object) -> str:
        return ""

    monkeypatch.setattr(archives, "Follower", _Follower)
    monkeypatch.setattr(archives, "_find_ended_run", ended_run)
    async with asyncio.timeout(30):
        with pytest.raises(NotAnswered, match="has not ended"):
            await archives._wait_for_end(cast("Client", None), "ops-7", 0.2)
