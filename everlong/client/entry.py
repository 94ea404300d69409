"""`everlong.ask`: a question to a thread and its answer, in one call."""

from temporalio.client import Client

from everlong.client.packs import packs_of
from everlong.config import TASK_QUEUE_DEFAULT


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
    # Imported here: a worker that asks no thread does not pay for it.
    from everlong.client import wait

    return await wait.ask(
        client,
        packs_of(client),
        thread_id,
        text,
        task_queue=task_queue,
        agent=agent,
        seconds_max=seconds_max,
    )
