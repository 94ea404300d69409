"""Runs of a thread, newest first, with links to the Temporal UI."""

import dataclasses
from typing import Final
from urllib.parse import quote

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everlong.client.errors import translate_rpc_error

RUNS_MAX: Final = 50
"""Runs of one page. Each takes two sequential requests: a quarter of a second for all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run."""

    run_id: str
    status: str
    """`running`, `continued_as_new`, or how the thread ended."""
    started_ms: int
    closed_ms: int | None
    events: int
    history_bytes: int
    ui_url: str
    """Address of its history in the Temporal UI; empty if the UI's address is not set."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPage:
    """Some runs of a thread, newest first."""

    thread_id: str
    runs: tuple[RunRow, ...]
    next_run_id: str
    """The run before these; empty if there is none, or if its retention is over."""


async def runs(
    client: Client,
    thread_id: str,
    *,
    from_run_id: str = "",
    limit: int = 20,
    temporal_ui: str = "",
) -> RunPage:
    """Return the newest runs of a thread, or those from one on backwards."""
    found: list[RunRow] = []
    run_id: str | None = from_run_id or None
    for _ in range(max(1, min(limit, RUNS_MAX))):
        try:
            row = await _run(client, thread_id, run_id, temporal_ui)
            run_id = await previous_run(client, thread_id, row.run_id)
        except RPCError as error:
            if found and error.status == RPCStatusCode.NOT_FOUND:
                run_id = ""  # Its retention is over.
                break
            raise translate_rpc_error(error, thread_id) from error
        found.append(row)
        if not run_id:
            break
    return RunPage(thread_id=thread_id, runs=tuple(found), next_run_id=run_id or "")


async def _run(client: Client, thread_id: str, run_id: str | None, temporal_ui: str) -> RunRow:
    description = await client.get_workflow_handle(thread_id, run_id=run_id).describe()
    info = description.raw_description.workflow_execution_info
    closed = description.close_time
    return RunRow(
        run_id=description.run_id,
        status=description.status.name.lower() if description.status else "running",
        started_ms=int(description.start_time.timestamp() * 1000),
        closed_ms=None if closed is None else int(closed.timestamp() * 1000),
        events=info.history_length,
        history_bytes=info.history_size_bytes,
        ui_url=ui_url(temporal_ui, client.namespace, thread_id, description.run_id),
    )


def ui_url(base: str, namespace: str, thread_id: str, run_id: str = "") -> str:
    """Return where the Temporal UI shows a thread, or one of its runs."""
    if not base:
        return ""
    workflow = quote(thread_id, safe="")
    place = f"{base.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows/{workflow}"
    return f"{place}/{quote(run_id, safe='')}/history" if run_id else place


async def previous_run(client: Client, thread_id: str, run_id: str) -> str:
    """Return the id of the run that a run continues, or an empty string."""
    handle = client.get_workflow_handle(thread_id, run_id=run_id)
    async for event in handle.fetch_history_events(page_size=1):
        return event.workflow_execution_started_event_attributes.continued_execution_run_id
    return ""
