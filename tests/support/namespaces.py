"""Temporal namespaces for tests that need their own, and sweeps of them."""

import asyncio
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    RegisterNamespaceRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from everlong.client.search_attributes import set_up
from everlong.client.sweeps import sweep as sweep_namespace
from everlong.client.visibility import quote_text
from everlong.models import SweepOptions, SweepReport
from everlong.policy import Retention
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore, open_packs

AT_ONCE = Retention(payload_seconds=0, journal_seconds=0, quarantine_seconds=0)
"""Retention that quarantines all unreachable objects, and deletes them in the next sweep."""


async def new_namespace(address: str, *, attributes: bool = False) -> str:
    """Register an empty namespace and wait until it is usable."""
    name = f"sweep-{uuid.uuid4().hex[:8]}"
    client = await Client.connect(address, lazy=True)
    request = RegisterNamespaceRequest(namespace=name)
    request.workflow_execution_retention_period.FromTimedelta(timedelta(days=1))
    await client.workflow_service.register_namespace(request)
    deadline = time.monotonic() + 90
    inside = await Client.connect(address, namespace=name)
    while True:
        try:
            async for _ in inside.list_workflows("WorkflowId = 'none'"):
                pass
            await inside.start_workflow("nothing", id="nothing", task_queue="nothing")
            await end(inside, "nothing")
            break
        except RPCError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
    if attributes:
        await set_up(inside)
    await delete(inside, "nothing")

    async def is_empty() -> bool:
        return (await inside.count_workflows()).count == 0

    await wait_until(is_empty)
    return name


async def end(client: Client, workflow_id: str) -> None:
    """Terminate a workflow and wait until visibility shows it: deleted earlier, it may stay listed."""
    await client.get_workflow_handle(workflow_id).terminate()
    query = f"WorkflowId = {quote_text(workflow_id)} AND ExecutionStatus = 'Running'"

    async def has_ended() -> bool:
        return (await client.count_workflows(query)).count == 0

    await wait_until(has_ended)


async def delete(client: Client, workflow_id: str) -> None:
    """Delete all runs of a workflow that visibility lists."""
    async for run in client.list_workflows(f"WorkflowId = '{workflow_id}'"):
        await client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace=client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=run.run_id),
            )
        )


async def wait_until(is_true: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not await is_true():  # type: ignore[misc]
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def sweep(
    client: Client,
    store: BlobStore | PackStore,
    retention: Retention = AT_ONCE,
    *,
    index_dir: Path | None = None,
    dry_run: bool = False,
    whole_store: bool = False,
) -> SweepReport:
    packs = store if isinstance(store, PackStore) else open_packs(store)
    return await sweep_namespace(
        client,
        packs,
        SweepOptions(retention=retention, dry_run=dry_run, whole_store=whole_store),
        index_dir=index_dir,
        allow_short_quarantine=True,
    )


async def list_sizes(store: BlobStore, prefix: str = "v1/") -> dict[str, int]:
    return {info.key: info.size_bytes async for info in store.list(prefix)}
