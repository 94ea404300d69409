"""The head of a journal for a page of a thread that no worker runs."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter

from everlong.client import lookup
from everlong.errors import BlobMissing
from everlong.models import Kind, Ref, SegmentRef

AT_START = SegmentRef(
    ref=Ref(thread="a" * 32, digest="b" * 64, size_bytes=9, kind=Kind.SEGMENT), first_seq=1, count=4
)


class HistoryClient:
    """Stands for a `Client` whose server holds the first event of a run."""

    data_converter = DataConverter.default

    def get_workflow_handle(self, thread_id: str, *, run_id: str) -> Any:
        async def fetch(page_size: int) -> AsyncIterator[HistoryEvent]:
            event = HistoryEvent()
            [payload] = await self.data_converter.encode([{"state": {"head": AT_START}}])
            event.workflow_execution_started_event_attributes.input.payloads.append(payload)
            yield event

        assert (thread_id, run_id) == ("ops-7", "run-3")
        return SimpleNamespace(fetch_history_events=fetch)


async def raise_missing(client: Client, thread_id: str) -> SegmentRef | None:
    raise BlobMissing("a newer result cannot be read")


async def hang(client: Client, thread_id: str) -> SegmentRef | None:
    await asyncio.Event().wait()
    return None


@pytest.mark.parametrize("find_head", [raise_missing, hang])
async def test_the_head_at_the_start_stands_in_for_one_that_cannot_be_read_in_time(
    monkeypatch: pytest.MonkeyPatch, find_head: Any
) -> None:
    monkeypatch.setattr(lookup, "find_head", find_head)
    description: Any = SimpleNamespace(id="ops-7", run_id="run-3")
    client: Any = HistoryClient()
    async with asyncio.timeout(10):
        found = await lookup.find_readable_head(client, description, seconds_max=0.2)
    assert found == AT_START
