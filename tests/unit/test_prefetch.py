"""A prefetch goes on reading a history where a payload cannot be fetched."""

import asyncio
from collections.abc import AsyncIterator
from typing import Self, cast

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import SerializationContext

from everlong.interceptors.prefetch import Prefetcher
from everlong.interceptors.run_history import RunHistory


class Server:
    """A client whose histories are some results."""

    namespace = "default"

    def get_workflow_handle(self, workflow_id: str, *, run_id: str) -> "Server":
        return self

    async def fetch_history_events(self, *, page_size: int) -> AsyncIterator[HistoryEvent]:
        for _ in range(3):
            event = HistoryEvent()
            event.activity_task_completed_event_attributes.result.payloads.append(
                Payload(data=b"x")
            )
            yield event
            await asyncio.sleep(0)  # The fetch of this one fails before the next one is read.


class OuterFault:
    """Raises as an outer codec does for payloads of another context."""

    def with_context(self, context: SerializationContext) -> Self:
        return self

    def is_wanted(self, payload: Payload) -> bool:
        return True

    async def warm(self, payload: Payload) -> int | None:
        raise ValueError("wrong tag")


async def test_a_failing_outer_codec_does_not_stop_the_history_reader() -> None:
    history = RunHistory()
    prefetcher = Prefetcher(cast("Client", Server()), OuterFault())
    prefetcher.start("w", "r", history)
    async with asyncio.timeout(30):
        while not history.has_ended:
            await asyncio.sleep(0.01)
    await prefetcher.stop()
    assert history.is_complete
