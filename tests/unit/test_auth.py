"""Authentication and roles, for every route."""

import asyncio
import functools
import itertools
from typing import Any

import httpx
import pytest

from everlong.admin.web import Access, create_admin_app, load_access
from everlong.admin.web.auth import ARCHIVE_THEN, PERMISSIONS, Role, list_actions, parse_tokens
from everlong.config import load_settings
from everlong.errors import ConfigError
from tests.support.admin_client import OWN, ROLES, TOKENS, bearer, make_context, open_http_client

# Routes about the session itself, which need no role.
SESSION = "/api/v1/session"
VALUES = {
    "thread_id": "ops-7",
    "seq": "1",
    "outcome_id": "1-1-00-1",
    "grant_id": "t-0000000000000000",
    "approval_id": "1-1-abcd",
    "job_id": 16 * "0",
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@functools.cache
def list_operations() -> list[tuple[str, str, dict[str, Any]]]:
    """Return each operation of the API: its method, its path, and its description."""
    paths = create_admin_app(make_context(), Access()).openapi()["paths"]
    return [
        (method.upper(), path, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if path != SESSION
    ]


@pytest.mark.guarantee(91)
async def test_each_role_may_do_what_the_table_says_and_nothing_else() -> None:
    async with open_http_client(access=ROLES) as client:
        for (method, path, operation), role in itertools.product(list_operations(), Role):
            action = operation["x-permission"]
            answer = await client.request(
                method, path.format(**VALUES), headers=bearer(role), json={}
            )
            # There is no server behind it, so what is allowed fails later, and otherwise.
            is_refused = answer.status_code == 403
            assert is_refused == (role not in PERMISSIONS[action]), (method, path, role)
            assert answer.status_code != 401


async def test_the_permission_for_limits_does_not_include_the_number_of_approvers() -> None:
    async with open_http_client(access=ROLES) as client:
        for role in Role:
            answer = await client.post(
                "/api/v1/threads/ops-7/limits",
                headers=bearer(role),
                json={"changes": {"approvals_needed": {}}},
            )
            allowed = role in PERMISSIONS["limits"] & PERMISSIONS["decide"]
            assert (answer.status_code == 403) == (not allowed), role


@pytest.mark.guarantee(111)
@pytest.mark.parametrize("then", ARCHIVE_THEN)
async def test_the_archive_permission_does_not_include_freeing(then: str) -> None:
    async with open_http_client(access=ROLES) as client:
        for role in Role:
            answer = await client.post(
                "/api/v1/threads/ops-7/archive", headers=bearer(role), json={"then": then}
            )
            is_refused = answer.status_code == 403
            assert is_refused == (role not in PERMISSIONS[ARCHIVE_THEN[then]]), (then, role)
    assert PERMISSIONS["archive-free"] == frozenset({Role.ADMIN})
    assert Role.OPERATOR in PERMISSIONS["archive-close"]


@pytest.mark.guarantee(91)
async def test_no_route_answers_an_unauthenticated_request() -> None:
    async with open_http_client(access=ROLES) as client:
        for method, path, _ in list_operations():
            answer = await client.request(method, path.format(**VALUES), json={})
            assert answer.status_code == 401, (method, path)
            assert answer.json()["error"]["type"] == "NotAuthenticated"


async def test_the_role_table_is_pinned() -> None:
    assert set(list_actions(Role.VIEWER)) == {"read", "decode", "query"}
    assert set(list_actions(Role.APPROVER)) == {"read", "decode", "query", "decide"}
    operator = set(list_actions(Role.OPERATOR))
    assert "encode" in operator
    assert "decide" not in operator
    assert {"sweep", "archive-free"}.isdisjoint(operator)
    assert operator > {"read", "pause", "stop", "limits", "archive", "archive-close", "revive"}
    assert set(list_actions(Role.ADMIN)) == set(PERMISSIONS)
    assert set(list_actions(Role.WORKER)) == {"live"}


async def test_every_route_is_public_on_purpose_or_has_a_role() -> None:
    app = create_admin_app(make_context(), Access())
    described = set(app.openapi()["paths"])
    others = {getattr(route, "path", "") for route in app.routes} - described
    api = {path for path in others if path.startswith("/api/")}
    assert api == {"/api/v1/openapi.json"}


async def test_local_requests_are_allowed_without_a_token() -> None:
    async with open_http_client() as client:
        who = (await client.get(SESSION)).json()
    assert (who["name"], who["role"], who["via"]) == ("", "admin", "loopback")


@pytest.mark.parametrize("token", ["", "nonsense", TOKENS[Role.ADMIN] + "x", "\udcff"])
async def test_a_wrong_token_is_refused(token: str) -> None:
    async with open_http_client(access=ROLES) as client:
        headers = {"authorization": f"Bearer {token}".encode(errors="replace").decode()}
        answer = await client.get("/api/v1/threads", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_concurrent_wrong_tokens_are_rejected() -> None:
    async with open_http_client(access=ROLES) as client:
        wrong = {"authorization": "Bearer wrong"}
        answers = await asyncio.gather(
            *(client.get("/api/v1/threads", headers=wrong) for _ in range(40))
        )
        assert {each.status_code for each in answers} == {401, 429}
        # Those who know theirs are not kept waiting.
        right = await client.get("/api/v1/threads", headers=bearer(Role.VIEWER))
    assert right.status_code == 200


async def test_a_token_opens_a_session_until_logout() -> None:
    async with open_http_client(access=ROLES) as client:
        login = await client.post(SESSION, json={"token": TOKENS[Role.OPERATOR]}, headers=OWN)
        assert login.json()["name"] == "Operator"
        cookie = login.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "secure" not in cookie  # It would not come back over plain HTTP.
        assert (await client.get("/api/v1/threads")).status_code == 200
        assert (await client.get(SESSION)).json()["via"] == "session"
        assert (await client.delete(SESSION, headers=OWN)).status_code == 204
        client.cookies.clear()
        assert (await client.get("/api/v1/threads")).status_code == 401


async def test_a_kept_cookie_of_an_ended_session_is_rejected() -> None:
    async with open_http_client(access=ROLES) as client:
        await client.post(SESSION, json={"token": TOKENS[Role.ADMIN]}, headers=OWN)
        kept = dict(client.cookies)
        await client.delete(SESSION, headers=OWN)
        client.cookies.update(kept)
        assert (await client.get("/api/v1/threads")).status_code == 401


async def test_the_cookie_is_secure_over_https() -> None:
    async with open_http_client(access=ROLES, host="https://ops.example.org") as client:
        headers = {"sec-fetch-site": "same-origin"}
        login = await client.post(SESSION, json={"token": TOKENS[Role.ADMIN]}, headers=headers)
    assert "secure" in login.headers["set-cookie"].lower()


@pytest.mark.parametrize(
    ("wanted", "leads_to"),
    [
        ("/threads", "/threads"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\e", "/"),
    ],
)
async def test_a_login_redirects_only_within_this_server(wanted: str, leads_to: str) -> None:
    async with open_http_client(access=ROLES) as client:
        answer = await client.post(
            "/login", params={"next": wanted}, data={"token": TOKENS[Role.VIEWER]}, headers=OWN
        )
    assert (answer.status_code, answer.headers["location"]) == (303, leads_to)


async def test_a_page_redirects_unauthenticated_users_to_the_login() -> None:
    async with open_http_client(access=ROLES) as client:
        answer = await client.get("/threads/a", headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/threads/a")


FOREIGN = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:8233"},
    {"origin": "https://evil.example"},
    {"origin": "null"},
]


@pytest.mark.guarantee(92)
@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_a_cross_site_request_with_a_session_is_rejected(
    headers: dict[str, str],
) -> None:
    async with open_http_client(access=ROLES) as client:
        await client.post(SESSION, json={"token": TOKENS[Role.ADMIN]}, headers=OWN)
        answer = await client.post("/api/v1/threads/a/pause", json={}, headers=headers)
        assert answer.status_code == 403
        bare = await client.post("/api/v1/threads/a/pause", json={})
        assert bare.status_code == 403  # Every browser says where a change comes from.


@pytest.mark.guarantee(92)
@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_a_cross_site_request_without_a_token_is_rejected(
    headers: dict[str, str],
) -> None:
    async with open_http_client() as client:
        answer = await client.post("/api/v1/threads/a/pause", json={}, headers=headers)
        assert answer.status_code == 403
        form = await client.post("/api/v1/threads/a/pause", data={"by": "x"}, headers=OWN)
        assert form.status_code == 415
        ours = await client.post("/api/v1/threads/a/pause", json={}, headers=OWN)
        assert ours.json()["error"]["type"] == "ServerUnreachable"


@pytest.mark.guarantee(92)
async def test_the_temporal_uis_origin_may_decode_and_nothing_else() -> None:
    origin = "http://127.0.0.1:8233"
    async with open_http_client(cors_origins=[origin]) as client:
        asks = {"origin": origin, "access-control-request-method": "POST"}
        decode = await client.options("/default/decode", headers=asks)
        assert decode.headers["access-control-allow-origin"] == origin
        pause = await client.options("/api/v1/threads/a/pause", headers=asks)
        assert "access-control-allow-origin" not in pause.headers


@pytest.mark.guarantee(91)
@pytest.mark.parametrize("host", ["http://evil.example", "http://evil.example:8234"])
async def test_a_rebound_host_name_is_rejected_without_a_token(host: str) -> None:
    async with open_http_client(host=host) as client:
        for path in ("/api/v1/threads", "/", "/decode"):
            assert (await client.get(path)).status_code == 400


@functools.cache  # Tests with the same settings share an application.
def settings(**environ: str) -> Access:
    return load_access(load_settings(environ))


async def test_tokens_have_names_and_roles() -> None:
    access = settings(
        EVERLONG_TOKEN="shared-by-everybody",
        EVERLONG_TOKENS="ana:approver:abcdefghijklmnop, bo:viewer:0123456789abcdef",
    )
    tokens = ("shared-by-everybody", "abcdefghijklmnop", "0123456789abcdef")
    found = [access.find_by_token(each) for each in tokens]
    assert [(user.name, user.role) for user in found if user] == [
        ("admin", Role.ADMIN),
        ("ana", Role.APPROVER),
        ("bo", Role.VIEWER),
    ]
    assert access.find_by_token("") is None


@pytest.mark.parametrize(
    "text",
    [
        "ana",
        "ana:boss:abcdefghijklmnop",
        ":viewer:abcdefghijklmnop",
        "ana:viewer:short",
        "ana:viewer",
    ],
)
async def test_invalid_tokens_are_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match="EVERLONG_TOKENS") as refused:
        parse_tokens(text)
    assert "abcdefghijklmnop" not in str(refused.value)


async def test_the_same_token_for_two_users_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        parse_tokens("ana:viewer:abcdefghijklmnop,bo:admin:abcdefghijklmnop")
    with pytest.raises(ConfigError, match="a separate token"):
        settings(EVERLONG_TOKEN="abcdefghijklmnop", EVERLONG_TOKENS="bo:viewer:abcdefghijklmnop")


@pytest.mark.parametrize("token", ["t", "hunter2", "fifteen-letters", "a-lőng-token-of-ours"])
async def test_a_short_shared_token_is_refused_without_being_quoted(token: str) -> None:
    with pytest.raises(
        ConfigError, match=r"EVERLONG_TOKEN needs .*secrets\.token_urlsafe"
    ) as refused:
        settings(EVERLONG_TOKEN=token)
    assert token == "t" or token not in str(refused.value)


PROXY = {
    "EVERLONG_TRUST_USER_HEADER": "X-Forwarded-User",
    "EVERLONG_TRUST_ROLE_HEADER": "X-Role",
    "EVERLONG_TRUSTED_PROXIES": "10.0.0.0/24, 192.0.2.7",
    "EVERLONG_HOSTS": "ops.example.org",
}


@pytest.mark.parametrize("missing", ["EVERLONG_TRUSTED_PROXIES", "EVERLONG_HOSTS"])
async def test_a_user_header_is_trusted_only_from_listed_proxies_and_hosts(
    missing: str,
) -> None:
    with pytest.raises(ConfigError, match=missing):
        settings(**{**PROXY, missing: ""})


async def make_proxied_request(address: str, headers: dict[str, str]) -> httpx.Response:
    access = settings(**PROXY)
    async with open_http_client(
        access=access, address=address, host="http://ops.example.org"
    ) as client:
        return await client.get(SESSION, headers=headers)


@pytest.mark.parametrize(
    ("headers", "role"),
    [
        ({"x-forwarded-user": "ana"}, "viewer"),
        ({"x-forwarded-user": "ana", "x-role": "Operator"}, "operator"),
    ],
)
async def test_a_trusted_proxy_names_the_user(headers: dict[str, str], role: str) -> None:
    for address in ("10.0.0.9", "192.0.2.7"):
        who = (await make_proxied_request(address, headers)).json()
        assert (who["name"], who["role"], who["via"]) == ("ana", role, "proxy")


@pytest.mark.guarantee(91)
@pytest.mark.parametrize(
    ("address", "headers"),
    [
        ("10.0.1.9", {"x-forwarded-user": "ana"}),
        ("10.0.0.9", {}),
        ("10.0.0.9", {"x-forwarded-user": "ana", "x-role": "boss"}),
        ("nonsense", {"x-forwarded-user": "ana"}),
    ],
)
async def test_other_peers_cannot_name_a_user(address: str, headers: dict[str, str]) -> None:
    assert (await make_proxied_request(address, headers)).status_code == 401


async def test_user_headers_are_ignored_without_the_setting() -> None:
    access = settings(EVERLONG_TOKEN="shared-by-everybody", EVERLONG_TRUSTED_PROXIES="10.0.0.9")
    assert access.authenticate({"x-forwarded-user": "ana"}, "10.0.0.9") is None


async def test_requests_behind_a_proxy_are_checked_against_its_public_host() -> None:
    access = settings(**PROXY)
    async with open_http_client(
        access=access, address="10.0.0.9", host="http://127.0.0.1:8234"
    ) as client:
        headers = {"x-forwarded-user": "ana", "x-role": "admin"}
        for origin, status in (("https://ops.example.org", 503), ("https://evil.example", 403)):
            answer = await client.post(
                "/api/v1/threads/a/pause", json={}, headers={**headers, "origin": origin}
            )
            assert answer.status_code == status


@pytest.mark.guarantee(93)
async def test_a_named_user_cannot_act_as_another() -> None:
    access = ROLES
    user = access.find_by_token(TOKENS[Role.OPERATOR])
    assert user is not None
    assert user.resolve_author("Mallory") == "Operator"
    anonymous = Access().authenticate({}, "127.0.0.1")
    assert anonymous is not None
    assert anonymous.resolve_author(" ana ") == "ana"
    assert (
        anonymous.resolve_author("ana\n\x1b[31m\u202e") == "ana  [31m"
    )  # It is printed in journals and logs.
    assert anonymous.resolve_author("")  # The system user's name.
