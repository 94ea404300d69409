"""Prompts of `everlong chat`, by prompt_toolkit. The only file that imports it."""

from collections.abc import Sequence
from typing import Any, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings

from everlong.cli.chat import Interrupted
from everlong.console import sanitise

_PROMPT: Final = "> "


class PromptTerminal:
    """Reads messages and answers from the terminal. See `Terminal`.

    Messages are kept in memory only: a file of them would hold contents outside the store.
    """

    def __init__(self) -> None:
        self._history = InMemoryHistory()
        self._messages: PromptSession[str] = PromptSession(
            history=self._history,
            multiline=True,
            key_bindings=_build_bindings(),
            prompt_continuation=". ",
            interrupt_exception=Interrupted,
        )
        self._lines: PromptSession[str] = PromptSession(interrupt_exception=Interrupted)

    def recall(self, messages: Sequence[str]) -> None:
        """Let the arrow keys bring back earlier messages, the last one first."""
        for text in messages:
            self._history.append_string(sanitise(text))

    async def read_message(self) -> str | None:
        """See `Terminal`."""
        return await _read(self._messages, _PROMPT)

    async def read_line(self, question: str) -> str | None:
        """See `Terminal`."""
        return await _read(self._lines, question)


async def _read(session: PromptSession[str], prompt: str) -> str | None:
    try:
        # The caller handles signals; at a prompt, Ctrl-C is a key.
        return await session.prompt_async(prompt, handle_sigint=False)
    except EOFError:
        return None


def _build_bindings() -> KeyBindings:
    """Return the keys of the message prompt: Enter sends, and Ctrl-C empties a line before it leaves."""
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    @bindings.add("c-j")
    def break_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    def leave(event: Any) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=Interrupted)

    return bindings
