"""Grants of threads and agents: lists them, and revokes them.

A grant is given with a decision on a call: see `ThreadHandle.decide`.
"""

import contextlib

from temporalio.client import Client

from everlong.client.status import list_thread_grants, read_status
from everlong.client.updates import send_signal
from everlong.errors import DecisionRefused, ThreadError
from everlong.models import NOTE_SIGNAL, ControlNote, Grant
from everlong.models.grants import is_thread_grant
from everlong.storage.agent_grants import AgentGrants
from everlong.storage.pack_store import PackStore


async def list_agent_grants(
    client: Client, packs: PackStore, now_ms: int, agent: str = ""
) -> list[Grant]:
    """Return the grants of an agent, or of all agents of the namespace, that have not expired."""
    found = await AgentGrants(packs, client.namespace).list(agent)
    return [each for each in found if each.is_active(now_ms)]


async def list_grants(client: Client, packs: PackStore, thread_id: str, now_ms: int) -> list[Grant]:
    """Return the grants that allow calls of a thread: its own, and those of its agent."""
    agent = (await read_status(client, thread_id)).agent
    own = await list_thread_grants(client, thread_id)
    return [*own, *await list_agent_grants(client, packs, now_ms, agent)]


async def revoke_agent_grant(
    client: Client, packs: PackStore, grant_id: str, *, by: str = "", reason: str = ""
) -> Grant | None:
    """Delete a grant of an agent, and return it if it could be read.

    It allows no call that has not begun to run. The journal of the thread in which it was given records
    that, if the thread still runs.
    """
    if is_thread_grant(grant_id):
        raise DecisionRefused(f"grant {grant_id!r} is one of a thread; name the thread")
    was_there, grant = await AgentGrants(packs, client.namespace).revoke(grant_id)
    if not was_there:
        raise DecisionRefused(
            f"no agent has a grant {grant_id!r}. See those that there are: everlong grants"
        )
    if grant is not None:
        note = ControlNote(action=f"revoke_grant {grant.id}", by=by, reason=reason)
        with contextlib.suppress(ThreadError):
            await send_signal(client, grant.thread_id, NOTE_SIGNAL, note)
    return grant
