"""Thread list in memory, its gauges and their totals, without a server."""

import asyncio
import dataclasses
import time

import pytest
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from everlong.admin.fleet import find_quantile, summarise_rows
from everlong.admin.overview import measure_limits
from everlong.client import thread_list as module
from everlong.client.thread_list import ThreadList
from everlong.client.visibility import RowsPage, ThreadRow, build_row
from everlong.errors import ServerUnreachable
from everlong.models import Counters, Status, ThreadCard, ThreadStatus
from tests.support.admin_client import raise_unreachable

DAY_MS = 24 * 3600 * 1000


def row(thread_id: str, **fields: object) -> ThreadRow:
    usual = ThreadRow(
        thread_id=thread_id,
        run_id=f"run-of-{thread_id}",
        agent="ops",
        status=Status.WORKING,
        reason="",
        started_ms=1,
        closed_ms=None,
        stored_bytes=0,
        growth_bytes_per_hour=0.0,
        pending=0,
        asked_ms=None,
        last_resume_ms=0.0,
    )
    return dataclasses.replace(usual, **fields)  # type: ignore[arg-type]


class Visibility:
    """Pages that a server would give, one list for each reading."""

    def __init__(self, *pages: list[ThreadRow]) -> None:
        self.pages = list(pages)
        self.fails = False

    async def read_rows(self, *_: object) -> RowsPage:
        if self.fails:
            raise ServerUnreachable("the server is away")
        page = self.pages.pop(0)
        return RowsPage(page, {}, b"more" if self.pages and page == [] else b"")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Visibility:
    visibility = Visibility()
    monkeypatch.setattr(module, "read_rows", visibility.read_rows)
    return visibility


async def get_none() -> None:
    return None


def thread_list() -> ThreadList:
    return ThreadList(get_none)  # type: ignore[arg-type]


async def test_threads_are_sorted_filtered_and_paged(seen: Visibility) -> None:
    seen.pages = [
        [
            row("b", stored_bytes=5, status=Status.PAUSED),
            row("a", stored_bytes=9, agent="billing"),
            row("AB", stored_bytes=7),
        ]
    ]
    listed = thread_list()
    await listed.read()

    async def ids(*arguments: object) -> list[str]:
        page = await listed.page(*arguments)  # type: ignore[arg-type]
        return [each.thread_id for each in page.rows]

    assert await ids("", "", "", "-stored") == ["a", "AB", "b"]
    assert await ids("", "", "", "stored", 1, 1) == ["AB"]
    assert await ids("A", "", "", "id") == ["AB", "a"]
    assert await ids("", "paused") == ["b"]
    assert await ids("", "", "billing") == ["a"]
    page = await listed.page("nothing")
    assert (page.total, page.all_threads) == (0, 3)
    assert page.by_status == {"working": 2, "paused": 1}
    assert page.agents == ("billing", "ops")


async def test_what_needs_a_person_is_first_and_then_the_last_active(seen: Visibility) -> None:
    asked = {"status": Status.APPROVAL, "pending": 1}
    seen.pages = [
        [
            row("idle", status=Status.WAITING, active_ms=10),
            row("busy", active_ms=90),
            row("retried", status=Status.RETRYING, active_ms=5),
            row("failed", status=Status.FAILED, active_ms=5),
            row("paused", status=Status.PAUSED, active_ms=5),
            row("paused-asks", status=Status.PAUSED, pending=1, asked_ms=30),
            row("held", status=Status.HELD, active_ms=5),
            row("asks-late", **asked, asked_ms=40, active_ms=99),
            row("asks-early", **asked, asked_ms=20, active_ms=1),
            row("ended", status=Status.DONE, closed_ms=95, active_ms=95),
        ]
    ]
    listed = thread_list()
    await listed.read()
    page = await listed.page(sort="")
    assert page.sort == "attention"
    assert [each.thread_id for each in page.rows] == [
        *("asks-early", "paused-asks", "asks-late", "held", "paused", "failed", "retried"),
        *("ended", "busy", "idle"),
    ]


async def test_labels_and_the_last_activity_filter_a_list(seen: Visibility) -> None:
    now_ms = time.time_ns() // 1_000_000
    seen.pages = [
        [
            row("a", labels=("team=payments", "urgent"), active_ms=now_ms),
            row("b", labels=("urgent",), active_ms=now_ms - 8 * 86_400_000),
            row("c", active_ms=now_ms - 3_700_000),
        ]
    ]
    listed = thread_list()
    await listed.read()

    async def ids(label: str = "", age: str = "") -> list[str]:
        page = await listed.page(sort="id", label=label, age=age)
        return [each.thread_id for each in page.rows]

    assert await ids(label="urgent") == ["a", "b"]
    assert await ids(label="team") == []
    assert await ids(age="1h") == ["a"]
    assert await ids(age="7d") == ["a", "c"]
    assert await ids(age="idle-7d", label="urgent") == ["b"]
    page = await listed.page()
    assert page.labels == ("urgent", "team=payments")
    assert (await listed.page(age="7d")).version != page.version


async def test_the_version_changes_only_with_a_row(seen: Visibility) -> None:
    seen.pages = [[row("a")], [row("a")], [row("a", stored_bytes=1)]]
    listed = thread_list()
    versions = []
    for _ in range(3):
        await listed.read()
        versions.append(listed.version)
    assert versions[0] == versions[1] != versions[2]


async def test_the_version_changes_when_a_failure_begins_and_ends(
    seen: Visibility,
) -> None:
    seen.pages = [[row("a")], [row("a")]]
    listed = thread_list()
    await listed.read()
    versions = [listed.version]
    seen.fails = True
    async with listed.keep_fresh():
        while not listed.problem:
            await asyncio.sleep(0.01)
    versions.append(listed.version)
    seen.fails = False
    await listed.read()
    assert listed.problem == ""
    assert len({*versions, listed.version}) == 3


async def test_a_thread_that_rolls_during_a_listing_is_not_lost(seen: Visibility) -> None:
    seen.pages = [[row("a"), row("b")], [row("b")], [row("b")]]
    listed = thread_list()
    await listed.read()
    await listed.read()
    assert {each.thread_id for each in await listed.rows()} == {"a", "b"}
    await listed.read()  # Missed twice: it is gone.
    assert {each.thread_id for each in await listed.rows()} == {"b"}


async def test_an_id_with_several_runs_has_one_row(seen: Visibility) -> None:
    seen.pages = [[row("a", started_ms=5, run_id="new"), row("a", started_ms=2, run_id="old")]]
    listed = thread_list()
    await listed.read()
    assert [each.run_id for each in await listed.rows()] == ["new"]


@pytest.mark.guarantee(96)
async def test_a_failed_refresh_is_reported_and_earlier_rows_stay(
    seen: Visibility,
) -> None:
    seen.pages = [[row("a")]]
    listed = thread_list()
    async with listed.keep_fresh():
        page = await listed.page()
        assert (page.total, page.problem) == (1, "")
    seen.fails = True
    async with listed.keep_fresh():
        for _ in range(100):
            if listed.problem:
                break
            await asyncio.sleep(0.01)
        page = await listed.page()
    assert page.total == 1
    assert "the server is away" in page.problem


async def test_the_page_reports_a_missing_server() -> None:
    listed = ThreadList(raise_unreachable)
    async with listed.keep_fresh():
        page = await listed.page()
    assert (page.total, page.is_complete) == (0, False)
    assert "no server in this test" in page.problem


def test_gauges_show_usage_and_days_left() -> None:
    status = ThreadStatus(
        agent="ops",
        status=Status.WAITING,
        counters=Counters(steps=1000, tokens=10, written_bytes=2_000_000),
        head=None,
        waiting_messages=0,
        last_failure="",
    )
    card = ThreadCard(ms=0, trend=((10 * DAY_MS - DAY_MS, 1_000_000),))
    shown = {
        each.name: each
        for each in measure_limits(status, 40, began_ms=0, now_ms=10 * DAY_MS, card=card)
    }
    assert shown["steps_max"].share == pytest.approx(0.01)
    # 1,000 in ten days, and 99,000 are left.
    assert shown["steps_max"].days_left == pytest.approx(990)
    # By the trend of the last day: 1 MB, with 4,293 MB left.
    assert shown["thread_bytes_max"].days_left == pytest.approx(4293, abs=1)
    assert shown["context_bytes_max"].days_left is None
    assert shown["run_events_max"].value == 40
    paused = dataclasses.replace(status, status=Status.PAUSED)
    assert all(
        each.days_left is None for each in measure_limits(paused, 40, began_ms=0, now_ms=DAY_MS)
    )


def test_a_fleet_adds_up() -> None:
    cards = [
        ThreadCard(ms=0, steps=3, stored_bytes=10, read_bytes=400, tokens=7, cost_usd=0.5),
        ThreadCard(ms=0, steps=1, stored_bytes=30, read_bytes=100),
    ]
    view = summarise_rows(
        [
            row(
                "a", stored_bytes=10, card=cards[0], last_resume_ms=20.0, growth_bytes_per_hour=5.0
            ),
            row("b", stored_bytes=30, card=cards[1], last_resume_ms=90.0, pending=2, asked_ms=7),
            row("c", status=Status.PAUSED, reason="same_failure_max"),
            row("d", status=Status.DONE, closed_ms=9, last_resume_ms=5000.0),
        ]
    )
    assert (view.threads, view.open_threads, view.stored_bytes) == (4, 3, 40)
    assert (view.naive_bytes, view.saved_bytes) == (500, 460)
    assert (view.pending, view.oldest_asked_ms) == (2, 7)
    assert (view.resume_p50_ms, view.resume_p95_ms) == (20.0, 90.0)
    assert [each.thread_id for each in view.loops] == ["c"]
    assert [each.thread_id for each in view.growing] == ["a"]
    assert [each.thread_id for each in view.largest] == ["b", "a"]
    assert (view.steps, view.tokens, view.cost_usd) == (4, 7, 0.5)


def test_quantiles_of_no_values_are_none() -> None:
    assert find_quantile([], 0.5) is None
    assert find_quantile([1.0], 0.95) == 1.0


def test_quantiles_are_existing_values() -> None:
    values = [float(each) for each in range(1, 21)]
    assert (find_quantile(values, 0.5), find_quantile(values, 0.95)) == (10.0, 19.0)


def make_row() -> WorkflowExecutionInfo:
    info = WorkflowExecutionInfo(status=WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING)
    growth = info.search_attributes.indexed_fields["EverlongGrowthBytesPerHour"]
    growth.data = b"5000000.0"
    return info


@pytest.mark.parametrize(
    ("hours", "growth"),
    [
        (0.05, 6 * 7200),  # Over ten minutes at least.
        (0.5, 2 * 7200),
        (2, 0),  # Nothing has come in the last hour.
    ],
)
def test_growth_in_lists_decays_with_the_clock(hours: float, growth: float) -> None:
    began_ms = int(time.time() * 1000 - hours * 3_600_000)
    card = ThreadCard(ms=began_ms, stored_bytes=7200, trend=((began_ms, 0), (began_ms + 5, 7200)))
    assert build_row(make_row(), card).growth_bytes_per_hour == pytest.approx(growth, rel=0.05)
    assert build_row(make_row()).growth_bytes_per_hour == 5_000_000
