"""Results of queries as CSV: others wrote what is in them."""

import csv
import io
import sys
from typing import Any

import pytest

from everlong.cli.query import csv_text, print_csv
from everlong.queries.query import QueryRead, QueryResult


def result(*rows: tuple[Any, ...], columns: tuple[str, ...] = ("a",)) -> QueryResult:
    read = QueryRead(threads=0, journals=0, entries=0, message_bytes=0)
    return QueryResult(columns=columns, rows=rows, seconds=0, truncated=False, read=read)


def test_a_formula_is_made_a_text() -> None:
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"):
        [_, [cell]] = csv.reader(io.StringIO(csv_text(result((text,))), newline=""))
        assert cell == f"'{text}"
    assert csv_text(result((-1, -1.5, "a-1"), columns=("=a", "b", "c"))) == (
        "'=a,b,c\n-1,-1.5,a-1\n"
    )


def test_values_are_written_as_json_has_them() -> None:
    found = result(
        (None, True, 1.5, [{"id": "ç"}]), ("", False, 2, {"a": None}), columns=("a", "b", "c", "d")
    )
    assert csv_text(found) == ('a,b,c,d\n,true,1.5,"[{""id"":""ç""}]"\n,false,2,"{""a"":null}"\n')


def test_a_text_of_several_lines_stays_one_cell() -> None:
    found = result(("a\rb", 'c "d"'), ("e\nf", "g,h"), columns=("a", "b"))
    rows = list(csv.reader(io.StringIO(csv_text(found), newline="")))
    assert rows[1:] == [["a\rb", 'c "d"'], ["e\nf", "g,h"]]


def test_nothing_in_it_steers_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steering = result(("\x1b]0;title\x07\x1b[2J",))
    print_csv(steering)
    assert "\x1b" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_csv(steering)
    assert capsys.readouterr().out == "a\n\ufffd]0;title\ufffd\ufffd[2J\n"
