"""What a diagnosis costs, and what the command prints of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from everlong.client.diagnosis import diagnose
from everlong.embedded import TemporalServer
from everlong.storage import BlobStore
from tests.server.test_diagnosis import asking, connect
from tests.support.scripted_agents import reading_agent


class Counting:
    """Counts the calls of a workflow service."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._service, name)


async def test_a_diagnosis_takes_four_calls_at_most(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(server, store, agents=[reading_agent(1)])
    async with (
        Worker(client, task_queue=thread_id),
        asking(client, thread_id, agent="opps") as (told, _),
    ):
        await told.first()
        counting = Counting(client.workflow_service)
        monkeypatch.setattr(Client, "workflow_service", counting)
        found = await diagnose(client, thread_id)
        monkeypatch.undo()
    assert found is None or found.kind == "no_agent"
    assert len(counting.calls) <= 4


def test_the_command_says_it_on_standard_error(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "everlong", "send", thread_id, "hello", "--agent", "ops"],
        cwd=tmp_path,
        env={
            **os.environ,
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "TEMPORAL_ADDRESS": server.address,
            "EVERLONG_STORE": (tmp_path / "blobs").as_uri(),
            "EVERLONG_TASK_QUEUE": thread_id,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
    finally:
        process.kill()
        process.communicate(timeout=10)
    assert line.startswith(f"{thread_id} waits: no worker polls task queue '{thread_id}': start")
