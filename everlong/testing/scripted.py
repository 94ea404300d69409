"""A model that follows a script. It needs no key and no network, and is the same on every run."""

from collections.abc import Callable, Sequence

from everlong.agents import Reply, Tool
from everlong.models import Message


class ScriptedModel:
    """Replies with `script(turn)`, where `turn` is the conversation since the last user message.

    It keeps no state of its own: what it says next depends on the conversation alone, so a step that
    is tried again after a crash gets the same reply.
    """

    def __init__(self, script: Callable[[Sequence[Message]], Reply]) -> None:
        self._script = script

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """See `Model`."""
        last_user = max(i for i, message in enumerate(messages) if message.role == "user")
        return self._script(messages[last_user:])
