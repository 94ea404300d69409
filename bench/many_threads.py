"""Many threads in one worker, in turns: extra bytes that the bound on the encoder's memory causes.

The ideal is the bytes that the same threads write if each has its own encoder without a bound. Each run
has its own process, so that earlier runs do not affect its memory.
"""

import asyncio
import concurrent.futures
import dataclasses
import gc
import inspect
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.amplification import show_progress
from bench.conversation import Turn
from bench.exchange import Loop, Sides, Tally
from bench.payloads import MB, encode_value
from bench.report import Cell, Report, Series
from bench.stores import CountingStore
from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.storage.memory import MemoryBlobStore
from everlong.testing import workload

IDEAL_MAX: Final = 1.3
_MESSAGE_BYTES: Final = 2 * limits.KIB
_RUN_SECONDS_MAX: Final = 900.0
# The codec's argument for the bound. In older versions the bound is fixed.
_SETTING: Final = "encoder_bytes_max"


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of the measurement."""

    threads: int = 800
    list_bytes: int = 300_000
    rounds: int = 6
    bounds: Sequence[int] = (64 * limits.MIB, 512 * limits.MIB)
    """Bounds on the encoder's memory to measure in addition to the default, if it can be set."""
    judged: bool = True


LONG: Final = Size(rounds=24)
QUICK: Final = Size(threads=20, list_bytes=60_000, rounds=3, bounds=(limits.MIB,), judged=False)


@dataclasses.dataclass(frozen=True)
class Run:
    """Costs of all threads."""

    written_bytes: int
    encoder_bytes: int | None
    """Memory of the encoder, by its own count."""
    grown_bytes: int | None
    """Growth of the process's memory, without the store's objects."""
    seconds: float


async def measure_many_threads(size: Size) -> Report:
    """Measure the ideal, the default bound, and other bounds if they can be set."""
    mb = size.list_bytes / MB
    report = Report(f"{size.threads} threads with lists of {mb:g} MB, in turns")
    ideal = await _run_apart(size, ideal=True)
    runs: dict[str, Run] = {"default bound": await _run_apart(size)}
    if is_setting():
        for bound in size.bounds:
            runs[f"bound of {bound // limits.MIB} MiB"] = await _run_apart(size, bound)
    else:
        report.notes.append(f"This version has no setting {_SETTING}: its bound is fixed.")
    report.series.append(_build_table({"ideal: an encoder for each thread": ideal, **runs}, ideal))
    for name, run in runs.items():
        report.add(
            f"{size.threads} threads, {name}: written over the ideal",
            run.written_bytes / ideal.written_bytes,
            "times",
            most=IDEAL_MAX if size.judged and name == "default bound" else None,
        )
    return report


def is_setting() -> bool:
    """Return whether the codec takes the bound on the encoder's memory as an argument."""
    return _SETTING in inspect.signature(EverlongCodec).parameters


async def _run_apart(size: Size, bound: int | None = None, *, ideal: bool = False) -> Run:
    """Run in a new process."""
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as processes:
        future = loop.run_in_executor(processes, run_threads, size, bound, ideal)
        async with asyncio.timeout(_RUN_SECONDS_MAX):
            run = await future
    show_progress(f"{size.threads} threads, {'ideal' if ideal else bound or 'default'}", began)
    return run


def run_threads(size: Size, bound: int | None, ideal: bool) -> Run:
    """Run all rounds of all threads: in turns, or for the ideal one thread after the other."""
    return asyncio.run(_run_threads(size, bound, ideal))


async def _run_threads(size: Size, bound: int | None, ideal: bool) -> Run:
    turns = _build_turns(size)
    store = CountingStore(MemoryBlobStore())
    options: dict[str, Any] = {} if bound is None else {_SETTING: bound}
    began = time.monotonic()
    before = _read_resident_bytes()
    if ideal:
        for thread in range(size.threads):
            # Each thread has its own store, so that objects need not stay in memory.
            own = CountingStore(MemoryBlobStore())
            loop = Loop(Sides.of_one_worker(own), Tally(), f"thread-{thread}")
            for turn in turns:
                await loop.take(turn)
            store.put_bytes += own.put_bytes
        return Run(store.put_bytes, None, None, time.monotonic() - began)
    codec = EverlongCodec(store, **options)
    sides = Sides(codec, codec)
    loops = [Loop(sides, Tally(), f"thread-{thread}") for thread in range(size.threads)]
    for turn in turns:
        for loop in loops:
            await loop.take(turn)
            loop.last_data = b""  # Otherwise the benchmark itself would keep all lists.
    gc.collect()
    after = _read_resident_bytes()
    grown = None if before is None or after is None else after - before - store.put_bytes
    return Run(store.put_bytes, _read_encoder_bytes(codec), grown, time.monotonic() - began)


def _build_turns(size: Size) -> list[Turn]:
    """Return the turns of every thread. All do the same: an encoder shares nothing between threads."""
    first = [
        encode_value({"role": "user", "content": workload.passage(index, _MESSAGE_BYTES)})
        for index in range(size.list_bytes // _MESSAGE_BYTES)
    ]
    turns = []
    for index in range(size.rounds):
        reply, result = workload.step(1000 + index, size_bytes=_MESSAGE_BYTES - 700)
        turns.append(Turn(first if index == 0 else [], encode_value(reply), [encode_value(result)]))
    return turns


def _read_encoder_bytes(codec: EverlongCodec) -> int | None:
    """Return the memory that the encoder reports, if this version does."""
    memory = getattr(getattr(codec, "_offloader", None), "_memory", None)
    for name in ("cost_bytes", "_cost_bytes"):
        found = getattr(memory, name, None)
        if isinstance(found, int):
            return found
    return None


def _read_resident_bytes() -> int | None:
    """Return the memory of this process, if the system reports it."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return None
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _build_table(runs: dict[str, Run], ideal: Run) -> Series:
    rows: list[Sequence[Cell]] = [
        (
            name,
            run.written_bytes,
            round(run.written_bytes / ideal.written_bytes, 2),
            None if run.encoder_bytes is None else run.encoder_bytes / limits.MIB,
            None if run.grown_bytes is None else run.grown_bytes / limits.MIB,
            round(run.seconds, 1),
        )
        for name, run in runs.items()
    ]
    columns = ("encoder", "bytes written", "over ideal", "encoder MiB", "process MiB", "seconds")
    return Series("Bytes and memory", columns, rows)
