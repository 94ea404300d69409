"""The SDK's own external storage, with our driver."""

import dataclasses

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from temporalio.worker import Worker

from everlong.codecs.sdk_storage import EverlongStorageDriver
from everlong.embedded import TemporalServer
from everlong.errors import BlobCorrupt, RefRefused
from tests.support.fake_stores import CountingStore
from tests.support.loop_workflows import ACTIVITIES, WORKFLOWS, ListLoop, Loop, compute_expected

KEYS = {"k1": bytes(range(32))}


async def connect(address: str, driver: EverlongStorageDriver) -> Client:
    storage = ExternalStorage(drivers=[driver], payload_size_threshold=2_000)
    converter = dataclasses.replace(DataConverter.default, external_storage=storage)
    return await Client.connect(address, data_converter=converter)


@pytest.mark.guarantee(35)
@pytest.mark.parametrize("keys", [None, KEYS])
async def test_a_list_loop_runs_on_external_storage_and_is_deduplicated(
    server: TemporalServer, thread_id: str, keys: dict[str, bytes] | None
) -> None:
    store = CountingStore()
    client = await connect(server.address, EverlongStorageDriver(store, keys=keys))
    loop = Loop(steps=30, result_bytes=20_000)
    worker = Worker(client, task_queue=thread_id, workflows=WORKFLOWS, activities=ACTIVITIES)
    async with worker:
        result = await client.execute_workflow(
            ListLoop.run, loop, id=thread_id, task_queue=thread_id
        )
    assert result == compute_expected(loop)
    stored = sum([info.size_bytes async for info in store.list("v1/")])
    raw = sum(range(31)) * 20_000
    assert stored < raw / 10
    # A driver that knows nothing reads what the other wrote.
    cold = await connect(server.address, EverlongStorageDriver(store, keys=keys))
    async with Worker(cold, task_queue=thread_id, workflows=WORKFLOWS, activities=ACTIVITIES):
        assert await cold.get_workflow_handle(thread_id).query("steps") == 30


@pytest.mark.guarantee(35)
async def test_a_foreign_claim_is_refused() -> None:
    driver = EverlongStorageDriver(CountingStore(), keys=KEYS)
    context = StorageDriverRetrieveContext()
    with pytest.raises(BlobCorrupt, match="holds no Everlong ref"):
        await driver.retrieve(context, [StorageDriverClaim({"key": "x"})])
    unsealed = EverlongStorageDriver(CountingStore())

    [claim] = await unsealed.store(StorageDriverStoreContext(), [Payload(data=b"x" * 5_000)])
    with pytest.raises(RefRefused, match="is not sealed"):
        await driver.retrieve(context, [claim])
