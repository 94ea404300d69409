"""The table of `everlong threads`: for a terminal, and for a pipe."""

import csv
import io
import sys
from typing import Any

import pytest
from rich.console import Console

from everlong import console
from everlong.cli.output import build_threads_table
from everlong.cli.query import format_csv, print_csv
from everlong.client.thread_list import ThreadPage
from everlong.client.visibility import ThreadRow
from everlong.format import format_spark
from everlong.models import Status, ThreadCard
from everlong.queries.engine import QueryRead, QueryResult

THREAD_ID = "support-customer-4711"


def page() -> ThreadPage:
    row = ThreadRow(
        thread_id=THREAD_ID,
        run_id="run",
        agent="support",
        status=Status.PAUSED,
        reason="same_failure_max",
        started_ms=1,
        closed_ms=None,
        stored_bytes=123_456_789,
        growth_bytes_per_hour=12_345_678.0,
        pending=3,
        asked_ms=None,
        last_resume_ms=1234.0,
        card=ThreadCard(
            ms=1,
            steps=12_345,
            operational_bytes=4_000,
            context_bytes=654_321,
            lag_bytes=77_000,
            trend=((1, 10), (2, 20), (3, 40)),
        ),
    )
    return ThreadPage(
        rows=(row,),
        total=1,
        offset=0,
        all_threads=1,
        pending=3,
        read_ms=1,
        is_complete=True,
        problem="",
        agents=("support",),
        by_status={"paused": 1},
        version="",
    )


def print_page(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, is_wide: bool) -> list[str]:
    text = io.StringIO()
    screen = Console(file=text, width=80, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(console, "out", screen)
    console.print_table(build_threads_table(page(), is_wide=is_wide))
    return text.getvalue().splitlines()


def test_a_terminal_of_80_columns_shows_ids_and_figures_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = print_page(monkeypatch, is_terminal=True, is_wide=False)
    assert all(len(line) <= 80 for line in lines)
    [line] = [each for each in lines if THREAD_ID in each]
    for figure in ("117.7 MiB", "11.8 MiB", "12,345", "3"):
        assert figure in line


def test_a_pipe_gets_every_column_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    [line] = [
        each
        for each in print_page(monkeypatch, is_terminal=False, is_wide=True)
        if THREAD_ID in each
    ]
    for text in ("support", "paused (same_failure_max)", "3.9 KiB", "639.0 KiB", "75.2 KiB", "▁▃█"):
        assert text in line
    assert "1,234 ms" in line


@pytest.mark.parametrize(
    ("values", "text"),
    [([], ""), ([5], ""), ([5, 5], "▁▁"), ([0, 7], "▁█"), ([3, 1, 2], "█▁▄")],
)
def test_a_trend_is_a_line_of_bars(values: list[int], text: str) -> None:
    assert format_spark(values) == text


def result(*rows: tuple[Any, ...], columns: tuple[str, ...] = ("a",)) -> QueryResult:
    read = QueryRead(threads=0, journals=0, entries=0, message_bytes=0)
    return QueryResult(columns=columns, rows=rows, seconds=0, truncated=False, read=read)


def test_a_formula_becomes_text() -> None:
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"):
        [_, [cell]] = csv.reader(io.StringIO(format_csv(result((text,))), newline=""))
        assert cell == f"'{text}"
    assert format_csv(result((-1, -1.5, "a-1"), columns=("=a", "b", "c"))) == (
        "'=a,b,c\n-1,-1.5,a-1\n"
    )


def test_values_are_written_as_json_has_them() -> None:
    found = result(
        (None, True, 1.5, [{"id": "ç"}]), ("", False, 2, {"a": None}), columns=("a", "b", "c", "d")
    )
    assert format_csv(found) == ('a,b,c,d\n,true,1.5,"[{""id"":""ç""}]"\n,false,2,"{""a"":null}"\n')


def test_a_text_of_several_lines_stays_one_cell() -> None:
    found = result(("a\rb", 'c "d"'), ("e\nf", "g,h"), columns=("a", "b"))
    rows = list(csv.reader(io.StringIO(format_csv(found), newline="")))
    assert rows[1:] == [["a\rb", 'c "d"'], ["e\nf", "g,h"]]


def test_csv_cells_do_not_control_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steering = result(("\x1b]0;title\x07\x1b[2J",))
    print_csv(steering)
    assert "\x1b" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_csv(steering)
    assert capsys.readouterr().out == "a\n\ufffd]0;title\ufffd\ufffd[2J\n"
