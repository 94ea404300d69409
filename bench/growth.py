"""An agent's message list that grows, encoded whole after each step."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, Final

from temporalio.api.common.v1 import Payload

from bench import measure
from bench.exchange import gets_max
from bench.payloads import MB, decode, encode, encode_messages, make_json_payload
from bench.report import Report, Series
from bench.stores import CountingStore
from everlong.codecs import EverlongCodec
from everlong.storage.memory import MemoryBlobStore
from everlong.testing import workload

_TABLE_STEPS: Final = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """Costs of one payload of the growing list."""

    payload_bytes: int
    unique_bytes: int
    history_bytes: int
    puts: int
    put_bytes: int
    gets: int
    get_bytes: int
    same: bool
    encode_seconds: float
    decode_seconds: float
    compress_seconds: float
    decompress_seconds: float
    compressed_bytes: int

    @property
    def offloaded(self) -> bool:
        """Whether the payload was offloaded: written to the store, or read from it."""
        return self.puts > 0 or self.gets > 0


async def grow(count: int, kept: list[Payload]) -> list[Step]:
    """Encode the list after each step, and read each payload with a new codec."""
    store = CountingStore(MemoryBlobStore())
    codec = EverlongCodec(store)
    messages: list[Any] = []
    steps: list[Step] = []
    for index in range(count):
        new = workload.step(index)
        messages += new
        payload = make_json_payload(encode_messages(messages))
        steps.append(await _step(index, codec, store, payload, encode_messages(new)))
        if (index + 1) % max(1, count // _TABLE_STEPS) == 0:
            kept.append(payload)
    return steps


async def _step(
    turn: int, codec: EverlongCodec, store: CountingStore, payload: Payload, new: bytes
) -> Step:
    data = payload.data
    before = store.puts, store.put_bytes
    encoded: list[Payload] = []
    frames: list[bytes] = []

    async def ours(_turn: int) -> None:
        encoded.append(await encode(codec, payload))

    def theirs(_turn: int) -> None:
        frames.append(measure.compress(data))

    writing = await measure.time_in_turns(range(turn, turn + 1), ours, theirs)
    again = store.reopen()
    cold = EverlongCodec(again)
    decoded: list[Payload] = []

    async def read(_turn: int) -> None:
        decoded.append(await decode(cold, encoded[0]))

    reading = await measure.time_in_turns(
        range(turn, turn + 1), read, lambda _turn: measure.decompress(frames[0])
    )
    return Step(
        payload_bytes=len(data),
        unique_bytes=len(measure.compress(new)),
        history_bytes=encoded[0].ByteSize(),
        puts=store.puts - before[0],
        put_bytes=store.put_bytes - before[1],
        gets=again.gets,
        get_bytes=again.get_bytes,
        same=decoded[0] == payload,
        encode_seconds=writing.ours[0],
        decode_seconds=reading.ours[0],
        compress_seconds=writing.theirs[0],
        decompress_seconds=reading.theirs[0],
        compressed_bytes=len(frames[0]),
    )


def series(steps: Sequence[Step]) -> Series:
    """Return the bytes written and read, one row for each block of steps."""
    rows = []
    for end in range(_TABLE_STEPS, len(steps) + 1, _TABLE_STEPS):
        block = steps[end - _TABLE_STEPS : end]
        written = sum(step.put_bytes for step in steps[:end])
        unique = sum(step.unique_bytes for step in steps[:end])
        rows.append(
            (
                end,
                block[-1].payload_bytes,
                round(sum(step.put_bytes for step in block) / len(block)),
                max(step.put_bytes for step in block),
                sum(step.puts for step in block) / len(block),
                round(written / unique, 2),
                max(step.gets for step in block),
                block[-1].get_bytes,
            )
        )
    columns = (
        "to step",
        "payload bytes",
        "written a step",
        "at most",
        "objects a step",
        "over unique",
        "cold GETs, at most",
        "cold bytes, last",
    )
    return Series(f"Every {_TABLE_STEPS} steps", columns, rows)


def add_sizes(report: Report, steps: Sequence[Step], *, judged: bool) -> None:
    """Add bytes and objects."""
    raw = sum(step.payload_bytes for step in steps)
    unique = sum(step.unique_bytes for step in steps)
    written = sum(step.put_bytes for step in steps)
    offloaded = [step.puts for step in steps if step.offloaded] or [0]
    last = steps[-1]
    report.add("raw: all payloads", raw, "bytes")
    report.add("unique: zstd-3 of each step's new messages", unique, "bytes")
    report.add("written to the store", written, "bytes")
    report.add("left in history", sum(step.history_bytes for step in steps), "bytes")
    report.add("written over unique", written / unique, "times", most=2.5 if judged else None)
    report.add("raw over written", raw / written, "times", least=120 if judged else None)
    report.add("payloads offloaded", sum(step.offloaded for step in steps), f"of {len(steps)}")
    report.add("objects for an offloaded payload, fewest", min(offloaded), "PUTs", least=1, most=1)
    report.add("objects for an offloaded payload, most", max(offloaded), "PUTs", least=1, most=1)
    report.add(
        "payloads that decode to the same bytes",
        sum(step.same for step in steps),
        f"of {len(steps)}",
        least=len(steps),
        most=len(steps),
    )
    most = gets_max(last.payload_bytes)
    report.add("cold read of the last payload", last.gets, "GETs", least=1, most=most)
    report.add(
        "cold read of the last payload, over zstd-3 of the whole",
        last.get_bytes / last.compressed_bytes,
        "times",
        most=1.2 if judged else None,
    )


def add_rates(report: Report, steps: Sequence[Step]) -> None:
    """Add speeds, in plain bytes, over the offloaded payloads."""
    large = [step for step in steps if step.offloaded] or list(steps)
    rates = {
        "encode, growing list, median step": "encode_seconds",
        "zstd-3 compress, same bytes": "compress_seconds",
        "cold decode, growing list, median step": "decode_seconds",
        "zstd decompress, same bytes": "decompress_seconds",
    }
    for what, name in rates.items():
        rate = statistics.median(step.payload_bytes / getattr(step, name) for step in large)
        report.add(what, rate / MB, "MB/s")
    ours = sum(step.encode_seconds for step in large)
    theirs = sum(step.compress_seconds for step in large)
    report.add("encode, growing list, all steps over zstd-3", ours / theirs, "of its time")
