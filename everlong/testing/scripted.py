"""A model that follows a script. It needs no key and no network, and is the same on every run."""

from collections.abc import Callable, Sequence

from everlong.agents import Reply, Tool
from everlong.models import Message


class ScriptedModel:
    """Replies with `script(turn)`, where `turn` is the conversation since the last user message.

    With `whole=True` it is all of the context, as a provider would get it. The model keeps no state
    of its own: what it says next depends on the conversation alone, so a step that is tried again
    after a crash gets the same reply. Tokens and costs are those that the script puts in its `Reply`.
    """

    def __init__(
        self, script: Callable[[Sequence[Message]], Reply], *, whole: bool = False
    ) -> None:
        self._script = script
        self._whole = whole

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """See `Model`."""
        users = [number for number, message in enumerate(messages) if message.role == "user"]
        # Compaction may have left no user message: then the turn is all that there is.
        return self._script(messages if self._whole or not users else messages[users[-1] :])
