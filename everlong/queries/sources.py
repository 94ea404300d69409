"""Sources of queries: threads from visibility, entries from journals and archives, within bounds.

No thread is queried, so none resumes. Data beyond a bound is left out and reported.
"""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Final

from temporalio.client import Client

from everlong import limits
from everlong.archive import Manifest, StoredArchive, writer
from everlong.archive.rows import Row, to_row
from everlong.client.archives import list_archives
from everlong.client.errors import translate_errors
from everlong.client.lookup import find_head
from everlong.client.visibility import (
    PAGE_ROWS,
    QUERY,
    ThreadRow,
    decode_cards,
    quote_text,
    read_rows,
)
from everlong.client.visibility import build_row as thread_row
from everlong.errors import EverlongError, ThreadNotFound
from everlong.models import AGENT_WORKFLOW, CARD_MEMO, SegmentRef, seq_after, thread_key
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore

_SCAN_ENTRIES: Final = 512


@dataclasses.dataclass(frozen=True)
class ReadBounds:
    """Bounds on the data that one query reads."""

    listed_max: int = 10_000
    """Rows of the view `threads`: listing 1,000 takes some tenths of a second."""
    threads_max: int = 200
    """Threads whose journals are read: two server calls each, and the journal's reads."""
    entries_max: int = 200_000
    """Entries: about 300 bytes each in the query's database, so 60 MB."""
    bytes_max: int = 256 * limits.MIB
    """Bytes of messages, read only if the statement uses their text."""
    seconds_max: float = 60.0


class SourceReader:
    """Reads the sources of one query, and lists what it left out."""

    def __init__(
        self, client: Client, packs: PackStore, bounds: ReadBounds, chosen: Sequence[str]
    ) -> None:
        self._client = client
        self._packs = packs
        self._bounds = bounds
        self._chosen = tuple(dict.fromkeys(chosen))
        # On the event loop's clock, which its timeouts use.
        self._deadline = asyncio.get_running_loop().time() + bounds.seconds_max
        self._archives: dict[str, Manifest] = {}
        self.threads: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        self.threads_read = self.entries_read = self.bytes_read = 0

    async def list_threads(self) -> None:
        """List the threads on the server, then the threads that exist only in archives."""
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._list_archives()
                seen = await self._list_server()
        except TimeoutError:
            self.left_out.append(
                f"threads that were not listed by then: {self._describe_deadline()}"
            )
            return
        gone = [each for name, each in self._archives.items() if name not in seen]
        room = self._bounds.listed_max - len(self.threads)
        self.threads += [_build_archive_fields(each) for each in gone[:room]]
        if len(gone) > room:
            self.left_out.append(f"{len(gone) - room:,} threads that exist only in archives")

    async def _list_server(self) -> set[str]:
        """List the threads on the server; return their ids."""
        where = QUERY
        if self._chosen:
            # SQL visibility rejects NUL in a query: a thread with NUL in its id is described below.
            named = [each for each in self._chosen if "\0" not in each] or [""]
            where += f" AND WorkflowId IN ({', '.join(map(quote_text, named))})"
        most, listed = self._bounds.listed_max, 0
        seen: set[str] = set()
        async for row in self._iter_rows(where):
            listed += 1
            if listed > most:
                self.left_out.append(f"threads beyond the {most:,} that began last")
                break
            self._add(row, seen)
        # Visibility lags: a thread that has just started is not listed yet.
        for thread_id in [each for each in self._chosen if each not in seen]:
            await self._describe(thread_id, seen)
        return seen

    async def _iter_rows(self, where: str) -> AsyncIterator[ThreadRow]:
        size, token = min(PAGE_ROWS, self._bounds.listed_max + 1), b""
        while True:
            page = await read_rows(self._client, where, token, size=size)
            for row in page.rows:
                yield row
            token = page.next_token
            if not token:
                return

    async def _describe(self, thread_id: str, seen: set[str]) -> None:
        """Add a named thread that is not listed; raise ThreadNotFound if it does not exist."""
        try:
            with translate_errors(thread_id):
                found = await self._client.get_workflow_handle(thread_id).describe()
        except ThreadNotFound:
            if thread_id not in self._archives:
                raise
            return
        if found.workflow_type != AGENT_WORKFLOW:
            raise ThreadNotFound(f"there is no thread {thread_id!r} in this namespace")
        info = found.raw_description.workflow_execution_info
        memo = info.memo.fields.get(CARD_MEMO)
        cards = {} if memo is None else await decode_cards(self._client, {"": memo})
        self._add(thread_row(info, cards.get("")), seen)

    def _add(self, row: ThreadRow, seen: set[str]) -> None:
        if row.thread_id not in seen:
            seen.add(row.thread_id)
            self.threads.append(_build_thread_fields(row, self._archives.get(row.thread_id)))

    async def _list_archives(self) -> None:
        """Find the newest archive of each thread."""
        wanted: Sequence[str | None] = self._chosen or (None,)
        for thread_id in wanted:
            page = await list_archives(
                self._client, self._packs, thread_id=thread_id, count_max=500
            )
            for each in page.archives:
                self._archives.setdefault(each.thread_id, each)
            if page.next and thread_id is None:
                self.left_out.append("archives before the newest 500")
            if page.unreadable:
                self.left_out.append(f"{len(page.unreadable)} archives that cannot be read")

    async def read_entries(self, messages: bool) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the entries of all threads, in bounded batches."""
        for number, thread in enumerate(self.threads):
            if number == self._bounds.threads_max:
                left = len(self.threads) - number
                self.left_out.append(f"entries of {left:,} threads beyond {number:,}")
                return
            batches = self._iter_entries(thread, messages)
            try:
                while (rows := await self._next_batch(batches)) is not None:
                    yield rows
            except EverlongError as error:
                self.left_out.append(f"entries of thread {thread['thread_id']}: {error}")
            finally:
                await batches.aclose()
            self.threads_read += 1
            if why := self._find_reached_bound():
                more = len(self.threads) - number - 1
                self.left_out.append(
                    f"entries of thread {thread['thread_id']}, in part, and of {more:,} more: {why}"
                )
                return

    async def _next_batch(
        self, batches: AsyncGenerator[list[dict[str, Any]]]
    ) -> list[dict[str, Any]] | None:
        """Return the next batch; None at the end or at the deadline."""
        try:
            # Also within a batch: a slow store can take minutes for one.
            async with asyncio.timeout_at(self._deadline):
                return await anext(batches, None)
        except TimeoutError:
            return None

    def _describe_deadline(self) -> str:
        return f"{self._bounds.seconds_max:g} s of reading are the most"

    def _find_reached_bound(self) -> str:
        if self.entries_read >= self._bounds.entries_max:
            return f"{self._bounds.entries_max:,} entries are the most"
        if self.bytes_read >= self._bounds.bytes_max:
            return f"{self._bounds.bytes_max:,} bytes are the most"
        if asyncio.get_running_loop().time() >= self._deadline:
            return self._describe_deadline()
        return ""

    async def _iter_entries(
        self, thread: Mapping[str, Any], messages: bool
    ) -> AsyncGenerator[list[dict[str, Any]]]:
        thread_id = thread["thread_id"]
        batches, source = await self._open_batches(thread, messages)
        async for rows in batches:
            rows = rows[: self._bounds.entries_max - self.entries_read]
            self.entries_read += len(rows)
            if messages:
                self.bytes_read += sum(row.original_bytes or row.size_bytes for row in rows)
            yield [_build_entry_fields(row, thread_id, source) for row in rows]
            if self._find_reached_bound():
                return

    async def _open_batches(
        self, thread: Mapping[str, Any], messages: bool
    ) -> tuple[AsyncIterator[list[Row]], str]:
        """Return a thread's rows, and their source."""
        thread_id = thread["thread_id"]
        if thread["source"] == "server":
            try:
                head = await find_head(self._client, thread_id)
                return self._iter_journal(thread_id, head, messages), "journal"
            except ThreadNotFound:
                # Visibility lags: it still lists a thread that was freed.
                if thread_id not in self._archives:
                    raise
        archive = await StoredArchive.open(self._packs, self._archives[thread_id])
        return _iter_archive(archive, messages), "archive"

    async def _iter_journal(
        self, thread_id: str, head: SegmentRef | None, messages: bool
    ) -> AsyncIterator[list[Row]]:
        journal = Journal(self._packs, thread_key(self._client.namespace, thread_id))
        if messages:
            async for rows in writer.iter_rows(journal, head, snapshots=False):
                yield rows
            return
        for first_seq in range(1, seq_after(head), _SCAN_ENTRIES):
            last_seq = min(first_seq + _SCAN_ENTRIES, seq_after(head)) - 1
            entries = await journal.read(head, first_seq, last_seq)
            yield [to_row(entry, None, None, None) for entry in entries]


async def _iter_archive(archive: StoredArchive, messages: bool) -> AsyncIterator[list[Row]]:
    for first_seq, count in archive.file.groups:
        seqs = range(first_seq, first_seq + count)
        if messages:
            yield await archive.rows(seqs)
        else:
            entries = await archive.entries(first_seq, first_seq + count - 1)
            yield [to_row(entry, None, None, None) for entry in entries]


_ROLES: Final = {
    "message": "user",
    "reply": "assistant",
    "tool_result": "tool",
    "failure": "failure",
}


def _build_entry_fields(row: Row, thread_id: str, source: str) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "thread_id": thread_id,
        "source": source,
        "seq": row.seq,
        "kind": row.kind,
        "time": row.time_ms,
        "role": _ROLES.get(row.kind),
        "text": row.text,
        "tool": row.tool,
        "call_id": row.call_id,
        "tool_calls": [dataclasses.asdict(call) for call in row.tool_calls] or None,
        "data": row.data,
        "size_bytes": row.original_bytes or row.size_bytes,
        "tokens": row.tokens,
        "cost_usd": row.cost_usd,
    }
    if row.step is not None:
        fields |= {
            "step_number": row.step.number,
            "thread_bytes": row.step.thread_bytes,
            "context_bytes": row.step.context_bytes,
            "resume_ms": row.step.resume_ms,
            "resume_cause": row.step.resume_cause,
            "resume_events": row.step.resume_events,
        }
    return fields


def _build_thread_fields(row: ThreadRow, archive: Manifest | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "thread_id": row.thread_id,
        "source": "server",
        "agent": row.agent or None,
        "status": row.status,
        "reason": row.reason or None,
        "started": row.started_ms,
        "closed": row.closed_ms,
        "stored_bytes": row.stored_bytes,
        "growth_bytes_per_hour": row.growth_bytes_per_hour,
        "pending_approvals": row.pending,
        "resume_ms": row.last_resume_ms or None,
        "archive_id": None if archive is None else archive.archive_id,
        "archive_bytes": None if archive is None else archive.size_bytes,
    }
    if row.card is not None:
        names = ("steps", "messages", "runs", "tokens", "cost_usd", "context_bytes")
        fields |= {name: getattr(row.card, name) for name in names}
    return fields


def _build_archive_fields(manifest: Manifest) -> dict[str, Any]:
    return {
        "thread_id": manifest.thread_id,
        "source": "archive",
        "agent": manifest.agent,
        "status": manifest.status,
        "started": manifest.first_ms,
        "closed": manifest.last_ms,
        "steps": manifest.steps,
        "tokens": manifest.tokens,
        "cost_usd": manifest.cost_usd,
        "archive_id": manifest.archive_id,
        "archive_bytes": manifest.size_bytes,
    }
