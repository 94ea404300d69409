"""Worker process with a cache of one thread that exports telemetry as its environment says.

Arguments: `address queue store`. Its agent reads as many pages as a message asks for, or deploys once
approved.
"""

import asyncio
import os
import sys
from collections.abc import Sequence

from temporalio.worker import Worker

from everlong import Agent, Policy, Reply, limits, tool
from everlong.config import load_settings
from everlong.connection import connect, open_configured_providers
from everlong.models import Message
from everlong.testing import ScriptedModel, workload
from tests.support.scripted_agents import call, calls_done

READY = "seen worker ready"


@tool
def read_page(page: int) -> str:
    """Read a page."""
    # Too large for a journal entry, so each result is its own object.
    return workload.passage(page, 2 * limits.STEP_RESULTS_BYTES_MAX)


@tool(needs_approval=True)
def deploy() -> str:
    """Deploy."""
    return "deployed"


def _script(turn: Sequence[Message]) -> Reply:
    wanted, _, pages = turn[0].text.partition(" ")
    done = calls_done(turn)
    if wanted == "read" and done < int(pages):
        return _reply(tool_calls=(call(done, "read_page", page=done),))
    if wanted == "deploy" and not done:
        return _reply(tool_calls=(call(0, "deploy"),))
    return _reply(text="done")


def _reply(**fields: object) -> Reply:
    return Reply(tokens=120, input_tokens=100, cost_usd=0.25, **fields)  # type: ignore[arg-type]


agent = Agent(
    name="seen",
    model=ScriptedModel(_script, whole=False),
    tools=[read_page, deploy],
    policy=Policy(run_events_max=50),
)


async def main(address: str, queue: str, store: str) -> None:
    environ = {**os.environ, "TEMPORAL_ADDRESS": address, "EVERLONG_STORE": store}
    settings = load_settings(environ)
    providers = open_configured_providers(settings, "everlong-worker")
    client = await connect(
        settings,
        agents=[agent],
        tracer_provider=providers.tracer_provider,
        meter_provider=providers.meter_provider,
    )
    async with Worker(client, task_queue=queue, max_cached_workflows=1):
        print(READY, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
