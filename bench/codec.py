"""The codec alone, in memory, against zstd at level 3 over the same bytes."""

import asyncio
import dataclasses
import gc
import statistics
import tracemalloc
from collections.abc import Sequence
from typing import Final

from temporalio.api.common.v1 import Payload

from bench import growth, measure
from bench.payloads import (
    MB,
    build_new_bytes,
    decode,
    encode,
    make_codec,
    make_json_payload,
    replace_end,
)
from bench.report import Report
from bench.stores import CountingStore
from everlong.codecs import EverlongCodec
from everlong.storage.memory import MemoryBlobStore


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of the measurement. A small run judges only the bounds that hold at any size."""

    steps: int = 200
    body_bytes: int = 4 * MB
    repetitions: int = 31
    threads: int = 32
    judged: bool = True


QUICK: Final = Size(steps=40, body_bytes=MB, repetitions=3, threads=4, judged=False)


async def measure_codec(size: Size) -> Report:
    """Measure speed, stalls and memory."""
    report = Report(f"The codec alone: a message list that grows for {size.steps} steps")
    payloads: list[Payload] = []
    steps = await growth.grow(size.steps, payloads)
    report.series.append(growth.series(steps))
    growth.add_sizes(report, steps, judged=size.judged)
    growth.add_rates(report, steps)
    body = build_new_bytes(size.body_bytes)
    await _measure_first(report, body, size)
    await _measure_warm(report, body, size)
    await _measure_stalls(report, body, size)
    await _measure_memory(report, payloads, body, size)
    return report


async def _measure_first(report: Report, body: bytes, size: Size) -> None:
    """Time the first encode of new bytes."""
    payload = make_json_payload(body)
    codecs = [make_codec() for _ in range(size.repetitions)]
    pair = await measure.time_in_turns(
        range(size.repetitions),
        lambda turn: encode(codecs[turn], payload, f"first-{turn}"),
        lambda _turn: measure.compress(body),
    )
    what = f"{len(body) / MB:g} MB"
    report.add(f"first encode of {what}, all of it new, median", pair.ours_median * 1000, "ms")
    report.add(f"zstd-3 of the same {what}, median", pair.theirs_median * 1000, "ms")
    limit = 1.5 if size.judged else None
    report.add("first encode over zstd-3", pair.share, "of its time", most=limit)
    report.add("first encode over zstd-3, fastest of each", pair.share_fastest, "of its time")


async def _measure_warm(report: Report, body: bytes, size: Size) -> None:
    """Time the encode of a payload that repeats the previous one, with 1% new bytes at its end."""
    codec = make_codec()
    await encode(codec, make_json_payload(body))
    current = body, make_json_payload(body)

    def prepare(turn: int) -> None:
        nonlocal current
        data = replace_end(body, turn)
        current = data, make_json_payload(data)

    pair = await measure.time_in_turns(
        range(size.repetitions),
        lambda _turn: encode(codec, current[1]),
        lambda _turn: measure.compress(current[0]),
        prepare=prepare,
    )
    what = f"{len(body) / MB:g} MB"
    report.add(f"warm encode of {what}, 1% new at its end, median", pair.ours_median * 1000, "ms")
    report.add(f"zstd-3 of the same {what}, median", pair.theirs_median * 1000, "ms")
    limit = 0.15 if size.judged else None
    report.add("warm encode over zstd-3", pair.share, "of its time", most=limit)
    report.add("warm encode over zstd-3, fastest of each", pair.share_fastest, "of its time")


async def _measure_stalls(report: Report, body: bytes, size: Size) -> None:
    """Measure stalls of the event loop while the codec runs, and while zstd runs in a thread."""
    payload = make_json_payload(body)
    warm = make_codec()
    await encode(warm, payload)
    machine, first, again, cold = (measure.Stalls() for _ in range(4))
    for turn in range(size.repetitions):
        store = MemoryBlobStore()
        changed = make_json_payload(replace_end(body, turn))
        async with machine.watch():
            await asyncio.to_thread(measure.compress, body)
        async with first.watch():
            encoded = await encode(EverlongCodec(store), payload)
        async with again.watch():
            await encode(warm, changed)
        async with cold.watch():
            await decode(EverlongCodec(store), encoded)
    kinds = {
        "first encode": first,
        "warm encode": again,
        "cold decode": cold,
        "zstd-3 in a thread: the machine's own": machine,
    }
    for kind, stalls in kinds.items():
        what = f"longest stall of the event loop, {kind}"
        report.add(f"{what}, median", statistics.median(stalls.seconds) * 1000, "ms")
        report.add(f"{what}, worst", max(stalls.seconds) * 1000, "ms")


async def _measure_memory(
    report: Report, payloads: Sequence[Payload], body: bytes, size: Size
) -> None:
    """Trace Python's allocations. Memory of zstd and the chunker is not included."""
    tracemalloc.start()
    try:
        inner = MemoryBlobStore()
        store = CountingStore(inner)
        start = tracemalloc.get_traced_memory()[0]
        codec = EverlongCodec(store)
        for payload in payloads[:-1]:
            await encode(codec, payload)
        before = _reset_peak()
        encoded = await encode(codec, payloads[-1])
        encode_peak = tracemalloc.get_traced_memory()[1] - before
        retained = _count_retained(start, store)
        before = _reset_peak()
        await decode(EverlongCodec(inner), encoded)
        decode_peak = tracemalloc.get_traced_memory()[1] - before
        for number in range(size.threads):
            await encode(codec, make_json_payload(body), f"memory-{number}")
        retained_all = _count_retained(start, store)
    finally:
        tracemalloc.stop()
    last = len(payloads[-1].data)
    report.add("last payload of the list", last / MB, "MB")
    report.add("peak memory of its encode", encode_peak / MB, "MB")
    report.add("peak memory of its cold decode", decode_peak / MB, "MB")
    report.add("kept by the codec after the list", retained / MB, "MB")
    what = f"kept by the codec after {size.threads} more threads of {len(body) / MB:g} MB"
    report.add(what, retained_all / MB, "MB")


def _reset_peak() -> int:
    tracemalloc.reset_peak()
    return tracemalloc.get_traced_memory()[0]


def _count_retained(start: int, store: CountingStore) -> int:
    """Return the bytes allocated since `start`, without the objects in the store."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - start - store.put_bytes
