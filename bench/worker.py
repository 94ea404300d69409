"""`python -m bench.worker ARM ADDRESS QUEUE URL`: a worker of one arm, until SIGTERM."""

import asyncio
import concurrent.futures
import dataclasses
import os
import signal
import sys
from typing import Final

from temporalio.client import Client
from temporalio.contrib.aws.s3driver import S3StorageDriver
from temporalio.converter import DataConverter, ExternalStorage
from temporalio.worker import Worker

from bench import probe
from bench.loop import AgentLoop, ListLoop, call_model, call_tool, run_tool
from bench.objects import ObstoreClient, Place, open_objects
from bench.stores import CountingStore
from everlong import EverlongPlugin, open_store

PLAIN: Final = "plain"
SDK: Final = "SDK ExternalStorage"
EVERLONG: Final = "Everlong"
ARMS: Final = (PLAIN, SDK, EVERLONG)


async def connect(arm: str, address: str, url: str) -> Client:
    """Connect as the arm does. Everything but the storage is the SDK's default."""
    if arm == SDK:
        client = ObstoreClient(open_objects(Place(url, os.environ)))
        driver = S3StorageDriver(client, bucket="bench")
        converter = dataclasses.replace(
            DataConverter.default, external_storage=ExternalStorage(drivers=[driver])
        )
        return await Client.connect(address, data_converter=converter)
    if arm == EVERLONG:
        store = CountingStore(open_store(url), probe.tell)
        return await Client.connect(address, plugins=[EverlongPlugin(store=store)])
    return await Client.connect(address)


async def run(arm: str, address: str, queue: str, url: str) -> None:
    """Work until told to stop."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    client = await connect(arm, address, url)
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as threads:
        async with Worker(
            client,
            task_queue=queue,
            workflows=[ListLoop, AgentLoop],
            activities=[call_tool, call_model, run_tool],
            activity_executor=threads,
        ):
            probe.tell("ready")
            await stopped.wait()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:5]))
