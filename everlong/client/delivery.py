"""Delivery of messages to a thread. A long message is stored first, and sent as a ref."""

import dataclasses
import time
import uuid
from typing import Final

from pydantic_core import to_json
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowUpdateHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from everlong import limits
from everlong.client.diagnosis import Report, Watch
from everlong.client.errors import argument, translate_errors
from everlong.client.search_attributes import has_attributes
from everlong.client.status import journal_of
from everlong.client.updates import Start, start_update, update
from everlong.errors import MessageRefused, ThreadNotFound
from everlong.models import (
    AGENT_WORKFLOW,
    SEND_UPDATE,
    Kind,
    Message,
    SendMessage,
    ThreadStart,
    TurnEnd,
    make_printable,
)
from everlong.models.search_attributes import build_start_attributes
from everlong.models.thread_ids import check_id, check_new_id, is_new_id
from everlong.storage.history import message_entry
from everlong.storage.pack_store import PackStore

# Half of what one message may take of the state, so that a few short ones never fill the inbox.
_INLINE_BYTES_MAX: Final = limits.MESSAGE_BYTES_MAX // 2


async def send(
    client: Client,
    thread_id: str,
    text: str,
    *,
    task_queue: str,
    agent: str | None = None,
    packs: PackStore | None = None,
    message_id: str = "",
    by: str = "",
    seconds_max: float | None = None,
    on_wait: Report | None = None,
) -> int:
    """Send a message and return its number. With an agent, the thread is started if need be.

    A text over 8 KiB needs `packs`. What was sent with a `message_id` can be sent again with it, say
    after a time-out: it is one message. `by` is who sends it, for the journal. `on_wait` is called
    with what the thread waits for, if no worker takes the message within seconds. Without `seconds_max`
    it is given up after 20 s if there is no worker, up to 2.5 minutes after the last worker has died
    (the server lists it for a while), and after 5 minutes if workers are busy.
    """
    await check_startable(client, thread_id, agent)
    message = await store_message(client, packs, thread_id, text, message_id)
    message = dataclasses.replace(message, by=make_printable(by, limits.CALL_NAME_CHARS_MAX))
    async with Watch(client, thread_id, on_wait) as watch:
        return await deliver(
            client,
            thread_id,
            message,
            task_queue=task_queue,
            agent=agent,
            seconds_max=seconds_max,
            watch=watch,
        )


async def store_message(
    client: Client, packs: PackStore | None, thread_id: str, text: str, message_id: str = ""
) -> SendMessage:
    """Return a message to send. A long text is stored first, and the message holds its ref."""
    # An id in any case: the SDK may send an update twice that meets a roll.
    message = argument(
        MessageRefused, lambda: SendMessage(id=message_id or uuid.uuid4().hex, text="")
    )
    text = text.encode(errors="replace").decode()  # Lone surrogates cannot be stored.
    if not text.strip():
        raise MessageRefused("the message is empty; send some words")
    size_bytes = len(to_json(text))
    if size_bytes > limits.TEXT_BYTES_MAX:
        raise MessageRefused(
            f"the message has {size_bytes} bytes as JSON; {limits.TEXT_BYTES_MAX} is the most. Put it "
            "where a tool can read it, and send its path or link."
        )
    if size_bytes <= _INLINE_BYTES_MAX:
        return dataclasses.replace(message, text=text)
    if packs is None:
        if size_bytes <= limits.MESSAGE_BYTES_MAX:
            return dataclasses.replace(message, text=text)
        raise MessageRefused(
            f"the message has {size_bytes} bytes as JSON; {limits.MESSAGE_BYTES_MAX} is the most to "
            "send without a store. Give `packs`, the store of the workers, to send a longer one."
        )
    entry, stored_bytes = await message_entry(
        journal_of(client, packs, thread_id),
        Kind.MESSAGE,
        Message(role="user", text=text),
        time.time_ns() // 1_000_000,
        limits.SHOWN_BYTES_MAX,
    )
    return dataclasses.replace(
        message, ref=entry.ref, original=entry.original, stored_bytes=stored_bytes
    )


async def deliver(
    client: Client,
    thread_id: str,
    message: SendMessage,
    *,
    task_queue: str,
    agent: str | None,
    seconds_max: float | None = None,
    watch: Watch | None = None,
    update_id: str = "",
) -> int:
    """Queue a message and return its number, once it is durable.

    The update has the message's id, unless `update_id` names another: the server takes two updates with
    one id for the same request, and the thread takes two messages with one id for the same message.
    """
    return await update(
        client,
        thread_id,
        SEND_UPDATE,
        dataclasses.replace(message, agent=agent or ""),
        int,
        update_id=update_id or message.id,
        start=await _start(client, thread_id, task_queue, agent),
        seconds_max=seconds_max,
        watch=watch,
    )


async def deliver_and_wait(
    client: Client,
    thread_id: str,
    message: SendMessage,
    *,
    task_queue: str,
    agent: str | None,
    seconds_max: float | None = None,
    watch: Watch | None = None,
) -> WorkflowUpdateHandle[TurnEnd]:
    """Send a message by an update that completes with its turn; return once the thread has accepted it.

    The update completes earlier if the caller should look at the thread: see `AgentWorkflow.send`.
    """
    return await start_update(
        client,
        thread_id,
        SEND_UPDATE,
        dataclasses.replace(message, agent=agent or "", until_answered=True),
        TurnEnd,
        update_id=message.id,
        start=await _start(client, thread_id, task_queue, agent),
        seconds_max=seconds_max,
        watch=watch,
    )


async def check_startable(client: Client, thread_id: str, agent: str | None) -> bool:
    """Whether a message may start the thread; raise if it may not and the thread does not exist.

    A thread that another program has started under any id is sent messages all the same.
    """
    check_id(thread_id)
    if agent is None:
        return False
    if is_new_id(thread_id):
        return True
    try:
        with translate_errors(thread_id):
            await client.get_workflow_handle(thread_id).describe()
    except ThreadNotFound:
        check_new_id(thread_id)
    return False


async def _start(
    client: Client, thread_id: str, task_queue: str, agent: str | None
) -> Start | None:
    """Return what starts a thread, if it is not there; None if it has to be there."""
    if agent is None or not await check_startable(client, thread_id, agent):
        return None
    attributes = build_start_attributes(agent) if await has_attributes(client) else None
    return lambda: WithStartWorkflowOperation(
        AGENT_WORKFLOW,
        ThreadStart(agent=agent),
        id=thread_id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        # An id is never reused: a second thread under it would share the first one's place in the store.
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        search_attributes=attributes,
    )
