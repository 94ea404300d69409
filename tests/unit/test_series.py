"""How a thread has grown, from samples of its journal."""

import dataclasses

from everlong.admin.series import choose_samples, drop_parent_points, extract_points, thin_points
from everlong.models import Entry, Kind, StepInfo


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


def test_only_what_says_how_the_thread_was_is_a_point() -> None:
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


def test_of_a_fork_only_its_own_points_count() -> None:
    points = extract_points(reply(seq) for seq in (2, 4, 6))
    forked = extract_points(
        [dataclasses.replace(reply(1), seq=8), dataclasses.replace(reply(2), seq=9)]
    )
    assert drop_parent_points([]) == ()
    assert drop_parent_points(points) == tuple(points)
    assert [each.seq for each in drop_parent_points([*points, *forked])] == [8, 9]


def test_one_point_is_the_least() -> None:
    points = extract_points(reply(seq) for seq in range(1, 101))
    assert thin_points(points, 1) == points[-1:]
