"""Notifications: configuration, sinks against real receivers on loopback, and what is left to do."""

import asyncio
import dataclasses
import email
import email.policy
import hashlib
import hmac
import json
import re
import ssl
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from everlong import Agent, Reply, limits
from everlong.activities.notify import NotifyActivities
from everlong.cli.app import load_command
from everlong.errors import BlobMissing, ConfigError, SinkUnreachable
from everlong.models.notices import (
    Deliver,
    Delivered,
    Event,
    Notification,
    is_wanted,
    wants_contents,
)
from everlong.notify import Email, Notify, QuietHours, Slack, Webhook, load_notify
from everlong.notify.config import parse_notify
from everlong.notify.delivery import Deliverer, find_next_ms
from everlong.notify.sinks import Outgoing, Sink, SinkFailed, build_link
from everlong.notify.slack import CallbackReader, CallbackRefused, respond, sign_callback
from everlong.notify.webhook import build_body
from everlong.telemetry import Telemetry
from everlong.testing import ScriptedModel
from tests.support.document_blocks import ROOT, read_blocks
from tests.support.sink_receivers import (
    HttpReceiver,
    run_http_receiver,
    run_smtp_receiver,
)
from tests.support.tls_server import Authority

SECRET = "0123456789abcdef0123456789abcdef"
NOW_MS = 1_800_000_000_000


def asked(number: int = 1, **fields: Any) -> Notification:
    values: dict[str, Any] = {
        "key": f"n-{number:032x}",
        "event": Event.ASKED,
        "thread_id": f"ops-{number}",
        "agent": "ops",
        "about": "4-1-ab12",
        "ms": NOW_MS,
        "tool": "refund",
        "run_id": "run-1",
        "arguments": '{"card": "4242"}',
    }
    return Notification(**values | fields)


def outgoing(*items: Notification, key: str = "n-1234567890") -> Outgoing:
    return Outgoing(key=key, items=items or (asked(),), base_url="https://ops.example.com")


def webhook(receiver: HttpReceiver, **fields: Any) -> Webhook:
    values: dict[str, Any] = {"name": "hook", "url": receiver.url, "secret": SECRET}
    return Webhook(**values | {"seconds_max": 0.3} | fields)


class Counts:
    def __init__(self) -> None:
        self.found: dict[tuple[str, str], int] = {}

    def __call__(self, sink: str, outcome: str, number: int) -> None:
        self.found[sink, outcome] = self.found.get((sink, outcome), 0) + number


async def always_pending(item: Notification) -> bool:
    return True


def deliverer(*sinks: Sink, **fields: Any) -> tuple[Deliverer, Counts]:
    counts = Counts()
    return Deliverer(Notify(sinks=sinks, **fields), always_pending, counts), counts


# The webhook.


async def test_a_receiver_verifies_a_webhook_with_the_documented_snippet() -> None:
    """The snippet of docs/how-to/notifications.md is what runs here."""
    page = (ROOT / "docs/how-to/notifications.md").read_text()
    [snippet] = re.findall(r"```python\n(# verify\.py.*?)```", page, re.DOTALL)
    found: dict[str, Any] = {}
    exec(snippet, found)
    verify: Callable[[Mapping[str, str], bytes, str], bool] = found["verify"]
    async with run_http_receiver() as receiver:
        await webhook(receiver).send(outgoing())
    [request] = receiver.received
    assert verify(request.headers, request.body, SECRET)
    assert not verify(request.headers, request.body + b" ", SECRET)
    assert not verify(request.headers, request.body, "another secret")
    old = {**request.headers, "everlong-timestamp": str(int(time.time()) - 600)}
    assert not verify(old, request.body, SECRET)
    signed = request.headers["everlong-timestamp"].encode() + b"." + request.body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert request.headers["everlong-signature"] == f"v1={digest}"
    assert request.headers["everlong-key"] == "n-1234567890" == request.json["key"]


async def test_contents_leave_only_with_the_sinks_permission() -> None:
    async with run_http_receiver() as receiver:
        quiet, open_ = webhook(receiver, name="a"), webhook(receiver, name="b", contents=True)
        sender, _ = deliverer(quiet, open_)
        await sender.deliver(Deliver(new=(asked(),), now_ms=NOW_MS))
    bodies = sorted((request.body for request in receiver.received), key=len)
    assert b"4242" not in bodies[0]
    assert b"4242" in bodies[1]


@pytest.mark.parametrize("answer", ["hang", "drip", 500, 302, 404])
@pytest.mark.guarantee(117)
async def test_a_receiver_that_does_not_take_it_is_tried_again_with_the_same_key(
    answer: int | str,
) -> None:
    async with run_http_receiver(lambda number: 200 if number else answer) as receiver:
        sender, counts = deliverer(webhook(receiver))
        first = await sender.deliver(Deliver(new=(asked(),), now_ms=NOW_MS))
        [later] = first.later
        assert later.attempts == 1
        assert NOW_MS + 1000 <= later.due_ms <= NOW_MS + 4000
        again = await sender.deliver(Deliver(again=first.later, now_ms=later.due_ms))
    assert again.later == ()
    assert counts.found == {("hook", "failed"): 1, ("hook", "sent"): 1}
    keys = [request.headers["everlong-key"] for request in receiver.received]
    assert keys == [asked().key] * 2
    assert receiver.received[0].body == receiver.received[1].body


async def test_a_second_answer_to_one_request_changes_nothing() -> None:
    async with run_http_receiver(lambda number: "twice") as receiver:
        sender, counts = deliverer(webhook(receiver))
        done = await sender.deliver(Deliver(new=(asked(1), asked(2)), now_ms=NOW_MS))
    assert done.later == ()
    assert counts.found == {("hook", "sent"): 2}


async def test_what_a_receiver_refuses_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async with run_http_receiver(lambda number: 422) as receiver:
        sender, counts = deliverer(webhook(receiver))
        done = await sender.deliver(Deliver(new=(asked(),), now_ms=NOW_MS))
    assert done.later == ()
    assert counts.found == {("hook", "given_up"): 1}
    assert "given up" in caplog.text
    assert "4242" not in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.guarantee(117)
async def test_a_sink_that_hangs_delays_no_other() -> None:
    async with run_http_receiver(lambda number: "hang") as hung, run_http_receiver() as good:
        slow = webhook(hung, name="slow", seconds_max=0.4)
        sender, _ = deliverer(slow, webhook(good, name="good"))
        work = asyncio.create_task(
            sender.deliver(Deliver(new=tuple(map(asked, range(20))), now_ms=NOW_MS))
        )
        started = time.monotonic()
        await good.wait_for(lambda: len(good.received) == 20)
        assert time.monotonic() - started < 0.39
        done = await work
    # Some hang, and the others are not tried.
    tried = len(hung.received)
    assert limits.NOTIFY_FAILURES_MAX <= tried < 2 * limits.NOTIFY_FAILURES_MAX
    assert {each.sink for each in done.later} == {"slow"}
    assert sorted(each.attempts for each in done.later) == [0] * (20 - tried) + [1] * tried


async def test_a_worker_without_sinks_leaves_events_to_another_worker() -> None:
    """While notifications are rolled out, the activity must not end there with nothing delivered."""
    activities = NotifyActivities(None, Telemetry())
    with pytest.raises(ApplicationError, match="EVERLONG_NOTIFY") as caught:
        await activities.deliver(Deliver(new=(asked(),)))
    assert not caught.value.non_retryable
    # A team that wants no notifications any more configures no sinks.
    none = NotifyActivities(Notify(), Telemetry())
    assert await none.deliver(Deliver(new=(asked(),))) == Delivered()


async def test_a_delivery_is_given_up_after_three_days() -> None:
    async with run_http_receiver(lambda number: 500) as receiver:
        sender, counts = deliverer(webhook(receiver))
        [first] = (await sender.deliver(Deliver(new=(asked(),), now_ms=NOW_MS))).later
        late_ms = NOW_MS + int(limits.NOTICE_SECONDS_MAX * 1000) + 1
        done = await sender.deliver(Deliver(again=(first,), now_ms=late_ms))
    assert done.later == ()
    assert counts.found["hook", "given_up"] == 1


def test_waits_double_up_to_ten_minutes_and_come_due_together() -> None:
    waits = [find_next_ms(NOW_MS, attempts, 0) - NOW_MS for attempts in range(1, 20)]
    for attempts, wait_ms in enumerate(waits, 1):
        step_ms = 1000 * min(2 * 2 ** (attempts - 1), 600)
        assert step_ms / 2 <= wait_ms <= 1.5 * step_ms
    assert find_next_ms(NOW_MS, 1, 90) == NOW_MS + 90_000
    assert find_next_ms(NOW_MS + 100, 3, 0) == find_next_ms(NOW_MS + 3000, 3, 0)


# Filters, quiet hours, digests, reminders.


def test_sinks_choose_events_agents_and_tools() -> None:
    sink = Webhook(
        name="hook",
        url="https://example.com/",
        secret=SECRET,
        events=["asked", "limit"],
        agents=["ops"],
        tools=["refund"],
    )
    assert sink.wants(asked())
    assert not sink.wants(asked(tool="search"))
    assert not sink.wants(asked(agent="other"))
    assert not sink.wants(asked(event=Event.DECIDED))
    assert sink.wants(asked(event=Event.LIMIT, tool=""))
    notify = Notify(sinks=[sink])
    assert is_wanted(notify.build_mask("ops"), Event.ASKED)
    assert not is_wanted(notify.build_mask("ops"), Event.DECIDED)
    assert not wants_contents(notify.build_mask("ops"))
    assert notify.build_mask("other") == 0
    assert Notify().build_mask("ops") == 0
    assert notify.wants_tool("ops", "refund")
    assert not notify.wants_tool("ops", "search")


@pytest.mark.parametrize(
    ("hours", "zone", "now", "end"),
    [
        ("22:00-07:00", "UTC", "2026-11-19T23:00+00:00", "2026-11-20T07:00+00:00"),
        ("22:00-07:00", "UTC", "2026-11-19T06:59+00:00", "2026-11-19T07:00+00:00"),
        ("22:00-07:00", "UTC", "2026-11-19T07:00+00:00", None),
        ("12:00-13:00", "UTC", "2026-11-19T12:30+00:00", "2026-11-19T13:00+00:00"),
        ("22:00-07:00", "Europe/Zurich", "2026-11-19T21:30+00:00", "2026-11-20T06:00+00:00"),
        # The night in which summer time begins is an hour shorter.
        ("22:00-07:00", "Europe/Zurich", "2026-03-28T21:30+00:00", "2026-03-29T05:00+00:00"),
        ("22:00-07:00", "Europe/Zurich", "2026-03-29T05:30+00:00", None),
    ],
)
def test_quiet_hours_end_by_the_clock_of_their_zone(
    hours: str, zone: str, now: str, end: str | None
) -> None:
    from datetime import datetime

    now_ms = int(datetime.fromisoformat(now).timestamp() * 1000)
    end_ms = None if end is None else int(datetime.fromisoformat(end).timestamp() * 1000)
    assert QuietHours(hours, zone).find_end_ms(now_ms) == end_ms


async def test_a_digest_is_one_message_with_one_key() -> None:
    async with run_http_receiver(lambda number: 200 if number else 500) as receiver:
        sender, _ = deliverer(webhook(receiver, digest_minutes=30))
        first = await sender.deliver(Deliver(new=(asked(1), asked(2)), now_ms=NOW_MS))
        second = await sender.deliver(Deliver(new=(asked(3),), now_ms=NOW_MS + 60_000))
        assert receiver.received == []
        together = (*first.later, *second.later)
        [due_ms] = {each.due_ms for each in together}
        assert due_ms % (30 * 60_000) == 0
        failed = await sender.deliver(Deliver(again=together, now_ms=due_ms))
        assert len(failed.later) == 3
        done = await sender.deliver(Deliver(again=failed.later, now_ms=due_ms + 5000))
    assert done.later == ()
    before, after = receiver.received
    assert before.body == after.body
    assert [event["thread_id"] for event in after.json["events"]] == ["ops-1", "ops-2", "ops-3"]
    assert after.headers["everlong-key"] not in {event["key"] for event in after.json["events"]}


async def test_a_reminder_is_sent_shortly_before_the_deadline_of_a_pending_approval() -> None:
    pending = True

    async def is_pending(item: Notification) -> bool:
        return pending

    async with run_http_receiver() as receiver:
        sender = Deliverer(Notify(sinks=[webhook(receiver)]), is_pending, Counts())
        item = asked(deadline_ms=NOW_MS + 3_600_000)
        [reminder] = (await sender.deliver(Deliver(new=(item,), now_ms=NOW_MS))).reminders
        assert reminder.due_ms == NOW_MS + 3_000_000
        await sender.deliver(Deliver(reminders=(item,), now_ms=reminder.due_ms))
        pending = False
        await sender.deliver(Deliver(reminders=(item,), now_ms=reminder.due_ms))
    events = [request.json["events"][0] for request in receiver.received]
    assert [event["event"] for event in events] == ["asked", "deadline_near"]
    assert events[0]["key"] != events[1]["key"]


async def test_a_thread_whose_answer_cannot_be_read_is_taken_to_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Unreadable:
        def get_workflow_handle(self, thread_id: str) -> "Unreadable":
            return self

        async def query(self, *arguments: object, **options: object) -> None:
            raise BlobMissing("secret")

    async with run_http_receiver() as receiver:
        activities = NotifyActivities(Notify(sinks=[webhook(receiver)]), Telemetry())
        env = ActivityEnvironment(client=Unreadable())  # type: ignore[arg-type]
        request = Deliver(reminders=(asked(),), now_ms=NOW_MS)
        assert await env.run(activities.deliver, request) == Delivered()
    assert receiver.received[0].json["events"][0]["event"] == "deadline_near"
    assert "not known: BlobMissing" in caplog.text
    assert "secret" not in caplog.text


def test_links_lead_to_the_approval() -> None:
    assert (
        build_link("https://a.example/", asked())
        == "https://a.example/threads/ops-1#approval-4-1-ab12"
    )
    odd = build_link("https://a.example", asked(thread_id="a/b c"))
    assert odd == "https://a.example/threads/?id=a%2Fb%20c#approval-4-1-ab12"
    limit = asked(event=Event.LIMIT, about="steps_max")
    assert build_link("https://a.example", limit) == "https://a.example/threads/ops-1"
    assert build_link("", asked()) == ""


# E-mail.


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], ssl.SSLContext]:
    """Make this process trust a test authority; return a maker of server contexts."""

    def make() -> ssl.SSLContext:
        Authority(tmp_path).issue("server")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
        return context

    return make


def mail(port: int, **fields: Any) -> Email:
    values: dict[str, Any] = {"name": "mail", "host": "127.0.0.1", "port": port}
    values |= {"sender": "everlong@example.com", "to": ["ops@example.com"], "seconds_max": 1.0}
    return Email(**values | fields)


@pytest.mark.parametrize("mode", ["starttls", "tls"])
async def test_a_mail_is_sent_over_tls_with_a_login(
    mode: str, authority: Callable[[], ssl.SSLContext]
) -> None:
    context = authority()
    tls: dict[str, Any] = {mode: context}
    async with run_smtp_receiver(**tls) as server:
        sink = mail(server.port, tls=mode, username="bot", password="hunter2")
        await sink.send(outgoing(asked(), asked(2)))
        await sink.send(outgoing(asked(), asked(2)))
    assert server.was_encrypted == [True, True]
    assert server.logins == [("bot", "hunter2")] * 2
    first, second = (
        email.message_from_string(text, policy=email.policy.default) for text in server.mails
    )
    assert first["Message-ID"] == second["Message-ID"] == "<n-1234567890@everlong>"
    assert first["Subject"] == "[Everlong] 2 notifications, 2 of them requests for approval"
    assert "https://ops.example.com/threads/ops-2#approval-4-1-ab12" in server.mails[0]
    assert "hunter2" not in repr(sink)


async def test_a_mail_server_with_an_untrusted_certificate_gets_no_password(tmp_path: Path) -> None:
    Authority(tmp_path).issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    async with run_smtp_receiver(starttls=context) as server:
        sink = mail(server.port, username="bot", password="hunter2")
        with pytest.raises(SinkFailed, match="SSLCertVerificationError"):
            await sink.send(outgoing())
    assert server.logins == []
    assert server.mails == []


@pytest.mark.parametrize("answer", ["hang", 451, 554])
async def test_a_mail_server_that_does_not_take_it_is_tried_again(answer: int | str) -> None:
    async with run_smtp_receiver(lambda number: 250 if number else answer) as server:
        sender, _ = deliverer(mail(server.port, tls="none", seconds_max=0.3))
        failed = await sender.deliver(Deliver(new=(asked(),), now_ms=NOW_MS))
        assert len(failed.later) == 1
        done = await sender.deliver(Deliver(again=failed.later, now_ms=NOW_MS + 4000))
    assert done.later == ()
    assert len(server.mails) == 1


async def test_names_cannot_add_headers_to_a_mail() -> None:
    async with run_smtp_receiver() as server:
        sink = mail(server.port, tls="none")
        await sink.send(outgoing(asked(thread_id="a\r\nBcc: x@example.com", tool="t\nX: y")))
    head = server.mails[0].partition("\r\n\r\n")[0]
    assert "Bcc" not in [line.partition(":")[0] for line in head.split("\r\n")]


# Slack.


def slack(receiver: HttpReceiver | None = None, **fields: Any) -> Slack:
    values: dict[str, Any] = {
        "name": "slack",
        "channel": "C1",
        "token": "xoxb-secret",
        "signing_secret": SECRET,
        "users": {"U1234": "ann"},
        "seconds_max": 0.5,
    }
    if receiver is not None:
        values["api_url"] = receiver.url.removesuffix("hook")
    return Slack(**values | fields)


def click(action: str = "everlong_approve", user: str = "U1234", **fields: Any) -> bytes:
    value = {"thread": "ops-1", "approval": "4-1-ab12", "run": "run-1"}
    payload = {
        "type": "block_actions",
        "user": {"id": user, "username": "mallory"},
        "actions": [{"action_id": action, "value": json.dumps(value)}],
        "response_url": "https://hooks.slack.com/actions/T1/1/x",
    }
    return urlencode({"payload": json.dumps(payload | fields)}).encode()


def signed(body: bytes, now: float, secret: str = SECRET) -> dict[str, str]:
    timestamp = str(int(now))
    return {
        "x-slack-request-timestamp": timestamp,
        "x-slack-signature": sign_callback(secret, timestamp, body),
    }


async def test_slack_gets_buttons_that_name_the_approval_and_markup_is_inert() -> None:
    async with run_http_receiver(body=b'{"ok": true}') as receiver:
        sink = slack(receiver)
        await sink.send(outgoing(asked(tool="<!channel>", thread_id="<@U1>")))
    [request] = receiver.received
    assert request.path == "/chat.postMessage"
    assert request.headers["authorization"] == "Bearer xoxb-secret"
    assert "<!channel>" not in request.json["text"]
    section, arguments, actions = request.json["blocks"]
    assert section["text"]["type"] == arguments["text"]["type"] == "plain_text"
    approve, deny, open_ = actions["elements"]
    assert (approve["action_id"], deny["action_id"]) == ("everlong_approve", "everlong_deny")
    assert json.loads(approve["value"])["approval"] == "4-1-ab12"
    assert open_["url"].startswith("https://ops.example.com/threads/?id=")
    assert "xoxb" not in repr(sink)


async def test_arguments_that_go_on_are_not_shown_as_if_they_were_whole() -> None:
    remark = "only the beginning; open the thread to read all of it"
    for size, goes_on in ((limits.CALL_PREVIEW_CHARS_MAX, True), (20, False)):
        message = outgoing(asked(arguments="x" * size))
        [_, arguments, _] = slack(contents=True).build_message(message)["blocks"]
        mail = Email(name="mail", host="localhost", sender="a@b.c", to=["d@e.f"])
        for text in (arguments["text"]["text"], mail.build_mail(message).get_content()):
            assert "x" * size in text
            assert (remark in text) == goes_on


async def test_an_answer_that_repeats_a_large_message_is_read_whole() -> None:
    answer = json.dumps({"message": "x" * 400_000, "ok": True}).encode()
    async with run_http_receiver(body=answer) as receiver:
        await slack(receiver).send(outgoing())
    assert len(receiver.received) == 1


def test_a_link_that_slack_would_refuse_is_left_out() -> None:
    for size, links in ((900, 1), (1000, 0)):
        message = outgoing(asked(thread_id="/" * size, arguments=""))
        [_, actions] = slack().build_message(message)["blocks"]
        assert sum("url" in each for each in actions["elements"]) == links


async def test_a_large_digest_stays_below_slacks_limit_of_blocks() -> None:
    sink = slack(contents=True)
    message = sink.build_message(outgoing(*map(asked, range(30))))
    assert len(message["blocks"]) <= 50
    assert message["blocks"][-1]["text"]["text"] == "and 14 more"


async def test_a_teams_own_sink_may_raise_anything(caplog: pytest.LogCaptureFixture) -> None:
    class Pager(Sink):
        async def send(self, message: Outgoing) -> None:
            raise KeyError("a secret")

        def describe(self) -> str:
            return "pager"

    sender, counts = deliverer(Pager(name="pager"))
    done = await sender.deliver(Deliver(new=(asked(),), now_ms=NOW_MS))
    assert len(done.later) == 1
    assert counts.found == {("pager", "failed"): 1}
    assert "KeyError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("body", "permanent"),
    [(b'{"ok": false, "error": "invalid_blocks"}', True), (b'{"ok": false}', False), (b"<", False)],
)
async def test_slacks_errors_are_read_from_its_answer(body: bytes, permanent: bool) -> None:
    async with run_http_receiver(body=body) as receiver:
        with pytest.raises(SinkFailed) as failed:
            await slack(receiver).send(outgoing())
    assert failed.value.is_permanent is permanent


def test_a_click_is_read_and_its_user_gets_the_configured_name() -> None:
    reader = CallbackReader([slack()], clock=lambda: 1000.0)
    found = reader.read(signed(click(), 990), click())
    assert found is not None
    assert (found.thread_id, found.approval_id, found.run_id) == ("ops-1", "4-1-ab12", "run-1")
    assert (found.approve, found.by) == (True, "ann")
    deny = click("everlong_deny", user="U9999")
    refused = reader.read(signed(deny, 990), deny)
    assert refused is not None
    assert (refused.approve, refused.by) == (False, "")
    opened = click("everlong_open")
    assert reader.read(signed(opened, 1000), opened) is None


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (signed(click(), 1000, "another secret of the app"), "signature is wrong"),
        (signed(click("everlong_deny"), 1000), "signature is wrong"),
        (signed(click(), 1000 - 301), "older"),
        (signed(click(), 1000 + 301), "older"),
        ({**signed(click(), 900), "x-slack-request-timestamp": "1000"}, "signature is wrong"),
        ({"x-slack-request-timestamp": "1000"}, "signature is wrong"),
        ({"x-slack-signature": "v0=" + "0" * 64}, "no valid timestamp"),
        ({**signed(click(), 1000), "x-slack-request-timestamp": "\u0661000"}, "no valid timestamp"),
    ],
)
@pytest.mark.guarantee(118)
def test_a_forged_or_old_click_is_refused(headers: dict[str, str], reason: str) -> None:
    reader = CallbackReader([slack()], clock=lambda: 1000.0)
    with pytest.raises(CallbackRefused, match=reason):
        reader.read(headers, click())


@pytest.mark.guarantee(118)
def test_a_click_that_is_sent_again_is_refused() -> None:
    reader = CallbackReader([slack()], clock=lambda: 1000.0)
    assert reader.read(signed(click(), 1000), click())
    with pytest.raises(CallbackRefused, match="sent before"):
        reader.read(signed(click(), 1000), click())


def test_without_a_signing_secret_no_click_is_accepted() -> None:
    reader = CallbackReader([slack(signing_secret="")], clock=lambda: 1000.0)
    with pytest.raises(CallbackRefused, match="signature is wrong"):
        reader.read(signed(click(), 1000, ""), click())


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/",
        "https://hooks.slack.com.evil.example/x",
        "https://a@hooks.slack.com/",
        "https://[",
    ],
)
async def test_an_outcome_is_posted_to_slack_alone(url: str) -> None:
    reader = CallbackReader([slack()], clock=lambda: 1000.0)
    body = click(response_url=url)
    found = reader.read(signed(body, 1000), body)
    assert found is not None
    assert found.response_url == ""
    await respond(found, "done", is_done=True)  # Makes no request.


# Configuration.

CONFIG = """
url = "https://ops.example.com"
held_minutes = 5

[sinks.hook]
kind = "webhook"
url = "https://hooks.example.com/everlong"
secret_env = "HOOK_SECRET"
events = ["asked", "limit"]
quiet = "22:00-07:00"
zone = "Europe/Zurich"

[sinks.team]
kind = "slack"
channel = "C1"
token_file = "TOKEN_FILE"
signing_secret_env = "HOOK_SECRET"
agents = ["ops"]
[sinks.team.users]
U1234 = "ann"

[sinks.mail]
kind = "email"
host = "smtp.example.com"
sender = "everlong@example.com"
to = ["ops@example.com"]
digest_minutes = 30
"""


def load(tmp_path: Path, text: str, **environ: str) -> Notify:
    path = tmp_path / "notify.toml"
    (tmp_path / "token").write_text("xoxb-secret\n")
    path.write_text(text.replace("TOKEN_FILE", str(tmp_path / "token")))
    found = load_notify(str(path), {"HOOK_SECRET": SECRET, **environ})
    assert found is not None
    return found


def test_a_file_configures_each_sink_and_secrets_come_from_elsewhere(tmp_path: Path) -> None:
    found = load(tmp_path, CONFIG)
    hook, team, mails = found.sinks
    assert isinstance(hook, Webhook)
    assert isinstance(team, Slack)
    assert isinstance(mails, Email)
    assert (hook.secret, team.token, team.signing_secret) == (SECRET, "xoxb-secret", SECRET)
    assert hook.quiet == QuietHours("22:00-07:00", "Europe/Zurich")
    assert dict(team.users) == {"U1234": "ann"}
    assert mails.digest_minutes == 30
    assert (found.url, found.held_minutes) == ("https://ops.example.com", 5)
    assert SECRET not in repr(found)
    assert load_notify("", {}) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"asked"', '"aksed"', "Did you mean"),
        ("secret_env", "secret", "secret is not in this file"),
        ("HOOK_SECRET", "MISSING", "environment variable MISSING is empty"),
        ("https://hooks", "http://hooks", "not https"),
        ("https://hooks", "https://user:pass@hooks", "user name"),
        ('kind = "webhook"', 'kind = "pager"', "kind is one of"),
        ("22:00-07:00", "22-7", "22:00-07:00"),
        ("Europe/Zurich", "Europe/Atlantis", "no time zone"),
        ("digest_minutes = 30", 'digest_minutes = "30"', "wrong type"),
        ("digest_minutes = 30", "digest = 30", "no setting 'digest'"),
        ('host = "smtp.example.com"', "", "lacks: host"),
        ('["ops@example.com"]', '["ops"]', "address is not valid"),
        ("U1234", "ann2", "U0123456789"),
        ('U1234 = "ann"', 'U1234 = " ann"', "no blank at its ends"),
        ("TOKEN_FILE", "/nowhere", "cannot be read"),
        ("[sinks.hook]", "[sinks.Hook]", "small letters"),
        ('agents = ["ops"]', 'agents = "ops"', "wrong type"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in CONFIG
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        load(tmp_path, CONFIG.replace(old, new, 1))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("secret", [SECRET, "xoxb-17-secret"])
def test_a_secret_in_the_place_of_a_variable_is_not_shown(tmp_path: Path, secret: str) -> None:
    with pytest.raises(ConfigError, match="variable that secret_env names is empty") as refused:
        load(tmp_path, CONFIG.replace('secret_env = "HOOK_SECRET"', f'secret_env = "{secret}"', 1))
    assert secret not in str(refused.value)


def test_the_blocks_of_the_documents_work() -> None:
    """The file of docs/how-to/notifications.md, its plugin, and the body of a webhook."""
    blocks = list(read_blocks("docs/how-to/notifications.md"))
    [file] = [each.text for each in blocks if each.language == "toml"]
    names = ("OPS_WEBHOOK_SECRET", "SLACK_BOT_TOKEN", "SLACK_SIGNING_SECRET", "SMTP_PASSWORD")
    found = parse_notify(tomllib.loads(file), dict.fromkeys(names, SECRET))
    assert [sink.kind for sink in found.sinks] == ["webhook", "slack", "email"]
    plugin, _ = (each.text for each in blocks if each.language == "python")
    made: dict[str, Any] = {
        "store": "memory:",
        "secret": SECRET,
        "agent": Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text="ok"))),
    }
    exec(plugin, made)
    assert [sink.name for sink in made["notify"].sinks] == ["ops"]
    [shown] = [json.loads(each.text) for each in blocks if each.language == "json"]
    sent = json.loads(build_body(outgoing(asked(arguments=""))))
    assert shown.keys() == sent.keys()
    assert shown["events"][0].keys() == sent["events"][0].keys()
    page = (ROOT / "docs/how-to/notifications.md").read_text()
    assert all(f"| `{event}` |" in page for event in Event if event != Event.TEST)
    for field in ("events", "agents", "tools", "contents", "digest_minutes", "seconds_max"):
        assert f"| `{field}` |" in page


async def test_the_command_tries_each_sink_and_says_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> None:
        command = load_command("notify")
        command.main([*arguments], standalone_mode=False)

    async with run_http_receiver() as good, run_http_receiver(lambda number: 403) as bad:
        path = tmp_path / "notify.toml"
        path.write_text(
            "".join(
                f'[sinks.{name}]\nkind = "webhook"\nurl = "{server.url}"\nsecret_env = "HOOK"\n'
                for name, server in (("good", good), ("bad", bad))
            )
        )
        monkeypatch.setenv("EVERLONG_NOTIFY", str(path))
        monkeypatch.setenv("HOOK", SECRET)
        with pytest.raises(SinkUnreachable, match="bad"):
            await asyncio.to_thread(run, "test")
        await asyncio.to_thread(run, "test", "--sink", "good")
    assert [each.json["events"][0]["event"] for each in good.received] == ["test", "test"]
    printed = capsys.readouterr().out
    assert "sent" in printed
    assert "status 403" in printed
    assert SECRET not in printed
    run("show")
    assert "good (webhook at 127.0.0.1" in capsys.readouterr().out


def test_two_sinks_may_not_share_a_name() -> None:
    sink = Webhook(name="a", url="https://example.com/", secret=SECRET)
    with pytest.raises(ConfigError, match="same name"):
        Notify(sinks=[sink, dataclasses.replace(sink)])


def test_python_configuration_is_checked_like_a_file() -> None:
    with pytest.raises(ConfigError, match="not a list"):
        Webhook(name="a", url="https://example.com/", secret=SECRET, agents="ops")
    with pytest.raises(ConfigError, match="16 characters"):
        Webhook(name="a", url="https://example.com/", secret="short")
