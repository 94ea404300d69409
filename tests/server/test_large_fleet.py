"""The list of a large fleet on a real server: its visibility finds, counts and pages as memory does."""

import asyncio
import time
import uuid
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest
from temporalio.client import Client
from temporalio.service import RPCError

from bench.synthetic_threads import attributes, card
from everlong import EverlongPlugin, ThreadStart
from everlong.client.thread_list import ThreadList, ThreadPage
from everlong.client.visibility import QUERY, count_rows, quote_text
from everlong.embedded import TemporalServer
from everlong.models import AGENT_WORKFLOW, CARD_MEMO
from everlong.storage import BlobStore

ODD = ("_%a", "_xa", "'quoted'", "\\back\\", " blank ü", ' "AND"', "-1")
FIRST = 57
"""Number of the first thread. Thread 61 is paused, and 407 would wait for an approval."""


async def start(client: Client, thread_id: str, number: int) -> None:
    await client.start_workflow(
        AGENT_WORKFLOW,
        ThreadStart(agent="ops"),
        id=thread_id,
        task_queue=f"queue-of-{thread_id[:20]}",
        memo={CARD_MEMO: card(number)},
        search_attributes=attributes(number),
    )


async def all_pages(listed: ThreadList, limit: int, **wanted: Any) -> list[ThreadPage]:
    pages = [await listed.page(limit=limit, **wanted)]
    while pages[-1].next_cursor:
        assert len(pages) < 100
        pages.append(await listed.page(limit=limit, **wanted, cursor=pages[-1].next_cursor))
    return pages


def ids(pages: list[ThreadPage]) -> list[str]:
    return [row.thread_id for page in pages for row in page.rows]


@pytest.mark.guarantee(96)
async def test_a_real_server_lists_finds_and_counts_like_the_memory_list(
    server: TemporalServer, store: BlobStore
) -> None:
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    prefix = f"fleet-{uuid.uuid4().hex[:8]}"
    started = [f"{prefix}-{number:02}" for number in range(12)] + [prefix + odd for odd in ODD]
    await asyncio.gather(*(start(client, each, FIRST + n) for n, each in enumerate(started)))
    ended = started[2:4]
    for each in ended:
        await client.get_workflow_handle(each).terminate()
    deadline = time.monotonic() + 60
    listed_query = f"{QUERY} AND WorkflowId STARTS_WITH {quote_text(prefix)}"
    ended_query = f"{listed_query} AND ExecutionStatus = 'Terminated'"
    while await count_rows(client, listed_query) < len(started) or (
        await count_rows(client, ended_query) < len(ended)
    ):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)

    async def connect() -> Client:
        return client

    memory, large = ThreadList(connect), ThreadList(connect, rows_max=0)
    await memory.read()
    await large.read()
    for wanted in (
        {"text": prefix},
        {"text": f"{prefix}_"},
        {"text": f"{prefix}-0"},
        {"text": f"{prefix}'q"},
        {"text": f"{prefix}\\"},
        {"text": prefix, "status": "paused"},
        {"text": prefix, "status": "waiting", "agent": "billing"},
        {"text": prefix, "status": "terminated"},
        {"text": prefix, "agent": "support"},
    ):
        expected = ids(await all_pages(memory, 200, **wanted))
        pages = await all_pages(large, 3, **wanted)
        assert expected, wanted
        assert sorted(ids(pages)) == sorted(expected), wanted
        assert {page.total for page in pages} == {len(expected)}, wanted
        # SQLite takes both characters of an escaped backslash, so that only the index finds it.
        source = "index" if "\\" in wanted["text"] else "server"
        assert {page.source for page in pages} == {source}, wanted
        by_size = await all_pages(large, 5, sort="-stored", **wanted)
        assert ids(by_size) == ids(await all_pages(memory, 200, sort="-stored", **wanted)), wanted
    for each in started:
        page = await large.page(each)
        assert page.rows[0].thread_id == each
        # Memory lists all ids that contain the text.
        [row] = [row for row in (await memory.page(each)).rows if row.thread_id == each]
        assert page.rows[0].card == row.card
    assert (await large.page(f"{prefix}-no-such")).total == 0


async def test_the_visibility_of_a_dev_server_refuses_to_sort(server: TemporalServer) -> None:
    """If this fails, the server can sort, and lists no longer need an index."""
    client = await Client.connect(server.address)
    request = ListWorkflowExecutionsRequest(
        namespace=client.namespace, query=f"{QUERY} ORDER BY EverlongStateBytes DESC", page_size=1
    )
    with pytest.raises(RPCError, match=r"(?i)order by"):
        await client.workflow_service.list_workflow_executions(request)
