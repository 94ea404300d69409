"""Scopes of CTEs: what the check takes for a CTE is one for DuckDB too."""

import random
from pathlib import Path

import duckdb
import pytest

from everlong.errors import QueryRefused
from tests.support.query_runner import check, views

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
