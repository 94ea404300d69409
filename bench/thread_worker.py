"""`python -m bench.thread_worker ADDRESS QUEUE URL [STICKY_SECONDS]`: a worker with the agent.

It logs its requests to the store, its model calls, and the duration of resumes.
"""

import asyncio
import signal
import sys
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from temporalio.client import Client
from temporalio.worker import Worker

from bench import worker_log
from bench.stores import CountingStore
from bench.thread_agent import reader
from everlong import EverlongPlugin, open_store
from everlong.telemetry.spans import RESUME as RESUME_SPAN


class ResumeLogExporter(SpanExporter):
    """Logs resumes: `resumed` with microseconds, and `replayed` with the number of events."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`."""
        for span in spans:
            if span.name == RESUME_SPAN and span.attributes:
                worker_log.write("replayed", int(str(span.attributes["everlong.resume.events"])))
                worker_log.write("resumed", ((span.end_time or 0) - (span.start_time or 0)) // 1000)
        return SpanExportResult.SUCCESS


async def run(address: str, queue: str, url: str, sticky_seconds: str = "") -> None:
    """Work until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ResumeLogExporter()))
    store = CountingStore(open_store(url), worker_log.write)
    plugin = EverlongPlugin(
        store=store,
        agents=[reader()],
        sticky_seconds=float(sticky_seconds) if sticky_seconds else None,
        tracer_provider=provider,
    )
    client = await Client.connect(address, plugins=[plugin])
    async with Worker(client, task_queue=queue):
        worker_log.write("ready")
        await stopped.wait()
    provider.shutdown()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
