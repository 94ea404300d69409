"""Queries over threads of a real server: running, ended and archived ones."""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everlong.archive import StoredArchive
from everlong.client.archives import archive
from everlong.client.fork import fork, revive
from everlong.client.lookup import find_head
from everlong.client.status import read_status
from everlong.client.visibility import RowsPage
from everlong.client.wait import wait_for_status
from everlong.embedded import TemporalServer
from everlong.errors import QueryRefused, ThreadNotFound
from everlong.queries import sources
from everlong.queries.engine import QueryResult, run_query
from everlong.queries.sources import ReadBounds
from everlong.queries.views import find_named_query
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore
from tests.server.test_archive import say
from tests.server.test_cli_threads import open_cli
from tests.support.governed_agent import build_governed_agent
from tests.support.sample_archive import build_thread
from tests.support.threads import Threads, open_threads


@pytest.fixture
async def threads(server: TemporalServer, store: BlobStore) -> AsyncIterator[Threads]:
    async with open_threads(server.address, store, build_governed_agent()) as opened:
        yield opened


@pytest.mark.guarantee(102)
async def test_a_query_reads_only_named_columns_and_needs_no_worker(
    threads: Threads, thread_id: str
) -> None:
    packs, client = PackStore(threads.store), threads.client
    other, archived = f"{thread_id}-b", f"{thread_id}-archived"
    async with threads.worker():
        await say(threads, thread_id, "hello", "remember the api is slow")
        await say(threads, other, "hello")
        await archive(client, packs, other, then="close")
        heads = {each: (await read_status(client, each)).head for each in (thread_id, other)}
    await (await build_thread(packs, archived)).write_archive()
    ids = [thread_id, other, archived]
    # No worker runs from here on: a query of a thread would fail.
    assert {each: await find_head(client, each) for each in heads} == heads

    async def rows(sql: str, *only: str, **options: object) -> QueryResult:
        return await run_query(client, packs, sql, threads=only or ids, **options)  # type: ignore[arg-type]

    counts = await rows(
        "select thread_id, source, count(*), sum(tokens) from entries group by all order by all"
    )
    assert [row[:2] for row in counts.rows] == [
        (thread_id, "journal"),
        (archived, "archive"),
        (other, "journal"),
    ]
    assert counts.left_out == ()
    assert counts.read.message_bytes == 0
    assert counts.rows[0][3] == 30
    texts = await rows("select text from entries where role = 'user' order by seq", thread_id)
    assert texts.rows == (("hello",), ("remember the api is slow",))
    assert texts.read.message_bytes > 0
    assert texts.read.journals == 1
    whole = await rows("select max(length(text)) from entries", archived)
    assert whole.rows == ((100_009,),)
    known = await rows("select thread_id, agent, status, steps, archive_id is null from threads")
    by_id = {row[0]: row[1:] for row in known.rows}
    assert by_id[archived][:2] == ("ops", "archived")
    assert by_id[other][3] is False
    slow = await rows("select resume_cause, max(resume_ms) from resumes group by all", archived)
    assert ("crash", 12.5) in slow.rows
    approvals = await rows(find_named_query("approvals").sql, archived)
    assert approvals.rows[0][3:] == ("approved", "ann", "go on")
    bounded = await rows("select count(*) from entries", read_bounds=ReadBounds(entries_max=3))
    assert bounded.rows == ((3,),)
    assert "3 entries are the most" in bounded.left_out[0]
    few = await rows("select count(*) from entries", read_bounds=ReadBounds(threads_max=1))
    assert few.left_out == ("entries of 2 threads beyond 1",)
    with pytest.raises(ThreadNotFound):
        await rows("select 1 from entries", "missing")
    with pytest.raises(QueryRefused, match="biggest-results"):
        find_named_query("nothing")


async def test_a_thread_too_new_to_be_listed_is_found_by_its_id(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    async with threads.worker():
        await say(threads, thread_id, "hello")

    async def nothing(*_arguments: object, **_options: object) -> RowsPage:
        return RowsPage((), {}, b"")

    monkeypatch.setattr(sources, "read_rows", nothing)
    found = await run_query(
        client, packs, "select thread_id, source from threads", threads=[thread_id]
    )
    assert found.rows == ((thread_id, "server"),)
    counted = await run_query(client, packs, "select count(*) from entries", threads=[thread_id])
    assert counted.rows == ((2,),)
    with pytest.raises(ThreadNotFound):
        await run_query(client, packs, "from threads", threads=["missing"])


async def test_shared_entries_of_a_fork_are_counted_once(threads: Threads, thread_id: str) -> None:
    packs, client = PackStore(threads.store), threads.client
    forked, again, revived = (f"{thread_id}-{name}" for name in ("forked", "again", "revived"))
    queue = threads.task_queue
    async with threads.worker():
        await say(threads, thread_id, "hello", "two", "three")
        await fork(client, packs, thread_id, 6, forked, task_queue=queue)
        await say(threads, forked, "four")
        await fork(client, packs, forked, 9, again, task_queue=queue)
        await archive(client, packs, thread_id)
        await revive(client, packs, thread_id, revived, task_queue=queue)
    ids = [thread_id, forked, again, revived]
    days = await run_query(client, packs, find_named_query("cost-by-day").sql, threads=ids)
    assert sum(row[1] for row in days.rows) == 4
    own = await run_query(
        client,
        packs,
        "select thread_id, list(seq order by seq) from entries where not inherited group by all",
        threads=ids,
    )
    seqs = dict(own.rows)
    assert seqs[thread_id][:6] == [1, 2, 3, 4, 5, 6]
    assert (seqs[forked], seqs[again], seqs[revived]) == ([7, 8, 9], [10], [7])


async def test_a_terminated_thread_is_shown_as_terminated(threads: Threads, thread_id: str) -> None:
    packs, client = PackStore(threads.store), threads.client
    async with threads.worker():
        await threads.send(thread_id, "restart api", agent="ops")
        await wait_for_status(
            client, thread_id, lambda status: status.status == "approval", seconds_max=90
        )
        await client.get_workflow_handle(thread_id).terminate()
    sql = (
        "select closed is null, status, pending_approvals, growth_bytes_per_hour, agent, steps "
        "from threads"
    )
    deadline = time.monotonic() + 90
    while True:
        [row] = (await run_query(client, packs, sql, threads=[thread_id])).rows
        if not row[0] or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.2)
    assert row == (False, "terminated", 0, 0.0, "ops", 1)


async def test_a_freed_thread_that_is_still_listed_is_read_from_its_archive(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    other = f"{thread_id}-b"
    async with threads.worker():
        await say(threads, thread_id, "hello")
        await say(threads, other, "hello")
        await archive(client, packs, thread_id, then="close")

    async def gone(_client: object, thread_id: str) -> None:
        raise ThreadNotFound(f"there is no thread {thread_id!r}")

    monkeypatch.setattr(sources, "find_head", gone)
    found = await run_query(
        client,
        packs,
        "select source, seq, text from entries where role = 'user'",
        threads=[thread_id, other],
    )
    assert found.rows == (("archive", 1, "hello"),)
    assert len(found.left_out) == 1
    assert other in found.left_out[0]


@pytest.mark.guarantee(102)
async def test_reading_stops_at_its_time_limit_even_within_a_batch(
    threads: Threads, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, client = PackStore(threads.store), threads.client
    await (await build_thread(packs, thread_id)).write_archive()

    async def hangs(*_arguments: object) -> bytes:
        await asyncio.sleep(3600)
        return b""

    monkeypatch.setattr(StoredArchive, "rows", hangs)
    started = time.monotonic()
    found = await run_query(
        client,
        packs,
        "select count(text) from entries",
        threads=[thread_id],
        read_bounds=ReadBounds(seconds_max=1.0),
    )
    assert time.monotonic() - started < 30
    assert found.rows == ((0,),)
    assert "1 s of reading are the most" in found.left_out[-1]


async def test_a_query_removes_files_of_a_killed_one(
    threads: Threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "everlong-query-left"
    left.mkdir()
    (left / "views.duckdb").write_text("text of a thread")
    await run_query(threads.client, PackStore(threads.store), "select 1 as one")
    assert not list(tmp_path.glob("*everlong-query-*"))


async def test_the_command_prints_tables_csv_and_json(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_cli(server, tmp_path) as cli:
        await cli("send", thread_id, "hello", "--agent", "ops")
        sql = "select seq, kind from entries order by seq"
        only = ("--thread", thread_id)
        assert "reply" in await cli("query", sql, *only)
        assert await cli("query", sql, *only, "--csv") == "seq,kind\n1,message\n2,reply\n"
        found = await cli.json("query", sql, *only)
        assert found["rows"] == [[1, "message"], [2, "reply"]]
        assert json.loads(await cli("query", "--run", "cost-by-day", *only, "--json"))["rows"]
        assert "slowest-resumes" in await cli("query", "--list")
        assert "SELECT" in await cli.fails(QueryRefused, "query", "drop table entries")
