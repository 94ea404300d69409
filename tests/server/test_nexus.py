"""Nexus payloads leave the namespace: their receiver may have another store, or none.

By default they are compressed and stay inline. With `nexus_offload` both sides share a store.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.message import Message
from temporalio.api.failure.v1 import Failure
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from everlong.errors import PayloadTooLarge, StoreError
from tests.support.fake_stores import CountingStore
from tests.support.nexus_service import BEHIND, Caller, Factory, FactoryHandler, digest, goods
from tests.support.payload_workflows import find_payloads

DEADLINE_SECONDS = 90
RUN_SECONDS_MAX = timedelta(seconds=30)
INLINE = b"binary/everlong"


class Sides:
    """A caller and a handler, each with its client, its plugin and its store."""

    def __init__(self, caller: Client, handler: Client, thread_id: str) -> None:
        self.caller = caller
        self.handler = handler
        self.id = thread_id
        self.endpoint = f"endpoint-{uuid.uuid4().hex[:8]}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        target = EndpointTarget.Worker(
            namespace=self.handler.namespace, task_queue=f"{self.id}-handler"
        )
        spec = EndpointSpec(name=self.endpoint, target=EndpointTarget(worker=target))
        await self.caller.operator_service.create_nexus_endpoint(
            CreateNexusEndpointRequest(spec=spec)
        )
        async with (
            Worker(self.caller, task_queue=self.id, workflows=[Caller]),
            Worker(
                self.handler,
                task_queue=f"{self.id}-handler",
                workflows=BEHIND,
                max_cached_workflows=0,
                nexus_service_handlers=[FactoryHandler()],
            ),
        ):
            yield

    async def call(
        self, operation: str, size_bytes: int, *, compressible: bool = False
    ) -> WorkflowHandle[Any, str]:
        return await self.caller.start_workflow(
            Caller.run,
            args=[self.endpoint, operation, size_bytes, compressible],
            id=self.id,
            task_queue=self.id,
            execution_timeout=RUN_SECONDS_MAX,
        )


async def connect(server: TemporalServer, store: CountingStore, **options: Any) -> Client:
    plugin = EverlongPlugin(store=store, **options)
    return await Client.connect(server.address, plugins=[plugin])


def answer(operation: str, size_bytes: int, compressible: bool) -> str:
    sent = goods(size_bytes, compressible)
    return digest(sent[::-1] if operation.startswith("reverse") else sent)


OPERATIONS = list(Factory.__annotations__)


@pytest.mark.guarantee(34)
@pytest.mark.parametrize(
    ("size_bytes", "compressible"), [(100_000, False), (1_000_000, True)], ids=["noise", "text"]
)
@pytest.mark.parametrize("operation", [name for name in OPERATIONS if "produce" not in name])
async def test_values_that_fit_reach_a_side_with_another_store(
    server: TemporalServer, thread_id: str, operation: str, size_bytes: int, compressible: bool
) -> None:
    stores = CountingStore(), CountingStore()
    sides = Sides(await connect(server, stores[0]), await connect(server, stores[1]), thread_id)
    async with sides.running():
        handle = await sides.call(operation, size_bytes, compressible=compressible)
        assert await handle.result() == answer(operation, size_bytes, compressible)
    assert stores[0].puts == 0
    # A workflow behind an operation is in the handler's namespace, and its input is offloaded there.
    assert stores[1].puts == 0 or "_run" in operation
    large = [payload for payload in await nexus_payloads(handle) if len(payload.data) > 16 * 1024]
    assert large
    if compressible:
        assert {payload.metadata["encoding"] for payload in large} == {INLINE}
        assert all(len(payload.data) < size_bytes / 4 for payload in large)


async def nexus_payloads(handle: WorkflowHandle[Any, Any]) -> list[Any]:
    events: list[Message] = [
        event
        for event in (await handle.fetch_history()).events
        if "nexus" in (event.WhichOneof("attributes") or "")
    ]
    return [payload for event in events for payload in find_payloads(event)]


@pytest.mark.guarantee(34)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_with_a_shared_store_large_values_are_offloaded(
    server: TemporalServer, thread_id: str, operation: str
) -> None:
    store = CountingStore()
    size_bytes = 3_000_000
    sides = Sides(
        await connect(server, store, nexus_offload=True),
        await connect(server, store, nexus_offload=True),
        thread_id,
    )
    async with sides.running():
        handle = await sides.call(operation, size_bytes)
        assert await handle.result() == answer(operation, size_bytes, compressible=False)
    assert store.puts > 0
    history = await handle.fetch_history()
    assert sum(event.ByteSize() for event in history.events) < 20_000


def test_an_unreadable_nexus_value_raises_a_store_error() -> None:
    assert issubclass(PayloadTooLarge, StoreError)


@pytest.mark.guarantee(34)
async def test_a_too_large_input_fails_the_task_and_not_the_workflow(
    server: TemporalServer, thread_id: str
) -> None:
    stores = CountingStore(), CountingStore()
    sides = Sides(await connect(server, stores[0]), await connect(server, stores[1]), thread_id)
    async with sides.running():
        handle = await sides.call("reverse", 3_000_000)
        await poll_for_words(lambda: failed_task(handle), "PayloadTooLarge", "nexus_offload")
        await check_running(handle)
        await handle.terminate()
    assert (stores[0].puts, stores[1].puts) == (0, 0)


@pytest.mark.guarantee(34)
async def test_the_server_retries_a_too_large_result(
    server: TemporalServer, thread_id: str
) -> None:
    stores = CountingStore(), CountingStore()
    sides = Sides(await connect(server, stores[0]), await connect(server, stores[1]), thread_id)
    async with sides.running():
        handle = await sides.call("produce", 3_000_000)
        await poll_for_words(lambda: pending_operation(handle), "PayloadTooLarge", "nexus_offload")
        await check_running(handle)
        await handle.terminate()
    assert (stores[0].puts, stores[1].puts) == (0, 0)


@pytest.mark.guarantee(34)
async def test_a_too_large_result_of_a_workflow_behind_an_operation_fails_its_task(
    server: TemporalServer, thread_id: str
) -> None:
    stores = CountingStore(), CountingStore()
    sides = Sides(await connect(server, stores[0]), await connect(server, stores[1]), thread_id)
    async with sides.running():
        handle = await sides.call("produce_run", 3_000_001)
        behind = sides.handler.get_workflow_handle("producing-3000001")
        await poll_for_words(lambda: failed_task(behind), "PayloadTooLarge", "nexus_offload")
        await check_running(behind)
        await check_running(handle)
        await handle.terminate()
        await behind.terminate()


async def poll_for_words(look: Callable[[], Awaitable[str]], *words: str) -> None:
    """Wait until what is looked at holds all words."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    text = ""
    while time.monotonic() < deadline:
        text = await look()
        if all(word in text for word in words):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not seen: {words}; last: {text[:2000]!r}")


async def failed_task(handle: WorkflowHandle[Any, Any]) -> str:
    """Return the failure messages of the last workflow task that failed."""
    try:
        history = await handle.fetch_history()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return ""
    for event in reversed(history.events):
        if event.HasField("workflow_task_failed_event_attributes"):
            return "\n".join(messages(event.workflow_task_failed_event_attributes.failure))
    return ""


async def pending_operation(handle: WorkflowHandle[Any, Any]) -> str:
    """Return the failure messages of the last attempt at each pending operation."""
    description = (await handle.describe()).raw_description
    failures = [info.last_attempt_failure for info in description.pending_nexus_operations]
    return "\n".join(text for failure in failures for text in messages(failure))


def messages(failure: Failure) -> Iterator[str]:
    for _ in range(10):
        yield failure.message
        if not failure.HasField("cause"):
            return
        failure = failure.cause


async def check_running(handle: WorkflowHandle[Any, Any]) -> None:
    assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
