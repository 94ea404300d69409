"""Fuzzer of queries: random and malformed statements through the real engine.

Each must end with a result or `QueryRefused` within its time limit. This process must not grow, and no
query process may remain. `make fuzz-queries` runs many; `tests/unit/test_query_kills.py` a few.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from everlong.errors import QueryRefused
from everlong.queries import LIBRARY, Bounds, sandbox_main
from everlong.queries.engine import STATEMENT_CHARS_MAX
from tests.support.query_runner import run

BOUNDS: Final = Bounds(memory_bytes=64 << 20, disk_bytes=64 << 20, seconds=5.0, rows=100)
SECONDS_MAX: Final = 60.0
"""Bound of one statement: 5 s of parsing, 5 s of running, and a start on a busy machine."""
RSS_GROWTH_MAX: Final = 64 << 20
_AT_ONCE: Final = 2

NESTED: Final = (
    *("with a as (", "with recursive a as (", "with a as (select 1), b as (", "(", "[", "{'a': "),
    *(
        "(select ",
        "select (",
        "cast(",
        "try_cast(",
        "case when ",
        "case 1 when ",
        "not ",
        "- ",
        "~",
    ),
    *("lambda x: ", "x -> ", "[x for x in ", "list_transform([1], lambda x: ", "exists (select "),
    *("map {'a': ", "row(", "array[", "struct_pack(a := ", "interval (", "coalesce(", "values ("),
    *("from (from ", "select * from (", "select * from (values (", "(from a join (", "unnest(["),
    *(
        "/*",
        "/* a */ ",
        "-- a\n",
        "'",
        '"',
        "$$",
        "$a$",
        "e'\\",
        "x'",
        "u&'",
        "'' || ",
        "a.",
        "a::",
    ),
    *(
        "1 between ",
        "1 in (",
        "1 + (",
        "1 = any (",
        "a[",
        "a[1:",
        "union all select ",
        "grouping sets ((",
    ),
    *(
        "sum(1) over (partition by ",
        "count(*) filter (where ",
        "pivot (",
        "columns(",
        "* exclude (",
    ),
)
PIECES: Final = (
    *NESTED,
    *(
        "select ",
        "from ",
        "where ",
        "entries ",
        "threads ",
        "resumes ",
        "a ",
        "1 ",
        "'x' ",
        "null ",
        "* ",
    ),
    *(
        ")",
        "]",
        "}",
        "*/",
        "end ",
        "then ",
        "else ",
        "as ",
        ", ",
        "; ",
        ":: ",
        "int[] ",
        "struct(a int) ",
    ),
    *(
        "join ",
        "lateral ",
        "using (seq) ",
        "on true ",
        "group by all ",
        "order by ",
        "limit ",
        "having ",
    ),
    *(
        "union ",
        "except ",
        "intersect all ",
        "by name ",
        "qualify ",
        "window w as ",
        "tablesample 1% ",
    ),
    *(
        "count(*) ",
        "current_setting('threads') ",
        "range(3) ",
        "'a.csv' ",
        "pg_settings ",
        "text ",
        "seq ",
    ),
    *(
        "\x00",
        "\u2028",
        "\u202e",
        "\u212a",
        "\U0001f600",
        "\\",
        "\ufeff",
        "\t",
        "é",
        "#1 ",
        "$1 ",
        "? ",
    ),
)


def statements(seed: int) -> Iterator[str]:
    """Yield statements without end."""
    chance = random.Random(seed)
    makers = (_nest, _join, _truncate, _splice, _build_well_formed)
    while True:
        yield chance.choice(makers)(chance)[:STATEMENT_CHARS_MAX]


def _nest(chance: random.Random) -> str:
    """Nest one piece within itself, a few times or as often as fits, closed or not."""
    piece = chance.choice(NESTED)
    count = chance.choice((2, 5, 9, 20, 100, 1_000, STATEMENT_CHARS_MAX))
    count = min(count, (STATEMENT_CHARS_MAX - 20) // len(piece))
    closing = "".join({"(": ")", "[": "]", "{": "}"}.get(each, "") for each in reversed(piece))
    end = "select 1" + closing * count if chance.random() < 0.4 else ""
    return chance.choice(("", "select ", "from ")) + piece * count + end


def _join(chance: random.Random) -> str:
    return "select " + "".join(chance.choices(PIECES, k=chance.choice((3, 10, 30, 300))))


def _truncate(chance: random.Random) -> str:
    sql = chance.choice(LIBRARY).sql
    return sql[chance.randrange(4) :][: chance.randrange(1, len(sql))]


def _splice(chance: random.Random) -> str:
    sql = chance.choice(LIBRARY).sql
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(sql))
        sql = sql[:place] + chance.choice(PIECES) * chance.choice((1, 1, 1, 12)) + sql[place:]
    return sql


def _build_well_formed(chance: random.Random) -> str:
    return _query(chance, chance.randint(1, 6))


def _query(chance: random.Random, depth: int) -> str:
    tables = ["entries", "threads", "range(3)", "(values (1), (2)) v"]
    ctes = ""
    if depth > 0 and chance.random() < 0.5:
        ctes = f"with a as ({_query(chance, depth - 1)}) "
        tables.append("a")
    if depth > 0:
        tables.append(f"({_query(chance, depth - 1)}) t")
    return f"{ctes}select {_expression(chance, depth)} as x from {chance.choice(tables)}"


def _expression(chance: random.Random, depth: int) -> str:
    if depth <= 0:
        return chance.choice(("1", "'x'", "null", "1.5", "count(*)", "interval 1 day"))
    one, two = (_expression(chance, depth - chance.randint(1, 3)) for _ in range(2))
    return chance.choice(
        (
            *(f"({one})", f"cast({one} as varchar)", f"{one}::varchar", f"try_cast({one} as int)"),
            *(f"[{one}, {two}]", f"{{'a': {one}, 'b': {two}}}", f"coalesce({one}, {two})"),
            *(f"list_transform([{one}], lambda x: {two})", f"[x for x in [{one}]]"),
            *(f"case when {one} is null then {two} end", f"/* a */ {one}", f"{one} -- b\n"),
            *(f"({_query(chance, depth - 2)} limit 1)", f"exists ({_query(chance, depth - 2)})"),
        )
    )


@dataclasses.dataclass
class Report:
    """Result of a fuzzing run."""

    ended: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    seconds_max: float = 0.0
    slowest: str = ""
    rss_growth_bytes: int = 0
    left: tuple[int, ...] = ()
    """Processes that were still there at the end."""


async def fuzz(seed: int, count: int, folder: Path) -> Report:
    """Run `count` statements."""
    report = Report()
    source = statements(seed)
    before = _rss_bytes()
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int, sql: str) -> None:
        async with room:
            place = folder / str(number)
            started = time.monotonic()
            try:
                await run(place, sql, BOUNDS)
                report.ended["result"] += 1
            except QueryRefused as error:
                report.ended[str(error)[:40]] += 1
            seconds = time.monotonic() - started
            if seconds > report.seconds_max:
                report.seconds_max, report.slowest = seconds, sql[:80]
            report.rss_growth_bytes = max(report.rss_growth_bytes, _rss_bytes() - before)

    await asyncio.gather(*(one(number, next(source)) for number in range(count)))
    report.left = tuple(list_children())
    return report


def list_children(parent: int | str = "self") -> list[int]:
    """Return the running query processes of a process."""
    found: list[int] = []
    for thread in Path(f"/proc/{parent}/task").iterdir():
        with contextlib.suppress(OSError):  # The thread ended meanwhile.
            pids = (thread / "children").read_text().split()
            found += [int(pid) for pid in pids if _is_query(pid)]
    return found


def _is_query(pid: str) -> bool:
    try:
        return sandbox_main.__file__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(fuzz(chosen.seed, chosen.count, Path(folder)))
    lines = [f"{count:6} {text}" for text, count in report.ended.most_common(20)]
    lines.append(f"slowest {report.seconds_max:.1f} s: {report.slowest!r}")
    growth_mib = report.rss_growth_bytes / 2**20
    lines.append(f"growth of this process {growth_mib:.0f} MiB; processes left: {len(report.left)}")
    sys.stdout.write("\n".join(lines) + "\n")
    assert report.seconds_max < SECONDS_MAX
    assert report.rss_growth_bytes < RSS_GROWTH_MAX
    assert not report.left


if __name__ == "__main__":
    main()
