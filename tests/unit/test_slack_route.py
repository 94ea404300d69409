"""The route for Slack: public, by signature alone; a click becomes one update of the thread."""

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from everlong.admin.web import slack_clicks
from everlong.admin.web.app import create_admin_app
from everlong.admin.web.context import AppContext
from everlong.errors import DecisionRefused, NoWorker
from everlong.notify import Notify, Slack
from everlong.notify.slack import CALLBACK_BYTES_MAX, CALLBACK_PATH, sign_callback
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from tests.support.admin_client import roles
from tests.support.sink_receivers import HttpReceiver, run_http_receiver

SECRET = "0123456789abcdef0123456789abcdef"


@dataclasses.dataclass(frozen=True)
class Decided:
    approval_id: str
    approve: bool
    by: str
    update_id: str


class Thread:
    """Stands for the thread's handle: takes decisions, and raises the given errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.decided: list[Decided] = []
        self._errors = list(errors)

    async def decide(self, approval_id: str, *, approve: bool, by: str, update_id: str) -> None:
        self.decided.append(Decided(approval_id, approve, by, update_id))
        if self._errors:
            raise self._errors.pop(0)


def click(slack: HttpReceiver, user: str = "U1234", *, alone: bool = True) -> bytes:
    value = {"thread": "ops-1", "approval": "4-1-ab12", "run": "", "alone": alone}
    payload = {
        "type": "block_actions",
        "user": {"id": user},
        "actions": [{"action_id": "everlong_deny", "value": json.dumps(value)}],
        "response_url": slack.url,
    }
    return urlencode({"payload": json.dumps(payload)}).encode()


def sign(body: bytes, age_seconds: float = 0.0, secret: str = SECRET) -> dict[str, str]:
    timestamp = str(int(time.time() - age_seconds))
    return {
        "content-type": "application/x-www-form-urlencoded",
        "x-slack-request-timestamp": timestamp,
        "x-slack-signature": sign_callback(secret, timestamp, body),
    }


@pytest.fixture
async def slack() -> AsyncIterator[HttpReceiver]:
    async with run_http_receiver(body=b"ok") as receiver:
        yield receiver


def open_http(slack: HttpReceiver | None, thread: Thread | None = None) -> httpx.AsyncClient:
    async def connect() -> Any:
        return None

    async def find_thread(thread_id: str) -> Any:
        assert thread_id == "ops-1"
        return thread

    sinks = []
    if slack is not None:
        sinks = [
            Slack(
                name="team",
                channel="C1",
                token="xoxb",
                signing_secret=SECRET,
                users={"U1234": "ann"},
                api_url=slack.url,
            )
        ]
    context = AppContext(
        connect, PackStore(MemoryBlobStore()), task_queue="q", notify=Notify(sinks=sinks)
    )
    context.thread = find_thread  # type: ignore[method-assign] # there is no server
    transport = httpx.ASGITransport(create_admin_app(context, roles()))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8234")


@pytest.mark.guarantee(118)
async def test_a_signed_click_is_one_update_by_the_configured_name(
    slack: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Thread(NoWorker("none"), NoWorker("none"))
    monkeypatch.setattr(slack_clicks, "_PAUSE_SECONDS", 0.01)
    async with open_http(slack, thread) as http:
        body = click(slack)
        headers = sign(body)
        assert (await http.post(CALLBACK_PATH, content=body, headers=headers)).status_code == 200
        await slack.wait_for(lambda: len(slack.received) == 1)
        # Sent until a worker takes it, as one update.
        assert len(thread.decided) == 3
        [decided] = set(thread.decided)
        assert (decided.approval_id, decided.approve, decided.by) == ("4-1-ab12", False, "ann")
        said = slack.received[0].json
        assert said["text"] == "Denied by ann: 4-1-ab12 of ops-1"
        assert (said["replace_original"], said["response_type"]) == (True, "in_channel")
        again = await http.post(CALLBACK_PATH, content=body, headers=headers)
        assert again.status_code == 401
    assert len(thread.decided) == 3


async def test_a_click_in_a_digest_leaves_the_other_buttons(
    slack: HttpReceiver,
) -> None:
    async with open_http(slack, Thread()) as http:
        body = click(slack, alone=False)
        await http.post(CALLBACK_PATH, content=body, headers=sign(body))
        await slack.wait_for(lambda: len(slack.received) == 1)
    assert slack.received[0].json["replace_original"] is False


@pytest.mark.parametrize(
    ("user", "error", "said"),
    [
        ("U1234", DecisionRefused("'ann' may not decide"), "may not decide"),
        ("U1234", TypeError("a defect"), "TypeError"),
        ("U9999", DecisionRefused("never raised"), "U9999"),
    ],
)
async def test_a_refusal_is_shown_to_this_person_only(
    slack: HttpReceiver, user: str, error: Exception, said: str
) -> None:
    thread = Thread(error)
    async with open_http(slack, thread) as http:
        body = click(slack, user)
        assert (await http.post(CALLBACK_PATH, content=body, headers=sign(body))).status_code == 200
        await slack.wait_for(lambda: len(slack.received) == 1)
    answer = slack.received[0].json
    assert answer["response_type"] == "ephemeral"
    assert answer["text"].startswith("Not decided: ")
    assert said in answer["text"]
    assert "a defect" not in answer["text"]
    assert len(thread.decided) == (1 if user == "U1234" else 0)


async def test_forged_old_and_large_requests_are_refused_and_say_nothing(
    slack: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Thread()
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with open_http(slack, thread) as http:
        body = click(slack)
        cases = [sign(body, secret="f" * 32), sign(body, age_seconds=400), form]
        for headers in cases:
            answer = await http.post(CALLBACK_PATH, content=body, headers=headers)
            assert answer.status_code == 401
            assert "signature" not in answer.text
        large = b"payload=" + b"x" * CALLBACK_BYTES_MAX
        answer = await http.post(CALLBACK_PATH, content=large, headers=sign(large))
        assert answer.status_code == 413
        # A page of another site cannot send one either.
        crossed = {**sign(body), "sec-fetch-site": "cross-site", "origin": "https://evil.example"}
        answer = await http.post(CALLBACK_PATH, content=body, headers=crossed)
        assert answer.status_code == 403
    await asyncio.sleep(0)
    assert thread.decided == []
    assert slack.received == []


async def test_without_a_signing_secret_there_is_no_such_route() -> None:
    async with open_http(None) as http:
        body = b"payload=x"
        answer = await http.post(CALLBACK_PATH, content=body, headers=sign(body))
        assert answer.status_code == 404
