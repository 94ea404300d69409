"""Functions, types and tables that a statement may name: the allow list and its effect."""

import random
import re
import string
from pathlib import Path

import duckdb
import pytest

from everlong.errors import QueryRefused
from everlong.queries.statement import (
    AGGREGATE_GROUPS,
    FUNCTIONS,
    SCALAR_GROUPS,
    TABLE_FUNCTIONS,
    TABLE_GROUPS,
    TYPE_GROUPS,
    TYPES,
    VALUE_NAMES,
)
from tests.support.query_runner import check, connection, views

# Functions that read a file, a setting, a catalog, a variable, the environment or a secret, that write
# or wait, or that run SQL from a text. None may be on the list, also in a later version of DuckDB.
DANGEROUS = re.compile(
    r"read_.*|.*_scan|.*_scan_dumb|glob|sniff_.*|parquet_.*|pragma_.*|duckdb_.*|pg_.*|sqlite_.*|has_.*"
    r"|inet_.*|.*_description|current_(catalog|database|query|query_id|role|schemas?|setting|user"
    r"|connection_id|transaction_id)|session_user|user|getenv|getvariable|txid_.*|version|nextval|currval"
    r"|setval|setseed|which_secret|write_log|.*_logging|.*_logs?|.*checkpoint|.*_profiling|query|query_table"
    r"|.*serialize.*|json_execute.*|sleep_ms|.*external_resource.*|in_search_path|get_block_size|summary"
    r"|stats|vector_type|test_.*|.*_sort_key|finalize|combine|to_aggregate_state|__internal.*|format_type"
    r"|.*_names|python_.*|load_.*|copy_.*|import_.*|export_.*|attach.*|http.*|shell.*|system.*"
)
# These give another value each time, or at another time. They read the clock or a random number.
VARYING = {
    *("random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "error"),
    *("now", "today", "current_date", "get_current_time", "get_current_timestamp"),
    *("transaction_timestamp", "current_localtime", "current_localtimestamp"),
}


def list_functions(where: str = "true") -> set[str]:
    rows = connection().execute(
        f"select distinct function_name from duckdb_functions() where {where}"
    )
    return {name for (name,) in rows.fetchall()}


@pytest.mark.guarantee(102)
def test_every_function_of_duckdb_is_on_the_list_or_refused() -> None:
    scalars = {
        name.lower()
        for name in list_functions("function_type in ('scalar', 'aggregate', 'macro', 'window')")
    }
    tables = {name.lower() for name in list_functions("function_type in ('table', 'table_macro')")}
    assert scalars & FUNCTIONS
    for name in scalars - FUNCTIONS:
        with pytest.raises(QueryRefused, match="cannot be used"):
            check(f'select "{name}"(1)')
    for name in tables - TABLE_FUNCTIONS:
        with pytest.raises(QueryRefused, match="after FROM"):
            check(f'from "{name}"(1)')
    for name in tables & TABLE_FUNCTIONS:
        assert check(f'from "{name}"(1)').tables == frozenset()


def test_every_listed_function_exists_and_is_listed_once() -> None:
    functions = {
        name.lower()
        for name in list_functions("function_type in ('scalar', 'aggregate', 'macro', 'window')")
    }
    # `->` and `!` are of the parser; unnest is a table function that it takes in expressions too.
    assert FUNCTIONS - functions <= {"->", "!", "unnest"}
    assert list_functions("function_type = 'table'") >= TABLE_FUNCTIONS
    listed = " ".join((*SCALAR_GROUPS.values(), *AGGREGATE_GROUPS.values())).split()
    assert len(listed) == len(set(listed))
    types = {
        name.lower()
        for (name,) in connection().execute("select type_name from duckdb_types()").fetchall()
    }
    assert types >= TYPES


def test_no_listed_function_reads_more_than_its_arguments() -> None:
    assert not [name for name in FUNCTIONS | TABLE_FUNCTIONS if DANGEROUS.fullmatch(name)]
    varying = list_functions("stability <> 'CONSISTENT' or has_side_effects")
    assert varying & FUNCTIONS <= VARYING
    # The snapshot names what DuckDB has: a name that was changed would go unseen.
    assert {"current_setting", "getvariable", "read_text", "query_table"} <= list_functions()


def test_listed_macros_use_only_listed_functions() -> None:
    macros = connection().execute(
        "select function_name, macro_definition from duckdb_functions() where function_type = 'macro'"
    )
    found = [(name, text) for name, text in macros.fetchall() if name in FUNCTIONS]
    assert len(found) > 40
    for name, definition in found:
        assert check(f"select {definition}").tables == frozenset(), name
    # A macro of tables could name any table: none is on the list.
    assert not TABLE_FUNCTIONS & list_functions("function_type = 'table_macro'")


def test_names_that_become_functions_are_refused_or_harmless() -> None:
    bare = {"localtime", "localtimestamp", "current_time", "current_timestamp", "current_path"}
    for name in {*list_functions(), *bare, "system_user", "user"}:
        try:
            connection().execute(f'explain select "{name}"')
        except duckdb.Error:
            continue
        if name in VALUE_NAMES:
            with pytest.raises(QueryRefused, match="it is a function"):
                check(f'select "{name.upper()}"')
        else:
            assert name in bare | {"current_date"}, name
    # A column may have such a name.
    check("with c as (select 1 as user) select c.user from c")


ATTACKS = [
    'select (with "pg_settings" as (select 1) select 1), * from pg_settings',
    "select * from (with duckdb_settings as (select 1) select 1) t, duckdb_settings",
    "with a as (select * from pg_settings), pg_settings as (select 1) select * from a",
    "with pg_settings as (select * from pg_settings) select * from pg_settings",
    "with recursive pg_settings as (select * from pg_settings union all select 1) from pg_settings",
    "from (with pg_settings as (select 1) from pg_settings) union all select name from pg_settings",
    "select 1 where exists (with sqlite_master as (select 1) select 1) and exists (from sqlite_master)",
    "with x as (with pg_settings as (select 1) from pg_settings) select * from x, pg_settings",
    # In DuckDB the Kelvin sign is no k, and these are two names.
    'with "duc\u212adb_settings" as (select 1) select * from duckdb_settings',
    'with "pg_\u017fettings" as (select 1) select * from pg_settings',
    "select * from duckdb_databases",
    "select * from duckdb_databases()",
    "select * from sqlite_master",
    "select * from sqlite_schema",
    "from pg_class",
    "from duckdb_logs",
    "select current_setting('temp_directory')",
    "select CURRENT_SETTING('temp_directory')",
    "select main.current_setting('temp_directory')",
    "select system.main.current_setting('temp_directory')",
    "select 'temp_directory'.current_setting()",
    "select ['temp_directory'].list_transform(lambda x: current_setting(x))",
    "select [current_setting(x) for x in ['temp_directory']]",
    "select 1 order by current_setting('temp_directory')",
    "select 1 limit length(current_setting('temp_directory'))",
    "select count(*) filter (where current_setting('temp_directory') = '') from entries",
    "select sum(1) over (order by current_setting('temp_directory')) from entries",
    "select * from entries e join threads t on current_setting('temp_directory') = e.text",
    "from entries, lateral (select current_setting('temp_directory'))",
    "values (current_setting('temp_directory'))",
    "select * replace (current_setting('temp_directory') as text) from entries",
    "select columns(lambda c: current_setting('temp_directory') = c) from entries",
    "from entries pivot (max(current_setting('temp_directory')) for kind in ('a'))",
    "from unnest([current_setting('temp_directory')])",
    "select case when current_setting('threads') = '1' then 1 end",
    "select (select current_setting('temp_directory'))",
    "with c as (select current_setting('temp_directory')) select 1",
    "select 1 qualify current_setting('threads') = '1'",
    "select * from entries using sample 1 rows where getvariable('x') = 1",
    *("select getenv('HOME')", "select version()", "select txid_current()", "select pg_typeof(1)"),
    *("select current_user", "select session_user", 'select "User"', "select current_catalog"),
    *("select current_database()", "select current_schemas(true)", "select current_query()"),
    *("select nextval('s')", "select write_log('x')", "select sleep_ms(1)", "select pg_sleep(1)"),
    *(
        "from which_secret('a', 's3')",
        "from query('from pg_settings')",
        "from query_table('pg_settings')",
    ),
    *(
        "from histogram(pg_settings, name)",
        "from histogram_values(entries, seq)",
        "from summary(1)",
    ),
    *(
        "from (show tables)",
        "from (describe entries)",
        "summarize entries",
        "from (show all tables)",
    ),
    *("select json_serialize_plan('select 1')", "from json_execute_serialized_sql('{}')"),
    *("select 'pg_class'::regclass", "select 1::regtype", "select 1::main.foo", "select 1::oid"),
    *("from 'a.csv'", 'from "/etc/passwd"', "from 'https://example.org/a.parquet'"),
    *("from temp.main.entries", "from memory.main.x", "from system.information_schema.tables"),
    "with recursive r using key (a) as (select 1 as a union select a from recurring.pg_settings) from r",
    "select $1",
    "select __internal_decompress_string(1)",
    "with x as (delete from entries returning *) from x",
]


@pytest.mark.guarantee(102)
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_before_it_is_bound(attack: str) -> None:
    with pytest.raises(QueryRefused):
        check(attack)


def test_a_refusal_names_the_function_and_the_list() -> None:
    with pytest.raises(
        QueryRefused, match=r"'current_setting' cannot be used .* docs/how-to/query.md"
    ):
        check("select current_setting('threads')")


SCOPES = [
    "with a as (select 1), b as (from a) select * from a, b, (with c as (from b) from c)",
    "with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select * from r",
    "with recursive r as (select 1 n union all (with s as (from r) select n from s where n > 1)) from r",
    "with a as (select 1) select (select max(x) from (with b as (from a) select 1 as x from b)) from a",
    "with a as (select 1 as x) from a union all from a order by 1",
    "with a as (select 1 as x) select * from a, lateral (select a.x from a b)",
    "with a as (select 1 as x) select * from a where x in (from a) and exists (from a)",
    "with entries as (select seq from entries where seq > 1) select count(*) from entries",
    "with A as (select 1) select * from a",
    "with a as (with a as (select 1) from a) from a",
    "with a as materialized (select 1), b(x) as (from a) select x from b",
    "select * from (values (1), (2)) v(x) join range(3) r(y) on x = y",
    "from entries select kind, count(*) group by all having count(*) > 0 order by all limit 3",
    "select kind, list(seq order by seq), row_number() over (partition by kind order by seq) "
    "from entries group by kind, seq",
    "select e.seq, u.c.tool from entries e, unnest(e.tool_calls) u(c)",
    "select * from entries natural join threads",
    "pivot entries on kind in ('a', 'b') using count(*) group by thread_id",
    "unpivot (select 1 as a, 2 as b) on a, b into name n value v",
    "select [x + 1 for x in [1, 2] if x > 1], list_reduce([1, 2], lambda a, b: a + b)",
    "select json_extract_string(data, '$.a'), data->>'b', data->'c' from entries",
    "select time::date, time at time zone 'UTC', extract(year from time) from entries",
    "select try_cast('x' as int), 1::decimal(3, 1), [1]::int[], {'a': 1}::struct(a text), try(1 / 0)",
    "select text like 'a%', text ilike 'a', text glob 'a*', text similar to 'a', 'b' ~ 'a' from entries",
    "select count(*) filter (where seq > 1), quantile_cont(seq, 0.5), "
    "mode() within group (order by seq), grouping(kind) from entries group by rollup (kind)",
    "select distinct on (kind) kind, seq from entries order by kind, seq desc nulls last limit 10%",
    "select 'a' collate nocase = 'A', case kind when 'a' then 1 end, coalesce(text, '') from entries",
    "select current_date, current_timestamp, localtime, now()",
    "from entries tablesample 10%",
    "select * exclude (text) replace (1 as seq), columns('^t') from entries",
]


@pytest.mark.parametrize("statement", SCOPES)
def test_listed_functions_and_tables_in_scope_run(tmp_path: Path, statement: str) -> None:
    needs = check(statement)
    with views(tmp_path, needs.messages) as opened:
        opened.execute(statement).fetchall()


def test_the_list_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/how-to/query.md").read_text()
    words = set(re.findall(rf"[{string.ascii_lowercase}_0-9]+", text.lower()))
    groups = {**SCALAR_GROUPS, **AGGREGATE_GROUPS, **TABLE_GROUPS, **TYPE_GROUPS}
    for group, names in groups.items():
        assert group.lower() in text.lower()
        assert set(names.split()) <= words, sorted(set(names.split()) - words)


# Views of DuckDB itself, which read its settings, among names of ours and of no one.
NAMES = ("pg_settings", "duckdb_settings", "PG_Settings", "entries", "a", "b")
SECRET = "DUCKDB_SETTINGS"
COUNT = 300
Scope = frozenset[str]


class Statements:
    """Random statements with scopes within scopes, that mostly name what is in scope."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._declared: set[str] = set()

    def select(self, scope: Scope = frozenset({"entries"}), depth: int = 3) -> str:
        ctes = ""
        if depth > 0 and self._random.random() < 0.6:
            ctes, scope = self._ctes(scope, depth)
        kinds = (self._plain, self._union, self._lateral, self._nested)
        return ctes + self._random.choice(kinds)(scope, depth)

    def _ctes(self, scope: Scope, depth: int) -> tuple[str, Scope]:
        is_recursive = self._random.random() < 0.3
        parts = []
        for name in self._random.sample(NAMES[1:], self._random.randint(1, 2)):
            inner = self.select(scope, depth - 1)
            if is_recursive and self._random.random() < 0.7:
                table = self._table(scope | {name}, depth - 1)
                inner = f"select 1 as x union all select 2 as x from {table}"
            parts.append(f"{name} as ({inner})")
            scope |= {name}
            self._declared.add(name)
        return f"with {'recursive ' if is_recursive else ''}{', '.join(parts)} ", scope

    def _plain(self, scope: Scope, depth: int) -> str:
        return f"select 1 as x from {self._table(scope, depth)}"

    def _union(self, scope: Scope, depth: int) -> str:
        return f"{self._plain(scope, depth - 1)} union all ({self.select(scope, depth - 1)})"

    def _lateral(self, scope: Scope, depth: int) -> str:
        tables = [self._table(scope, depth - 1) for _ in range(2)]
        return f"select 1 as x from {tables[0]} l, lateral (select 1 as y from {tables[1]}) r"

    def _nested(self, scope: Scope, depth: int) -> str:
        tables = [self._table(scope, depth - 1) for _ in range(2)]
        return f"select (select count(*) from {tables[0]}) as x from {tables[1]}"

    def _table(self, scope: Scope, depth: int) -> str:
        if depth > 0 and self._random.random() < 0.4:
            return f"({self.select(scope, depth - 1)})"
        # Some names are in scope elsewhere.
        names = self._declared if self._declared and self._random.random() < 0.1 else scope
        return self._random.choice(sorted(names))


@pytest.mark.guarantee(102)
def test_no_statement_that_passes_reads_a_table_of_duckdbs_own(tmp_path: Path) -> None:
    statements = Statements(15)
    passed = bound = 0
    with views(tmp_path) as opened:
        for _ in range(COUNT):
            sql = statements.select()
            try:
                check(sql)
            except QueryRefused:
                continue
            passed += 1
            try:
                plan = str(opened.execute(f"explain {sql}").fetchall())
            except duckdb.Error:
                continue
            bound += 1
            assert SECRET not in plan, sql
        # It would be seen in the plan.
        assert SECRET in str(opened.execute("explain select 1 from pg_settings").fetchall())
    # Neither all nor none: what passes is what DuckDB can bind too.
    assert COUNT // 4 < passed < COUNT * 3 // 4
    assert bound > passed * 3 // 4
