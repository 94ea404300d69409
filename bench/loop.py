"""List-passing loops: each step passes the whole message list to an activity."""

from datetime import timedelta
from typing import Any, Final

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from bench import worker_log
    from everlong.testing import workload

RESULT_BYTES: Final = 20 * 1024
LIST_LOOP: Final = "ListLoop"
AGENT_LOOP: Final = "AgentLoop"
RUN_UNTIL: Final = "run_until"

Message = dict[str, Any]


@activity.defn
def call_tool(messages: list[str]) -> str:
    """Return a result that is unique to the step."""
    return workload.passage(len(messages), RESULT_BYTES)


@activity.defn
def call_model(messages: list[Message]) -> Message:
    """Return the reply of the next step of the workload."""
    return workload.step(len(messages) // 2)[0]


@activity.defn
def run_tool(index: int) -> Message:
    """Return the tool's result of that step of the workload."""
    return workload.step(index)[1]


@workflow.defn(name=LIST_LOOP)
class ListLoop:
    """Takes steps up to the last one that was signalled, until it is terminated."""

    def __init__(self) -> None:
        self._until = 0

    @workflow.run
    async def run(self) -> None:
        """Keep a list, and pass it on."""
        messages: list[str] = []
        while True:
            await workflow.wait_condition(lambda: len(messages) < self._until)
            _log_once("live", len(messages) + 1)
            result = await workflow.execute_activity(
                call_tool, messages, start_to_close_timeout=timedelta(seconds=60)
            )
            messages.append(result)
            _log_once("done", len(messages))

    @workflow.signal(name=RUN_UNTIL)
    def run_until(self, step: int) -> None:
        """Continue up to `step`, and wait there."""
        self._until = step


@workflow.defn(name=AGENT_LOOP)
class AgentLoop:
    """Takes steps of the agent workload: a model call with the whole list, then a tool call."""

    def __init__(self) -> None:
        self._until = 0

    @workflow.run
    async def run(self) -> None:
        """Keep a list, pass it to the model, and append the reply and the tool's result."""
        messages: list[Message] = [{"role": "user", "content": "Find out why it is slow."}]
        while True:
            await workflow.wait_condition(lambda: len(messages) // 2 < self._until)
            step = len(messages) // 2
            _log_once("live", step + 1)
            reply = await workflow.execute_activity(
                call_model, messages, start_to_close_timeout=timedelta(seconds=120)
            )
            result = await workflow.execute_activity(
                run_tool, step, start_to_close_timeout=timedelta(seconds=120)
            )
            messages.extend([reply, result])
            _log_once("done", step + 1)

    @workflow.signal(name=RUN_UNTIL)
    def run_until(self, step: int) -> None:
        """Continue up to `step`, and wait there."""
        self._until = step


def _log_once(what: str, step: int) -> None:
    """Log the event once. Workflow code must not use the clock; here it has no influence."""
    if not workflow.unsafe.is_replaying():
        with workflow.unsafe.sandbox_unrestricted():
            worker_log.write(what, step)
