"""Bytes of a thread: blobs before any sweep, and histories of all runs, compared with its content.

The floor is zstd-3 of all messages as one stream: a store that holds everything once. Each step adds an
assistant message of about 600 bytes and a tool result of 2, 32 or 512 KiB.
"""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from temporalio.client import Client
from temporalio.worker import Worker

from bench import measure
from bench.objects import Place, count_stored
from bench.report import Report
from bench.thread_harness import ThreadHarness
from everlong import Agent, EverlongPlugin, Reply, Tool, ask, tool
from everlong.models import Message, ToolCall
from everlong.testing import workload

BLOBS_MAX: Final = 1.2
HISTORIES_MAX: Final = 0.25
WINDOW: Final = 100
_AGENT: Final = "reader"
_ANSWER_SECONDS_MAX: Final = 900.0


@tool
def read(step: int, query: str, path: str, limit: int) -> str:
    """Return the result of that step."""
    return str(workload.step(step)[1]["content"])


class Reader:
    """Takes the steps that the newest message asks for, one after another."""

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """See `everlong.Model`."""
        newest = max(index for index, each in enumerate(messages) if each.role == "user")
        first, last = map(int, messages[newest].text.split()[1::2])
        done = [each.call_id for each in messages[newest:] if each.role == "tool"]
        step = int(done[-1].split("-")[-1]) + 1 if done else first
        if step > last:
            return Reply(text="done")
        assistant, _ = workload.step(step)
        [call] = assistant["tool_calls"]
        arguments = json.dumps({"step": step, **json.loads(call["function"]["arguments"])})
        return Reply(
            text=assistant["content"],
            tool_calls=(ToolCall(id=f"{call['id']}-{step}", tool="read", arguments=arguments),),
        )


async def measure_stored(address: str, folder: Path, steps: int, *, judged: bool) -> Report:
    """Take a thread through so many steps, and measure what is left of them."""
    report = Report(f"Bytes of a thread of {steps:,} steps, default policy, no sweep")
    place = Place((folder / f"stored-{uuid.uuid4().hex[:8]}").as_uri())
    agent = Agent(name=_AGENT, model=Reader(), tools=[read])
    plugin = EverlongPlugin(store=place.url, agents=[agent])
    client = await Client.connect(address, plugins=[plugin])
    queue = f"stored-{uuid.uuid4().hex[:8]}"
    thread_id = f"stored-{steps}"
    async with Worker(client, task_queue=queue):
        for first in range(0, steps, WINDOW):
            await ask(
                client,
                thread_id,
                f"read {first} to {min(first + WINDOW, steps) - 1}",
                agent=_AGENT,
                task_queue=queue,
                seconds_max=_ANSWER_SECONDS_MAX,
            )
    runs = await ThreadHarness(client, address, place.url, folder).runs(thread_id)
    messages = [message for step in range(steps) for message in workload.step(step)]
    floor_bytes = len(measure.compress(json.dumps(messages).encode()))
    objects, blob_bytes = await count_stored(place)
    history_bytes = sum(run.history_bytes for run in runs)
    report.add("content", floor_bytes, "bytes after zstd-3")
    report.add("blobs", blob_bytes, "bytes")
    report.add(
        "blobs, over the content",
        blob_bytes / floor_bytes,
        "times",
        most=BLOBS_MAX if judged else None,
    )
    report.add("histories of all runs", history_bytes, "bytes")
    report.add(
        "histories, over the content",
        history_bytes / floor_bytes,
        "times",
        most=HISTORIES_MAX if judged else None,
    )
    report.add("runs", len(runs))
    report.add("objects a step", objects / steps)
    report.add("history a step", history_bytes / steps, "bytes")
    return report
