"""The benchmark of compaction's cost, at a small size: it reads what it says, and compacts it."""

import asyncio

from bench.compaction_cost import CyclicThread, measure_memory, measure_stall
from bench.evidence_corpus import transcript
from everlong import limits


def test_a_made_thread_of_any_size_is_compacted_in_parts() -> None:
    thread = CyclicThread(transcript("cost", "support").items)
    some = thread.list_items(100 * limits.KIB)
    assert [item.entry.seq for item in some] == list(range(1, len(some) + 1))
    seconds, stall = asyncio.run(measure_stall(some))
    assert 0 < seconds < 10
    assert 0 <= stall < 10
    read_mib, _, cpu_seconds = asyncio.run(measure_memory(thread, limits.MIB))
    assert 0.8 < read_mib < 1.3
    assert cpu_seconds > 0
