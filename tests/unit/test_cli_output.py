"""The table of `everlong threads`: for a terminal, and for a pipe."""

import csv
import io
import sys
from typing import Any

import pytest
from rich.console import Console

from everlong import console
from everlong.cli.approvals import _build_always, _describe_always, _parse_arguments
from everlong.cli.output import (
    build_threads_table,
    format_approval,
    format_grant,
    format_outcome,
)
from everlong.cli.query import format_csv, print_csv
from everlong.client.thread_list import ThreadPage
from everlong.client.visibility import ThreadRow
from everlong.errors import ConfigError
from everlong.format import format_spark, summarise_note
from everlong.models import (
    Approval,
    ControlNote,
    Decision,
    Grant,
    Kind,
    Resolution,
    Status,
    ThreadCard,
    UnknownOutcome,
    Vote,
    VoteNote,
    build_note,
)
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


@pytest.mark.parametrize(
    ("match", "lasting", "text"),
    [
        ("tool", "8h", "lets every call of pay in thread ops-7 run without an approval, for 8 h."),
        ("arguments", "", 'of pay with the arguments {"euros": 5} in thread ops-7 run without an'),
    ],
)
def test_what_a_grant_allows_is_said_before_it_is_given(
    match: Any, lasting: str, text: str
) -> None:
    approval = Approval(id="2-1-ab", tool="pay", arguments='{"euros": 5}', asked_ms=1)
    always = _build_always(match, "thread", lasting)
    assert text in _describe_always(always, approval, "ops-7")


@pytest.mark.parametrize("lasting", ["0s", "366d", "soon", "-1h"])
def test_an_impossible_duration_of_a_grant_is_refused(lasting: str) -> None:
    with pytest.raises(ConfigError, match="--for"):
        _build_always("tool", "agent", lasting)


@pytest.mark.parametrize("text", ["{", "[]", "5", '"x"'])
def test_changed_arguments_have_to_be_an_object(text: str) -> None:
    with pytest.raises(ConfigError, match="--arguments"):
        _parse_arguments(text)


def test_votes_outcomes_and_grants_are_lines() -> None:
    approval = Approval(
        id="2-1-ab",
        tool="pay",
        arguments="{}",
        asked_ms=1,
        needed=3,
        votes=(Vote(by="ann", ms=1), Vote(by="ben", ms=2)),
    )
    assert "2 of 3 approvals (ann, ben)" in format_approval(approval)
    outcome = UnknownOutcome(
        id="2-1-ab-1", tool="pay", arguments="{}", cause="lost", idempotency_key="k", asked_ms=1
    )
    assert format_outcome(outcome).startswith("2-1-ab-1  pay {}  worker lost, since ")
    assert format_outcome(outcome).endswith("idempotency key k")
    grant = Grant(id="a-0123456789abcdef", tool="pay", by="ann", granted_ms=1, agent="ops")
    assert "pay (any arguments)  in agent ops, by ann" in format_grant(grant)


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (
            Kind.VOTED,
            VoteNote(id="2-1-ab", tool="pay", by="ann", votes=1, needed=2),
            "2-1-ab approved, 1 of 2 by ann",
        ),
        (
            Kind.DECIDED,
            Decision(
                id="2-1-ab-r1",
                tool="pay",
                asked_ms=1,
                approve=True,
                by="ben",
                votes=("ann", "ben"),
                arguments="{}",
                edit="e" * 64,
            ),
            "2-1-ab-r1 approved with {} after ann by ben",
        ),
        (
            Kind.DECIDED,
            Decision(id="2-1-ab", tool="pay", asked_ms=1, approve=True, by="ann", grant="t-1"),
            "2-1-ab approved by grant t-1 by ann",
        ),
        (
            Kind.OUTCOME_UNKNOWN,
            UnknownOutcome(
                id="2-1-ab-1",
                tool="pay",
                arguments="{}",
                cause="lost",
                idempotency_key="",
                asked_ms=1,
            ),
            "2-1-ab-1 pay {}: lost",
        ),
        (
            Kind.OUTCOME_RESOLVED,
            Resolution(id="2-1-ab-1", tool="pay", asked_ms=1, outcome="not_done", by="ann"),
            "2-1-ab-1 not done by ann",
        ),
        (
            Kind.CONTROL,
            ControlNote(
                action="grant",
                by="ann",
                changes={"id": "t-1", "tool": "pay", "scope": "thread", "seconds": 7200.0},
            ),
            "grant t-1 pay (any arguments) in this thread for 2 h by ann",
        ),
    ],
)
def test_entries_of_decisions_are_described_in_words(kind: Kind, data: object, text: str) -> None:
    assert summarise_note(build_note(1, kind, data, 1)).strip() == text
