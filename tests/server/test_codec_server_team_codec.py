"""`everlong serve` for workers that have a payload codec of their own inside Everlong's."""

import asyncio
import base64
import contextlib
import dataclasses
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.worker import Worker

from everlong import EverlongPlugin
from everlong.client.wait import ask
from everlong.config import drop_temporal_variables
from everlong.embedded import ManagedProcess, TemporalServer
from everlong.embedded.server import find_free_port
from everlong.embedded.stack import CODEC_SERVER_READY
from everlong.storage import BlobStore
from tests.support.scripted_agents import pages_answer, reading_agent
from tests.support.team_codecs import Xor

ROOT = Path(__file__).parents[2]
CODEC = "tests.support.team_codecs:make_xor"


@contextlib.asynccontextmanager
async def serve(
    address: str, store: str, log: Path, *options: str
) -> AsyncIterator[httpx.AsyncClient]:
    """Run `everlong serve`, and give a client of it."""
    port = find_free_port()
    arguments = [sys.executable, "-m", "everlong", "serve", "--port", str(port), *options]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {
        **drop_temporal_variables(),
        "TEMPORAL_ADDRESS": address,
        "EVERLONG_STORE": store,
        "EVERLONG_TOKEN": "",
        "EVERLONG_TOKENS": "",
        "PYTHONPATH": path,
    }
    with ManagedProcess("serve", arguments, env=env, log=log) as process:
        await process.wait_for_output(CODEC_SERVER_READY, 60)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            timeout=60,
            headers={"origin": f"http://127.0.0.1:{port}"},
        ) as client:
            yield client


async def fetch_payloads(client: Client, thread_id: str) -> list[Payload]:
    """Return the raw payloads of a thread's first events: its input and results of activities."""
    history = await client.get_workflow_handle(thread_id).fetch_history()
    found: list[Payload] = []
    for event in history.events:
        found += event.workflow_execution_started_event_attributes.input.payloads
        found += event.activity_task_completed_event_attributes.result.payloads
    assert found
    return found


async def decode_encodings(client: httpx.AsyncClient, payloads: list[Payload]) -> list[bytes]:
    """Return the encodings that the codec server's answer has."""
    body = json_format.MessageToDict(Payloads(payloads=payloads))
    answer = await client.post("/default/decode", json=body)
    assert answer.status_code == 200, answer.text
    return [base64.b64decode(each["metadata"]["encoding"]) for each in answer.json()["payloads"]]


async def fetch_page(
    client: httpx.AsyncClient, thread_id: str, *, is_known: bool
) -> dict[str, Any]:
    """Return a thread's page of the API, once its status has arrived."""
    async with asyncio.timeout(60):
        while True:
            answer = await client.get(f"/api/v1/threads/{thread_id}")
            if answer.status_code != 200 or answer.json()["status"] is not None or not is_known:
                return {"code": answer.status_code, **answer.json()}
            await asyncio.sleep(0.2)


@pytest.mark.guarantee(89)
async def test_values_are_shown_with_the_teams_codec_and_explained_without_it(
    server: TemporalServer, store: BlobStore, thread_id: str, tmp_path: Path
) -> None:
    plugin = EverlongPlugin(store=store, agents=[reading_agent(2)])
    converter = dataclasses.replace(DataConverter.default, payload_codec=Xor())
    client = await Client.connect(server.address, data_converter=converter, plugins=[plugin])
    url = (tmp_path / "blobs").as_uri()
    async with Worker(client, task_queue=thread_id):
        answer = await ask(
            client,
            plugin.packs,
            thread_id,
            "read",
            task_queue=thread_id,
            agent="ops",
            seconds_max=60,
        )
        assert answer == pages_answer(2)
        payloads = await fetch_payloads(client, thread_id)
        log = tmp_path / "with.log"
        async with serve(server.address, url, log, "--codec", CODEC) as web:
            found = await fetch_page(web, thread_id, is_known=True)
            assert (found["code"], found["status"]["agent"]) == (200, "ops")
            assert set(await decode_encodings(web, payloads)) == {b"json/plain"}
            sent = await web.post(f"/api/v1/threads/{thread_id}/messages", json={"text": "again"})
            assert sent.status_code == 200, sent.text
            entries = await web.get(f"/api/v1/threads/{thread_id}/entries")
            assert pages_answer(2) in entries.text
        assert "--codec" not in log.read_text()

        log = tmp_path / "without.log"
        async with serve(server.address, url, log) as web:
            refused = await fetch_page(web, thread_id, is_known=False)
            assert "--codec module:name" in str(refused)
            assert set(await decode_encodings(web, payloads)) == {b"binary/xor"}
        assert "start everlong serve with --codec" in log.read_text()
        assert "Traceback" not in log.read_text()
