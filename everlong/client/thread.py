"""`ThreadHandle`: one thread, with the verbs that a program needs, like the SDK's workflow handles.

A handle holds no state of the thread and makes no request by itself: making one is free, and it stays
valid across continue-as-new, restarts of workers and the end of the thread.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from temporalio.client import Client

from everlong.client import diagnosis, fork, grants, lookup, status, time_travel, wait
from everlong.client.diagnosis import Diagnosis, Report
from everlong.client.errors import check_argument
from everlong.client.fork_links import ForkLinks, load_fork_links
from everlong.client.lookup import RunPage
from everlong.client.packs import find_packs
from everlong.client.progress import ThreadProgress
from everlong.client.search_attributes import require_labels
from everlong.client.time_travel import ThreadDiff, ThreadView, Timeline
from everlong.client.updates import send, send_signal, update
from everlong.config import TASK_QUEUE_DEFAULT
from everlong.errors import ControlRefused, DecisionRefused
from everlong.models import (
    COMPACT_SIGNAL,
    CONFIGURE_UPDATE,
    DECIDE_UPDATE,
    PAUSE_SIGNAL,
    RESOLVE_UPDATE,
    REVOKE_GRANT_UPDATE,
    STOP_SIGNAL,
    UNPAUSE_SIGNAL,
    Always,
    Approval,
    Configure,
    Control,
    Decide,
    Entry,
    Grant,
    Message,
    Resolve,
    RevokeGrant,
    ThreadStart,
    ThreadStatus,
    UnknownOutcome,
    seq_after,
)
from everlong.models.grants import is_thread_grant
from everlong.models.labels import ChangeLabels
from everlong.models.names import LABEL_UPDATE
from everlong.storage.pack_store import PackStore

if TYPE_CHECKING:
    from everlong.archive import Progress as ArchiveProgress
    from everlong.client.archives import ArchiveResult, Then
    from everlong.client.lookup import ThreadSize
    from everlong.client.stored_bytes import StoredBytes

# Entries that `journal` reads at a time: 32 segments.
_PAGE_ENTRIES: Final = 1024


class ThreadHandle:
    """One thread of the client's namespace.

    Args:
        client: A client with `EverlongPlugin`, or any client if `packs` is given.
        thread_id: The thread's id, which is its workflow id. The thread need not exist yet.
        packs: The store of the thread; the plugin's by default.
        task_queue: Where `ask`, `send` and `fork` start a thread.

    """

    def __init__(
        self,
        client: Client,
        thread_id: str,
        *,
        packs: PackStore | None = None,
        task_queue: str = TASK_QUEUE_DEFAULT,
    ) -> None:
        self.client = client
        self.id = thread_id
        self.task_queue = task_queue
        self.start: ThreadStart | None = None
        """Arguments that the thread was started with, on a handle that `fork` or `rerun` returned."""
        self._packs = packs

    def __repr__(self) -> str:
        """Return the handle with the id of its thread."""
        return f"ThreadHandle({self.id!r})"

    @property
    def packs(self) -> PackStore:
        """The store of the thread. Raises `PluginNotOnClient` if neither the client nor you gave one."""
        if self._packs is None:
            self._packs = find_packs(self.client)
        return self._packs

    # Messages.

    async def ask(
        self,
        text: str,
        *,
        agent: str | None = None,
        seconds_max: float | None = None,
        on_progress: Callable[[ThreadProgress], None] | None = None,
        on_wait: Report | None = None,
    ) -> str:
        """Send a message and return the answer. With an agent, the thread is started if need be.

        Waits without a limit, across runs, crashed workers and approvals, unless `seconds_max` is given.
        Raises `TurnFailed` if the turn ends without an answer, `ThreadPaused` if the thread takes no
        steps (the message stays queued), and `NotAnswered` if the time is over or the thread ends.
        `on_progress` is called with each change that the thread's history shows; without it, a wait
        costs fewer requests. `on_wait` is called with the reason if the thread waits for something
        other than its own work: a worker, a key, an agent. By default the reason is logged.
        """
        return await wait.ask(
            self.client,
            self.packs,
            self.id,
            text,
            task_queue=self.task_queue,
            agent=agent,
            seconds_max=seconds_max,
            on_progress=on_progress,
            on_wait=on_wait,
        )

    async def send(
        self,
        text: str,
        *,
        agent: str | None = None,
        message_id: str = "",
        by: str = "",
        seconds_max: float | None = None,
        on_wait: Report | None = None,
        labels: Sequence[str] = (),
    ) -> int:
        """Send a message and return its number once it is durable; `wait` takes the number.

        With an agent, the thread is started if need be, with these `labels`; the labels of a thread that
        exists do not change. A message that is sent again with the same `message_id` is queued once.
        `by` names the sender in the journal.
        """
        return await send(
            self.client,
            self.id,
            text,
            task_queue=self.task_queue,
            agent=agent,
            packs=self.packs,
            message_id=message_id,
            by=by,
            seconds_max=seconds_max,
            on_wait=on_wait,
            labels=labels,
        )

    async def wait(
        self,
        number: int | None = None,
        *,
        seconds_max: float | None = None,
        on_progress: Callable[[ThreadProgress], None] | None = None,
        on_wait: Report | None = None,
    ) -> str:
        """Return the answer to a message by its number; without one, to the newest. See `ask`."""
        if number is None:
            number = (await self.status()).counters.messages
        return await wait.wait_for_answer(
            self.client,
            self.packs,
            self.id,
            number,
            seconds_max=seconds_max,
            on_progress=on_progress,
            on_wait=on_wait,
        )

    async def wait_until(
        self,
        done: Callable[[ThreadProgress], bool],
        *,
        seconds_max: float | None = None,
        on_progress: Callable[[ThreadProgress], None] | None = None,
    ) -> ThreadProgress:
        """Wait until the thread's progress satisfies `done`. Reads its history and needs no worker."""
        return await wait.wait_for_progress(
            self.client, self.id, done, seconds_max=seconds_max, on_progress=on_progress
        )

    # The thread now.

    async def status(self) -> ThreadStatus:
        """Return the thread's status. It needs a worker, unless the thread was stopped."""
        return await status.read_status(self.client, self.id)

    async def approvals(self) -> list[Approval]:
        """Return the tool calls that wait for an approval; none if the thread has ended."""
        return await status.list_pending(self.client, self.id)

    async def outcomes(self) -> list[UnknownOutcome]:
        """Return the tool calls of which it is not known whether they took effect."""
        return await status.list_outcomes(self.client, self.id)

    async def grants(self) -> list[Grant]:
        """Return the grants that allow calls of the thread: its own, and those of its agent."""
        return await grants.list_grants(self.client, self.packs, self.id, _now_ms())

    async def arguments(self, approval: Approval | UnknownOutcome) -> str:
        """Return the whole arguments of a call that waits for a person, as JSON."""
        return await status.load_arguments(self.client, self.packs, self.id, approval)

    async def diagnose(self) -> Diagnosis | None:
        """Return why the thread waits, if not for its own work. Needs no worker."""
        return await diagnosis.diagnose(self.client, self.id)

    async def runs(
        self, *, from_run_id: str = "", limit: int = 20, temporal_ui: str = ""
    ) -> RunPage:
        """Return the newest runs of the thread, or those from a run on backwards.

        With the address of a Temporal UI, each run has a link to its history there.
        """
        return await lookup.list_runs(
            self.client, self.id, from_run_id=from_run_id, limit=limit, temporal_ui=temporal_ui
        )

    async def size(self) -> "ThreadSize":
        """Measure the thread: its histories on the server and its objects in the store."""
        from everlong.client.lookup import measure_size

        return await measure_size(self.client, self.packs.store, self.id)

    async def stored_bytes(self, *, since_ms: int | None = None) -> "StoredBytes":
        """Return the stored bytes by cause, and those since a time: by default, of the last day.

        It lists the thread's objects and reads its journal, and needs no worker.
        """
        from everlong.client.stored_bytes import measure_stored_bytes

        return await measure_stored_bytes(self.client, self.packs, self.id, since_ms=since_ms)

    # Control.

    async def decide(
        self,
        approval_id: str,
        *,
        approve: bool,
        by: str,
        reason: str = "",
        arguments: Mapping[str, Any] | None = None,
        always: Always | None = None,
        update_id: str = "",
    ) -> None:
        """Approve or deny a tool call that waits for it. `approvals` lists them with their ids.

        An approval may change the call: it then runs with these `arguments`, which are all of them. Or
        it may allow later calls too, as in `always=Always(match="tool", seconds=8 * 3600)`; `grants`
        lists what is allowed. A worker checks both; arguments that do not fit the tool are refused.

        A decision that is sent again with the same `update_id` is applied once.
        """
        decision = check_argument(
            DecisionRefused,
            lambda: Decide(
                id=approval_id,
                approve=approve,
                by=by,
                reason=reason,
                arguments=None if arguments is None else dict(arguments),
                always=always,
            ),
        )
        missing = await update(
            self.client,
            self.id,
            DECIDE_UPDATE,
            decision,
            str,
            refused=DecisionRefused,
            update_id=update_id,
        )
        if missing:
            raise DecisionRefused(f"thread {self.id!r}: {missing}")

    async def resolve_outcome(
        self,
        outcome_id: str,
        *,
        outcome: Literal["done", "not_done", "retry"],
        by: str,
        result: str = "",
        reason: str = "",
    ) -> None:
        """Say what became of a call whose outcome is unknown. `outcomes` lists them with their ids.

        `done`, with the `result` for the model if there is one; `not_done`, which the model reads; or
        `retry`, which runs the call again with the same idempotency key.
        """
        answer = check_argument(
            DecisionRefused,
            lambda: Resolve(id=outcome_id, outcome=outcome, by=by, result=result, reason=reason),
        )
        await update(
            self.client, self.id, RESOLVE_UPDATE, answer, type(None), refused=DecisionRefused
        )

    async def revoke_grant(self, grant_id: str, *, by: str = "", reason: str = "") -> None:
        """Revoke a grant that `grants` lists: it allows no call that has not begun to run."""
        if not is_thread_grant(grant_id):
            await grants.revoke_agent_grant(self.client, self.packs, grant_id, by=by, reason=reason)
            return
        request = check_argument(
            DecisionRefused, lambda: RevokeGrant(id=grant_id, by=by, reason=reason)
        )
        await update(
            self.client, self.id, REVOKE_GRANT_UPDATE, request, type(None), refused=DecisionRefused
        )

    async def configure(
        self, changes: Mapping[str, Any], *, by: str = "", reason: str = ""
    ) -> None:
        """Change fields of the thread's policy, as in `{"steps_max": 500}`."""
        change = check_argument(
            ControlRefused, lambda: Configure(changes=dict(changes), by=by, reason=reason)
        )
        await update(
            self.client, self.id, CONFIGURE_UPDATE, change, type(None), refused=ControlRefused
        )

    async def label(
        self,
        add: Sequence[str] = (),
        *,
        remove: Sequence[str] = (),
        by: str = "",
        reason: str = "",
    ) -> tuple[str, ...]:
        """Change the thread's labels, as in `label(["team=payments", "urgent"])`, and return them.

        A label with a key replaces the one with the same key; `remove` takes labels and keys. Raises
        `SetupRefused` if the namespace lacks the search attribute: see `everlong setup`.
        """
        change = check_argument(
            ControlRefused,
            lambda: ChangeLabels(add=tuple(add), remove=tuple(remove), by=by, reason=reason),
        )
        await require_labels(self.client)
        found = await update(
            self.client, self.id, LABEL_UPDATE, change, list[str], refused=ControlRefused
        )
        return tuple(found)

    async def pause(self, *, by: str = "", reason: str = "") -> None:
        """Stop the thread from taking steps. Work in progress ends; messages are still queued."""
        control = Control(by=by, reason=reason)
        await send_signal(self.client, self.id, PAUSE_SIGNAL, control)

    async def unpause(self, *, by: str = "", reason: str = "") -> None:
        """Let the thread continue. A limit that is still reached pauses it again: raise it first."""
        control = Control(by=by, reason=reason)
        await send_signal(self.client, self.id, UNPAUSE_SIGNAL, control)

    async def compact(self, *, by: str = "", reason: str = "") -> None:
        """Have the thread compact its context at the next safe point."""
        control = Control(by=by, reason=reason)
        await send_signal(self.client, self.id, COMPACT_SIGNAL, control)

    async def stop(self, *, by: str = "", reason: str = "") -> None:
        """Ask the thread to end at its next safe point. Its id is not used again."""
        control = Control(by=by, reason=reason)
        await send_signal(self.client, self.id, STOP_SIGNAL, control)

    async def fork(
        self, seq: int, new_id: str, *, agent: str | None = None, by: str = "", reason: str = ""
    ) -> "ThreadHandle":
        """Start a thread whose past is this one's up to `seq`, and return its handle.

        The new thread has this one's agent and policy, unless another agent is named, and waits for a
        message. This thread is not changed, and may have ended.
        """
        start = await fork.fork(
            self.client,
            self.packs,
            self.id,
            seq,
            new_id,
            task_queue=self.task_queue,
            agent=agent,
            by=by,
            reason=reason,
        )
        forked = ThreadHandle(self.client, new_id, packs=self._packs, task_queue=self.task_queue)
        forked.start = start
        return forked

    async def rerun(
        self, seq: int, text: str, new_id: str = "", *, by: str = "", reason: str = ""
    ) -> "ThreadHandle":
        """Undo a misstep: start a fork from before a message, with a changed message; return its handle.

        `seq` is the entry of the message, or any entry of the turn that answers it. The fork has this
        thread's agent, policy and labels, and works on the changed message at once: `wait` returns its
        answer. This thread is not changed, and neither is what its tools have done. Without an id, the
        fork gets one like `ops-7-rerun-12`.
        """
        new_id = new_id or await fork.choose_rerun_id(self.client, self.packs, self.id, seq)
        start = await fork.rerun(
            self.client,
            self.packs,
            self.id,
            seq,
            text,
            new_id,
            task_queue=self.task_queue,
            by=by,
            reason=reason,
        )
        forked = ThreadHandle(self.client, new_id, packs=self._packs, task_queue=self.task_queue)
        forked.start = start
        return forked

    async def fork_links(self) -> ForkLinks:
        """Return where this thread began, if it is a fork, and its own forks. Needs no worker."""
        return await load_fork_links(self.client, self.id)

    async def archive(
        self,
        *,
        then: "Then" = "keep",
        by: str = "",
        reason: str = "",
        on_progress: "ArchiveProgress | None" = None,
    ) -> "ArchiveResult":
        """Write the journal as one Parquet file; then keep the thread, close it, or free its packs.

        Needs the extra `everlong[admin]`.
        """
        # Imported here: it needs pyarrow, which a program that archives nothing may lack.
        from everlong.archive.writer import ignore_progress
        from everlong.client.archives import archive

        return await archive(
            self.client,
            self.packs,
            self.id,
            then=then,
            by=by,
            reason=reason,
            on_progress=on_progress or ignore_progress,
        )

    # The journal.

    async def timeline(self) -> Timeline:
        """Open the journal as it is now; if the server has deleted the thread, its newest archive."""
        return await Timeline.open(self.client, self.packs, self.id)

    async def state_at(self, seq: int, *, totals: bool = True) -> ThreadView:
        """Return the thread as it was right after an entry, with the context its model would have read.

        Without `totals`, an archive need not be read up to this entry.
        """
        return await time_travel.read_state(self.client, self.packs, self.id, seq, totals=totals)

    async def diff(
        self, first_seq: int, last_seq: int | None = None, *, entries_max: int | None = None
    ) -> ThreadDiff:
        """Return what changed from one entry to another, or to the newest."""
        return await time_travel.compare_states(
            self.client, self.packs, self.id, first_seq, last_seq, entries_max=entries_max
        )

    async def journal(
        self, first_seq: int = 1, last_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        """Yield the entries of a range, oldest first; by default, all entries that exist at the call.

        If the server has deleted the thread, its newest archive is read.
        """
        past = await self.timeline()
        newest = seq_after(past.status.head) - 1
        end = newest if last_seq is None else min(last_seq, newest)
        for seq in range(max(1, first_seq), end + 1, _PAGE_ENTRIES):
            page = await past.journal.read(past.status.head, seq, min(end, seq + _PAGE_ENTRIES - 1))
            for entry in page:
                yield entry

    async def messages(self) -> list[Message]:
        """Return the whole conversation, long messages in full."""
        return await time_travel.read_messages(self.client, self.packs, self.id)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def thread(
    client: Client,
    thread_id: str,
    *,
    packs: PackStore | None = None,
    task_queue: str = TASK_QUEUE_DEFAULT,
) -> ThreadHandle:
    """Return the handle of a thread, which need not exist yet. It makes no request.

    The client needs the plugin, unless `packs` is the store of the thread. A thread that does not exist
    is started on `task_queue`.
    """
    return ThreadHandle(client, thread_id, packs=packs, task_queue=task_queue)


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
