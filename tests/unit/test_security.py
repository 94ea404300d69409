"""Web security: origins, foreign cookies, wrong tokens, and redirects to the login."""

import functools

import httpx
import pytest
from fastapi import FastAPI
from starlette.middleware import trustedhost

from everlong.admin.web import Access, load_access
from everlong.admin.web.auth import Role, Throttle, parse_netloc
from everlong.admin.web.pages import create_pages_router
from everlong.config import load_settings
from everlong.errors import ConfigError
from tests.support.admin_client import OWN, ROLES, TOKENS, bearer, make_context, open_http_client

SESSION = "/api/v1/session"
PAUSE = "/api/v1/threads/a/pause"
WRONG = {"authorization": "Bearer wrong"}
PROXY = {
    "EVERLONG_TRUST_USER_HEADER": "X-Forwarded-User",
    "EVERLONG_TRUSTED_PROXIES": "10.0.0.9",
    "EVERLONG_TRUST_ROLE_DEFAULT": "admin",
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    "origin", ["http://[x", "http://a:b", "http://", "x", "http://u@127.0.0.1"]
)
async def test_an_invalid_origin_is_foreign(origin: str) -> None:
    async with open_http_client() as client:
        answer = await client.post(PAUSE, json={}, headers={"origin": origin})
    assert answer.status_code == 403
    async with open_http_client(access=ROLES) as client:
        answer = await client.post("/login", data={"token": "x"}, headers={"origin": origin})
    assert answer.status_code == 403


@functools.cache  # Tests with the same hosts share an application.
def load_proxied_access(hosts: str) -> Access:
    return load_access(load_settings({**PROXY, "EVERLONG_HOSTS": hosts}))


@pytest.mark.parametrize(
    ("hosts", "host", "origin", "is_ours"),
    [
        ("ops.example.org", "ops.example.org", "https://ops.example.org", True),
        ("ops.example.org", "127.0.0.1:8234", "https://ops.example.org", True),
        ("OPS.example.org", "127.0.0.1:8234", "https://ops.example.org", True),
        # The port is part of the origin: any program may listen on another port.
        ("ops.example.org", "127.0.0.1:8234", "https://ops.example.org:8443", False),
        ("ops.example.org:8443", "127.0.0.1:8234", "https://ops.example.org:8443", True),
        ("ops.example.org:8443", "ops.example.org", "https://ops.example.org:8443", True),
        ("ops.example.org:8443", "127.0.0.1:8234", "https://ops.example.org:9443", False),
        # Each scheme has a port that browsers do not write.
        ("ops.example.org:443", "127.0.0.1:8234", "https://ops.example.org", True),
        ("ops.example.org:443", "127.0.0.1:8234", "http://ops.example.org", False),
        ("ops.example.org", "ops.example.org:8443", "https://ops.example.org:8443", True),
        pytest.param(
            *("[2001:db8::5]:8443", "[2001:db8::5]", "https://[2001:db8::5]:8443", True),
            marks=pytest.mark.skipif(
                not hasattr(trustedhost, "parse_host_header"),
                reason="before 1.7, starlette's host check does not know IPv6 addresses",
            ),
        ),
        ("ops.example.org", "127.0.0.1:8234", "https://ops.example.org.evil.example", False),
        ("ops.example.org", "127.0.0.1:8234", "ftp://ops.example.org", False),
    ],
)
async def test_behind_a_proxy_host_and_port_are_compared(
    hosts: str, host: str, origin: str, is_ours: bool
) -> None:
    async with open_http_client(
        access=load_proxied_access(hosts), address="10.0.0.9", host=f"http://{host}"
    ) as client:
        headers = {"x-forwarded-user": "ana", "origin": origin}
        answer = await client.post(PAUSE, json={}, headers=headers)
    assert answer.status_code == (503 if is_ours else 403)


@pytest.mark.parametrize("hosts", ["https://ops.example.org", "a:b", "a/b", "[::", "me@a"])
async def test_an_invalid_host_is_refused_at_the_start(hosts: str) -> None:
    with pytest.raises(ConfigError, match="EVERLONG_HOSTS"):
        load_proxied_access(hosts)
    assert parse_netloc(hosts) is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", SESSION),
        ("GET", "/login"),
        ("GET", "/static/app.js"),
        ("GET", "/api/v1/threads"),
        ("POST", "/decode"),
        ("POST", "/default/encode"),
    ],
)
async def test_a_wrong_token_is_delayed_on_every_route(
    method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[bool] = []

    async def delay(_: Throttle) -> bool:
        waits.append(True)
        return len(waits) == 1  # There is room for one.

    monkeypatch.setattr(Throttle, "delay", delay)
    body: dict[str, list[str]] | None = {"payloads": []} if method == "POST" else None
    async with open_http_client(access=ROLES) as client:
        # Those who show their own, or none, are not kept waiting.
        for headers in (bearer(Role.ADMIN), {}, {"authorization": "Basic eDp5"}):
            await client.request(method, path, headers=headers, json=body)
        assert not waits
        first = await client.request(method, path, headers=WRONG, json=body)
        second = await client.request(method, path, headers=WRONG, json=body)
    assert first.status_code != 429
    assert second.status_code == 429
    assert len(waits) == 2


@pytest.mark.parametrize("other", ['prefs={"a":1}', "a[b]=1", "x y=1", "foo=a b", "ü=1", "=", ";;"])
async def test_cookies_of_other_programs_do_not_end_a_session(other: str) -> None:
    async with open_http_client(access=ROLES) as client:
        login = await client.post(SESSION, json={"token": TOKENS[Role.ADMIN]}, headers=OWN)
        ours = login.headers["set-cookie"].partition(";")[0]
        client.cookies.clear()
        for cookie in (f"{other}; {ours}", f"{ours}; {other}"):
            headers = {"cookie": cookie.encode()}
            answer = await client.get("/api/v1/threads", headers=headers)  # type: ignore[arg-type]
            assert answer.status_code == 200
            # And it is known for a browser's, which says where a change comes from.
            bare = await client.post(PAUSE, json={}, headers=headers)  # type: ignore[arg-type]
            assert bare.status_code == 403


@pytest.mark.parametrize(
    ("origin", "is_secure"), [("https://ops.example.org", True), ("http://ops.example.org", False)]
)
async def test_a_cookie_is_secure_behind_an_https_proxy(origin: str, is_secure: bool) -> None:
    credentials = {"token": TOKENS[Role.VIEWER]}
    headers = {"origin": origin}
    async with open_http_client(access=ROLES, host="http://ops.example.org") as client:
        for answer in (
            await client.post(SESSION, headers=headers, json=credentials),
            await client.post("/login", headers=headers, data=credentials),
        ):
            assert ("secure" in answer.headers["set-cookie"].lower()) is is_secure


@pytest.mark.parametrize(
    "wanted",
    ["/threads/?id=ops%207", "/threads/a%2Fb", "/?text=50%25&status=held", "/threads/%C3%BC?x=%26"],
)
async def test_a_login_redirects_to_the_requested_page_with_its_query(wanted: str) -> None:
    async with open_http_client(access=ROLES) as client:
        asked = await client.get(wanted, headers={"accept": "text/html"})
        assert asked.status_code == 303
        login = await client.post(
            asked.headers["location"], data={"token": TOKENS[Role.VIEWER]}, headers=OWN
        )
    assert login.headers["location"] == wanted


@pytest.mark.guarantee(91)
async def test_no_page_is_shown_to_an_anonymous_user() -> None:
    app = FastAPI()
    app.include_router(create_pages_router(make_context()))
    transport = httpx.ASGITransport(app)
    paths = ["/", "/fleet", "/query", "/archives", "/approvals", "/threads/a", "/threads/?id=a"]
    parts = ["threads", "thread", "charts", "runs", "journal", "body", "past", "archives", "fleet"]
    paths += [f"/fragments/{part}?id=a&seq=1" for part in parts]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in paths:
            assert (await client.get(path)).status_code == 403, path
        assert (await client.get("/login")).status_code == 200


@pytest.mark.parametrize("host", ["a/login?", "127.0.0.1:1/login?", "a/static/x?"])
async def test_a_host_that_looks_like_a_path_is_rejected(host: str) -> None:
    async with open_http_client(access=ROLES) as client:
        for path in ("/", "/fleet", "/fragments/threads", "/api/v1/threads"):
            answer = await client.get(path, headers={"host": host})
            assert answer.status_code in (400, 401), path
