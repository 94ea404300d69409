"""The agent of a shop. It refunds small amounts itself; a person decides about the others."""

import json
import re
from collections.abc import Sequence

from everlong import Agent, Reply, current_call, tool
from everlong.models import Message, ToolCall
from everlong.testing import ScriptedModel


def is_large(order: str, usd: int) -> bool:
    """Whether a refund needs an approval. The worker calls this with the arguments of each call."""
    return usd > 100


@tool(needs_approval=is_large)
async def refund(order: str, usd: int) -> str:
    """Refund an order."""
    # A payment service takes the key, and refunds once even if a crash makes this run twice.
    return f"{usd} USD for order {order} are refunded ({current_call().idempotency_key})"


@tool(needs_approval=True, deadline_seconds=2)
async def close_account(customer: str) -> str:
    """Close the account of a customer."""
    return f"the account of {customer} is closed"


def script(turn: Sequence[Message]) -> Reply:
    """Call the tool that the message asks for, then repeat its result, or why it did not run."""
    if turn[-1].role != "user":
        return Reply(text=turn[-1].text)
    if found := re.fullmatch(r"Refund (\d+) USD for order (\S+)\.", turn[-1].text):
        name, arguments = "refund", {"order": found[2], "usd": int(found[1])}
    else:
        name, arguments = "close_account", {"customer": "K-3"}
    return Reply(tool_calls=(ToolCall(id="1", tool=name, arguments=json.dumps(arguments)),))


shop = Agent(name="shop", model=ScriptedModel(script), tools=[refund, close_account])
