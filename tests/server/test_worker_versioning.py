"""Worker versioning: threads move on to a new deployment, and the doctor reaches each version."""

import asyncio
import time
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import Worker, WorkerDeploymentConfig

from everlong import Agent, EverlongPlugin, Reply
from everlong.doctor.workers import Clock, check_workers
from everlong.embedded import TemporalServer
from everlong.limits import INLINE_BYTES_MAX
from everlong.storage import BlobStore
from everlong.testing import ScriptedModel
from everlong.workflows import VERSIONED
from tests.support.thread_driver import DrivenThread
from tests.support.threads import Threads, open_threads


def build_agent(build_id: str) -> Agent:
    """An agent that answers with the version of its worker."""
    return Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text=build_id)))


def make_versioned_worker(client: Client, queue: str, build_id: str, **options: Any) -> Worker:
    return Worker(
        client,
        task_queue=queue,
        identity=f"worker-{build_id}",
        deployment_config=WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(deployment_name=queue, build_id=build_id),
            use_worker_versioning=True,
        ),
        **options,
    )


async def make_current(client: Client, deployment: str, build_id: str) -> None:
    """Set the current version of a deployment, once the server knows of it."""
    deadline = time.monotonic() + 90
    while True:
        try:
            await client.workflow_service.set_worker_deployment_current_version(
                SetWorkerDeploymentCurrentVersionRequest(
                    namespace=client.namespace, deployment_name=deployment, build_id=build_id
                )
            )
        except RPCError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
        else:
            return


async def get_build_id(threads: Threads, thread_id: str) -> str:
    """The build id that the server notes for a thread."""
    described = await threads.client.get_workflow_handle(thread_id).describe()
    info = described.raw_description.workflow_execution_info.versioning_info
    return str(info.deployment_version.build_id)


async def test_workers_with_versioning_and_no_default_take_our_workflows(
    server: TemporalServer, store: BlobStore
) -> None:
    plugin = EverlongPlugin(store=store, agents=[build_agent("v1")])
    client = await Client.connect(server.address, plugins=[plugin])
    config = make_versioned_worker(client, "q", "v1").config(active_config=True)
    assert set(config["workflows"]) == set(VERSIONED.values())
    # The server refuses tasks of a worker that names a behaviour and has no version.
    plain = Worker(client, task_queue="plain").config(active_config=True)
    assert set(plain["workflows"]) == set(VERSIONED)
    with pytest.warns(UserWarning, match="present from both"):
        twice = make_versioned_worker(client, "q", "v2", plugins=[plugin]).config(
            active_config=True
        )
    assert set(twice["workflows"]) == set(VERSIONED.values())


async def test_a_thread_moves_to_the_next_deployment_and_frees_its_old_worker(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, build_agent("v1")) as first,
        open_threads(server.address, store, build_agent("v2")) as second,
    ):
        first.task_queue = second.task_queue = queue = thread_id
        v1, v2 = (
            make_versioned_worker(threads.client, queue, build_id)
            for threads, build_id in ((first, "v1"), (second, "v2"))
        )
        thread = DrivenThread(first, thread_id)
        async with v2:
            async with v1:
                await make_current(first.client, queue, "v1")
                assert await thread.ask() == "v1"
                assert await get_build_id(first, thread_id) == "v1"
                # The doctor sees both, though the server sends new workflows to one of them.
                await wait_for_doctor(first, queue)
                await make_current(first.client, queue, "v2")
            # It waited, idle, on a worker that is gone now.
            assert await DrivenThread(second, thread_id).ask() == "v2"
            assert await get_build_id(second, thread_id) == "v2"


async def test_a_rollout_is_no_crash_while_the_old_worker_still_polls(
    server: TemporalServer, store: BlobStore, thread_id: str
) -> None:
    async with (
        open_threads(server.address, store, build_agent("v1")) as first,
        open_threads(server.address, store, build_agent("v2")) as second,
    ):
        first.task_queue = second.task_queue = queue = thread_id
        async with (
            make_versioned_worker(first.client, queue, "v1"),
            make_versioned_worker(second.client, queue, "v2"),
        ):
            await make_current(first.client, queue, "v1")
            assert await DrivenThread(first, thread_id).ask() == "v1"
            await make_current(first.client, queue, "v2")
            moved = DrivenThread(second, thread_id)
            async with asyncio.timeout(90):
                while await moved.ask() != "v2":  # The server takes a moment to route by it.
                    pass
            causes = [each.step.resume_cause for each in await moved.entries() if each.step]
            assert causes[-1]
            assert "crash" not in causes


async def wait_for_doctor(threads: Threads, queue: str) -> None:
    """Wait until the doctor has answers from both versions: a new one takes a moment to be known."""
    async with asyncio.timeout(60):
        while True:
            findings = await check_workers(
                threads.client,
                threads.plugin.packs,
                queue,
                INLINE_BYTES_MAX,
                clock=Clock(0.0, 0.0),
                has_attributes=False,
            )
            found = {each.check: each.status for each in findings}
            if {"worker worker-v1", "worker worker-v2"} <= set(found):
                break
            await asyncio.sleep(0.2)
    assert set(found.values()) == {"ok"}
