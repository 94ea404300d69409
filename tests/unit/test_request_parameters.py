"""Request parameters: ids that can be requested again, and lists of bounded cost."""

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from everlong.errors import ThreadNotFound
from everlong.models.thread_ids import ID_BYTES_MAX
from tests.support.admin_client import make_context, open_http_client

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = {"content-type": "application/json"}
NO_IDS = [
    "a\nb\u202ec",
    " ",
    "   ",
    "\t",
    "a\0",
    "\u200b",
    "😀" * 251,
    "x" * 1001,
    "\ud800",
    "\ufffd",
]
PAGES = [
    "/threads/?id={}",
    "/threads/{}",
    "/archives?thread={}",
    "/fragments/thread?id={}",
    "/fragments/charts?id={}",
    "/fragments/runs?id={}",
    "/fragments/archives?id={}",
    "/fragments/journal?id={}",
    "/fragments/body?id={}&seq=1",
    "/fragments/past?id={}&seq=1",
]


@pytest.mark.parametrize("action", ["fork", "revive"])
@pytest.mark.parametrize("new_id", NO_IDS, ids=ascii)
async def test_every_accepted_thread_id_fits_into_a_request(action: str, new_id: str) -> None:
    async with open_http_client() as client:
        body = json.dumps({"seq": 1, "new_id": new_id})
        answer = await client.post(f"/api/v1/threads/a/{action}", content=body, headers=JSON)
    assert answer.status_code == 422
    error = answer.json()["error"]
    if new_id != "\ud800":  # No text, so it is refused before it is taken for an id.
        assert error["type"] == "ThreadIdRefused"
        assert "An id has 1 to 1,000 bytes in UTF-8" in error["message"]


@pytest.mark.parametrize("new_id", ["ops 7/ü", "😀" * 250, "x" * ID_BYTES_MAX])
async def test_an_existing_id_can_be_requested(new_id: str) -> None:
    async with open_http_client() as client:
        body = {"seq": 1, "new_id": new_id}
        fork = await client.post("/api/v1/threads/a/fork", json=body)
        read = await client.get(f"/api/v1/threads/{quote(new_id, safe='')}")
        page = await client.get(f"/threads/?id={quote(new_id, safe='')}")
    # There is no server behind it: what fits fails later.
    assert {fork.status_code, read.status_code, page.status_code} == {503}


@pytest.mark.parametrize("page", PAGES)
async def test_pages_accept_the_ids_that_the_api_accepts(page: str) -> None:
    async with open_http_client() as client:
        for wrong in (quote("😀" * 251), "x" * 1001):
            answer = await client.get(page.format(wrong), headers={"accept": "text/html"})
            assert answer.status_code == 422, wrong
        # Invalid UTF-8 decodes to U+FFFD, so the server would look up another id.
        answer = await client.get(page.format("a%FFb"), headers={"accept": "text/html"})
        assert answer.status_code == 400
        # Another program may have given a thread an id that Everlong would not.
        for odd in (
            "😀" * 250,
            "a\u00a0b",
            "👩\u200d💻",
            "a\u00adb",
            "a\nb\tc",
            " a ",
            "\u202ex",
            "\0",
        ):
            right = await client.get(page.format(quote(odd)))
            # There is no server behind it; charts say so where they would be.
            assert right.status_code == (200 if "charts" in page else 503), odd


@pytest.mark.parametrize("thread_id", ["a/b", "a%b", "a%2Fb", "ä/ö%25"])
async def test_a_page_finds_the_thread_of_its_path(
    thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def overview(_: object, __: object, wanted: str) -> None:
        asked.append(wanted)
        raise ThreadNotFound("not in this test")

    async def client_of() -> None:
        return None

    context = make_context()
    context.client = client_of  # type: ignore[assignment,method-assign]
    for caller in ("pages.thread", "routes.threads"):
        monkeypatch.setattr(f"everlong.admin.web.{caller}.load_overview", overview)
    async with open_http_client(context) as client:
        for path in (f"/threads/{quote(thread_id, safe='')}", f"/threads/?id={quote(thread_id)}"):
            assert (await client.get(path)).status_code == 404
    assert asked == [thread_id, thread_id]


@pytest.mark.parametrize("run", ["zzz", "a" * 5000, "%00"])
async def test_an_invalid_run_id_makes_no_request(run: str) -> None:
    async with open_http_client() as client:
        assert (await client.get(f"/fragments/runs?id=a&run={run}")).status_code == 422


PREVIEW = "/api/v1/threads/a/preview"
LIMITS = "/api/v1/threads/a/limits"
# Built by the test: they take a second.
ENDLESS: dict[str, tuple[str, Callable[[], Any]]] = {
    "numbers": ("/api/v1/query", lambda: {"sql": "select 1", "threads": [1] * 1_000_000}),
    "texts": ("/api/v1/query", lambda: {"sql": "select 1", "threads": ["a"] * 500_000}),
    "names": (LIMITS, lambda: {"changes": {f"\ud800{number}": 1 for number in range(200_000)}}),
    "values": (PREVIEW, lambda: {"action": "limits", "arguments": {"a": [1] * 1_000_000}}),
    "nested names": (
        PREVIEW,
        lambda: {"action": "limits", "arguments": {"a": {str(n): 1 for n in range(200_000)}}},
    ),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_endless_list_is_refused_at_once(kind: str) -> None:
    path, make_body = ENDLESS[kind]
    body = json.dumps(make_body()).encode()
    async with open_http_client() as client:
        await client.get("/healthz")
        began = time.monotonic()
        answer = await client.post(path, content=body, headers=JSON)
    assert answer.status_code == 422
    assert len(answer.content) < 1_000
    # Each item as an error of its own took half a minute.
    assert time.monotonic() - began < 10


async def test_the_most_values_allowed_are_accepted() -> None:
    async with open_http_client() as client:
        fits = await client.post("/api/v1/query", json={"sql": "select 1", "threads": ["a"] * 200})
        more = await client.post("/api/v1/query", json={"sql": "select 1", "threads": ["a"] * 201})
    assert (fits.status_code, more.status_code) == (503, 422)
