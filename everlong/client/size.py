"""Size of a thread: histories on the server, objects in the store."""

import dataclasses
from typing import Final

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everlong.client.errors import translate_rpc_error
from everlong.client.runs import previous_run
from everlong.models import thread_key
from everlong.storage import BlobStore
from everlong.storage.objects import thread_prefix

# Two server calls for each run: a second or two for all of them.
_RUNS_MAX: Final = 100


@dataclasses.dataclass(frozen=True)
class ThreadSize:
    """Size of a thread."""

    runs: int
    events: int
    history_bytes: int
    """Sum over the runs that the server still has, at most the newest 100."""
    blobs: int
    blob_bytes: int
    is_partial: bool = False
    """Whether there are more runs, so that `runs`, `events` and `history_bytes` are lower bounds."""


async def measure_size(client: Client, store: BlobStore, thread_id: str) -> ThreadSize:
    """Measure a thread: the histories of its newest runs, and its objects."""
    runs = events = history_bytes = 0
    run_id: str | None = None  # The newest run.
    while run_id != "" and runs < _RUNS_MAX:
        try:
            description = await client.get_workflow_handle(thread_id, run_id=run_id).describe()
            run_id = await previous_run(client, thread_id, description.run_id)
        except RPCError as error:
            if runs and error.status == RPCStatusCode.NOT_FOUND:
                run_id = ""  # Its retention has ended.
                break
            raise translate_rpc_error(error, thread_id) from error
        info = description.raw_description.workflow_execution_info
        runs += 1
        events += info.history_length
        history_bytes += info.history_size_bytes
    prefix = thread_prefix(thread_key(client.namespace, thread_id))
    blobs = blob_bytes = 0
    async for blob in store.list(prefix):
        blobs += 1
        blob_bytes += blob.size_bytes
    return ThreadSize(runs, events, history_bytes, blobs, blob_bytes, is_partial=run_id != "")
