"""The page `/api/docs`: all routes and models of the API, readable without a script."""

import re

from everlong.admin.web.app import create_admin_app
from everlong.admin.web.auth import Access, Role
from everlong.admin.web.openapi import describe_api
from tests.support.admin_client import ROLES, bearer, make_context, open_http_client

PAGE = {"accept": "text/html"}


async def read_page() -> str:
    async with open_http_client() as client:
        answer = await client.get("/api/docs", headers=PAGE)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


async def test_the_page_has_every_route_and_model_of_the_document() -> None:
    text = await read_page()
    api = describe_api(create_admin_app(make_context(), Access()).openapi())
    ids = set(re.findall(r' id="([^"]+)"', text))
    operations = [each for group in api.operations.values() for each in group]
    assert len(operations) > 20
    assert {each.anchor for each in operations} <= ids
    assert {f"model-{each.name}" for each in api.models} <= ids
    assert f"<code>{api.models[0].name}</code>" in text


async def test_every_link_leads_to_a_part_of_the_page_and_nothing_is_loaded_from_elsewhere() -> (
    None
):
    text = await read_page()
    ids = set(re.findall(r' id="([^"]+)"', text))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= ids
    loaded = re.findall(r'<(?:link|script)[^>]+(?:href|src)="([^"]+)"', text)
    assert len(loaded) > 3
    assert all(each.startswith("/static/") for each in loaded)
    assert " style=" not in text
    assert "<script>" not in text


async def test_a_browser_without_a_session_is_asked_to_log_in_and_a_program_is_refused() -> None:
    async with open_http_client(access=ROLES) as client:
        answer = await client.get("/api/docs", headers=PAGE, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/api/docs")
        assert (await client.get("/api/docs")).status_code == 401
        assert (await client.get("/api/v1/threads", headers=PAGE)).status_code == 401
        viewer = await client.get("/api/docs", headers={**PAGE, **bearer(Role.VIEWER)})
        assert viewer.status_code == 200
