"""The list of a fleet that is too large to keep: pages of the server, and an index. Without a server."""

import asyncio
import dataclasses
import time
import tracemalloc
from typing import Any

import pytest

from everlong.admin.fleet import load_fleet
from everlong.cli.output import describe_page
from everlong.client import thread_list as module
from everlong.client.thread_index import ThreadIndex
from everlong.client.thread_list import Cursor, ThreadList, ThreadPage, parse_cursor
from everlong.client.visibility import (
    PAGE_ROWS,
    RowsPage,
    ThreadRow,
    Wanted,
    build_query,
    read_rows,
)
from everlong.errors import ConfigError
from everlong.models import Status
from tests.support.admin_client import make_context, open_http_client
from tests.support.fake_visibility import FakeVisibility, Thread

AGENTS = ("ops", "support", "billing")
MANY = 60
FIT = 20
"""So many are kept in memory in these tests."""


def threads(count: int) -> list[Thread]:
    """Threads of which the first began last. One in 10 is paused, one in 15 has ended."""
    made = []
    for number in range(count):
        thread = Thread(
            thread_id=f"thread-{number:06}",
            agent=AGENTS[number % 3],
            status="paused" if number % 10 == 3 else "waiting",
            reason="same_failure_max" if number % 20 == 3 else "",
            started_ms=10_000_000 - number,
            stored_bytes=number * 7919 % 10_007,
            pending=int(number % 25 == 4),
        )
        if number % 15 == 9:
            thread = dataclasses.replace(
                thread, execution="Completed", status="archived", closed_ms=20_000_000 - number
            )
        made.append(thread)
    return made


def make_thread_list(server: FakeVisibility, rows_max: int = FIT, **bounds: int) -> ThreadList:
    return ThreadList(server.connect, rows_max=rows_max, **bounds)  # type: ignore[arg-type]


@pytest.fixture
def server() -> FakeVisibility:
    return FakeVisibility(threads(MANY))


async def ids(page: ThreadPage) -> list[str]:
    return [row.thread_id for row in page.rows]


async def all_pages(listed: ThreadList, **wanted: Any) -> list[ThreadPage]:
    pages = [await listed.page(**wanted)]
    while pages[-1].next_cursor:
        assert len(pages) < 200
        pages.append(await listed.page(**wanted, cursor=pages[-1].next_cursor))
    return pages


@pytest.mark.guarantee(96)
async def test_a_thread_is_found_by_its_id_however_many_there_are(server: FakeVisibility) -> None:
    server.add([Thread(thread_id="needle", started_ms=1, agent="ops")])
    listed = make_thread_list(server)
    await listed.read(index=False)
    page = await listed.page("needle")
    assert (await ids(page), page.total, page.source) == (["needle"], 1, "server")
    assert server.calls["list"] <= 2
    assert (await listed.page("needle", agent="support")).total == 0
    assert (await listed.page("needle", status="waiting", agent="ops")).total == 1


async def test_a_thread_not_yet_indexed_is_found_by_its_id(
    server: FakeVisibility,
) -> None:
    listed = make_thread_list(server, index_rows_max=1)
    await listed.read()
    server.add([Thread(thread_id="zz-new", started_ms=2)])
    assert await ids(await listed.page("zz-")) == ["zz-new"]


async def test_pages_of_the_server_hold_every_thread_once_in_its_order(
    server: FakeVisibility,
) -> None:
    listed = make_thread_list(server)
    await listed.read()
    pages = await all_pages(listed, limit=7)
    found = [row for page in pages for row in page.rows]
    assert len(found) == len({row.thread_id for row in found}) == MANY
    assert [page.offset for page in pages[:3]] == [0, 7, 14]
    assert all(page.total == page.all_threads == MANY and page.source == "server" for page in pages)
    living = [row.started_ms for row in found if row.is_open]
    assert living == sorted(living, reverse=True)
    assert all(row.is_open for row in found[: len(living)])
    assert found[0].card is not None
    assert "open threads by their start" in pages[0].order


async def test_filters_by_status_and_agent_query_the_server(server: FakeVisibility) -> None:
    listed = make_thread_list(server)
    await listed.read(index=False)
    before = server.calls["list"]
    pages = await all_pages(listed, status="paused", agent="ops", limit=2)
    wanted = {each.thread_id for each in threads(MANY) if each.status == "paused"}
    wanted &= {each.thread_id for each in threads(MANY) if each.agent == "ops"}
    assert wanted
    assert {row.thread_id for page in pages for row in page.rows} == wanted
    assert pages[0].total == len(wanted)
    assert server.calls["list"] - before == len(pages)
    archived = await listed.page(status="archived")
    assert archived.total == len([each for each in threads(MANY) if each.closed_ms])
    assert (await listed.page(agent="no such agent")).total == 0


async def test_a_label_is_asked_of_the_server_and_of_the_index(server: FakeVisibility) -> None:
    labelled = [
        Thread(
            thread_id=f"paid-{at}", labels=("team=payments", "urgent"), started_ms=at, active_ms=at
        )
        for at in (1, 2, 3)
    ]
    server.add(labelled)
    listed = make_thread_list(server)
    await listed.read()
    page = await listed.page(label="team=payments")
    assert (page.source, await ids(page)) == ("server", ["paid-3", "paid-2", "paid-1"])
    assert page.rows[0].labels == ("team=payments", "urgent")
    page = await listed.page(label="team=payments", sort="started")
    assert (page.source, await ids(page)) == ("index", ["paid-1", "paid-2", "paid-3"])
    assert (await listed.page(label="team=pay")).total == 0
    server.is_down = True  # The index alone still finds them, though its rows have no labels.
    await asyncio.sleep(0)
    listed._visibility._pages._kept.clear()
    page = await listed.page(label="team=payments", sort="started")
    assert (len(page.rows), bool(page.problem)) == (3, True)


async def test_what_needs_a_person_is_first_in_the_index(server: FakeVisibility) -> None:
    server.add(
        [
            Thread(thread_id="failed-1", status="failed", active_ms=50),
            Thread(thread_id="asks-1", status="approval", pending=1),
            Thread(thread_id="held-1", status="held", active_ms=40),
            Thread(thread_id="held-2", status="held", active_ms=60),
        ]
    )
    listed = make_thread_list(server)
    await listed.read()
    assert (await listed.page(sort="")).source == "server"
    page = await listed.page(sort="attention", limit=MANY)
    assert page.source == "index"
    assert "what needs a person" in page.order
    shown = await ids(page)
    assert shown.index("asks-1") < shown.index("held-2") < shown.index("held-1")
    assert shown.index("held-1") < shown.index("thread-000003") < shown.index("failed-1")
    assert shown.index("failed-1") < shown.index("thread-000000")


async def test_an_age_is_asked_of_the_index_and_in_no_query(server: FakeVisibility) -> None:
    now_ms = time.time_ns() // 1_000_000
    server.add([Thread(thread_id="busy-1", active_ms=now_ms, started_ms=now_ms - 9_000_000)])
    listed = make_thread_list(server)
    await listed.read()
    page = await listed.page(age="1h")
    assert (page.source, await ids(page)) == ("index", ["busy-1"])
    assert (await listed.page(age="idle-1h")).total == MANY
    with pytest.raises(ConfigError, match="is no age"):
        await listed.page(age="soon")


async def test_a_prefix_finds_all_ids_that_begin_with_it(
    server: FakeVisibility,
) -> None:
    listed = make_thread_list(server)
    await listed.read(index=False)
    server.add([Thread(thread_id="thread-00001", started_ms=3)])
    for limit in (1, 3, 200):
        pages = await all_pages(listed, text="thread-00001", limit=limit)
        found = [row.thread_id for page in pages for row in page.rows]
        assert found[0] == "thread-00001"  # An exact match comes first, whatever its start time.
        assert sorted(found[1:]) == [f"thread-{number:06}" for number in range(10, 20)]
        assert pages[0].total == 11
        assert all(len(page.rows) <= limit for page in pages)
    assert "begin with 'thread-00001'" in pages[0].order


async def test_the_index_finds_text_inside_ids(server: FakeVisibility) -> None:
    listed = make_thread_list(server)
    await listed.read()
    page = await listed.page("AD-00005")
    assert page.source == "index"
    assert page.total == 10
    assert (await listed.page("thread-00005", sort="id")).source == "index"
    assert (await listed.page("nothing like it")).total == 0


async def test_the_index_serves_other_orders_with_its_age(
    server: FakeVisibility,
) -> None:
    listed = make_thread_list(server)
    await listed.read()
    page = await listed.page(sort="-stored", limit=5)
    largest = sorted(threads(MANY), key=lambda each: (-each.stored_bytes, each.thread_id))
    assert await ids(page) == [each.thread_id for each in largest[:5]]
    assert (page.source, page.is_complete, page.total) == ("index", True, MANY)
    assert "all 60 threads by stored" in page.order
    assert abs(page.read_ms - time.time() * 1000) < 60_000
    assert all(row.card is not None for row in page.rows)  # As the server has them now.
    pages = await all_pages(listed, sort="stored", status="waiting", limit=9)
    found = [row.stored_bytes for page in pages for row in page.rows]
    assert found == sorted(found)
    assert len(found) == len([each for each in threads(MANY) if each.status == "waiting"])


async def test_every_order_of_an_index_equals_that_of_memory(server: FakeVisibility) -> None:
    small, large = make_thread_list(server, rows_max=1000), make_thread_list(server)
    await small.read()
    await large.read()
    for name in module._KEYS:
        for sort in (name, f"-{name}"):
            if sort == "-started":
                continue
            in_memory = await small.page(sort=sort, limit=200)  # type: ignore[arg-type]
            indexed = await large.page(sort=sort, limit=200)  # type: ignore[arg-type]
            assert (in_memory.source, indexed.source) == ("memory", "index")
            assert await ids(in_memory) == await ids(indexed), sort


async def test_an_offset_without_a_cursor_counts_in_the_index(server: FakeVisibility) -> None:
    listed = make_thread_list(server)
    await listed.read()
    page = await listed.page(offset=50, limit=20)
    assert (page.source, page.offset, len(page.rows)) == ("index", 50, 10)


async def test_a_small_fleet_is_served_from_memory(
    server: FakeVisibility,
) -> None:
    listed = make_thread_list(server, rows_max=MANY)
    await listed.read()
    before = server.calls.copy()
    page = await listed.page("READ-00005", limit=4)
    assert (page.source, page.total, page.order) == ("memory", 10, "")
    following = await listed.page("READ-00005", limit=4, cursor=page.next_cursor)
    assert following.offset == 4
    assert server.calls == before


async def test_the_figures_of_a_fleet_are_the_same_by_an_index(server: FakeVisibility) -> None:
    small, large = make_thread_list(server, rows_max=1000), make_thread_list(server)
    await small.read()
    await large.read()
    in_memory, indexed = await load_fleet(small), await load_fleet(large)
    apart = {"largest", "growing", "loops", "read_ms"}
    for field in dataclasses.fields(in_memory):
        if field.name not in apart:
            assert getattr(indexed, field.name) == getattr(in_memory, field.name), field.name
    for name in ("largest", "loops"):
        rows = [getattr(view, name) for view in (in_memory, indexed)]
        assert [row.thread_id for row in rows[0]] == [row.thread_id for row in rows[1]]
    assert await small.pending() == await large.pending() == 2
    page = await large.page()
    assert (page.by_status, page.agents) == (in_memory.by_status, tuple(sorted(AGENTS)))


@pytest.mark.guarantee(96)
async def test_no_figure_claims_more_than_was_read(
    server: FakeVisibility, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_ROWS", 10)

    async def read_ten(
        client: Any, query: str, token: bytes, known: Any, size: int = 10
    ) -> RowsPage:
        return await read_rows(client, query, token, known, size)

    monkeypatch.setattr(module, "read_rows", read_ten)
    listed = make_thread_list(server, index_rows_max=40)
    await listed.read()
    page = await listed.page(sort="-stored")
    assert (page.is_complete, page.total, page.known_threads, page.all_threads) == (
        False,
        40,
        40,
        MANY,
    )
    assert not page.knows_all
    assert "the newest 40 threads by stored" in page.order
    assert f"of {MANY}" in "\n".join(describe_page(page))
    view = await load_fleet(listed)
    assert (view.threads, view.all_threads, view.is_complete) == (40, MANY, False)
    context = make_context()
    context.thread_list = listed
    async with open_http_client(context) as browser:
        html = (await browser.get("/", params={"sort": "-stored"})).text
        assert "the newest 40 threads by stored, from an index of 60" in html
        assert "of 40 known so far" in html
        figures = (await browser.get("/fragments/fleet")).text
        assert "40 of 60" in figures


async def test_a_page_describes_its_list_and_links_the_next(server: FakeVisibility) -> None:
    listed = make_thread_list(server)
    await listed.read()
    context = make_context()
    context.thread_list = listed
    async with open_http_client(context) as browser:
        html = (await browser.get("/")).text
        assert "Listed: open threads by their start" in html
        assert "1 to 50 of 60" in html
        cursor = html.partition("?cursor=")[2].partition('"')[0]
        second = (await browser.get("/", params={"cursor": cursor})).text
        assert "51 to 60 of 60" in second
        assert ">First</a>" in second
        # An address with a cursor that is none shows the first page.
        assert "1 to 50 of 60" in (await browser.get("/", params={"cursor": "none"})).text
        found = (await browser.get("/api/v1/threads", params={"limit": "50"})).json()
        assert (found["source"], found["next_cursor"]) == ("server", cursor)
        more = await browser.get("/api/v1/threads", params={"cursor": cursor})
        assert len(more.json()["rows"]) == 10
        known = {"if-none-match": more.headers["etag"]}
        again = await browser.get("/api/v1/threads", params={"cursor": cursor}, headers=known)
        assert again.status_code == 304


@pytest.mark.parametrize("cursor", ["none", "%%%", "AAAA", Cursor(3, b"another list").text()])
async def test_a_cursor_of_another_list_is_refused(server: FakeVisibility, cursor: str) -> None:
    listed = make_thread_list(server)
    await listed.read()
    with pytest.raises(ConfigError, match="first page"):
        await listed.page(cursor=cursor)


def test_a_cursor_is_read_back() -> None:
    for place in (Cursor(), Cursor(50), Cursor(1, b""), Cursor(7, b"a.b\0\xff")):
        assert parse_cursor(place.text()) == place


async def test_the_index_is_shown_with_a_notice_while_the_server_is_away(
    server: FakeVisibility, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = make_thread_list(server)
    await listed.read()
    server.is_down = True
    page = await listed.page(limit=200)
    assert (page.source, len(page.rows)) == ("index", MANY)
    assert "the server is away" in page.problem


async def test_a_reused_id_is_listed_once_as_its_newest_run(
    server: FakeVisibility,
) -> None:
    old = {"execution": "Terminated", "closed_ms": 5, "started_ms": 1}
    server.add(
        [
            Thread(thread_id="again", run_id="old", **old),  # type: ignore[arg-type]
            Thread(thread_id="again", run_id="new", started_ms=4),
        ]
    )
    listed = make_thread_list(server)
    await listed.read()
    pages = await all_pages(listed, limit=10)
    rows = [row for page in pages for row in page.rows if row.thread_id == "again"]
    assert [row.run_id for row in rows] == ["new"]
    assert (await listed.page(status="terminated")).rows == ()
    [indexed] = (await listed.page("again", sort="id")).rows
    assert indexed.run_id == "new"
    assert listed.figures.by_status.get("terminated") is None


async def test_an_index_drops_a_thread_missed_twice(server: FakeVisibility) -> None:
    listed = make_thread_list(server)
    await listed.read()
    server.remove("thread-000000")
    server.remove("thread-000009")  # It had ended: that was its last run.
    await listed.read()
    assert listed.figures.threads == MANY - 1
    await listed.read()
    assert listed.figures.threads == MANY - 2


async def test_a_fleet_that_shrinks_is_kept_in_memory_again(server: FakeVisibility) -> None:
    listed = make_thread_list(server)
    await listed.read()
    for number in range(50):
        server.remove(f"thread-{number:06}")
    await listed.read()
    page = await listed.page()
    assert (page.source, page.total, page.is_complete) == ("memory", 10, True)


async def test_viewers_of_one_list_share_the_servers_answers(server: FakeVisibility) -> None:
    listed = make_thread_list(server)
    await listed.read()
    before = server.calls.copy()
    for _ in range(20):
        await listed.page(status="paused")
    made = server.calls - before
    assert (made["list"], made["count"], made["attributes"]) == (1, 2, 1)


async def test_filters_without_search_attributes_use_temporals_own_fields() -> None:
    bare = [dataclasses.replace(each, status=None, agent=None) for each in threads(MANY)]
    server = FakeVisibility(bare, has_attributes=False)
    listed = make_thread_list(server)
    await listed.read()
    running = await listed.page(status="unknown", limit=200)
    assert running.total == len([each for each in bare if not each.closed_ms])
    assert (await listed.page(status="done")).total == MANY - running.total
    assert (await listed.page(status="paused")).total == 0
    assert (await listed.page(agent="ops")).total == 0


def test_quotes_in_a_search_stay_in_their_string() -> None:
    query = build_query(Wanted("a' OR 'b", "pau'sed", "x'"), attributes=True) or ""
    assert "STARTS_WITH 'a'' OR ''b'" in query
    assert "EverlongStatus = 'pau''sed'" in query
    assert "EverlongAgent = 'x'''" in query


def test_no_query_has_a_nul_which_sql_stores_refuse() -> None:
    assert build_query(Wanted("a\0b"), attributes=True) is None


def test_an_index_takes_a_few_hundred_bytes_a_thread() -> None:
    """`tracemalloc` does not see SQLite, so the database is asked for its pages."""
    count = 5_000
    index = ThreadIndex()
    rows = [
        ThreadRow(
            thread_id=f"thread-{number:06}",
            run_id=str(number),
            agent="ops",
            status=Status.WAITING,
            reason="",
            started_ms=1_700_000_000_000 + number,
            closed_ms=None,
            stored_bytes=number * 4096,
            growth_bytes_per_hour=number * 1.5,
            pending=0,
            asked_ms=None,
            last_resume_ms=20.5,
            labels=tuple(f"key-{at}=value-{number % 5}" for at in range(10)),
            active_ms=1_700_000_000_000 + number,
        )
        for number in range(count)
    ]
    tracemalloc.start()
    try:
        for start in range(0, count, 1000):
            index.add(RowsPage(rows[start : start + 1000], {}, b""))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert (held + index.size_bytes()) / count < 330


async def test_a_large_fleet_is_listed_within_its_bounds() -> None:
    """The short version of `python -m bench.admin --only fleet`: a tenth of it, without a network."""
    count = 10_000
    server = FakeVisibility(threads(count))
    listed = make_thread_list(server, rows_max=1_000)
    await listed.read()
    assert server.calls["list"] == count // PAGE_ROWS + 1
    assert server.calls["count"] == 1
    requests = {}
    for name, wanted in {
        "list": {},
        "id": {"text": "thread-009999"},
        "status": {"status": "paused"},
        "agent": {"agent": "billing"},
        "size": {"sort": "-stored"},
    }.items():
        before = server.calls.total()
        page = await listed.page(**wanted)  # type: ignore[arg-type]
        assert page.rows
        requests[name] = server.calls.total() - before
    assert all(made <= 4 for made in requests.values()), requests
    assert len(listed._rows) == len(listed._cards) == 0


async def test_a_list_is_refreshed_only_while_it_is_viewed(
    server: FakeVisibility, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_SECONDS_MIN", 0.01)
    monkeypatch.setattr(module, "_PAUSE_FACTOR", 0.0)
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.1)
    listed = make_thread_list(server)
    async with listed.keep_fresh():
        deadline = time.monotonic() + 10
        seen = -1
        while seen != server.calls.total() and time.monotonic() < deadline:
            seen = server.calls.total()
            await asyncio.sleep(0.3)
        assert seen == server.calls.total()  # Nothing is read while no page is asked for.
        await listed.page(sort="-stored")
        while server.calls["list"] < 3 and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert server.calls.total() > seen
