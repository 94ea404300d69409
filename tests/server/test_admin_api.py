"""The API on a real server: what it shows of threads, and that what it does is journalled."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from temporalio.client import Interceptor, OutboundInterceptor, QueryWorkflowInput

from everlong import Policy
from everlong.admin.web.auth import Role
from everlong.client.status import read_status
from everlong.client.thread import ThreadHandle
from everlong.client.wait import wait_for_progress
from everlong.embedded import TemporalServer
from everlong.models import seq_after
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore
from tests.server.test_approvals import Shop, pay
from tests.support.admin_client import ROLES, bearer, make_context, open_http_client
from tests.support.governed_agent import build_governed_agent
from tests.support.scripted_agents import reading_agent
from tests.support.threads import Threads, open_threads

JSON = dict[str, Any]


@asynccontextmanager
async def open_role_client(
    threads: Threads, role: Role = Role.ADMIN
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield an HTTP client of the admin API that sends the token of a role."""
    context = make_context(threads.client, PackStore(threads.store), threads.task_queue)
    async with context.lifespan(), open_http_client(context, ROLES) as client:
        client.headers.update(bearer(role))
        yield client


async def poll_until(
    get: Callable[[], Awaitable[JSON]], done: Callable[[JSON], bool], seconds: float = 90
) -> JSON:
    deadline = time.monotonic() + seconds
    while not done(found := await get()):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)
    return found


async def get_json(client: httpx.AsyncClient, path: str) -> JSON:
    answer = await client.get(f"/api/v1{path}")
    assert answer.status_code == 200, answer.text
    found: JSON = answer.json()
    return found


async def run_action(client: httpx.AsyncClient, path: str, **body: object) -> JSON:
    answer = await client.post(f"/api/v1{path}", json=body)
    assert answer.status_code == 200, answer.text
    found: JSON = answer.json()
    return found


@pytest.mark.guarantee(93)
async def test_api_actions_are_journalled_with_actor_and_reason(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    shop = Shop()
    # A slash is part of many ids.
    thread_id = f"ops/{thread_id}"
    place = f"/threads/{quote(thread_id, safe='')}"
    async with open_threads(server.address, store, shop.agent(pay(5))) as threads:
        async with threads.worker(), open_role_client(threads) as client:
            assert (await run_action(client, f"{place}/messages", text="hi", agent="ops"))[
                "number"
            ] == 1
            page = await poll_until(
                lambda: get_json(client, "/approvals"),
                lambda page: any(each["thread_id"] == thread_id for each in page["waiting"]),
            )
            [waiting] = [each for each in page["waiting"] if each["thread_id"] == thread_id]
            assert waiting["arguments"] == '{"euros": 5}'
            assert waiting["context"][-1]["kind"] == "reply"
            approval = waiting["approval"]["id"]
            await run_action(client, f"{place}/approvals/{approval}", approve=True, reason="cheap")
            await threads.wait_for_answers(thread_id, 1)
            assert shop.paid == [5]
            await run_action(client, f"{place}/limits", changes={"steps_max": 50}, reason="enough")
            await run_action(client, f"{place}/pause", reason="lunch", by="Mallory")
            await run_action(client, f"{place}/unpause", reason="back")
            fork_id = f"{thread_id}-fork"
            await run_action(client, f"{place}/fork", seq=2, new_id=fork_id, reason="try again")
            await run_action(client, f"{place}/stop", reason="done")
            await poll_until(
                lambda: get_json(client, place), lambda it: it["status"]["status"] == "done"
            )
            entries = (await get_json(client, f"{place}/entries"))["entries"]
            forked = (await get_json(client, f"/threads/{quote(fork_id, safe='')}/entries"))[
                "entries"
            ]
    authors = {
        each["summary"]: each["by"] for each in entries if each["kind"] in ("control", "decided")
    }
    for action, reason in (
        ("approved", "cheap"),
        ("configure steps_max=50", "enough"),
        ("pause", "lunch"),
        ("unpause", "back"),
        ("stop", "done"),
    ):
        found = [text for text in authors if action in text and f"by Admin: {reason}" in text]
        assert found, (action, authors)
    # The token names the author. The name that a request gives is ignored.
    assert set(authors.values()) == {"Admin"}
    assert forked[-1]["kind"] == "fork"
    assert forked[-1]["by"] == "Admin"


async def test_a_thread_is_shown_as_a_whole_and_its_bodies_on_demand(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(4)) as threads:
        async with threads.worker(), open_role_client(threads, Role.VIEWER) as client:
            await threads.send(thread_id, "read")
            await threads.wait_for_answers(thread_id, 1)
            found = await get_json(client, f"/threads/{thread_id}")
            gauges = {each["name"]: each for each in found["gauges"]}
            assert gauges["steps_max"]["value"] == 5
            assert 0 < gauges["thread_bytes_max"]["share"] < 1
            assert found["sizes"]["stored_bytes"] > 0
            assert found["last_seq"] == 10
            page = await get_json(client, f"/threads/{thread_id}/entries?before=5&limit=2")
            assert [each["seq"] for each in page["entries"]] == [3, 4]
            after = await get_json(client, f"/threads/{thread_id}/entries?after=8")
            assert [each["seq"] for each in after["entries"]] == [9, 10]
            [stored] = [each for each in page["entries"] if each["kind"] == "tool_result"]
            assert stored["is_stored"]
            assert len(stored["summary"]) < 200
            seq = stored["seq"]
            part = await get_json(client, f"/threads/{thread_id}/entries/{seq}?start=10&length=20")
            whole = await client.get(f"/api/v1/threads/{thread_id}/entries/{seq}/whole")
            assert part["text"] == whole.text[10:30]
            assert part["next_start"] == 30
            assert whole.headers["content-disposition"].startswith("attachment")
            view = await get_json(client, f"/threads/{thread_id}/at/3")
            assert view["totals"] is None
            assert [each["role"] for each in view["context"]] == ["user", "assistant", "tool"]
            change = await get_json(client, f"/threads/{thread_id}/diff?first=3")
            assert (change["last_seq"], change["left_out"]) == (10, 0)
            assert len(change["context_added"]) == 7
            runs = await get_json(client, f"/threads/{thread_id}/runs")
            assert runs["runs"][0]["ui_url"].startswith("http://127.0.0.1:8233/namespaces/default/")
            missing = await client.get(f"/api/v1/threads/{thread_id}/entries/99")
            assert missing.status_code == 404


@pytest.mark.guarantee(97)
async def test_a_preview_describes_an_action_without_running_it(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    policy = Policy(compact_at_bytes=512 * 1024, compact_to_bytes=4 * 1024)
    async with open_threads(server.address, store, reading_agent(6, policy=policy)) as threads:
        async with threads.worker(), open_role_client(threads, Role.VIEWER) as client:
            await threads.send(thread_id, "read")
            before = await threads.wait_for_answers(thread_id, 1)

            async def preview(action: str, **arguments: object) -> JSON:
                return await run_action(
                    client, f"/threads/{thread_id}/preview", action=action, arguments=arguments
                )

            smaller = await preview("compact")
            assert smaller["after_bytes"] <= 4 * 1024 < smaller["before_bytes"]
            assert (smaller["is_reversible"], smaller["confirm"]) == (False, "")
            ends = await preview("stop")
            assert (ends["is_reversible"], ends["confirm"]) == (False, thread_id)
            hit = await preview("limits", changes={"steps_max": 1})
            assert any("steps_max: 7 of 1" in each for each in hit["warnings"])
            assert "message" in (await preview("fork", seq=3))["sentence"]
            refused = await client.post(
                f"/api/v1/threads/{thread_id}/preview",
                json={"action": "limits", "arguments": {"changes": {"nonsense": 1}}},
            )
            assert refused.status_code == 422
            after = await read_status(threads.client, thread_id)
    assert after == before


class QueryCount(Interceptor):
    """Counts the queries of a client."""

    def __init__(self) -> None:
        self.queries = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        counts = self

        class Outbound(OutboundInterceptor):
            async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002
                counts.queries += 1
                return await super().query_workflow(input)

        return Outbound(next)


async def test_a_page_that_refreshes_itself_queries_a_thread_only_after_news(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    counts = QueryCount()
    async with (
        open_threads(
            server.address, store, build_governed_agent(), interceptors=[counts]
        ) as threads,
        threads.worker(),
    ):
        async with open_role_client(threads) as client:

            async def refresh(path: str) -> str:
                answer = await client.get(path, headers={"Accept": "text/html"})
                assert answer.status_code == 200, answer.text
                return answer.text

            thread = f"/fragments/thread?id={quote(thread_id)}"
            talk = f"/fragments/conversation?id={quote(thread_id)}"
            await threads.send(thread_id, "restart api")
            await wait_for_progress(
                threads.client, thread_id, lambda seen: seen.pending == 1, seconds_max=90
            )
            assert counts.queries == 0
            await poll_for_text(lambda: refresh("/fragments/approvals"), thread_id)
            assert "A person has to decide" in await refresh(thread)
            assert "Approval of restart" in await refresh(talk)
            asked = counts.queries
            for _ in range(3):
                assert "A person has to decide" in await refresh(thread)
                assert "Approval of restart" in await refresh(talk)
                assert thread_id in await refresh("/fragments/approvals")
            assert counts.queries == asked
            await ThreadHandle(threads.client, thread_id).pause(by="ann")
            await poll_for_text(lambda: refresh(thread), "paused")
            assert counts.queries > asked


async def poll_for_text(get: Callable[[], Awaitable[str]], text: str) -> None:
    deadline = time.monotonic() + 90
    while text not in (found := await get()):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)


@pytest.mark.full
async def test_a_bulk_action_acts_on_the_threads_that_allow_it(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    names = [f"{thread_id}-{at}" for at in (1, 2)]
    async with (
        open_threads(server.address, store, build_governed_agent()) as threads,
        threads.worker(),
        open_role_client(threads) as client,
    ):
        for name in names:
            await threads.wait_for_answers(name, await threads.send(name, "hello"))

        async def preview(**body: object) -> JSON:
            return await run_action(client, "/bulk/preview", thread_ids=names, **body)

        async def act(**body: object) -> dict[str, str]:
            job = await run_action(client, "/bulk", thread_ids=names, reason="tidy", **body)
            return {each["thread_id"]: each["state"] for each in job["bulk"]}

        await poll_until(lambda: preview(action="stop"), lambda found: found["acts"] == 2)
        label = {"action": "label", "add": ["team=payments"]}
        assert set((await act(**label)).values()) == {"done"}
        handle = ThreadHandle(threads.client, names[1])
        await handle.label(["more"], by="ann")
        await poll_until(lambda: preview(**label), lambda found: found["acts"] == 0)
        assert set((await act(**label)).values()) == {"refused"}
        assert set((await act(action="archive")).values()) == {"done"}
        await handle.stop(by="ann")
        found = await poll_until(
            lambda: preview(action="stop"), lambda found: found["confirm"] == "stop 1"
        )
        assert [each["refused"] for each in found["items"]] == ["", "It has ended."]
        states = await act(action="stop", confirm="stop 1")
        assert states == {names[0]: "done", names[1]: "refused"}
        await threads.client.get_workflow_handle(names[0]).result()
        entries = ThreadHandle(threads.client, names[0]).journal()
        notes = [each.data async for each in entries if each.data]
        assert {"action": "stop", "by": "Admin", "reason": "tidy"}.items() <= notes[-1].items()


async def test_a_thread_without_a_worker_shows_what_the_server_and_the_store_know(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    policy = Policy(run_events_max=50)
    async with open_threads(server.address, store, reading_agent(12, policy=policy)) as threads:
        async with threads.worker():
            await threads.send(thread_id, "read")
            status = await threads.wait_for_answers(thread_id, 1)
        assert status.counters.runs > 1
        async with open_role_client(threads) as client:
            found = await get_json(client, f"/threads/{thread_id}")
            assert found["status"] is None
            assert "worker" in found["unavailable"]
            assert found["row"]["thread_id"] == thread_id
            assert found["last_seq"] == seq_after(status.head) - 1
            page = await get_json(client, f"/threads/{thread_id}/entries")
            assert page["entries"][-1]["seq"] == found["last_seq"]
            grown = await get_json(client, f"/threads/{thread_id}/series")
            assert grown["entries"] == found["last_seq"]
            assert grown["points"]
            talk = await client.get(f"/fragments/conversation?id={quote(thread_id)}")
            assert "by continue-as-new" in talk.text


@pytest.mark.guarantee(96)
async def test_the_list_has_one_row_for_each_thread_and_queries_none(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    policy = Policy(run_events_max=50)
    async with open_threads(server.address, store, reading_agent(12, policy=policy)) as threads:
        async with threads.worker():
            await threads.send(thread_id, "read")
            assert (await threads.wait_for_answers(thread_id, 1)).counters.runs > 1
            await ThreadHandle(threads.client, thread_id).stop(reason="done")
            await threads.client.get_workflow_handle(thread_id).result()
        # No worker runs from here on: a query of a thread would fail.
        async with open_role_client(threads, Role.VIEWER) as client:
            page = await poll_until(
                lambda: get_json(client, f"/threads?text={thread_id.upper()}"),
                lambda page: [each["status"] for each in page["rows"]] == ["done"],
            )
            [row] = page["rows"]
            assert row["agent"] == "ops"
            assert row["card"]["steps"] > 0
            etag = (await client.get("/api/v1/threads")).headers["etag"]
            same = await client.get("/api/v1/threads", headers={"if-none-match": etag})
            assert same.status_code == 304
            fleet = await get_json(client, "/fleet")
            assert fleet["threads"] >= 1
            assert fleet["saved_bytes"] >= 0


@pytest.mark.parametrize("path", ["", "/entries", "/runs", "/series", "/at/1", "/approvals"])
async def test_an_unknown_thread_is_a_404(
    server: TemporalServer, store: BlobStore, path: str
) -> None:
    async with open_threads(server.address, store) as threads, open_role_client(threads) as client:
        answer = await client.get(f"/api/v1/threads/missing{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "ThreadNotFound"
