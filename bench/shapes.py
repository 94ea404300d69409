"""Random shapes of traffic, to find those that the encoder handles badly.

A shape is a thread with growing lists and other payloads in between: of any size and number, some of
which join the list later, as results do. Lists are sometimes edited and compacted. The written bytes are
compared with the new bytes times the logarithm of the steps.
"""

import dataclasses
import math
import random
import time
from collections.abc import Sequence
from typing import Final

from bench import measure
from bench.amplification import show_progress
from bench.conversation import list_data
from bench.exchange import gets_max
from bench.payloads import decode, encode, make_json_payload
from bench.report import Cell, Report, Series
from bench.stores import CountingStore
from everlong.codecs import EverlongCodec
from everlong.limits import KIB, MIB
from everlong.storage.memory import MemoryBlobStore

_SIZES: Final = {
    "1-4": (KIB, 4 * KIB),
    "4-32": (4 * KIB, 32 * KIB),
    "1-512": (KIB, 512 * KIB),
    "128-512": (128 * KIB, 512 * KIB),
}
# Small messages are drawn more often: they are fast, and allow many steps.
_WEIGHTS: Final = (3, 3, 1, 1)
_OTHERS: Final = (0, 1, 2, 5, 10)
_LISTS: Final = (1, 1, 2, 3, 8)
_LIST_BYTES_MAX: Final = 24 * MIB
_WORST: Final = 12
# Letters of unequal frequency: zstd-3 halves them, without finding repeated stretches.
_LETTERS: Final = bytes(97 + min(15, int.bit_count(byte) * 2 + byte % 2) for byte in range(256))


@dataclasses.dataclass(frozen=True)
class Shape:
    """The traffic of a thread. Sizes are log-uniform; shares are shares of steps."""

    seed: int
    appended: str
    """Sizes of messages, in KiB."""
    others: int
    """Other payloads in a step, at most."""
    other_sizes: str
    joining: bool
    """Whether other payloads join the list in the next step, as replies and results do."""
    lists: int
    edits: float
    """Share of steps in which a message in the middle is replaced."""
    compactions: float
    """Share of steps in which a summary replaces the older part of the list."""


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of the measurement."""

    shapes: int = 24
    steps: int = 200
    new_bytes_max: int = 16 * MIB
    """New bytes after which a shape ends."""
    seed: int = 1


# Shapes that an earlier encoder handled badly. They are always run.
WEAK: Final = (
    Shape(1, "4-32", 5, "1-4", joining=True, lists=1, edits=0.0, compactions=0.0),
    Shape(2, "1-4", 2, "1-4", joining=True, lists=1, edits=0.0, compactions=0.0),
    Shape(3, "1-4", 2, "1-4", joining=True, lists=8, edits=0.0, compactions=0.0),
    Shape(4, "1-4", 10, "4-32", joining=True, lists=1, edits=0.0, compactions=0.0),
    Shape(5, "4-32", 1, "4-32", joining=True, lists=3, edits=0.1, compactions=0.03),
)


LONG: Final = Size(shapes=300, steps=400, new_bytes_max=64 * MIB)
QUICK: Final = Size(shapes=6, steps=12, new_bytes_max=2 * MIB)


@dataclasses.dataclass(frozen=True)
class Result:
    """Costs of a shape."""

    shape: Shape
    steps: int
    new_bytes: int
    """Sum of zstd-3 of each new message or payload."""
    written_bytes: int
    gets: int
    gets_max: int
    read_over_compressed: float

    @property
    def written_over_new(self) -> float:
        """Bytes written over new bytes."""
        return self.written_bytes / self.new_bytes

    @property
    def written_over_log(self) -> float:
        """Bytes written over new bytes times the binary logarithm of the steps."""
        return self.written_over_new / max(1.0, math.log2(self.steps))


def draw_shape(seed: int) -> Shape:
    """Return the random shape of a seed."""
    source = random.Random(f"shape {seed}")  # noqa: S311 - test data, not a secret
    return Shape(
        seed=seed,
        appended=_draw_sizes(source),
        others=source.choice(_OTHERS),
        other_sizes=_draw_sizes(source),
        joining=source.random() < 0.7,
        lists=source.choice(_LISTS),
        edits=source.choice((0.0, 0.0, 0.1)),
        compactions=source.choice((0.0, 0.0, 0.03)),
    )


def _draw_sizes(source: random.Random) -> str:
    [sizes] = source.choices(list(_SIZES), weights=_WEIGHTS)
    return sizes


async def run_shape(shape: Shape, steps: int, new_bytes_max: int) -> Result:
    """Encode the traffic of a shape."""
    thread = _Thread(shape)
    done = 0
    while done < steps and thread.raw_bytes < new_bytes_max:
        await thread.take(done)
        done += 1
    return await thread.finish(done)


class _Thread:
    """A thread under way."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._source = random.Random(f"thread {shape.seed}")  # noqa: S311
        self._store = CountingStore(MemoryBlobStore())
        self._codec = EverlongCodec(self._store)
        self._lists: list[list[bytes]] = [[] for _ in range(shape.lists)]
        self._joining: list[list[bytes]] = [[] for _ in range(shape.lists)]
        self._last = make_json_payload(b"[]")
        self._last_encoded = self._last
        self._new_bytes = 0
        self.raw_bytes = 0
        """New bytes, uncompressed."""

    async def take(self, step: int) -> None:
        """Change a list, send it, then send other payloads."""
        shape, source = self._shape, self._source
        lane = step % shape.lists
        messages = self._lists[lane]
        messages += self._joining[lane]
        messages.append(self._make(shape.appended))
        self._joining[lane] = []
        if source.random() < shape.edits:
            messages[source.randrange(len(messages))] = self._make(shape.appended)
        too_long = sum(map(len, messages)) > _LIST_BYTES_MAX
        if too_long or source.random() < shape.compactions:
            kept = messages[len(messages) * 3 // 4 :]
            messages[:] = [self._make("1-4"), *kept]
        self._last = make_json_payload(list_data(messages))
        self._last_encoded = await encode(self._codec, self._last)
        for _ in range(source.randint(0, shape.others)):
            other = self._make(shape.other_sizes)
            await encode(self._codec, make_json_payload(other))
            if shape.joining:
                self._joining[lane].append(other)

    async def finish(self, steps: int) -> Result:
        """Read the last list with a new codec."""
        again = self._store.reopen()
        decoded = await decode(EverlongCodec(again), self._last_encoded)
        data = self._last.data
        if decoded != self._last:
            raise RuntimeError(f"a list was not decoded to what was encoded: {self._shape}")
        return Result(
            shape=self._shape,
            steps=steps,
            new_bytes=self._new_bytes,
            written_bytes=self._store.put_bytes,
            gets=again.gets,
            gets_max=gets_max(len(data)),
            read_over_compressed=again.get_bytes / len(measure.compress(data)),
        )

    def _make(self, sizes: str) -> bytes:
        low, high = _SIZES[sizes]
        wanted = round(math.exp(self._source.uniform(math.log(low), math.log(high))))
        made = b'"' + self._source.randbytes(wanted).translate(_LETTERS) + b'"'
        self.raw_bytes += wanted
        self._new_bytes += len(measure.compress(made))
        return made


async def measure_shapes(size: Size) -> Report:
    """Run random shapes, and list the worst."""
    drawn = [draw_shape(size.seed * 100_000 + number) for number in range(size.shapes)]
    report = Report(
        f"{len(WEAK)} known and {size.shapes} random shapes of traffic, up to {size.steps} steps"
    )
    began = time.monotonic()
    results = []
    for number, shape in enumerate([*WEAK, *drawn], 1):
        results.append(await run_shape(shape, size.steps, size.new_bytes_max))
        if number % 10 == 0:
            show_progress(f"{number} shapes", began)
    worst = sorted(results, key=lambda result: -result.written_over_log)
    report.series.append(_build_table(worst[:_WORST]))
    report.add(
        "worst: written over new", max(each.written_over_new for each in results), "times", most=6
    )
    # No bound here: the constant is stated and tested with the encoder's policy.
    report.add("worst: written over new x log2(steps)", worst[0].written_over_log, "times")
    report.add(
        "worst: cold read of the last list, GETs over (24 + 3 per MiB)",
        max(each.gets / each.gets_max for each in results),
        "times",
        most=1,
    )
    report.add(
        "worst: cold read of the last list, bytes over zstd-3",
        max(each.read_over_compressed for each in results),
        "times",
    )
    return report


def _build_table(results: Sequence[Result]) -> Series:
    columns = (
        "seed",
        "KiB",
        "others",
        "KiB",
        "join",
        "lists",
        "edits",
        "cuts",
        "steps",
        "new KB",
        "ratio",
        "/log2",
        "GETs",
        "most",
        "read",
    )
    rows: list[Sequence[Cell]] = [
        (
            str(result.shape.seed),
            result.shape.appended,
            result.shape.others,
            result.shape.other_sizes,
            "yes" if result.shape.joining else "no",
            result.shape.lists,
            result.shape.edits,
            result.shape.compactions,
            result.steps,
            round(result.new_bytes / 1000),
            round(result.written_over_new, 2),
            round(result.written_over_log, 2),
            result.gets,
            result.gets_max,
            round(result.read_over_compressed, 2),
        )
        for result in results
    ]
    title = (
        "The worst shapes. ratio: written over new; /log2: that over log2(steps); read: cold/zstd-3"
    )
    return Series(title, columns, rows)
