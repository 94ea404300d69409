"""The command `query`: SQL over journals and archives."""

import asyncio
import csv
import io
import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from everlong.cli.help import Commands
from everlong.cli.options import Json
from everlong.cli.output import print_json, print_lines
from everlong.config import load_settings
from everlong.connection import connect, open_configured_packs
from everlong.console import err, print_table, sanitise
from everlong.errors import ConfigError
from everlong.format import format_count, shorten_line
from everlong.models.thread_ids import check_id
from everlong.queries import LIBRARY
from everlong.queries.engine import QueryResult, run_query
from everlong.queries.views import find_named_query

commands = Commands()
# First characters that make a spreadsheet read a cell as a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def _check_thread_ids(threads: list[str] | None) -> list[str]:
    for thread_id in threads or ():
        check_id(thread_id)
    return threads or []  # Typer up to 0.16 fails on None here.


@commands.command()
def query(
    sql: Annotated[
        str | None,
        typer.Argument(metavar="SQL", help="One SELECT over entries, threads and resumes."),
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run a query of the library.")
    ] = None,
    thread: Annotated[
        list[str] | None,
        typer.Option(metavar="THREAD", help="Only this thread.", callback=_check_thread_ids),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List the queries of the library.")
    ] = False,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Query journals and archives in SQL; read-only.

    Tables are entries, threads and resumes.

    Examples:
        everlong query "select tool, count(*) from entries group by tool" --thread ops-7
        everlong query --list
        everlong query --run tools --csv > tools.csv

    """
    if show_list:
        if as_json:
            print_json(LIBRARY)
        else:
            print_lines(f"{each.name:<16}  {each.about}\n  {each.sql}" for each in LIBRARY)
        return
    if (sql is None) == (run is None):
        raise ConfigError("give either a SELECT statement or --run NAME; --list shows the names")
    statement = sql if run is None else find_named_query(run).sql
    asyncio.run(_query(statement or "", thread or [], as_json, as_csv))


async def _query(sql: str, threads: list[str], as_json: bool, as_csv: bool) -> None:
    settings = load_settings()
    client = await connect(settings)
    with err.status("reading journals"):
        found = await run_query(client, open_configured_packs(settings), sql, threads=threads)
    if as_json:
        print_json(found)
    elif as_csv:
        print_csv(found)
    else:
        print_table(build_result_table(found))
    for line in found.left_out:
        err.print(f"left out: {sanitise(line)}", markup=False, soft_wrap=True)
    if found.truncated:
        err.print(f"only the first {len(found.rows):,} rows are shown", markup=False)
    read = found.read
    err.print(
        f"{format_count(len(found.rows), 'row')} in {found.seconds:.1f} s, from "
        f"{format_count(read.entries, 'entry')} of {format_count(read.journals, 'thread')}",
        markup=False,
    )


def build_result_table(found: QueryResult) -> Table:
    """Return a result as a table for people: each value is cut to one line."""
    table = Table(*(escape(sanitise(each)) for each in found.columns))
    for row in found.rows:
        table.add_row(*(escape(sanitise(shorten_line(_format_value(value)))) for value in row))
    return table


def print_csv(found: QueryResult) -> None:
    """Print a result as CSV; on a terminal without control characters."""
    text = format_csv(found)
    typer.echo(sanitise(text) if sys.stdout.isatty() else text, nl=False)


def format_csv(found: QueryResult) -> str:
    """Return a result as CSV, the same as the dashboard's download."""
    return "".join(_format_csv_line(row) for row in (found.columns, *found.rows))


def _format_csv_line(row: Sequence[Any]) -> str:
    text = io.StringIO()
    # The writer quotes text that contains a character of its line terminator: with CRLF, CR and LF both.
    csv.writer(text, lineterminator="\r\n").writerow([_format_cell(value) for value in row])
    return text.getvalue().removesuffix("\r\n") + "\n"


def _format_cell(value: Any) -> str:
    """Return a cell. Text that a spreadsheet would run as a formula is escaped: it may be hostile."""
    text = _format_value(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
