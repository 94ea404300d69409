"""Running one tool call, within bounds."""

import asyncio

from pydantic import ValidationError
from pydantic_core import to_json

from everlong import limits
from everlong.activities.builtins import BUILTINS, builtin
from everlong.activities.heartbeat import Heartbeat
from everlong.activities.replies import complaint, lacks_approval
from everlong.activities.user_code import ToolThreads, bounded
from everlong.agents import Agent
from everlong.agents.tools import ResultTooLarge, check_result_size
from everlong.models import Outcome, ToolCall, ToolRun


async def run_call(
    agent: Agent, run: ToolRun, call: ToolCall, beat: Heartbeat, threads: ToolThreads
) -> tuple[Outcome, str, int]:
    """Run a tool. What the model got wrong is returned to it; what the tool raises is retried."""
    own = builtin(call.tool)
    tool = own or agent.tool(call.tool)
    if tool is None:
        names = [each.name for each in (*agent.callable_tools, *BUILTINS)]
        text = f"error: there is no tool {call.tool!r}. The tools are {names}."
        return "refused", text, limits.SHOWN_BYTES_MAX
    try:
        arguments = tool.parse(call.arguments)
    except ValidationError as error:
        return "refused", f"error: {complaint(error)}", tool.max_result_bytes
    if own is not None:
        try:
            # They read the journal and do nothing else: what is missing there holds the thread.
            async with asyncio.timeout(limits.CALL_SECONDS_MAX):
                text = await beat.retry_or_hold(lambda: threads.call(own, arguments))
        except ValueError as error:  # What a built-in tool says is wrong with its arguments.
            return "refused", f"error: {error}", own.max_result_bytes
        except TimeoutError:
            text = f"error: it took over {limits.CALL_SECONDS_MAX:.0f} s. Ask for less."
            return "failed", text, own.max_result_bytes
        return "ok", text, own.max_result_bytes
    if await lacks_approval(tool, run, call, threads):
        text = (
            f"error: a person has to approve {tool.name!r}, and was not asked, since the worker "
            "that took the call did not know. Nothing was run; call it again."
        )
        return "failed", text, tool.max_result_bytes
    seconds_max = tool.call_options.timeout_seconds or limits.CALL_SECONDS_MAX
    async with bounded(f"tool {tool.name!r}", seconds_max):
        try:
            text = await threads.call(tool, arguments)
            # As JSON it may be larger: that is what the journal stores.
            check_result_size(len(to_json(text)))
        except ResultTooLarge as error:
            return "failed", f"error: {error}", tool.max_result_bytes
    return "ok", text, tool.max_result_bytes
