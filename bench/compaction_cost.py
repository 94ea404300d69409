"""Measures compaction: CPU, the longest stall of the event loop beside it, and memory of a large thread.

The contexts are transcripts of the evidence corpus, one after another. The large thread is made while it
is read, so that the figures hold the compaction's memory and not a store's.
"""

import argparse
import asyncio
import dataclasses
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.evidence_corpus import corpus
from bench.report import Report, finish, machine
from everlong import compaction, limits
from everlong.compaction import Item, terms
from everlong.models import Entry, Kind, Message, Ref, SegmentRef
from everlong.policy import Policy
from everlong.storage.context_store import PART_BYTES_MAX, LoadedContext, load_in_parts
from everlong.storage.journal import Journal
from everlong.storage.objects import run_in_thread

SIZES: Final = tuple(size * limits.MIB for size in (1, 4, 16))
CPU_MS_MAX: Final = 150
STALL_MS_MAX: Final = 50
_TICK_SECONDS: Final = 0.001
_ROUNDS: Final = 3
_NO_CUT: Final = 1 << 40


class CyclicThread:
    """Journal entries of any number: the same transcripts again and again, with their own seqs."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items

    def build_item(self, seq: int) -> Item:
        """Return the item of an entry."""
        item = self._items[(seq - 1) % len(self._items)]
        return Item(dataclasses.replace(item.entry, seq=seq), item.message)

    def list_items(self, bytes_max: int) -> list[Item]:
        """Return the first items, as many as fit."""
        found: list[Item] = []
        while bytes_max > 0:
            found.append(self.build_item(len(found) + 1))
            bytes_max -= found[-1].entry.size_bytes
        return found


class MadeJournal(Journal):
    """The journal of a cyclic thread, which no store holds."""

    def __init__(self, thread: CyclicThread) -> None:
        self._made = thread

    async def read(
        self, head: SegmentRef | None, first_seq: int = 1, last_seq: int | None = None
    ) -> list[Entry]:
        """Return the entries of a range."""
        last = first_seq if last_seq is None else last_seq
        return [self._made.build_item(seq).entry for seq in range(first_seq, last + 1)]

    async def messages(self, entries: Sequence[Entry], *, whole: bool = False) -> list[Message]:
        """Return the messages of entries, each time new."""
        found = (self._made.build_item(entry.seq).message for entry in entries)
        return [dataclasses.replace(each) for each in found if each is not None]


def _compact(items: Sequence[Item]) -> float:
    """Compact once; return the CPU time of this OS thread in seconds."""
    terms.clear_cache()
    begun = time.thread_time()
    compaction.compact(None, items, Policy(), 0, keep_from_seq=_NO_CUT)
    return time.thread_time() - begun


async def measure_stall(items: Sequence[Item]) -> tuple[float, float]:
    """Return the CPU time of a compaction in an OS thread, and the longest stall beside it."""
    longest, done = 0.0, False

    async def tick() -> None:
        nonlocal longest
        last = time.monotonic()
        while not done:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            longest, last = max(longest, now - last - _TICK_SECONDS), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    seconds = await run_in_thread(_compact, items)
    done = True
    await ticking
    return seconds, longest


async def measure_memory(thread: CyclicThread, size_bytes: int) -> tuple[float, float, float]:
    """Return MiB read, the growth of the process's largest size, and CPU seconds."""
    begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mean = sum(thread.build_item(seq).entry.size_bytes for seq in range(1, 1001)) / 1000
    ref = Ref(digest="0" * 64, thread="0" * 32, size_bytes=1, kind=Kind.SEGMENT)
    head = SegmentRef(ref=ref, first_seq=1, count=int(size_bytes / mean))
    past = await load_in_parts(
        MadeJournal(thread),
        head,
        LoadedContext(None, (), Policy(), 0),
        _NO_CUT,
        part_bytes=PART_BYTES_MAX,
    )
    compaction.compact(past.base, past.items, Policy(), 0, keep_from_seq=_NO_CUT)
    read = past.folded_bytes + sum(item.entry.size_bytes for item in past.items)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return read / limits.MIB, grown / 1024, time.process_time() - begun


def measure(large_bytes: int) -> Report:
    """Return the figures."""
    report = Report("Compaction")
    items: list[Item] = []
    for transcript in corpus(6):
        items += transcript.items
    thread = CyclicThread(items)
    # First, since the process never shrinks.
    read, grown, seconds = asyncio.run(measure_memory(thread, large_bytes))
    report.add("large thread: read in parts", read, "MiB")
    # A part takes about four times its size; the rest is the allocator's.
    most = 6 * PART_BYTES_MAX / limits.MIB
    report.add("large thread: growth of the process", grown, "MiB", most=most)
    report.add("large thread: CPU", seconds, "s")
    for size in SIZES:
        some = thread.list_items(size)
        runs = [asyncio.run(measure_stall(some)) for _ in range(_ROUNDS)]
        name = f"{size // limits.MIB} MiB"
        milliseconds = min(seconds for seconds, _ in runs) * 1000
        report.add(f"{name}: CPU", milliseconds, "ms")
        per_mib = milliseconds * limits.MIB / size
        report.add(f"{name}: CPU for each MiB", per_mib, "ms", most=CPU_MS_MAX)
        stall = min(stall for _, stall in runs) * 1000
        report.add(f"{name}: longest stall of the event loop", stall, "ms", most=STALL_MS_MAX)
    return report


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.compaction_cost", description=__doc__)
    parser.add_argument("--large-mib", type=int, default=1024, help="size of the large thread")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file too")
    asked = parser.parse_args(arguments)
    return finish(machine(), [measure(asked.large_mib * limits.MIB)], asked.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
