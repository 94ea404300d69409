"""Sizes of threads: when they are published, and how growth is computed."""

import dataclasses
import itertools
import time

import pytest
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from everlong import limits
from everlong.admin.series import choose_samples, drop_parent_points, extract_points, thin_points
from everlong.client.visibility import build_row
from everlong.models import Counters, Entry, Kind, PublishedSize, StepInfo, ThreadCard, ThreadState
from everlong.workflows import visibility

HOUR_MS = 3_600_000
MIB = limits.MIB


def thread(size_bytes: int, last: PublishedSize | None, **fields: object) -> ThreadState:
    state = ThreadState(counters=Counters(written_bytes=size_bytes), published_size=last)
    return dataclasses.replace(state, **fields)  # type: ignore[arg-type]


def test_the_size_of_an_empty_thread_is_not_published() -> None:
    assert not visibility.is_size_due(thread(0, None), 0, waits=True)
    assert visibility.is_size_due(thread(1, None), 0, waits=False)


@pytest.mark.parametrize(
    ("size_bytes", "now_ms", "due"),
    [
        (10 * MIB, HOUR_MS, False),  # It has not grown.
        (10 * MIB + 1, HOUR_MS - 1, False),
        (10 * MIB + 1, HOUR_MS, True),
        (12 * MIB, 1, False),
        (13 * MIB, 1, True),  # By a quarter and more.
    ],
)
def test_a_size_is_published_after_enough_change(size_bytes: int, now_ms: int, due: bool) -> None:
    last = PublishedSize(ms=0, thread_bytes=10 * MIB)
    assert visibility.is_size_due(thread(size_bytes, last), now_ms, waits=False) == due


def test_the_size_of_a_small_thread_is_not_published_at_every_step() -> None:
    state = thread(1000, PublishedSize(ms=0, thread_bytes=1000))
    published = 0
    for step in range(200):
        written = state.counters.written_bytes + 12_000
        state = dataclasses.replace(state, counters=Counters(written_bytes=written))
        if visibility.is_size_due(state, step * 1000, waits=False):
            published += 1
            state = dataclasses.replace(
                state, published_size=visibility.build_published_size(state, step * 1000)
            )
    assert published == 13  # The 200 steps write 2.3 MiB.


def test_idleness_is_published_once_and_is_no_growth() -> None:
    state = thread(2 * MIB, PublishedSize(ms=0, thread_bytes=MIB), rested=True, trend=((0, MIB),))
    assert visibility.is_size_due(state, 1000, waits=False)
    assert visibility.compute_growth(state, 1000) == 0
    state = dataclasses.replace(state, published_size=visibility.build_published_size(state, 1000))
    assert not visibility.is_size_due(state, 2000, waits=False)


def test_growth_counts_only_new_bytes() -> None:
    assert visibility.compute_growth(thread(2 * 1024 * MIB, None), 5000) == 0
    trend = ((0, 10 * MIB),)
    assert visibility.compute_growth(thread(12 * MIB, None, trend=trend), HOUR_MS // 2) == 4 * MIB
    # A burst just after is taken over ten minutes: it is no rate yet.
    assert visibility.compute_growth(thread(11 * MIB, None, trend=trend), 1) == 6 * MIB


@pytest.mark.parametrize("rested", [False, True])
@pytest.mark.parametrize("age_ms", [0, 5_000, 61_000, 599_000, 1_800_000, 5 * HOUR_MS])
def test_metric_and_list_agree_on_growth(
    age_ms: int, rested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 1_000_000 * 60_000
    monkeypatch.setattr(time, "time", lambda: now_ms / 1000)
    trend = tuple(
        (now_ms - age_ms + age_ms * part // 4, 10_000 + 1_000 * part) for part in range(4)
    )
    state = thread(20_000, None, trend=trend, rested=rested)
    card = ThreadCard(ms=now_ms, stored_bytes=20_000, trend=trend, rested=rested)
    info = WorkflowExecutionInfo(status=WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING)
    assert build_row(info, card).growth_bytes_per_hour == visibility.compute_growth(state, now_ms)


@pytest.mark.parametrize(
    ("before_ms", "now_ms", "due"),
    [(0, 100, True), (100, 190, False), (100, 201, True), (100, 49, True), (100, 0, False)],
)
def test_a_resume_time_is_published_when_it_halves_or_doubles(
    before_ms: float, now_ms: float, due: bool
) -> None:
    last = PublishedSize(ms=0, thread_bytes=MIB, resume_ms=before_ms)
    assert visibility.is_size_due(thread(MIB, last, resume_ms=now_ms), 1, waits=False) == due


def steps(number: int, size_bytes: int = MIB, **fields: object) -> ThreadState:
    last = PublishedSize(ms=0, thread_bytes=MIB, steps=100)
    state = thread(size_bytes, last, **fields)
    counters = dataclasses.replace(state.counters, steps=number)
    return dataclasses.replace(state, counters=counters)


@pytest.mark.parametrize(
    ("state", "waits", "due"),
    [
        (steps(100), True, False),  # Nothing has happened.
        (steps(101), False, False),
        (steps(101), True, True),  # It waits, so that this is how it stays.
        (steps(124), False, False),
        (steps(125), False, True),
        (steps(100, MIB + 1), False, False),
        (steps(100, MIB + 1, stopping=True), False, True),
        (steps(100, MIB + MIB // 4), False, True),
    ],
)
def test_steps_waits_and_ends_are_published(state: ThreadState, waits: bool, due: bool) -> None:
    assert visibility.is_size_due(state, 1, waits=waits) == due


def test_growth_is_right_however_often_cards_are_written() -> None:
    state, rate = thread(0, None), 45 * MIB / HOUR_MS
    for now_ms in range(0, 3 * HOUR_MS, 5_000):
        counters = Counters(written_bytes=int(rate * now_ms) + 1)
        state = dataclasses.replace(state, counters=counters)
        if now_ms >= 600_000:
            assert visibility.compute_growth(state, now_ms) == pytest.approx(45 * MIB, rel=0.01)
        state = dataclasses.replace(state, trend=visibility.build_trend(state, now_ms))


def test_a_trend_covers_the_whole_life_within_a_bound() -> None:
    state = thread(0, None)
    for now_ms in range(0, 1_000_000, 1_000):
        counters = Counters(written_bytes=now_ms)
        state = dataclasses.replace(state, counters=counters)
        state = dataclasses.replace(state, trend=visibility.build_trend(state, now_ms))
    assert len(state.trend) == limits.TREND_MAX
    assert state.trend[0] == (0, 0)
    assert state.trend[-1] == (999_000, 999_000)
    ages = [999_000 - ms for ms, _ in state.trend[:-1]]
    assert all(older <= 3 * newer for older, newer in itertools.pairwise(ages) if newer > 5_000)


def reply(seq: int, stored_bytes: int = 0) -> Entry:
    step = StepInfo(number=seq // 2, thread_bytes=stored_bytes, context_bytes=7, resume_ms=1.5)
    return Entry(seq=seq, kind=Kind.REPLY, time_ms=seq, size_bytes=2, body={}, step=step)


def test_samples_are_spread_over_the_journal_and_bounded() -> None:
    for last_seq in (0, 1, 7, 100, 19_600, 1_000_000):
        seqs = choose_samples(last_seq, 60)
        assert len(seqs) <= 60
        assert all(1 <= seq <= last_seq for seq in seqs)
        if last_seq > 1000:
            assert len(seqs) >= 59
            assert last_seq - seqs[-1] <= last_seq / 59


def test_only_size_samples_become_points() -> None:
    before = Entry(seq=1, kind=Kind.REPLY, time_ms=1, size_bytes=2, body={})
    [point] = extract_points([before, reply(2, 4096)])
    assert (point.seq, point.step, point.stored_bytes, point.resume_ms) == (2, 1, 4096, 1.5)


def test_thinning_keeps_the_newest_and_the_order() -> None:
    points = extract_points(reply(seq) for seq in range(1, 101))
    assert thin_points(points, 100) == points
    thin = thin_points(points, 7)
    assert len(thin) == 7
    assert thin[-1] == points[-1]
    assert [each.seq for each in thin] == sorted(each.seq for each in thin)


def test_a_fork_counts_only_its_own_points() -> None:
    points = extract_points(reply(seq) for seq in (2, 4, 6))
    forked = extract_points(
        [dataclasses.replace(reply(1), seq=8), dataclasses.replace(reply(2), seq=9)]
    )
    assert drop_parent_points([]) == ()
    assert drop_parent_points(points) == tuple(points)
    assert [each.seq for each in drop_parent_points([*points, *forked])] == [8, 9]


def test_at_least_one_point_is_kept() -> None:
    points = extract_points(reply(seq) for seq in range(1, 101))
    assert thin_points(points, 1) == points[-1:]
