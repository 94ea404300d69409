"""Archives, sweeps and queries by the API, on a real server."""

from typing import Any

import pytest

from everlong.admin.web.auth import Role
from everlong.client import lookup
from everlong.client.status import read_status
from everlong.embedded import TemporalServer
from everlong.errors import ThreadNotFound
from everlong.queries import LIBRARY
from everlong.storage import BlobStore
from tests.server.test_admin_api import get_json, open_role_client, run_action
from tests.support.namespaces import wait_until
from tests.support.scripted_agents import reading_agent
from tests.support.threads import open_threads


async def test_a_thread_deleted_during_a_request_is_read_from_its_archive(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_threads(server.address, store, reading_agent(3)) as threads:
        async with threads.worker(), open_role_client(threads) as client:
            await threads.send(thread_id, "read")
            await threads.wait_for_answers(thread_id, 1)
            await run_action(client, f"/threads/{thread_id}/archive")

            async def gone(*_: object) -> None:
                raise ThreadNotFound("its history was deleted a moment ago")

            # It was still there to be described.
            monkeypatch.setattr(lookup, "read_described_status", gone)
            found = await get_json(client, f"/threads/{thread_id}")
            assert found["is_gone"]
            assert (await get_json(client, f"/threads/{thread_id}/series"))["points"]


@pytest.mark.guarantee(110)
async def test_a_forgotten_thread_is_read_from_its_archive_by_every_route(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    place = f"/threads/{thread_id}"
    paths = ("entries", "entries/3", "at/4", "diff?first=3&last=5", "series")
    async with open_threads(server.address, store, reading_agent(3)) as threads:
        async with threads.worker(), open_role_client(threads) as client:
            await threads.send(thread_id, "read")
            await threads.wait_for_answers(thread_id, 1)
            kept = await run_action(client, f"{place}/archive", reason="each week")
            assert (kept["state"], kept["archived"]["is_new"]) == ("done", True)
            plan = {"action": "archive", "arguments": {"then": "free"}}
            preview = await run_action(client, f"{place}/preview", **plan)
            # As large as the last one, about. Of so short a thread that is more than its packs.
            last_bytes = kept["archived"]["manifest"]["size_bytes"]
            assert last_bytes <= preview["after_bytes"] < 2 * last_bytes
            assert preview["before_bytes"] > 0
            assert preview["confirm"] == thread_id
            freed = await run_action(client, f"{place}/archive", then="free", reason="over")
            assert freed["archived"]["runs_deleted"] == 1
            before = {each: await _get_or_none(client, f"{place}/{each}") for each in paths}
            await wait_until(lambda: _is_gone(threads, thread_id), 60)
            found = await get_json(client, place)
            assert found["is_gone"]
            assert found["row"]["status"] == "archived"
            assert found["archive"] == freed["archived"]["manifest"]["archive_id"]
            for path in paths:
                now = await get_json(client, f"{place}/{path}")
                # Entries of an archive have their bodies elsewhere.
                assert before[path] is None or _drop_entries(before[path]) == _drop_entries(now), (
                    path
                )
            entries = (await get_json(client, f"{place}/entries"))["entries"]
            assert "stop by Admin: over" in entries[-1]["summary"]
            assert all(each["summary"] for each in entries)
            whole = await client.get(f"/api/v1{place}/entries/3/whole")
            assert whole.text == (await get_json(client, f"{place}/entries/3"))["text"]
            listed = (await get_json(client, "/archives"))["archives"]
            assert thread_id in {each["thread_id"] for each in listed}
            assert len((await get_json(client, f"{place}/archives"))["archives"]) == 2
            await run_action(
                client, f"{place}/revive", new_id=f"{thread_id}-2", seq=4, reason="again"
            )
            taken = await client.post(f"/api/v1{place}/revive", json={"new_id": f"{thread_id}-2"})
            assert taken.status_code == 409
            revived = (await get_json(client, f"/threads/{thread_id}-2/entries"))["entries"]
            assert (len(revived), revived[-1]["by"]) == (5, "Admin")
            rows = await run_action(
                client,
                "/query",
                sql=f"select count(*) from entries where thread_id = '{thread_id}'",
                threads=[thread_id],
            )
            assert rows["rows"] == [[len(entries)]]


def _drop_entries(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "entries"}


async def _is_gone(threads: Any, thread_id: str) -> bool:
    try:
        await read_status(threads.client, thread_id)
    except ThreadNotFound:
        return True
    return False


async def _get_or_none(client: Any, path: str) -> Any:
    answer = await client.get(f"/api/v1{path}")
    return answer.json() if answer.status_code == 200 else None


async def test_a_sweep_is_a_job_that_the_fleet_page_shows(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with open_threads(server.address, store, reading_agent(2)) as threads:
        async with threads.worker(), open_role_client(threads) as client:
            await threads.send(thread_id, "read")
            await threads.wait_for_answers(thread_id, 1)

            async def swept(**body: object) -> Any:
                job = await done_or_later(client, body)

                async def is_over() -> bool:
                    return bool((await get_json(client, f"/jobs/{job}"))["state"] != "running")

                await wait_until(is_over, 120)
                return await get_json(client, f"/jobs/{job}")

            tried = await swept()
            assert (tried["state"], tried["swept"]["dry_run"]) == ("done", True)
            assert (await get_json(client, "/fleet"))["last_sweep"] is None
            real = await swept(dry_run=False)
            assert real["swept"]["reachable"]["objects"] > 0
            assert (await get_json(client, "/fleet"))["last_sweep"]["id"] == real["swept"]["id"]
            state = await get_json(client, "/sweep")
            assert (state["last"]["id"], state["job"]) == (real["swept"]["id"], None)
            listed = await client.get("/api/v1/jobs")
            assert [each["id"] for each in listed.json()] == [real["id"], tried["id"]]
        async with open_role_client(threads, Role.VIEWER) as viewer:
            assert (await viewer.post("/api/v1/sweep", json={})).status_code == 403


async def done_or_later(client: Any, body: dict[str, object]) -> str:
    answer = await client.post("/api/v1/sweep", json=body)
    assert answer.status_code in (200, 202), answer.text
    return str(answer.json()["id"])


async def test_an_invalid_query_is_refused(server: TemporalServer, store: BlobStore) -> None:
    async with open_threads(server.address, store) as threads, open_role_client(threads) as client:
        for sql in ("drop table entries", "select * from '/etc/passwd'", "select 1; select 2"):
            answer = await client.post("/api/v1/query", json={"sql": sql})
            assert answer.status_code == 422, sql
            assert answer.json()["error"]["type"] == "QueryRefused"
        odd = await run_action(
            client, "/query", sql="select 'nan'::double as n, repeat('x', 99999) as t"
        )
        [[number, text]] = odd["rows"]
        assert (number, len(text)) == ("nan", 16 * 1024)
        assert odd["left_out"]
        library = (await client.get("/api/v1/query")).json()
        assert {each["name"] for each in library} == {each.name for each in LIBRARY}
