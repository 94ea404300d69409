"""A short run of `make bench-live`. It checks no times, since other tests run at the same time."""

from pathlib import Path

import pytest

from bench.live import QUICK, measure


@pytest.mark.full
async def test_the_live_bench_delivers_all_words_without_requests_to_temporal(
    tmp_path: Path,
) -> None:
    load, requests = await measure(tmp_path, ["load", "requests"], QUICK)
    figures = {each.what: each.value for each in (*load.figures, *requests.figures)}
    assert figures["words that reached their listener"] == 100
    assert figures["words that a listener got, off"] == 0
    assert figures["words that a listener got, on"] == 10 * QUICK.turns
    assert figures["extra requests with live output on"] == 0
