"""Loop of the OpenAI Agents framework, as in its documentation, with a fake model."""

import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

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
from temporalio.client import Plugin
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin, testing
from temporalio.openai_agents import workflow as openai_workflow

from tests.support.scale import scaled

STEPS = scaled(16, 80)
RESULT_BYTES = 20_000


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


def build_their_plugin(steps: int) -> Plugin:
    """Return Temporal's plugin for the framework, with a fake model and without tracing."""
    set_tracing_disabled(True)
    plugin: Plugin = OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(start_to_close_timeout=timedelta(seconds=30)),
        model_provider=testing.TestModelProvider(FakeModel(steps)),
    )
    return plugin
