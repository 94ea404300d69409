"""An agent framework that knows nothing of us: OpenAI Agents, with Temporal's own plugin for it.

Its loop sends the whole conversation to each model call. The model is a fake one, in this process,
and tracing is off: nothing leaves the machine.
"""

import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    TResponseInputItem,
    set_tracing_disabled,
)
from agents.items import TResponseStreamEvent
from temporalio import activity, workflow
from temporalio.client import Client, Plugin, WorkflowHandle
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin, testing
from temporalio.openai_agents import workflow as openai_workflow
from temporalio.worker import Replayer, Worker

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from tests.support.fake_stores import CountingStore
from tests.support.scale import scaled

STEPS = scaled(16, 80)
STEPS_WITHOUT = scaled(12, 20)
HISTORY_BYTES_MAX = 1_500_000 * STEPS // 80
RESULT_BYTES = 20_000
ORDERS = ["ours first", "theirs first"]


@activity.defn
async def look_up(page: int) -> str:
    """Return a page of the log."""
    return hashlib.shake_256(f"page {page}".encode()).hexdigest(RESULT_BYTES // 2)


class FakeModel(Model):
    """Looks up one page after another, and at the end says what it has seen of them."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002 (the framework's name)
        *_: Any,
        **__: Any,
    ) -> ModelResponse:
        items: list[Any] = [] if isinstance(input, str) else list(input)
        pages = [item["output"] for item in items if item.get("type") == "function_call_output"]
        responses = testing.ResponseBuilders
        response: ModelResponse
        if len(pages) < self._steps - 1:
            call = f'{{"page": {len(pages)}}}'
            response = responses.tool_call(call, "look_up", call_id=f"call-{len(pages)}")
        else:
            response = responses.output_message(digest(pages))
        return response

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[TResponseStreamEvent]:
        raise NotImplementedError


def digest(pages: list[str]) -> str:
    return hashlib.sha256("".join(pages).encode()).hexdigest()


@workflow.defn
class Reader:
    """As in the framework's documentation: an agent, a tool, `Runner.run`."""

    @workflow.run
    async def run(self, question: str) -> str:
        tool = openai_workflow.activity_as_tool(
            look_up, start_to_close_timeout=timedelta(seconds=30)
        )
        agent = Agent[None](name="reader", instructions="Read all pages.", tools=[tool])
        config = RunConfig(tracing_disabled=True)
        result = await Runner.run(agent, question, max_turns=STEPS + 1, run_config=config)
        return str(result.final_output)


@pytest.fixture(autouse=True)
def no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    set_tracing_disabled(True)


def build_their_plugin(steps: int) -> Plugin:
    plugin: Plugin = OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(start_to_close_timeout=timedelta(seconds=30)),
        model_provider=testing.TestModelProvider(FakeModel(steps)),
    )
    return plugin


def connect_in_order(order: str, store: CountingStore, steps: int) -> list[Any]:
    plugins = [EverlongPlugin(store=store), build_their_plugin(steps)]
    return plugins if order == "ours first" else plugins[::-1]


async def read(client: Client, thread_id: str, steps: int) -> WorkflowHandle[Any, Any]:
    async with Worker(client, task_queue=thread_id, workflows=[Reader], activities=[look_up]):
        handle = await client.start_workflow(
            Reader.run, "What happened?", id=thread_id, task_queue=thread_id
        )
        assert await handle.result() == digest([await look_up(page) for page in range(steps - 1)])
    return handle


async def history_bytes(handle: WorkflowHandle[Any, Any]) -> int:
    description = await handle.describe()
    return description.raw_description.workflow_execution_info.history_size_bytes


# The framework takes most of the time: it validates the whole conversation at each step. So the second
# order is tried with fewer.
@pytest.mark.guarantee(26)
@pytest.mark.parametrize(("order", "steps"), [(ORDERS[0], STEPS), (ORDERS[1], STEPS // 4)])
async def test_long_runs_complete_with_a_small_history_and_replay(
    server: TemporalServer, thread_id: str, order: str, steps: int
) -> None:
    store = CountingStore()
    client = await Client.connect(server.address, plugins=connect_in_order(order, store, steps))
    handle = await read(client, thread_id, steps)
    assert await history_bytes(handle) <= HISTORY_BYTES_MAX
    assert store.puts > 0
    history = await handle.fetch_history()
    # In the other order: a replay does not depend on the order of the plugins in the worker.
    [other] = set(ORDERS) - {order}
    puts = store.puts
    replayer = Replayer(workflows=[Reader], plugins=connect_in_order(other, store, steps))
    await replayer.replay_workflow(history)
    assert store.puts == puts


@pytest.mark.full
async def test_without_the_plugin_fewer_steps_take_more_history(
    server: TemporalServer, thread_id: str
) -> None:
    client = await Client.connect(server.address, plugins=[build_their_plugin(STEPS_WITHOUT)])
    handle = await read(client, thread_id, STEPS_WITHOUT)
    assert await history_bytes(handle) > max(10_000 * STEPS_WITHOUT**2, 2 * HISTORY_BYTES_MAX)
