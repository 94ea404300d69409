"""A model that follows a script: no API key, no network, the same replies on every run."""

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from pydantic_core import to_json

from everlong.agents import Reply, TakeText, Tool
from everlong.errors import ConfigError
from everlong.models import Message, ToolCall

Answer: TypeAlias = str | ToolCall | Sequence[ToolCall] | Reply
"""A reply in a list: a text that ends the turn, one tool call, several, or a whole `Reply`."""
Script: TypeAlias = Callable[[Sequence[Message]], Reply] | Sequence[Answer]
"""A function of the conversation, or a list of replies in order."""
_WORD: Final = re.compile(r"\s*\S+\s*")


class ScriptedModel:
    """Replies as its script says. Tokens and costs are those of the script's `Reply`.

    A function is called with the conversation since the last user message; with `whole=True`, with the
    whole context, as a provider would get it. Its reply depends on the conversation alone, so a step
    that is retried after a crash gets the same reply.

    A list has the replies in order: `[call("read_log", service="api"), "The log is empty."]`. A request
    that is repeated gets the same reply again. The process counts, so a list is for tests; a request
    beyond its end raises `ConfigError`.

    A reply takes `seconds`; as a stream, its words come evenly over that time.
    """

    def __init__(self, script: Script, *, whole: bool = False, seconds: float = 0.0) -> None:
        self._script = script
        self._whole = whole
        self._seconds = seconds
        self._numbers: dict[bytes, int] = {}
        """Number of the reply to each request, by the request's digest."""

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """See `Model`."""
        reply = self._find_reply(messages)
        await asyncio.sleep(self._seconds)
        return reply

    async def stream_reply(
        self,
        instructions: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        on_text: TakeText,
    ) -> Reply:
        """See `StreamingModel`."""
        reply = self._find_reply(messages)
        words = _WORD.findall(reply.text or "") or [""]
        for word in words:
            on_text(word)
            await asyncio.sleep(self._seconds / len(words))
        return reply

    def _find_reply(self, messages: Sequence[Message]) -> Reply:
        if not callable(self._script):
            return self._find_next(self._script, messages)
        users = [number for number, message in enumerate(messages) if message.role == "user"]
        # Compaction may have left no user message: then the turn is the whole context.
        return self._script(messages if self._whole or not users else messages[users[-1] :])

    def _find_next(self, script: Sequence[Answer], messages: Sequence[Message]) -> Reply:
        request = hashlib.blake2b(to_json(list(messages)), digest_size=16).digest()
        number = self._numbers.setdefault(request, len(self._numbers))
        if number >= len(script):
            raise ConfigError(
                f"the model was asked for reply {number + 1} of a script of {len(script)}, after a "
                f"message of role {messages[-1].role!r}. Add a reply to the script."
            )
        return _build_reply(script[number])


def _build_reply(answer: Answer) -> Reply:
    if isinstance(answer, Reply):
        return answer
    if isinstance(answer, str):
        return Reply(text=answer)
    if isinstance(answer, ToolCall):
        return Reply(tool_calls=(answer,))
    return Reply(tool_calls=tuple(answer))


def call(tool: Tool | str, /, **arguments: Any) -> ToolCall:
    """Return a call of a tool, for a script: `call("restart", service="api")`, or `call(restart, ...)`.

    Its id is derived from the tool and the arguments, so two equal calls in one reply need a `ToolCall`
    with an id of your own.
    """
    name = tool if isinstance(tool, str) else tool.name
    text = json.dumps(arguments)
    digest = hashlib.blake2b(f"{name}\0{text}".encode(), digest_size=4).hexdigest()
    return ToolCall(id=f"call-{digest}", tool=name, arguments=text)
