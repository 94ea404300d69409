"""Entry points of the package: `everlong.thread`, `everlong.threads` and `everlong.ask`.

They import the rest at the first call, so that `import everlong` and a worker that asks no thread do
not pay for it.
"""

from typing import TYPE_CHECKING

from temporalio.client import Client

from everlong.config import TASK_QUEUE_DEFAULT

if TYPE_CHECKING:
    from everlong.client.thread import ThreadHandle
    from everlong.client.threads import Threads
    from everlong.storage.pack_store import PackStore


def thread(
    client: Client,
    thread_id: str,
    *,
    packs: "PackStore | None" = None,
    task_queue: str = TASK_QUEUE_DEFAULT,
) -> "ThreadHandle":
    """Return the handle of a thread, which need not exist yet. It makes no request.

    The client needs the plugin, or `packs` the store of the thread. `task_queue` is where the thread is
    started if it does not exist.
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
    """Send a message to a thread and return the answer: `thread(client, thread_id).ask(text)`.

    It waits across rolls, crashed workers and approvals, for as long as it takes or `seconds_max`, by
    long polls, which ask no worker and add no event. If the thread waits for something other than its
    own work, the reason is logged as a warning within seconds. With an agent, the thread is started on
    the task queue if it does not exist. Raises `TurnFailed`, `ThreadPaused` or `NotAnswered` if there
    is no answer.
    """
    handle = thread(client, thread_id, task_queue=task_queue)
    return await handle.ask(text, agent=agent, seconds_max=seconds_max)
