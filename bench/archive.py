"""Size and cost of an archive: a thread of 2,000 steps, against its packs and gzip'd JSON.

It needs no server: the journal is written as a thread writes it. Plain DuckDB and pyarrow then open the
file, in a process without Everlong.
"""

import argparse
import asyncio
import dataclasses
import gzip
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from pydantic_core import to_json

from everlong.archive import Facts, Manifest, StoredArchive, make_archive_id, restore, writer
from everlong.console import out
from everlong.format import format_bytes
from everlong.models import (
    Counters,
    Kind,
    Message,
    SegmentRef,
    Status,
    StepInfo,
    ThreadStatus,
    ToolCall,
    build_entry,
    build_note,
    seq_after,
    thread_key,
)
from everlong.storage import open_store
from everlong.storage.context_store import write_message
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore
from everlong.testing import workload

NAMESPACE: Final = "default"
THREAD_ID: Final = "bench"
# The archive must not be larger than gzip of the same entries; it is far smaller.
GZIP_RATIO_MAX: Final = 1.0
_PLAIN: Final = """
import sys, time, duckdb, pyarrow.parquet as pq
path = sys.argv[1]
started = time.monotonic()
[(count, size)] = duckdb.sql(
    f"select count(*), sum(length(text)) from '{path}' where kind = 'tool_result'"
).fetchall()
duck = time.monotonic() - started
started = time.monotonic()
table = pq.read_table(path)
arrow = time.monotonic() - started
assert not [name for name in sys.modules if name.split(".")[0] == "everlong"]
print(count, size, table.num_rows, duck, arrow)
"""


@dataclasses.dataclass
class Sizes:
    """Sizes of the same entries in other formats."""

    json_bytes: int = 0
    gzip_bytes: int = 0
    pack_bytes: int = 0


async def write_journal(packs: PackStore, steps: int) -> SegmentRef:
    """Write a journal of `steps` steps; return its head."""
    journal = Journal(packs, thread_key(NAMESPACE, THREAD_ID))
    head: SegmentRef | None = None
    for number in range(steps):
        assistant, answer = workload.step(number)
        call_id, function = answer["tool_call_id"], assistant["tool_calls"][0]["function"]
        call = ToolCall(id=call_id, tool=function["name"], arguments=function["arguments"])
        reply = Message(role="assistant", text=assistant["content"], tool_calls=(call,))
        seq, now_ms = seq_after(head), 1_794_800_000_000 + 5000 * number
        message = dataclasses.replace(
            build_entry(seq, Kind.REPLY, reply, now_ms),
            tokens=1000,
            cost_usd=0.01,
            step=StepInfo(number=number, thread_bytes=8000 * number, context_bytes=100_000),
        )
        result = Message(role="tool", text=answer["content"], call_id=call_id, tool=call.tool)
        entry, _ = await write_message(journal, Kind.TOOL_RESULT, result, now_ms + 900, 32 * 1024)
        head, _ = await journal.append(head, [message, dataclasses.replace(entry, seq=seq + 1)])
    if head is None:
        raise SystemExit("there are no steps")
    return head


async def measure_sizes(packs: PackStore, head: SegmentRef, folder: Path) -> Sizes:
    """Write the same entries as lines of JSON, and gzip them."""
    sizes = Sizes()
    journal = Journal(packs, thread_key(NAMESPACE, THREAD_ID))
    path = folder / "entries.json.gz"
    with gzip.open(path, "wb") as file:
        async for rows in writer.iter_rows(journal, head):
            for row in rows:
                # Each message once, as in the archive.
                line = to_json(dataclasses.replace(row, shown=None)) + b"\n"
                sizes.json_bytes += len(line)
                file.write(line)
    sizes.gzip_bytes = path.stat().st_size
    async for each in packs.store.list("v1/"):
        sizes.pack_bytes += each.size_bytes
    return sizes


def make_facts(head: SegmentRef, steps: int) -> Facts:
    """Return the archive's description of its thread."""
    status = ThreadStatus(
        agent="bench",
        status=Status.ARCHIVED,
        counters=Counters(steps=steps),
        head=head,
        waiting_messages=0,
        last_failure="",
    )
    now_ms = time.time_ns() // 1_000_000
    return Facts(
        archive_id=make_archive_id(now_ms, b"\0\0\0\0"),
        thread_id=THREAD_ID,
        namespace=NAMESPACE,
        thread=thread_key(NAMESPACE, THREAD_ID),
        entries=seq_after(head) - 1,
        archived_ms=now_ms,
        status=status,
    )


@dataclasses.dataclass
class Taken:
    """Wall-clock time and CPU time."""

    seconds: float
    cpu_seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.cpu_seconds:.1f} s of CPU"


async def time_archive(
    packs: PackStore, head: SegmentRef, steps: int
) -> tuple[Manifest, Taken, Taken]:
    """Write an archive and verify it; return the timings of both."""
    times = [(time.monotonic(), time.process_time())]

    def progress(what: str, done: int, total: int) -> None:
        if done == total:
            times.append((time.monotonic(), time.process_time()))

    journal = Journal(packs, thread_key(NAMESPACE, THREAD_ID))
    manifest = await writer.write(packs, journal, make_facts(head, steps), progress)
    [(begun, begun_cpu), (wrote, wrote_cpu), (read, read_cpu)] = times
    return (
        manifest,
        Taken(wrote - begun, wrote_cpu - begun_cpu),
        Taken(read - wrote, read_cpu - wrote_cpu),
    )


async def time_restore(packs: PackStore, manifest: Manifest) -> float:
    """Restore the journal from the archive; return the seconds."""
    started = time.monotonic()
    archive = await StoredArchive.open(packs, manifest)
    last = build_note(manifest.entries + 1, Kind.FORK, {"thread_id": THREAD_ID, "seq": 1}, 1)
    thread = thread_key(NAMESPACE, "again")
    await restore.restore_journal(packs, thread, archive, last, writer.ignore_progress)
    return time.monotonic() - started


async def main(steps: int) -> None:
    """Measure, and print the figures."""
    with tempfile.TemporaryDirectory(prefix="everlong-bench-") as name:
        folder = Path(name)
        packs = PackStore(open_store((folder / "blobs").as_uri()))
        head = await write_journal(packs, steps)
        sizes = await measure_sizes(packs, head, folder)
        manifest, written, verified = await time_archive(packs, head, steps)
        rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        path = folder / "plain.parquet"
        await writer.export(packs, manifest, path)
        revive_seconds = await time_restore(packs, manifest)
        plain = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-I", "-c", _PLAIN, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
    count, size, rows, duck, arrow = plain.stdout.split()
    if int(rows) != manifest.entries or int(count) != steps:
        raise SystemExit("plain tools read another number of rows")
    ratio = manifest.size_bytes / sizes.gzip_bytes
    lines = [
        f"{steps:,} steps, {manifest.entries:,} entries, {format_bytes(int(size))} of tool results",
        f"JSON lines, each message once   {format_bytes(sizes.json_bytes)}",
        f"the same, gzip'd                {format_bytes(sizes.gzip_bytes)}",
        f"the thread's packs              {format_bytes(sizes.pack_bytes)}",
        f"the archive                     {format_bytes(manifest.size_bytes)}, {ratio:.2f} of gzip",
        f"written in                      {written}",
        f"uploaded, read back, compared   {verified}",
        f"a journal again                 {revive_seconds:.1f} s",
        f"plain DuckDB sums all texts     {float(duck):.2f} s",
        f"plain pyarrow reads it all      {float(arrow):.2f} s",
        f"peak memory of this process     {format_bytes(rss_kib * 1024)}",
    ]
    for line in lines:
        out.print(line, markup=False)
    if ratio > GZIP_RATIO_MAX:
        raise SystemExit(f"the archive has {ratio:.2f} of gzip; {GZIP_RATIO_MAX} is the most")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    asyncio.run(main(parser.parse_args().steps))
