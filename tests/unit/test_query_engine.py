"""Statements over views: what they may not do, and what they may not take."""

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from everlong.errors import QueryRefused
from everlong.queries import LIBRARY, Bounds, sandbox_main
from everlong.queries.views import ENTRIES, THREADS
from tests.support.query_runner import ENDLESS, ROW, check, find_needs, run, run_over, views


async def test_views_are_read(tmp_path: Path) -> None:
    assert (await run(tmp_path / "a", "select count(*), max(text) from entries")).rows == (
        (3, "hello"),
    )
    joined = (
        "with e as (from entries) select stored_bytes, seq from e join threads using (thread_id)"
    )
    assert len((await run(tmp_path / "b", joined)).rows) == 3
    assert (await run(tmp_path / "c", "select resume_ms from resumes limit 1")).rows == ((12.5,),)
    called = "select c.tool from entries, unnest(tool_calls) as u(c) limit 1"
    assert (await run(tmp_path / "d", called)).rows == (("restart",),)
    assert (await run(tmp_path / "e", "select 1 as one")).columns == ("one",)


@pytest.mark.parametrize("named", LIBRARY, ids=lambda named: named.name)
async def test_all_library_statements_run(tmp_path: Path, named: Any) -> None:
    assert (await run(tmp_path / "q", named.sql)).columns
    assert named.about


@pytest.mark.guarantee(102)
@pytest.mark.parametrize(
    "statement",
    [
        *("select * from read_text('/etc/passwd')", "select * from read_csv('/etc/passwd')"),
        *("select * from read_blob('/etc/passwd')", "select * from glob('/*')"),
        *("from '/etc/passwd'", "select * from '/tmp/some.parquet'"),
        *(
            "select * from read_parquet('/tmp/some.parquet')",
            "select * from sniff_csv('/etc/passwd')",
        ),
        *("attach '/tmp/other.db' as other", "copy entries to '/tmp/out.csv'"),
        *("copy (select 1) to '/tmp/out.csv'", "export database '/tmp/out'"),
        *("install httpfs", "load httpfs", "set memory_limit = '8GB'", "reset threads"),
        *("pragma database_list", "call pragma_version()", "checkpoint", "vacuum"),
        *("create table x as select 1", "create temp table x as select 1", "drop table entries"),
        *(
            "insert into entries (seq) values (1)",
            "update entries set seq = 1",
            "delete from entries",
        ),
        "with x as (insert into threads (thread_id) values ('a') returning *) select * from x",
        *("select 1; select 2", "select 1; drop table entries", "", "nonsense"),
        *("select * from duckdb_settings()", "select * from duckdb_databases()"),
        *("select * from query('from entries')", "select * from query_table('entries')"),
        *("select * from information_schema.tables", "select * from main.entries"),
        *("select * from sqlite_master", "select * from pg_catalog.pg_class"),
        *("begin", "explain select 1", "prepare p as select 1", "execute p", "use memory"),
        "select getenv('HOME')",
    ],
)
def test_statements_other_than_select_are_refused(statement: str) -> None:
    with pytest.raises(QueryRefused):
        check(statement)


async def test_a_refused_statement_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(QueryRefused, match="only a SELECT"):
        await run(tmp_path / "q", "copy (select 1) to '/tmp/out.csv'")
    assert not list((tmp_path / "q").iterdir())


@pytest.mark.guarantee(102)
@pytest.mark.parametrize(
    "statement",
    [
        "select * from read_text('/etc/passwd')",
        "copy entries to '/tmp/everlong-out.csv'",
        "attach '/tmp/everlong-other.db'",
        "insert into entries (seq) values (1)",
        "set memory_limit = '8GB'",
        "set enable_external_access = true",
        "load httpfs",
    ],
)
def test_the_database_refuses_statements_that_pass_the_parser(
    tmp_path: Path, statement: str
) -> None:
    with views(tmp_path) as connection, pytest.raises(duckdb.Error):
        connection.execute(statement)
    assert not Path("/tmp/everlong-out.csv").exists()


@pytest.mark.guarantee(102)
async def test_a_query_stops_at_its_time_limit(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(QueryRefused, match="stopped after"):
        await run(tmp_path / "q", ENDLESS, Bounds(seconds=0.5))
    assert time.monotonic() - started < 20


@pytest.mark.guarantee(102)
@pytest.mark.parametrize(
    "greedy",
    [
        "select length(string_agg(md5(cast(range as varchar)), '')) from range(20000000)",
        # One call of a function makes all of it, which DuckDB's own limit does not count.
        "select length(repeat('x', 2000000000))",
        "select len(range(1000000000))",
        "select list(repeat('x', 1000000)) from range(5000)",
    ],
)
async def test_the_memory_of_a_query_is_bounded(tmp_path: Path, greedy: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(QueryRefused, match="more memory"):
        await run(tmp_path / "memory", greedy, Bounds(memory_bytes=32 << 20))
    # In KiB: nothing of it was taken in this process.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.guarantee(102)
async def test_the_spill_of_a_query_is_bounded(tmp_path: Path) -> None:
    small = Bounds(memory_bytes=32 << 20, disk_bytes=8 << 20)
    spilling = (
        "select s from (select md5(cast(range as varchar)) || md5(cast(range + 1 as varchar)) as s "
        "from range(4000000)) order by s"
    )
    with pytest.raises(QueryRefused, match=r"more disk than .* 8,388,608 bytes") as refused:
        await run(tmp_path / "disk", spilling, small)
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.guarantee(102)
async def test_the_bytes_of_a_result_are_bounded(tmp_path: Path) -> None:
    wide = "select repeat('x', 100000) from range(5000)"
    found = await run(tmp_path / "wide", wide, Bounds(result_bytes=1_000_000))
    assert (len(found.rows), found.truncated) == (9, True)


async def test_a_deeply_nested_statement_is_refused(tmp_path: Path) -> None:
    for deep in (
        "from " * 2 + "(from " * 2800 + "entries" + ")" * 2800,
        "select * from " + "(select * from " * 1200 + "entries" + ")" * 1200,
        "select " + "(" * 9000 + "1" + ")" * 9000,
        "select " + "not " * 4500 + "true",
    ):
        with pytest.raises(QueryRefused):
            await find_needs(deep, tmp_path)


@pytest.mark.guarantee(102)
@pytest.mark.parametrize(
    "bomb",
    [
        # 99 characters: 52 s and 10.6 GB, once.
        "with a as (" * 9,
        "with a as (" * 1_800,
        *("select " + each * (19_000 // len(each)) for each in ("(", "[", "case when ", "cast(")),
    ],
    ids=lambda bomb: f"{bomb[:18]}-{len(bomb)}",
)
async def test_a_statement_that_exhausts_the_parser_is_refused(tmp_path: Path, bomb: str) -> None:
    """DuckDB's parser backtracks: its time and memory grow with the square, or exponentially."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    with pytest.raises(QueryRefused):
        await find_needs(bomb, tmp_path)
    assert time.monotonic() - started < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024  # KiB


ALONE = """
import asyncio, sys
from pathlib import Path
from everlong.queries.engine import open_statement

async def run(folder):
    async with open_statement("select 1 as one", folder) as statement:
        return await statement.run({})

print(asyncio.run(run(Path(sys.argv[1]))).rows, "duckdb" in sys.modules)
"""


@pytest.mark.guarantee(102)
def test_no_statement_is_parsed_in_the_process_that_asks(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALONE, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert finished.stdout == "((1,),) False\n"


async def test_values_are_json_types(tmp_path: Path) -> None:
    found = await run(
        tmp_path / "q",
        "select cast('nan' as double), 1.50, date '2026-11-17', '\\x01'::blob, {'a': [1]}, "
        "timestamp '2026-11-17 01:02:03', chr(55)",
    )
    [row] = found.rows
    assert row == ("nan", 1.5, "2026-11-17", "01", {"a": [1]}, "2026-11-17T01:02:03.000Z", "7")


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
async def test_times_are_utc_in_any_time_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    class Elsewhere(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"env": {"TZ": zone}})

    monkeypatch.setattr(subprocess, "Popen", Elsewhere)
    ago = "select abs(epoch(now() - timestamp '1970-01-01')), now()"
    [(seconds, now)] = (await run(tmp_path / "a", ago)).rows
    assert abs(seconds - time.time()) < 60
    assert now[-1] == "Z"
    assert now[:13] == time.strftime("%Y-%m-%dT%H", time.gmtime(seconds))
    zoned = (
        "select timestamptz '2026-11-17 01:02:03+02', [timestamptz '2026-11-17 01:02:03-05'], "
        "max(time)::timestamptz from entries"
    )
    [row] = (await run(tmp_path / "b", zoned)).rows
    assert row == (
        "2026-11-16T23:02:03.000Z",
        ["2026-11-17T06:02:03.000Z"],
        "2026-11-16T03:33:20.000Z",
    )


async def test_shared_entries_of_a_fork_are_marked(tmp_path: Path) -> None:
    kinds = ["reply", "fork", "reply", "fork", "reply"]
    again = [
        {"seq": seq, "kind": kind, "data": f'{{"seq": {seq - 1}}}'}
        for seq, kind in enumerate(kinds, 1)
    ]
    sql = "select seq from entries where thread_id = 'again' and not inherited order by seq"
    entries = [ROW | each | {"thread_id": "again"} for each in again]
    assert (await run_over(tmp_path / "q", sql, [*entries, ROW])).rows == ((4,), (5,))
    # A thread that is no fork has all of its entries itself.
    assert (await run(tmp_path / "a", "select count(*) from entries where not inherited")).rows == (
        (3,),
    )


@pytest.mark.guarantee(102)
async def test_rows_beyond_the_bound_are_reported(tmp_path: Path) -> None:
    found = await run(tmp_path / "a", "select seq from entries", Bounds(rows=2))
    assert (len(found.rows), found.truncated) == (2, True)
    assert not (await run(tmp_path / "b", "select seq from entries", Bounds(rows=3))).truncated


def test_only_columns_that_a_statement_uses_are_read() -> None:
    def wants(sql: str) -> tuple[set[str], bool]:
        needs = check(sql)
        return set(needs.tables), needs.messages

    assert wants("select count(*) from entries") == ({"entries"}, False)
    assert wants("select kind, sum(tokens) from entries group by kind") == ({"entries"}, False)
    assert wants("select kind from entries group by all order by all") == ({"entries"}, False)
    assert wants("select length(e.text) from entries e") == ({"entries"}, True)
    assert wants("select * from entries") == ({"entries"}, True)
    assert wants("select columns('t.*') from entries") == ({"entries"}, True)
    assert wants("select tool from entries") == ({"entries"}, True)
    assert wants("select * from resumes") == ({"entries"}, False)
    assert wants("select #2 from entries") == ({"entries"}, True)
    assert wants("select * from threads") == ({"threads"}, False)
    assert wants("select 1 where exists (select 1 from threads)") == ({"threads"}, False)
    assert wants("select 1") == (set(), False)
    assert wants("select e.seq, entries.seq from entries e, entries") == ({"entries"}, False)
    assert wants("select r from resumes r") == ({"entries"}, False)
    assert wants("select text.upper() from entries") == ({"entries"}, True)
    assert wants("with entries as (select 1 as text) select text from entries") == (set(), False)
    assert wants("with threads as (select seq from entries) from threads") == ({"entries"}, True)


@pytest.mark.parametrize(
    "statement",
    [
        "select seq from entries e where e::varchar like '%hello%'",
        "select seq from entries where Entries::varchar like '%hello%'",
        "select seq from entries e where to_json(e)::varchar like '%hello%'",
        "select seq from entries e where (e).text = 'hello' order by all",
        "select seq from entries where concat_ws(' ', *columns(*)) like '%hello%'",
        "select seq from entries where columns('^te.t$') = 'hello'",
        "select a from entries as e(s, t, a, k, m, r, x) where x = 'hello'",
        "select e.seq from entries e natural join (select 'hello' as text)",
    ],
)
async def test_whole_row_references_read_messages(tmp_path: Path, statement: str) -> None:
    assert len((await run(tmp_path / "q", statement)).rows) == 3


def test_a_pivot_reads_its_implicit_columns() -> None:
    assert check("select 1 from entries pivot (count(*) for kind in ('reply'))").messages


def test_a_column_that_was_not_read_is_not_silently_empty(tmp_path: Path) -> None:
    with views(tmp_path, messages=False) as connection:
        connection.execute("select seq from entries")
        with pytest.raises(duckdb.Error, match="text"):
            connection.execute("select text from entries")


async def test_a_process_that_dies_within_a_line_refuses_its_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = tmp_path / "dying.py"
    dying.write_text(
        "print('{\"ready\": true}', flush=True)\n"
        "input()\n"
        'print(\'{"tables": [], "messages": false}\', flush=True)\n'
        "input()\n"
        'print(\'{"filled": true}\\n{"columns": ["a"]}\\n{"row": [1\', end=\'\', flush=True)\n'
    )
    monkeypatch.setattr(sandbox_main, "__file__", str(dying))
    with pytest.raises(QueryRefused, match="more memory"):
        await run(tmp_path / "q", "select 1")


async def test_the_output_of_a_query_process_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talking = tmp_path / "talking.py"
    talking.write_text(
        "print('{\"ready\": true}', flush=True)\ninput()\nwhile True: print('x' * 65536, end='')"
    )
    monkeypatch.setattr(sandbox_main, "__file__", str(talking))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(QueryRefused, match="too large"):
        await run(tmp_path / "q", "select 1")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024  # KiB


async def test_a_result_takes_bounded_memory_in_the_caller(tmp_path: Path) -> None:
    """A small object takes 30 times as much memory in Python as it has characters in JSON."""
    objects = "select list({'a': range}) from range(5000000) group by range // 1000"
    found = await run(tmp_path / "q", objects, Bounds(result_bytes=8 << 20))
    assert found.truncated
    count = sum(len(row[0]) for row in found.rows)
    assert 10_000 < count < (8 << 20) // 300


async def test_long_values_are_cut_at_their_bound(tmp_path: Path) -> None:
    long = "select repeat('x', 100), [1, 2, 3], range(100), 7, 'short'"
    found = await run(tmp_path / "q", long, Bounds(value_chars=10))
    assert found.rows == (("x" * 10, [1, 2, 3], "[0, 1, 2, ", 7, "short"),)
    assert found.cut == 2


async def test_errors_show_no_paths(tmp_path: Path) -> None:
    with pytest.raises(QueryRefused) as refused:
        await run(tmp_path / "q", "select cast(text as integer) from entries")
    assert str(tmp_path) not in str(refused.value)


def test_views_have_the_columns_that_are_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/how-to/query.md").read_text()
    for column in {*ENTRIES, *THREADS}:
        assert f"`{column}`" in text, column
    for named in LIBRARY:
        assert f"`{named.name}`" in text
