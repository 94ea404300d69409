"""`python -m bench.worker VARIANT ADDRESS QUEUE URL`: a worker of one variant, until SIGTERM."""

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

from bench import worker_log
from bench.loop import AgentLoop, ListLoop, call_model, call_tool, run_tool
from bench.objects import ObstoreClient, Place, open_objects
from bench.stores import CountingStore
from everlong import EverlongPlugin, open_store

PLAIN: Final = "plain"
SDK: Final = "SDK ExternalStorage"
EVERLONG: Final = "Everlong"
VARIANTS: Final = (PLAIN, SDK, EVERLONG)


async def connect(variant: str, address: str, url: str) -> Client:
    """Connect with the storage of the variant. Everything else is the SDK's default."""
    if variant == SDK:
        client = ObstoreClient(open_objects(Place(url, os.environ)))
        driver = S3StorageDriver(client, bucket="bench")
        converter = dataclasses.replace(
            DataConverter.default, external_storage=ExternalStorage(drivers=[driver])
        )
        return await Client.connect(address, data_converter=converter)
    if variant == EVERLONG:
        store = CountingStore(open_store(url), worker_log.write)
        return await Client.connect(address, plugins=[EverlongPlugin(store=store)])
    return await Client.connect(address)


async def run(variant: str, address: str, queue: str, url: str) -> None:
    """Work until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    client = await connect(variant, address, url)
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as threads:
        async with Worker(
            client,
            task_queue=queue,
            workflows=[ListLoop, AgentLoop],
            activities=[call_tool, call_model, run_tool],
            activity_executor=threads,
        ):
            worker_log.write("ready")
            await stopped.wait()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:5]))
