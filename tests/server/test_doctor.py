"""`everlong doctor` and `everlong setup` against a real server, with workers that disagree."""

import asyncio
import json
import os
import subprocess
import time
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.worker import Worker

from everlong import EverlongPlugin
from everlong.client.search_attributes import set_up
from everlong.doctor.checks import run_checks
from everlong.doctor.findings import Finding
from everlong.doctor.workers import ID_PREFIX
from everlong.embedded import TemporalServer
from everlong.errors import SetupRefused
from everlong.models.search_attributes import SEARCH_ATTRIBUTES
from everlong.storage import BlobStore
from everlong.storage.memory import MemoryBlobStore
from tests.support.forked_command import run_command
from tests.support.sample_payloads import KEY_1, KEY_2
from tests.support.scripted_agents import reading_agent

Keys = dict[str, bytes] | None
FIRST: Keys = {"first": KEY_1}


@workflow.defn
class Nothing:
    @workflow.run
    async def run(self) -> None:
        pass


async def connect(
    server: TemporalServer,
    store: BlobStore,
    keys: Keys = None,
    *,
    agents: int = 0,
    namespace: str = "default",
) -> tuple[Client, EverlongPlugin]:
    plugin = EverlongPlugin(
        store=store, keys=keys, agents=[reading_agent(1, f"ops-{each}") for each in range(agents)]
    )
    return await Client.connect(server.address, namespace=namespace, plugins=[plugin]), plugin


async def run_doctor(client: Client, plugin: EverlongPlugin, task_queue: str) -> dict[str, Finding]:
    found = [
        each
        async for each in run_checks(
            client, plugin.packs, task_queue=task_queue, inline_bytes_max=3 * 1024
        )
    ]
    assert len({each.check for each in found}) == len(found)
    assert all(each.fix for each in found if each.status in ("warning", "failed"))
    return {each.check: each for each in found}


async def test_a_healthy_setup_passes_and_leaves_nothing(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client, plugin = await connect(server, store, FIRST)
    left, _ = await connect(server, store, FIRST, agents=2)
    right, _ = await connect(server, store, FIRST, agents=2)
    async with (
        Worker(left, task_queue=thread_id, identity="left"),
        Worker(right, task_queue=thread_id, identity="right"),
    ):
        found = await run_doctor(client, plugin, thread_id)
    assert {each.status for each in found.values()} == {"ok"}, found
    assert list(found) == [
        *("versions", "store", "server", "search attributes", "clock", "runs", "archives"),
        *("workers", "worker left", "worker right"),
    ]
    assert found["workers"].text == "2 of 2 answered"
    assert found["server"].text.startswith("Temporal 1.")
    assert server.address in found["server"].text
    assert "agents ops-0, ops-1" in found["worker left"].text
    assert "keys first (writes)" in found["worker left"].text
    assert [info async for info in store.list("")] == []


@pytest.mark.parametrize(
    ("here", "there"),
    [(FIRST, {"second": KEY_2}), (FIRST, {"first": KEY_2}), (FIRST, None), (None, FIRST)],
    ids=["other", "same-id", "none-there", "none-here"],
)
async def test_a_worker_with_other_keys_is_reported_without_a_hang(
    server: TemporalServer, store: BlobStore, thread_id: str, here: Keys, there: Keys
) -> None:
    client, plugin = await connect(server, store, here)
    running, _ = await connect(server, store, there, agents=1)
    began = time.monotonic()
    async with Worker(running, task_queue=thread_id, identity="it"):
        found = await run_doctor(client, plugin, thread_id)
    assert time.monotonic() - began < 10
    worker = found.pop("worker it")
    assert worker.status == "failed"
    # Who has no key reads nothing sealed; who has one refuses what is not.
    assert "it cannot read what is written here" in worker.text or here is None
    assert "what it writes cannot be read here" in worker.text
    assert worker.fix.startswith("Give both sides the same EVERLONG_KEYS")
    assert ("no keys" in worker.fix) == (None in (here, there))
    assert {each.status for each in found.values()} == {"ok"}
    for key in (KEY_1, KEY_2):
        assert key.hex() not in repr((found, worker))
    assert [info async for info in store.list("")] == []


async def test_a_read_only_key_is_no_fault(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client, plugin = await connect(server, store, {"first": KEY_1, "second": KEY_2})
    running, _ = await connect(server, store, {"second": KEY_2, "first": KEY_1}, agents=1)
    async with Worker(running, task_queue=thread_id, identity="it"):
        found = await run_doctor(client, plugin, thread_id)
    assert found["worker it"].status == "ok"
    assert "keys second (writes), first" in found["worker it"].text


async def test_a_worker_with_another_store_is_reported(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client, plugin = await connect(server, store)
    running, _ = await connect(server, other := MemoryBlobStore(), agents=1)
    async with Worker(running, task_queue=thread_id, identity="it"):
        found = await run_doctor(client, plugin, thread_id)
    assert found["worker it"].status == "failed"
    assert f"another store, memory:; the store here is {store!r}" in found["worker it"].text
    assert "EVERLONG_STORE" in found["worker it"].fix
    assert [info async for info in other.list("")] == []


async def test_a_worker_without_the_doctor_workflow_is_reported_and_the_probe_ends(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    client, plugin = await connect(server, store)
    async with Worker(client, task_queue=thread_id, workflows=[Nothing], identity="old"):
        found = await run_doctor(client, plugin, thread_id)
    assert found["worker old"].status == "failed"
    assert "is not registered" in found["worker old"].text
    assert "with agents" in found["worker old"].fix
    await no_probe_runs(client, thread_id)


async def no_probe_runs(client: Client, task_queue: str) -> None:
    query = f"TaskQueue = '{task_queue}' AND WorkflowId STARTS_WITH '{ID_PREFIX}'"
    for _ in range(100):
        probes = [each async for each in client.list_workflows(query)]
        if probes and all(each.status != WorkflowExecutionStatus.RUNNING for each in probes):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(probes)


def everlong(
    server: TemporalServer, cwd: Path, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    return run_command(
        *arguments,
        cwd=cwd,
        env={
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "TEMPORAL_ADDRESS": server.address,
            "EVERLONG_STORE": (cwd / "blobs").as_uri(),
            **env,
        },
    )


def test_the_command_reports_a_missing_worker(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    result = everlong(server, tmp_path, "doctor", EVERLONG_TASK_QUEUE=thread_id)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[-3] == f"warning  workers: no worker polls task queue {thread_id}"
    assert lines[-2].startswith("         fix: Start one with: everlong worker ")
    assert lines[-1] == "8 checks: 7 ok, 1 warning"


def test_a_part_that_cannot_be_opened_fails_and_the_rest_is_checked(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    (tmp_path / "blobs").write_text("not a directory")
    result = everlong(server, tmp_path, "doctor", "--json", EVERLONG_TASK_QUEUE=thread_id)
    assert result.returncode == 1, result.stderr
    statuses = {each["check"]: each["status"] for each in json.loads(result.stdout)}
    assert statuses == {
        "versions": "ok",
        "store": "failed",
        "server": "ok",
        "search attributes": "ok",
        "clock": "ok",
        "runs": "ok",
        "workers": "skipped",
    }


async def new_namespace(server: TemporalServer) -> Client:
    """Return a client of a namespace that has no attributes."""
    name = f"setup-{uuid.uuid4().hex[:8]}"
    client = await Client.connect(server.address, namespace=name)
    request = RegisterNamespaceRequest(namespace=name)
    request.workflow_execution_retention_period.FromTimedelta(timedelta(days=1))
    await client.workflow_service.register_namespace(request)
    return client


async def test_setup_adds_missing_attributes_once(server: TemporalServer, tmp_path: Path) -> None:
    client = await new_namespace(server)
    env = {"TEMPORAL_NAMESPACE": client.namespace, "EVERLONG_STORE": ""}
    first = everlong(server, tmp_path, "setup", **env)
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(SEARCH_ATTRIBUTES)
    assert all(line.endswith(" added") for line in lines[:-1])
    again = everlong(server, tmp_path, "setup", "--json", **env)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == [
        {"name": name, "type": kind, "status": "present"}
        for name, kind in SEARCH_ATTRIBUTES.items()
    ]


async def test_an_attribute_of_another_type_stops_setup_and_fails_the_doctor(
    server: TemporalServer,
) -> None:
    plain = await new_namespace(server)
    kinds = {"EverlongStateBytes": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD}
    await add_attributes(plain, kinds)
    with pytest.raises(
        SetupRefused, match="EverlongStateBytes as Keyword instead of Int"
    ) as raised:
        await set_up(plain)
    assert "Nothing was changed" in str(raised.value)
    client, plugin = await connect(server, MemoryBlobStore(), namespace=plain.namespace)
    found = await run_doctor(client, plugin, "no-worker")
    assert found["search attributes"].status == "failed"
    assert "everlong setup" in found["search attributes"].fix


async def add_attributes(client: Client, kinds: dict[str, IndexedValueType.ValueType]) -> None:
    """Add attributes to a namespace that the server may not know everywhere yet."""
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=kinds)
    for _ in range(100):
        try:
            await client.operator_service.add_search_attributes(request)
        except RPCError:
            await asyncio.sleep(0.1)
        else:
            return
    raise AssertionError("the namespace is not there")
