"""Let a second worker resume a thread, and print the spans of the resume."""

import uuid

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig
from temporalio.worker import Worker

from everlong import EverlongPlugin, thread
from examples.environment import run
from examples.observability.telemetry import open_providers
from examples.quickstart.agent import ops

TASK_QUEUE = "observability"
RESUME = "everlong.resume"


async def main(config: ClientConnectConfig, store: str) -> None:
    tracer_provider, meter_provider = open_providers()
    spans = InMemorySpanExporter()  # To print them here too.
    tracer_provider.add_span_processor(SimpleSpanProcessor(spans))
    thread_id = f"ops-{uuid.uuid4().hex[:6]}"

    async def ask(text: str, *, is_last: bool = False) -> None:
        """Ask with a worker that knows nothing of the thread yet, as after a deployment."""
        plugin = EverlongPlugin(
            store=store,
            agents=[ops],
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
        )
        client = await Client.connect(**config, plugins=[plugin])
        async with Worker(client, task_queue=TASK_QUEUE):
            handle = thread(client, thread_id, task_queue=TASK_QUEUE)
            await handle.ask(text, agent="ops")
            if is_last:
                await handle.stop(reason="its worker ends")
                await handle.wait_until(lambda progress: bool(progress.ended))

    await ask("Why is it slow?")
    await ask("And now?", is_last=True)
    print(f"thread {thread_id}")
    resumes = [each for each in spans.get_finished_spans() if each.name.startswith(RESUME)]
    for span in sorted(resumes, key=lambda each: each.name):
        print(f"{span.name:26}{((span.end_time or 0) - (span.start_time or 0)) / 1e6:>8.1f} ms")
        if span.name == RESUME:
            for name in ("cause", "events", "history_bytes", "blobs", "bytes"):
                print(f"  {name:18}", (span.attributes or {})[f"{RESUME}.{name}"])
    tracer_provider.shutdown()  # Sends the last spans and metrics.
    meter_provider.shutdown()


if __name__ == "__main__":
    run(main)
