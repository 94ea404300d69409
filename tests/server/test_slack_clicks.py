"""A click in Slack decides an approval: signed, and in one tree of spans with the act."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client

from everlong import EverlongPlugin
from everlong.admin.web.app import create_admin_app
from everlong.admin.web.auth import Access
from everlong.admin.web.context import AppContext
from everlong.client.thread import ThreadHandle
from everlong.embedded import ManagedProcess, TemporalServer
from everlong.notify import Notify, Slack
from everlong.notify.slack import CALLBACK_PATH, sign_callback
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import ACT, APPROVAL, DECISION, NOTIFY
from tests.support.exporting_worker import READY
from tests.support.otlp_receiver import ReceivedTelemetry, Span, http_receiver
from tests.support.sink_receivers import HttpReceiver, run_http_receiver

SECRET = "0123456789abcdef0123456789abcdef"
CONFIG = """
[sinks.team]
kind = "slack"
channel = "C1"
token_env = "TOKEN"
signing_secret_env = "SIGNING"
api_url = "{url}"
events = ["asked"]
[sinks.team.users]
U1234 = "ann"
"""


@contextlib.contextmanager
def worker(
    address: str, queue: str, folder: Path, received: ReceivedTelemetry, name: str
) -> Iterator[ManagedProcess]:
    environ = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": received.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "EVERLONG_NOTIFY": str(folder / "notify.toml"),
        "TOKEN": "xoxb-test",
        "SIGNING": SECRET,
    }
    store = (folder / "blobs").as_uri()
    command = [sys.executable, "-m", "tests.support.exporting_worker", address, queue, store]
    process = ManagedProcess(name, command, log=folder / f"{name}.log", env=environ)
    try:
        yield process
    finally:
        process.stop()


@contextlib.asynccontextmanager
async def open_admin(
    client: Client, plugin: EverlongPlugin, slack: HttpReceiver, spans: InMemorySpanExporter
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield an HTTP client of an admin server that knows the Slack app."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    sink = Slack(
        name="team",
        channel="C1",
        token="xoxb-test",
        signing_secret=SECRET,
        users={"U1234": "ann"},
        api_url=slack.url,
    )

    async def connect() -> Client:
        return client

    context = AppContext(
        connect,
        plugin.packs,
        task_queue="q",
        notify=Notify(sinks=[sink]),
        telemetry=Telemetry(provider),
    )
    app = create_admin_app(context, Access())
    transport = httpx.ASGITransport(app)
    async with (
        context.slack_clicks.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8234") as http,
    ):
        yield http
    provider.shutdown()


def click(value: str, response_url: str, user: str = "U1234") -> bytes:
    payload = {
        "type": "block_actions",
        "user": {"id": user},
        "actions": [{"action_id": "everlong_approve", "value": value}],
        "response_url": response_url,
    }
    return urlencode({"payload": json.dumps(payload)}).encode()


def sign(body: bytes, age_seconds: float = 0.0, secret: str = SECRET) -> dict[str, str]:
    timestamp = str(int(time.time() - age_seconds))
    return {
        "content-type": "application/x-www-form-urlencoded",
        "x-slack-request-timestamp": timestamp,
        "x-slack-signature": sign_callback(secret, timestamp, body),
    }


async def wait_until_idle(client: Client, thread_id: str) -> None:
    """Wait until no task is in progress: the server would wait 10 s for a killed worker's."""
    async with asyncio.timeout(30):
        handle = client.get_workflow_handle(thread_id)
        while (await handle.describe()).raw_description.HasField("pending_workflow_task"):
            await asyncio.sleep(0.05)


def find(received: ReceivedTelemetry, name: str) -> list[Span]:
    return [span for span in list(received.spans) if span.name.partition(" ")[0] == name]


@pytest.mark.guarantee(118)
async def test_an_approval_asked_on_a_killed_worker_is_decided_from_slack_and_acted_on_elsewhere(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    queue = f"queue-{thread_id}"
    plugin = EverlongPlugin(store=(tmp_path / "blobs").as_uri())
    client = await Client.connect(server.address, plugins=[plugin])
    handle = ThreadHandle(client, thread_id, task_queue=queue)
    admin_spans = InMemorySpanExporter()
    with http_receiver() as received:
        async with (
            run_http_receiver(body=b'{"ok": true}') as slack,
            open_admin(client, plugin, slack, admin_spans) as admin,
        ):
            (tmp_path / "notify.toml").write_text(CONFIG.format(url=slack.url))
            with worker(server.address, queue, tmp_path, received, "first") as first:
                await first.wait_for_output(READY, 60)
                await handle.send("deploy", agent="seen")
                await slack.wait_for(lambda: bool(slack.received))
                await asyncio.to_thread(received.wait, lambda _: bool(find(received, NOTIFY)), 30)
                await wait_until_idle(client, thread_id)
                first.kill()
            value = slack.received[0].json["blocks"][-1]["elements"][0]["value"]
            # Forged, old and repeated clicks decide nothing.
            body = click(value, slack.url)
            for headers in (sign(body, secret="f" * 32), sign(body, age_seconds=301), {}):
                refused = await admin.post(CALLBACK_PATH, content=body, headers=headers)
                assert refused.status_code in (401, 415)
            stranger = click(value, slack.url, user="U9999")
            taken = await admin.post(CALLBACK_PATH, content=stranger, headers=sign(stranger))
            assert taken.status_code == 200
            await slack.wait_for(lambda: len(slack.received) == 2)
            assert slack.received[1].json["response_type"] == "ephemeral"
            headers = sign(body)
            assert (
                await admin.post(CALLBACK_PATH, content=body, headers=headers)
            ).status_code == 200
            again = await admin.post(CALLBACK_PATH, content=body, headers=headers)
            assert again.status_code == 401
            # No worker runs. The decision waits for one.
            with worker(server.address, queue, tmp_path, received, "second") as second:
                await second.wait_for_output(READY, 60)
                assert await handle.wait(1, seconds_max=60) == "done"
                await slack.wait_for(lambda: len(slack.received) == 3)
                assert slack.received[2].json["text"].startswith("Approved by ann")
                assert slack.received[2].json["replace_original"] is True
                await asyncio.to_thread(
                    received.wait, lambda _: bool(find(received, "invoke_agent")), 30
                )
                decided = [
                    entry.data async for entry in handle.journal() if entry.kind == "decided"
                ]
    assert [each and each["by"] for each in decided] == ["ann"]
    check_tree(received, admin_spans.get_finished_spans())


def check_tree(received: ReceivedTelemetry, admin: Any) -> None:
    """One trace: turn > approval > decision > act, and the tool's span under the turn."""
    [turn] = find(received, "invoke_agent")
    [approval] = find(received, APPROVAL)
    [notified] = find(received, NOTIFY)
    [act] = [
        span for span in find(received, ACT) if span.attributes["everlong.act.kind"] == "approval"
    ]
    [tool_span] = find(received, "execute_tool")
    decisions: list[ReadableSpan] = [span for span in admin if span.name == DECISION]
    [decision] = decisions
    assert decision.context is not None
    assert decision.parent is not None
    trace_id = f"{decision.context.trace_id:032x}"
    spans = (turn, approval, notified, act, tool_span)
    assert {span.trace_id for span in spans} == {trace_id}
    assert approval.parent_id == turn.span_id == tool_span.parent_id
    assert f"{decision.parent.span_id:016x}" == approval.span_id == notified.parent_id
    assert act.parent_id == f"{decision.context.span_id:016x}"
