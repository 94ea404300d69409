"""Threads that other programs started under odd ids: API, pages and CLI open and control each.

New threads get no such ids, whichever door they come by.
"""

import asyncio
import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from temporalio.client import Client

import everlong
from everlong import ThreadStart
from everlong.admin.web.pages import filters
from everlong.client.archives import list_archives
from everlong.client.fork import fork, revive
from everlong.client.status import read_status
from everlong.embedded import TemporalServer
from everlong.errors import ThreadIdRefused, ThreadNotFound
from everlong.models import AGENT_WORKFLOW
from everlong.models.thread_ids import quote_id, show_id
from everlong.queries.engine import run_query
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore
from tests.server.test_admin_api import open_role_client, poll_until
from tests.server.test_cli_threads import Cli, open_cli, pending_id
from tests.support.governed_agent import build_governed_agent
from tests.support.threads import Threads, open_threads

JSON = dict[str, Any]
HOSTILE = [
    "a\nb",
    "a\0b",
    "\r\n",
    " ",
    "\u2028",
    "\u202egnp.exe",
    "..",
    "../..",
    "a%2Fb%",
    "%",
    "?x=1#y&id=z",
    "-",
    "runs",
    "\x1b[31mred\x07",
    "it's \"q\" \\ `$(id)` ' OR 1=1 --",
    "<script>alert(1)</script>",
    "x" * 1000,
]


# By these, everything is tried; by the others, what every action begins with.
THOROUGH = {"a\nb", " ", "..", "a%2Fb%", "\u202egnp.exe"}


async def start(threads: Threads, thread_id: str) -> None:
    """Start a thread as another program does: by a client that has no plugin."""
    client = Client(threads.client.service_client)
    await client.start_workflow(
        AGENT_WORKFLOW, ThreadStart(agent="ops"), id=thread_id, task_queue=threads.task_queue
    )


async def _get(client: httpx.AsyncClient, url: str) -> httpx.Response:
    answer = await client.get(url)
    assert answer.status_code == 200, (url, answer.text[:500])
    return answer


async def _post(client: httpx.AsyncClient, url: str, **body: object) -> JSON:
    answer = await client.post(url, json=body)
    assert answer.status_code == 200, (url, answer.text[:500])
    found: JSON = answer.json()
    return found


async def _is_governed(client: httpx.AsyncClient, threads: Threads, thread_id: str) -> None:
    await start(threads, thread_id)

    def place(action: str) -> str:
        return filters.build_api_url(thread_id, action)

    # An agent is named: that would start the thread, were it not there.
    sent = await _post(client, place("messages"), text="hi", agent="ops")
    assert sent == {"thread_id": thread_id, "number": 1}
    await threads.wait_for_answers(thread_id, 1)
    whole = f"/api/v1/threads/-?id={quote(thread_id, safe='')}"
    overview = (await _get(client, whole)).json()
    assert overview["thread_id"] == thread_id
    if thread_id not in (".", ".."):
        by_path = f"/api/v1/threads/{quote(thread_id, safe='')}"
        assert (await _get(client, by_path)).json()["thread_id"] == thread_id
    await _post(client, place("pause"), reason="try")
    await _pages(client, thread_id)
    if thread_id in THOROUGH:
        await _does_everything(client, thread_id, place)
    await _post(client, place("stop"), reason="done")
    await poll_until(
        lambda: _json(client, whole), lambda found: found["status"]["status"] == "done", 60
    )


async def _does_everything(
    client: httpx.AsyncClient, thread_id: str, place: Callable[[str], str]
) -> None:
    for view in ("entries", "entries/1", "runs", "series", "size", "approvals", "at/1", "archives"):
        await _get(client, place(view))
    await _get(client, filters.build_download_url(thread_id, 1, "text"))
    for action, body in (
        ("unpause", {}),
        ("compact", {}),
        ("limits", {"changes": {"steps_max": 50}}),
        ("fork", {"seq": 1, "new_id": f"fork-{hash(thread_id)}"}),
        ("archive", {"then": "keep"}),
    ):
        done = await _post(client, place(action), reason="try", **body)
        assert done.get("state", "done") == "done", done
    preview = await _post(client, place("preview"), action="stop", arguments={})
    assert preview["confirm"] == (thread_id if show_id(thread_id) == thread_id else "stop")


async def _json(client: httpx.AsyncClient, url: str) -> JSON:
    found: JSON = (await _get(client, url)).json()
    return found


async def _pages(client: httpx.AsyncClient, thread_id: str) -> None:
    """Open the thread's page by its link, and all places that the page names."""
    page = (await _get(client, filters.build_thread_url(thread_id))).text
    shown = html.escape(show_id(thread_id), quote=True).replace("&#x27;", "&#39;")
    assert f'<h1 tabindex="-1">{shown.replace("&quot;", "&#34;")}</h1>' in page
    if thread_id not in THOROUGH:
        return
    found = re.findall(r'(?:href|src|data-(?:live|past|more|url|lazy[a-z-]*))="([^"]+)"', page)
    links = {html.unescape(each) for each in found}
    ours = [each for each in links if "id=" in each and not each.startswith("/api/")]
    assert len(ours) >= 5
    for link in ours:
        suffix = "&seq=1" if link.startswith(("/fragments/past", "/fragments/body")) else ""
        await _get(client, link + suffix)


@pytest.mark.guarantee(103)
async def test_threads_under_any_id_are_opened_and_governed_by_api_and_pages(
    server: TemporalServer, store: BlobStore
) -> None:
    async with open_threads(server.address, store, build_governed_agent()) as threads:
        async with threads.worker(), open_role_client(threads) as client:
            places = asyncio.Semaphore(4)

            async def one(thread_id: str) -> None:
                async with places:
                    await _is_governed(client, threads, thread_id)

            await asyncio.gather(*map(one, HOSTILE))
            packs = PackStore(store)
            archived = await list_archives(threads.client, packs, count_max=100)
            assert {each.thread_id for each in archived.archives} == THOROUGH
            assert archived.unreadable == ()
            # Each by its id, among all others.
            found = await run_query(
                threads.client, packs, "select count(*) from threads", threads=HOSTILE
            )
            assert [tuple(row) for row in found.rows] == [(len(HOSTILE),)]

            async def listed() -> JSON:
                return await _json(client, "/api/v1/threads?limit=200&sort=-started")

            await poll_until(
                listed,
                lambda page: {row["thread_id"] for row in page["rows"]} >= set(HOSTILE),
                30,
            )


@pytest.mark.parametrize("thread_id", ["b\nc", "\u202e '$(id)\t\x1b[31m "], ids=ascii)
async def test_threads_under_any_id_are_governed_by_the_command_line(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_cli(server, tmp_path) as cli:
        await start(cli.threads, thread_id)
        shown = show_id(thread_id)
        outputs = [
            await cli("send", thread_id, "hello", "--agent", "ops"),
            await cli("show", thread_id),
            await cli("journal", thread_id),
            await cli("pause", thread_id, "--reason", "try"),
            await cli("unpause", thread_id),
            await cli("compact", thread_id),
            await cli("send", thread_id, "restart api", "--no-wait"),
            await cli("approve", thread_id, await pending_id(cli, thread_id), "--by", "ann"),
            await cli("runs", thread_id),
            await cli("archive", thread_id),
            await cli("archives", thread_id),
            await cli("stop", thread_id),
        ]
        assert outputs[0] == "you said hello\n"
        for output in outputs:
            assert all(each.isprintable() or each == "\n" for each in output), output
        for output in (outputs[1], outputs[3], *outputs[6:8], *outputs[9:]):
            assert shown in output
        assert (await cli.json("archives", thread_id))["archives"][0]["thread_id"] == thread_id
        message = await cli.fails(ThreadIdRefused, "fork", thread_id, "1", thread_id)
        assert "An id has 1 to 1,000 bytes" in message
        await _names_it_in_commands(cli, thread_id)


async def _names_it_in_commands(cli: Cli, thread_id: str) -> None:
    message = await cli.fails(ThreadNotFound, "pause", f"{thread_id}-none")
    assert f"everlong send {quote_id(f'{thread_id}-none')} 'hello'" in message


NEW = [" ", "\u2028", "\u202egnp", "a\nb2", "\ufffd", "\u3164"]


@pytest.mark.guarantee(103)
async def test_no_entry_point_starts_a_thread_under_an_odd_id(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, build_governed_agent()) as threads:
        async with threads.worker(), open_role_client(threads) as client:
            await threads.send(thread_id, "hi")
            await threads.wait_for_answers(thread_id, 1)
            before = {each.key async for each in store.list("")}
            for odd in (f"{each}{thread_id}{each}" for each in NEW):
                url = f"/api/v1/threads/-/messages?id={quote(odd, safe='')}"
                answer = await client.post(url, json={"text": "hi", "agent": "ops"})
                assert answer.status_code == 422, odd
                assert answer.json()["error"]["type"] == "ThreadIdRefused"
                with pytest.raises(ThreadIdRefused):
                    await everlong.ask(threads.client, odd, "x" * 50_000, agent="ops")
                with pytest.raises(ThreadIdRefused):
                    await threads.start(odd)
                for starting in (
                    fork(threads.client, PackStore(store), thread_id, 1, odd, task_queue="q"),
                    revive(threads.client, PackStore(store), thread_id, odd, task_queue="q"),
                ):
                    with pytest.raises(ThreadIdRefused):
                        await starting
                with pytest.raises(ThreadNotFound):
                    await read_status(threads.client, odd)
            broken = await client.post(
                "/api/v1/threads/a%FFb/messages", json={"text": "hi", "agent": "ops"}
            )
            assert broken.status_code == 400
            assert {each.key async for each in store.list("")} == before
