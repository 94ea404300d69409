"""The table of `everlong threads`: for a terminal, and for a pipe."""

import io

import pytest
from rich.console import Console

from everlong import console
from everlong.cli.output import threads_table
from everlong.client.threads import ThreadPage
from everlong.client.visibility import ThreadRow
from everlong.format import spark_text
from everlong.models import ThreadCard

THREAD_ID = "support-customer-4711"


def page() -> ThreadPage:
    row = ThreadRow(
        thread_id=THREAD_ID,
        run_id="run",
        agent="support",
        status="paused",
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


def printed(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, is_wide: bool) -> list[str]:
    text = io.StringIO()
    screen = Console(file=text, width=80, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(console, "out", screen)
    console.print_table(threads_table(page(), is_wide=is_wide))
    return text.getvalue().splitlines()


def test_a_terminal_of_80_columns_shows_ids_and_figures_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = printed(monkeypatch, is_terminal=True, is_wide=False)
    assert all(len(line) <= 80 for line in lines)
    [line] = [each for each in lines if THREAD_ID in each]
    for figure in ("117.7 MiB", "11.8 MiB", "12,345", "3"):
        assert figure in line


def test_a_pipe_gets_every_column_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    [line] = [
        each for each in printed(monkeypatch, is_terminal=False, is_wide=True) if THREAD_ID in each
    ]
    for text in ("support", "paused (same_failure_max)", "3.9 KiB", "639.0 KiB", "75.2 KiB", "▁▃█"):
        assert text in line
    assert "1,234 ms" in line


@pytest.mark.parametrize(
    ("values", "text"),
    [([], ""), ([5], ""), ([5, 5], "▁▁"), ([0, 7], "▁█"), ([3, 1, 2], "█▁▄")],
)
def test_a_trend_is_a_line_of_bars(values: list[int], text: str) -> None:
    assert spark_text(values) == text
