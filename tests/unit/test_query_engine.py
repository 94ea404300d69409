"""Statements over views: what they may not do, and what they may not take."""

import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from everlong.errors import QueryRefused
from everlong.queries import LIBRARY, Bounds, Table, running
from everlong.queries.engine import Database, needs_of
from everlong.queries.views import ENTRIES, THREADS

ROW: dict[str, Any] = {
    "thread_id": "ops-7",
    "source": "journal",
    "seq": 1,
    "kind": "reply",
    "time": 1_794_800_000_000,
    "text": "hello",
    "tool_calls": [{"id": "c1", "tool": "restart", "arguments": "{}"}],
    "size_bytes": 10,
    "tokens": 5,
    "cost_usd": 0.5,
    "resume_ms": 12.5,
}


def run(folder: Path, sql: str, bounds: Bounds | None = None, rows: int = 3) -> Table:
    folder.mkdir(exist_ok=True)
    database = Database(folder, needs_of(sql), bounds or Bounds())
    database.add("entries", [ROW | {"seq": number} for number in range(1, rows + 1)])
    database.add("threads", [{"thread_id": "ops-7", "stored_bytes": 7}])
    try:
        return database.run(sql)
    finally:
        database.close()


def test_views_are_read(tmp_path: Path) -> None:
    assert run(tmp_path / "a", "select count(*), max(text) from entries").rows == ((3, "hello"),)
    joined = (
        "with e as (from entries) select stored_bytes, seq from e join threads using (thread_id)"
    )
    assert len(run(tmp_path / "b", joined).rows) == 3
    assert run(tmp_path / "c", "select resume_ms from resumes limit 1").rows == ((12.5,),)
    called = "select c.tool from entries, unnest(tool_calls) as u(c) limit 1"
    assert run(tmp_path / "d", called).rows == (("restart",),)
    assert run(tmp_path / "e", "select 1 as one").columns == ("one",)


@pytest.mark.parametrize("named", LIBRARY, ids=lambda named: named.name)
def test_the_library_runs(tmp_path: Path, named: Any) -> None:
    assert run(tmp_path / "q", named.sql).columns
    assert named.about


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
def test_nothing_else_can_be_done(tmp_path: Path, statement: str) -> None:
    with pytest.raises(QueryRefused):
        run(tmp_path / "q", statement)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left <= {"views.duckdb"}


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
def test_the_database_itself_refuses_what_a_parser_might_let_through(
    tmp_path: Path, statement: str
) -> None:
    database = Database(tmp_path, needs_of("select 1"), Bounds())
    with pytest.raises(QueryRefused, match="the query failed"):
        database.run(statement)


def test_a_query_is_stopped_when_its_time_is_over(tmp_path: Path) -> None:
    endless = (
        "select count(*) from range(100000000) a, range(1000000) b where a.range % 7 = b.range % 11"
    )
    started = time.monotonic()
    with pytest.raises(QueryRefused, match="stopped after"):
        run(tmp_path / "q", endless, Bounds(seconds=0.5))
    assert time.monotonic() - started < 20


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
def test_a_query_has_no_more_memory_than_it_may(tmp_path: Path, greedy: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(QueryRefused, match="more memory"):
        run(tmp_path / "memory", greedy, Bounds(memory_bytes=32 << 20))
    # In KiB: nothing of it was taken in this process.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_a_query_spills_no_more_than_it_may(tmp_path: Path) -> None:
    small = Bounds(memory_bytes=32 << 20, disk_bytes=8 << 20)
    spilling = (
        "select s from (select md5(cast(range as varchar)) || md5(cast(range + 1 as varchar)) as s "
        "from range(4000000)) order by s"
    )
    with pytest.raises(QueryRefused, match=r"more disk than .* 8,388,608 bytes") as refused:
        run(tmp_path / "disk", spilling, small)
    assert str(tmp_path) not in str(refused.value)


def test_a_result_has_no_more_bytes_than_it_may(tmp_path: Path) -> None:
    wide = "select repeat('x', 100000) from range(5000)"
    found = run(tmp_path / "wide", wide, Bounds(result_bytes=1_000_000))
    assert (len(found.rows), found.truncated) == (9, True)


def test_a_statement_that_is_nested_too_deeply_is_refused() -> None:
    for deep in (
        "from " * 2 + "(from " * 2800 + "entries" + ")" * 2800,
        "select * from " + "(select * from " * 1200 + "entries" + ")" * 1200,
        "select " + "(" * 9000 + "1" + ")" * 9000,
        "select " + "not " * 4500 + "true",
    ):
        with pytest.raises(QueryRefused):
            needs_of(deep)


@pytest.mark.parametrize("unclosed", ["(", "[", "{", "case when ", "(select ", "cast("])
def test_what_a_parser_cannot_take_in_is_refused_elsewhere(unclosed: str) -> None:
    """DuckDB's parser takes memory with the square of brackets that are not closed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(QueryRefused):
        needs_of("select " + unclosed * (19_000 // len(unclosed)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_values_are_what_json_has(tmp_path: Path) -> None:
    found = run(
        tmp_path / "q",
        "select cast('nan' as double), 1.50, date '2026-11-17', '\\x01'::blob, {'a': [1]}, "
        "timestamp '2026-11-17 01:02:03', chr(55)",
    )
    [row] = found.rows
    assert row == ("nan", 1.5, "2026-11-17", "01", {"a": [1]}, "2026-11-17T01:02:03.000Z", "7")


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_times_are_utc_wherever_a_query_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    class Elsewhere(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"env": {"TZ": zone}})

    monkeypatch.setattr(subprocess, "Popen", Elsewhere)
    ago = "select abs(epoch(now() - timestamp '1970-01-01')), current_setting('TimeZone'), now()"
    [(seconds, named, now)] = run(tmp_path / "a", ago).rows
    assert abs(seconds - time.time()) < 60
    assert (named, now[-1]) == ("UTC", "Z")
    assert now[:13] == time.strftime("%Y-%m-%dT%H", time.gmtime(seconds))
    [row] = run(
        tmp_path / "b",
        "select timestamptz '2026-11-17 01:02:03+02', [timestamptz '2026-11-17 01:02:03-05'], "
        "max(time)::timestamptz from entries",
    ).rows
    assert row == (
        "2026-11-16T23:02:03.000Z",
        ["2026-11-17T06:02:03.000Z"],
        "2026-11-16T03:33:20.000Z",
    )


def test_what_a_fork_has_from_another_thread_is_told_apart(tmp_path: Path) -> None:
    kinds = ["reply", "fork", "reply", "fork", "reply"]
    again = [
        {"seq": seq, "kind": kind, "data": f'{{"seq": {seq - 1}}}'}
        for seq, kind in enumerate(kinds, 1)
    ]
    sql = "select seq from entries where thread_id = 'again' and not inherited order by seq"
    (tmp_path / "q").mkdir()
    database = Database(tmp_path / "q", needs_of(sql), Bounds())
    database.add("entries", [ROW | each | {"thread_id": "again"} for each in again])
    database.add("entries", [ROW])
    assert database.run(sql).rows == ((4,), (5,))
    # A thread that is no fork has all of its entries itself.
    assert run(tmp_path / "a", "select count(*) from entries where not inherited").rows == ((3,),)


def test_rows_beyond_the_bound_are_said_to_be_there(tmp_path: Path) -> None:
    found = run(tmp_path / "a", "select seq from entries", Bounds(rows=2))
    assert (len(found.rows), found.truncated) == (2, True)
    assert not run(tmp_path / "b", "select seq from entries", Bounds(rows=3)).truncated


def test_only_what_a_statement_uses_is_wanted() -> None:
    def wants(sql: str) -> tuple[set[str], bool]:
        needs = needs_of(sql)
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
def test_messages_are_found_also_where_rows_are_named_as_a_whole(
    tmp_path: Path, statement: str
) -> None:
    assert len(run(tmp_path / "q", statement).rows) == 3


def test_columns_that_nobody_names_count_where_a_pivot_goes_by_them() -> None:
    assert needs_of("select 1 from entries pivot (count(*) for kind in ('reply'))").messages


def test_a_column_that_was_not_read_is_not_silently_empty(tmp_path: Path) -> None:
    database = Database(tmp_path, needs_of("select seq from entries"), Bounds())
    with pytest.raises(QueryRefused, match="text"):
        database.run("select text from entries")


def test_a_process_that_dies_within_a_line_is_a_query_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = tmp_path / "dying.py"
    dying.write_text("""print('{"columns": ["a"]}\\n{"row": [1', end='')""")
    monkeypatch.setattr(running, "__file__", str(dying))
    with pytest.raises(QueryRefused, match="more memory"):
        run(tmp_path / "q", "select 1")


def test_errors_show_no_paths(tmp_path: Path) -> None:
    with pytest.raises(QueryRefused) as refused:
        run(tmp_path / "q", "select cast(text as integer) from entries")
    assert str(tmp_path) not in str(refused.value)


def test_views_have_the_columns_that_are_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/queries.md").read_text()
    for column in {*ENTRIES, *THREADS}:
        assert f"`{column}`" in text, column
    for named in LIBRARY:
        assert f"`{named.name}`" in text
