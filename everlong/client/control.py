"""Control of a thread: decisions, changes of its policy, pause, unpause, compact, stop."""

from collections.abc import Mapping
from typing import Any

from temporalio.client import Client

from everlong.client.errors import argument, translate_errors
from everlong.client.updates import update
from everlong.errors import ControlRefused, DecisionRefused
from everlong.models import (
    COMPACT_SIGNAL,
    CONFIGURE_UPDATE,
    DECIDE_UPDATE,
    NOTE_SIGNAL,
    PAUSE_SIGNAL,
    STOP_SIGNAL,
    UNPAUSE_SIGNAL,
    Configure,
    Control,
    ControlNote,
    Decide,
)


async def decide(
    client: Client,
    thread_id: str,
    approval_id: str,
    approve: bool,
    by: str,
    reason: str = "",
) -> None:
    """Approve or deny a tool call that waits for it. `pending` lists them with their ids."""
    decision = argument(
        DecisionRefused,
        lambda: Decide(id=approval_id, approve=approve, by=by, reason=reason),
    )
    await update(client, thread_id, DECIDE_UPDATE, decision, type(None), refused=DecisionRefused)


async def configure(
    client: Client, thread_id: str, changes: Mapping[str, Any], by: str = "", reason: str = ""
) -> None:
    """Change fields of a live thread's policy, as in `{"steps_max": 500}`."""
    change = argument(
        ControlRefused, lambda: Configure(changes=dict(changes), by=by, reason=reason)
    )
    await update(client, thread_id, CONFIGURE_UPDATE, change, type(None), refused=ControlRefused)


async def pause(client: Client, thread_id: str, by: str = "", reason: str = "") -> None:
    """Have a thread take no more steps. Work under way ends; messages are still queued."""
    await _signal(client, thread_id, PAUSE_SIGNAL, Control(by=by, reason=reason))


async def unpause(client: Client, thread_id: str, by: str = "", reason: str = "") -> None:
    """Let a thread go on. A limit that is still reached pauses it again: raise it first."""
    await _signal(client, thread_id, UNPAUSE_SIGNAL, Control(by=by, reason=reason))


async def compact(client: Client, thread_id: str, by: str = "", reason: str = "") -> None:
    """Have a thread compact its context at the next safe point."""
    await _signal(client, thread_id, COMPACT_SIGNAL, Control(by=by, reason=reason))


async def stop(
    client: Client, thread_id: str, by: str = "", reason: str = "", *, archive: bool = False
) -> None:
    """Ask a thread to end at its next safe point: as `stopped`, or as `archived`."""
    control = Control(by=by, reason=reason, archive=archive)
    await _signal(client, thread_id, STOP_SIGNAL, control)


async def note(client: Client, thread_id: str, action: str, by: str = "", reason: str = "") -> None:
    """Write an action to a thread's journal. Changes nothing else."""
    said = ControlNote(action=action, by=by, reason=reason)
    await _signal(client, thread_id, NOTE_SIGNAL, said)


async def _signal(client: Client, thread_id: str, name: str, said: Control | ControlNote) -> None:
    with translate_errors(thread_id, ControlRefused):
        await client.get_workflow_handle(thread_id).signal(name, said)
