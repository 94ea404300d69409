"""Everlong: long-running AI agents on Temporal whose state stays small."""

from typing import TYPE_CHECKING

from temporalio.client import Client

from everlong.agents import Agent, CallInfo, Model, Reply, Tool, current_call, tool
from everlong.config import TASK_QUEUE_DEFAULT
from everlong.errors import EverlongError
from everlong.models import ThreadStart
from everlong.plugin import EverlongPlugin
from everlong.policy import Policy
from everlong.storage import BlobStore, open_store

if TYPE_CHECKING:
    from everlong.client.thread import ThreadHandle
    from everlong.client.threads import Threads
    from everlong.storage.pack_store import PackStore

__version__ = "0.1.0.dev0"

__all__ = [
    "Agent",
    "BlobStore",
    "CallInfo",
    "EverlongError",
    "EverlongPlugin",
    "Model",
    "Policy",
    "Reply",
    "ThreadStart",
    "Tool",
    "__version__",
    "ask",
    "current_call",
    "open_store",
    "thread",
    "threads",
    "tool",
]


# These import the client at the first call: a worker that asks no thread does not load it.


def thread(
    client: Client,
    thread_id: str,
    *,
    packs: "PackStore | None" = None,
    task_queue: str = TASK_QUEUE_DEFAULT,
) -> "ThreadHandle":
    """Return the handle of a thread, which need not exist yet. It makes no request.

    The client needs the plugin, unless `packs` is the store of the thread. A thread that does not exist
    is started on `task_queue`.
    """
    from everlong.client.thread import ThreadHandle

    return ThreadHandle(client, thread_id, packs=packs, task_queue=task_queue)


def threads(client: Client) -> "Threads":
    """Return the threads of the client's namespace, to list, count and find."""
    from everlong.client.threads import Threads

    return Threads(client)


async def ask(
    client: Client,
    thread_id: str,
    text: str,
    *,
    agent: str | None = None,
    task_queue: str = TASK_QUEUE_DEFAULT,
    seconds_max: float | None = None,
) -> str:
    """Send a message to a thread and return the answer: `thread(client, thread_id).ask(text)`."""
    handle = thread(client, thread_id, task_queue=task_queue)
    return await handle.ask(text, agent=agent, seconds_max=seconds_max)
