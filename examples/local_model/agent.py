"""An agent on a local model. OPENAI_BASE_URL names the server, LOCAL_MODEL the model there."""

import os
import shutil

from everlong import Agent, Policy, tool

MODEL = os.environ.get("LOCAL_MODEL", "qwen3")


@tool
def disk_usage(path: str) -> str:
    """Return how much of a disk is used.

    Args:
        path: A directory on it, as in "/".

    """
    usage = shutil.disk_usage(path)
    return f"{usage.used / usage.total:.0%} of {usage.total / 1e9:.0f} GB are used"


# `openai-chat:` is the chat completions API, which local servers speak; `openai:` is the Responses API.
# Local models have small windows: this one's context is compacted from 6,000 tokens on.
local = Agent(
    name="local",
    model=f"openai-chat:{MODEL}",
    instructions="You look after a computer. Answer in one sentence.",
    tools=[disk_usage],
    policy=Policy(compact_at_tokens=6_000, compact_to_bytes=8 * 1024),
    model_settings={"temperature": 0.0},
)
