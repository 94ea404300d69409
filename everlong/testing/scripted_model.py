"""A model that follows a script: no API key, no network, the same replies on every run."""

from collections.abc import Callable, Sequence

from everlong.agents import Reply, Tool
from everlong.models import Message


class ScriptedModel:
    """Replies with `script(turn)`, where `turn` is the conversation since the last user message.

    With `whole=True`, `turn` is the whole context, as a provider would get it. The model is stateless:
    its reply depends on the conversation alone, so a step that is retried after a crash gets the same
    reply. Tokens and costs are those of the script's `Reply`.
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
        # Compaction may have left no user message: then the turn is the whole context.
        return self._script(messages if self._whole or not users else messages[users[-1] :])
