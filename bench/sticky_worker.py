"""`python -m bench.sticky_worker ADDRESS URL QUEUE=STICKY_SECONDS=TASKS ...`: several workers.

Each has its own task queue, sticky timeout and number of concurrent workflow tasks, or the default where
one is empty. They share a process, so that the benchmark need not wait for many to start.
"""

import asyncio
import contextlib
import signal
import sys

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from temporalio.client import Client
from temporalio.worker import Worker

from bench import worker_log
from bench.thread_agent import reader
from bench.thread_worker import ResumeLogExporter
from everlong import EverlongPlugin


async def run(address: str, url: str, *cases: str) -> None:
    """Work until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ResumeLogExporter()))
    async with contextlib.AsyncExitStack() as stack:
        for queue, sticky_seconds, tasks in (case.split("=") for case in cases):
            plugin = EverlongPlugin(
                store=url,
                agents=[reader()],
                sticky_seconds=float(sticky_seconds) if sticky_seconds else None,
                tracer_provider=provider,
            )
            client = await Client.connect(address, plugins=[plugin])
            worker = Worker(
                client,
                task_queue=queue,
                max_concurrent_workflow_tasks=int(tasks) if tasks else None,
            )
            await stack.enter_async_context(worker)
        worker_log.write("ready")
        await stopped.wait()
    provider.shutdown()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
