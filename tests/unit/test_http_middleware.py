"""HTTP middleware: strict headers, bounds, one error shape, and a log without content."""

import logging
from urllib.parse import quote

import pytest

from everlong.admin.web.auth import SESSIONS_MAX, SESSIONS_PER_USER_MAX, Role, Sessions
from everlong.admin.web.errors import get_http_status
from everlong.errors import (
    BlobMissing,
    EntryNotFound,
    EverlongError,
    MessageRefused,
    NoWorker,
    ThreadEnded,
    ThreadNotFound,
)
from tests.support.admin_client import OWN, ROLES, TOKENS, bearer, make_context, open_http_client

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("path", ["/api/v1/threads", "/api/v1/none", "/login", "/static/none.js"])
async def test_every_response_has_strict_headers(path: str) -> None:
    async with open_http_client() as client:
        headers = (await client.get(path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    is_static = path.startswith("/static/")
    assert headers["cache-control"] == ("no-cache" if is_static else "no-store")


async def test_scripts_are_revalidated_and_sent_once() -> None:
    async with open_http_client() as client:
        first = await client.get("/static/actions.js")
        assert (first.status_code, first.headers["cache-control"]) == (200, "no-cache")
        again = await client.get(
            "/static/actions.js", headers={"if-none-match": first.headers["etag"]}
        )
    assert (again.status_code, again.headers["cache-control"]) == (304, "no-cache")


async def test_a_rejected_request_has_strict_headers_too() -> None:
    async with open_http_client(access=ROLES) as client:
        answer = await client.get("/api/v1/threads")
    assert answer.status_code == 401
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ThreadNotFound("x"), 404),
        (EntryNotFound("x"), 404),
        (ThreadEnded("x"), 409),
        (MessageRefused("x"), 422),
        (NoWorker("x"), 503),
        (BlobMissing("x"), 410),
        (EverlongError("x"), 400),
    ],
)
async def test_an_error_has_the_status_of_its_cause(error: EverlongError, status: int) -> None:
    assert get_http_status(error) == status


@pytest.mark.guarantee(95)
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"reason": "\\ud800"}',
        b'{"reason": "a\\u0000b"}',
        b'{"by": 7}',
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"reason": "' + b"x" * 301 + b'"}',
    ],
    ids=range(8),
)
async def test_an_invalid_body_gets_the_common_error_shape(body: bytes) -> None:
    async with open_http_client() as client:
        answer = await client.post(
            "/api/v1/threads/a/pause",
            content=body,
            headers={"content-type": "application/json"},
        )
    assert answer.status_code in (400, 422)
    error = answer.json()["error"]
    assert error["message"]
    assert set(error) == {"type", "message"}
    assert "xxx" not in answer.text  # The answer does not repeat the request.


@pytest.mark.guarantee(95)
async def test_bodies_without_a_length_are_bounded_too() -> None:
    async def parts() -> object:
        for _ in range(5):
            yield b" " * 1_000_000

    kind = {"content-type": "application/json"}
    async with open_http_client() as client:
        declared = await client.post(
            "/api/v1/threads/a/pause", content=b" " * 5_000_000, headers=kind
        )
        undeclared = await client.post(
            "/api/v1/threads/a/pause",
            content=parts(),  # type: ignore[arg-type]
            headers=kind,
        )
    assert (declared.status_code, undeclared.status_code) == (413, 413)
    assert undeclared.json()["error"]["type"] == "TooLarge"


@pytest.mark.parametrize(
    "changes",
    ['{"cost_usd_max": Infinity}', '{"cost_usd_max": NaN}', '{"steps_max": 1' + "0" * 40 + "}"],
)
async def test_numbers_outside_json_are_refused(changes: str) -> None:
    async with open_http_client() as client:
        answer = await client.post(
            "/api/v1/threads/a/limits",
            content=f'{{"changes": {changes}}}',
            headers={"content-type": "application/json"},
        )
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("thread_id", "status"),
    [("x" * 1001, 422), ("a%FF", 400), ("-?id=%C3", 400), ("%ED%A0%80", 400)],
)
async def test_ids_that_temporal_refuses_are_refused(thread_id: str, status: int) -> None:
    async with open_http_client() as client:
        answer = await client.get(f"/api/v1/threads/{thread_id}")
    assert answer.status_code == status


HOSTILE = [
    "a\nb",
    "\r\n",
    " ",
    "\t",
    "\u2028",
    "\u202egnp",
    "?x=1#y",
    "\0",
    "\x1b[31m",
    "x" * 1000,
    "-",
]


@pytest.mark.parametrize(
    "thread_id", ["a/b", "a%b", "a%2Fb", "a b", "ä/ö%25", "a/runs", "runs", *HOSTILE], ids=ascii
)
async def test_any_id_is_one_path_segment(thread_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await _open_thread(f"/api/v1/threads/{_quote(thread_id)}", monkeypatch) == thread_id


@pytest.mark.parametrize(
    "thread_id", [".", "..", "../..", "a/b", "a%2Fb", "%2E%2E", *HOSTILE], ids=ascii
)
async def test_a_query_parameter_can_hold_any_id(
    thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _open_thread(f"/api/v1/threads/-?id={_quote(thread_id)}", monkeypatch) == thread_id
    # Without `-` in the path a parameter names no thread.
    assert await _open_thread(f"/api/v1/threads/a?id={_quote(thread_id)}", monkeypatch) == "a"


def _quote(thread_id: str) -> str:
    return quote(thread_id, safe="")


NO_SERVER = make_context()


async def _open_thread(path: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of the thread that a request is for."""
    asked: list[str] = []

    async def overview(_: object, __: object, wanted: str) -> None:
        asked.append(wanted)
        raise ThreadNotFound("not in this test")

    monkeypatch.setattr(NO_SERVER, "client", _none)
    for caller in ("pages.thread", "routes.threads"):
        monkeypatch.setattr(f"everlong.admin.web.{caller}.load_overview", overview)
    async with open_http_client(NO_SERVER) as client:
        answer = await client.get(path)
    assert answer.status_code == 404
    return asked[0]


async def _none() -> None:
    return None


@pytest.mark.guarantee(94)
async def test_the_log_names_route_and_user_and_no_content(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with open_http_client(access=ROLES) as client:
        await client.get("/api/v1/threads/secret-id?x=secret", headers=bearer(Role.VIEWER))
        await client.post(
            "/api/v1/threads/secret-id/pause",
            json={"reason": "secret"},
            headers=bearer(Role.OPERATOR),
        )
        await client.post("/api/v1/session", json={"token": TOKENS[Role.ADMIN]}, headers=OWN)
    ours = [each.getMessage() for each in caplog.records if each.name.startswith("everlong")]
    assert any(line.startswith("GET /api/v1/threads/{thread_id} 503 Viewer") for line in ours)
    assert any("POST /api/v1/threads/{thread_id}/pause 503 Operator" in line for line in ours)
    assert any("POST /api/v1/session 200 Admin" in line for line in ours)
    assert "secret" not in "".join(ours)
    assert "token-of" not in "".join(ours)


@pytest.mark.guarantee(94)
async def test_an_unexpected_error_is_a_500_without_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    context = make_context()

    async def broken() -> None:
        raise KeyError("".join(["sec", "ret"]))

    context.client = broken  # type: ignore[assignment,method-assign]
    async with open_http_client(context) as client:
        answer = await client.get("/api/v1/threads/a")
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "InternalError"
    assert "secret" not in answer.text + caplog.text


async def test_sessions_are_bounded_and_the_oldest_ends() -> None:
    sessions = Sessions()
    first = sessions.open("ana", Role.VIEWER)
    second = sessions.open("bo", Role.VIEWER)
    sessions.find(first)  # Used later than the second.
    for number in range(SESSIONS_MAX - 1):
        sessions.open(f"other {number}", Role.VIEWER)
    assert len(sessions) == SESSIONS_MAX
    assert sessions.find(second) is None
    assert sessions.find(first) is not None


async def test_repeated_logins_end_only_sessions_of_the_same_user() -> None:
    sessions = Sessions()
    first = sessions.open("ana", Role.VIEWER)
    second = sessions.open("bo", Role.ADMIN)
    for _ in range(2 * SESSIONS_MAX):
        sessions.open("ana", Role.VIEWER)
    assert sessions.find(first) is None
    assert sessions.find(second) is not None
    assert len(sessions) == SESSIONS_PER_USER_MAX + 1


async def test_a_session_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions()
    session_id = sessions.open("ana", Role.VIEWER)
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    assert sessions.find(session_id) is None
