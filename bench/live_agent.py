"""Agent of `bench.live`: its replies are the times at which their words were written."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from everlong import Agent, Reply, Tool
from everlong.agents import TakeText
from everlong.models import Message

NAME: Final = "clock"


class ClockModel:
    """Streams as many words as a message asks for, as in `stream 100 50`: 100 words, one each 50 ms.

    Each is the time in microseconds since 1970, so that a listener on this machine knows its age.
    """

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """See `Model`. It takes the same time as a stream."""
        return await self.stream_reply(instructions, messages, tools, lambda _: None)

    async def stream_reply(
        self,
        instructions: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        on_text: TakeText,
    ) -> Reply:
        """See `StreamingModel`."""
        _, count, pause_ms = messages[-1].text.split()
        words = []
        for _ in range(int(count)):
            words.append(f"{time.time_ns() // 1000} ")
            on_text(words[-1])
            await asyncio.sleep(int(pause_ms) / 1000)
        return Reply(text="".join(words))


agent = Agent(name=NAME, model=ClockModel())
