"""Nexus service, its handler, and a workflow that calls it.

Imported into the workflow sandbox: keep its imports few.
"""

import asyncio
import hashlib
import uuid
from datetime import timedelta

import nexusrpc
from nexusrpc.handler import StartOperationContext, service_handler, sync_operation
from temporalio import nexus, workflow
from temporalio.exceptions import ApplicationError, NexusOperationError

from tests.support.payload_workflows import noise

OPERATION_SECONDS_MAX = timedelta(seconds=60)


def goods(size_bytes: int, compressible: bool) -> bytes:
    """Return bytes that compress to a fifth, or not at all."""
    return noise("goods", size_bytes // 5) * 5 if compressible else noise("goods", size_bytes)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@nexusrpc.service
class Factory:
    """One operation of each kind. `_run`: a workflow answers; `_runs`: a chain of runs answers."""

    reverse: nexusrpc.Operation[bytes, bytes]
    reverse_run: nexusrpc.Operation[bytes, bytes]
    reverse_runs: nexusrpc.Operation[bytes, bytes]
    produce: nexusrpc.Operation[int, bytes]
    produce_run: nexusrpc.Operation[int, bytes]
    refuse: nexusrpc.Operation[bytes, bytes]
    refuse_run: nexusrpc.Operation[bytes, bytes]


@workflow.defn
class Reversing:
    """Continues as new the given number of times before it answers."""

    @workflow.run
    async def run(self, sent: bytes, more: int) -> bytes:
        if more:
            workflow.continue_as_new(args=[sent, more - 1])
        # The answer comes in a later task, so a worker without a cache has replayed the run.
        await asyncio.sleep(0.01)
        return sent[::-1]


@workflow.defn
class Producing:
    @workflow.run
    async def run(self, size_bytes: int) -> bytes:
        return goods(size_bytes, compressible=False)


@workflow.defn
class Refusing:
    @workflow.run
    async def run(self, sent: bytes) -> bytes:
        raise ApplicationError("refused", sent, non_retryable=True)


@service_handler(service=Factory)
class FactoryHandler:
    @sync_operation
    async def reverse(self, ctx: StartOperationContext, sent: bytes) -> bytes:
        return sent[::-1]

    @sync_operation
    async def produce(self, ctx: StartOperationContext, size_bytes: int) -> bytes:
        return goods(size_bytes, compressible=False)

    @sync_operation
    async def refuse(self, ctx: StartOperationContext, sent: bytes) -> bytes:
        raise ApplicationError("refused", sent, non_retryable=True)

    @nexus.workflow_run_operation
    async def reverse_run(
        self, ctx: nexus.WorkflowRunOperationContext, sent: bytes
    ) -> nexus.WorkflowHandle[bytes]:
        return await ctx.start_workflow(
            Reversing.run, args=[sent, 0], id=f"reversing-{uuid.uuid4()}"
        )

    @nexus.workflow_run_operation
    async def reverse_runs(
        self, ctx: nexus.WorkflowRunOperationContext, sent: bytes
    ) -> nexus.WorkflowHandle[bytes]:
        return await ctx.start_workflow(
            Reversing.run, args=[sent, 2], id=f"reversing-{uuid.uuid4()}"
        )

    @nexus.workflow_run_operation
    async def produce_run(
        self, ctx: nexus.WorkflowRunOperationContext, size_bytes: int
    ) -> nexus.WorkflowHandle[bytes]:
        # The caller knows this id and reads the run of its operation.
        return await ctx.start_workflow(Producing.run, size_bytes, id=f"producing-{size_bytes}")

    @nexus.workflow_run_operation
    async def refuse_run(
        self, ctx: nexus.WorkflowRunOperationContext, sent: bytes
    ) -> nexus.WorkflowHandle[bytes]:
        return await ctx.start_workflow(Refusing.run, sent, id=f"refusing-{uuid.uuid4()}")


BEHIND = [Producing, Refusing, Reversing]


@workflow.defn
class Caller:
    """Calls one operation; returns a digest, so that its own result is small."""

    @workflow.run
    async def run(self, endpoint: str, operation: str, size_bytes: int, compressible: bool) -> str:
        client = workflow.create_nexus_client(service=Factory, endpoint=endpoint)
        produces = operation.startswith("produce")
        sent = size_bytes if produces else goods(size_bytes, compressible)
        try:
            result: bytes = await client.execute_operation(
                operation,
                sent,
                output_type=bytes,
                schedule_to_close_timeout=OPERATION_SECONDS_MAX,
            )
        except NexusOperationError as error:
            result = refused_details(error)
        return digest(result)


def refused_details(error: BaseException | None) -> bytes:
    """Return the detail of the application error that caused a Nexus failure."""
    for _ in range(5):
        if isinstance(error, ApplicationError) and error.details:
            detail: bytes = error.details[0]
            return detail
        error = error.__cause__ if error else None
    raise ApplicationError("the operation failed without details", non_retryable=True)
