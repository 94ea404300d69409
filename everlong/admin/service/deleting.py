"""Histories that are deleted from the server, of a thread that has ended and is archived."""

from collections.abc import Sequence
from typing import Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from everlong.client.errors import translated, translated_rpc
from everlong.client.runs import previous_run
from everlong.client.status import ended_as
from everlong.client.visibility import quoted
from everlong.errors import ControlRefused

# A run id takes 100 bytes in memory: 10 MB. A thread that rolls each hour has so many in 11 years.
_RUNS_MAX: Final = 100_000


async def ended_runs(client: Client, thread_id: str, run_id: str) -> list[str]:
    """Return all runs of a thread, the newest first. It has to have ended with the one that is given."""
    with translated(thread_id):
        description = await client.get_workflow_handle(thread_id).describe()
    if not ended_as(description):
        raise ControlRefused(f"thread {thread_id!r} has not ended; its histories are not deleted")
    if description.run_id != run_id:
        raise ControlRefused(
            f"thread {thread_id!r} has gone on since it was archived; its histories are not deleted. "
            "Archive it again."
        )
    return await runs_of(client, thread_id, run_id)


async def delete_runs(client: Client, thread_id: str, runs: Sequence[str]) -> None:
    """Delete the histories of runs, given with the newest first.

    The newest goes last: as long as it is there, whoever does this again finds the others. The server
    takes some seconds to do it; until then, all of it can be read as before.
    """
    for run_id in reversed(runs):
        await _delete(client, thread_id, run_id)


async def runs_of(client: Client, thread_id: str, newest: str) -> list[str]:
    """Return the ids of all runs, the newest first: those it continues, and branches of resets."""
    runs = {newest: None}
    run_id = newest
    while len(runs) < _RUNS_MAX:
        try:
            run_id = await previous_run(client, thread_id, run_id)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise translated_rpc(error, thread_id) from error
            break  # Its retention is over, or it was deleted before.
        if not run_id:
            break
        runs[run_id] = None
    query = f"WorkflowId = {quoted(thread_id)}"
    with translated(thread_id):
        async for each in client.list_workflows(query, limit=_RUNS_MAX):
            if each.status != WorkflowExecutionStatus.RUNNING:
                runs.setdefault(each.run_id)
    return list(runs)


async def _delete(client: Client, thread_id: str, run_id: str) -> None:
    # Always a run by its id: without one, a thread that has come into being since would be meant.
    run = WorkflowExecution(workflow_id=thread_id, run_id=run_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=run)
    try:
        await client.workflow_service.delete_workflow_execution(request)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise translated_rpc(error, thread_id) from error
