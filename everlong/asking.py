"""`everlong.ask`: a question to a thread and its answer, in one call."""

from temporalio.client import Client

from everlong.config import TASK_QUEUE_DEFAULT
from everlong.errors import PluginNotOnClient
from everlong.plugin import EverlongPlugin
from everlong.storage.packstore import PackStore


async def ask(
    client: Client,
    thread_id: str,
    text: str,
    *,
    agent: str | None = None,
    task_queue: str = TASK_QUEUE_DEFAULT,
    seconds_max: float | None = None,
) -> str:
    """Send a message to a thread and return the answer. The client needs the plugin.

    It waits across rolls, crashed workers and approvals, for as long as it takes or `seconds_max`,
    by long polls: it asks no worker and adds no event meanwhile. What the thread waits for, if that is
    no work of its own, is logged as a warning within seconds. With an agent, the thread is started on
    the task queue if it does not exist. Raises `TurnFailed`, `ThreadPaused` or `NotAnswered` if there
    is no answer.
    """
    # Here: a worker that asks nobody need not wait for it.
    from everlong.admin import service

    return await service.ask(
        client,
        packs_of(client),
        thread_id,
        text,
        task_queue=task_queue,
        agent=agent,
        seconds_max=seconds_max,
    )


def packs_of(client: Client) -> PackStore:
    """Return the store of the plugin that a client was made with."""
    for plugin in client.config()["plugins"]:
        if isinstance(plugin, EverlongPlugin):
            plugin.check_client(client)
            return plugin.packs
    raise PluginNotOnClient(
        "this client has no EverlongPlugin, so nobody knows where the answer is stored. Give it one: "
        "Client.connect(..., plugins=[EverlongPlugin(store=...)])"
    )
