"""Statements that no one would write: a few of what `make fuzz-queries` runs."""

import sys
from pathlib import Path

import pytest

from tests.support.query_fuzzer import RSS_GROWTH_MAX, SECONDS_MAX, fuzz

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


@pytest.mark.guarantee(102)
async def test_any_statement_ends_in_time_and_leaves_nothing(tmp_path: Path) -> None:
    report = await fuzz(15, 16, tmp_path)
    assert report.ended.total() == 16
    assert report.seconds_max < SECONDS_MAX
    assert report.rss_growth_bytes < RSS_GROWTH_MAX
    assert report.left == ()
