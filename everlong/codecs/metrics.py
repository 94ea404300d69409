"""Metrics of the store, its cache and the codec."""

from collections.abc import Iterable

from everlong.codecs.encoder import MemoryStats
from everlong.codecs.offload import OffloadStats
from everlong.storage.cache import CachedBlobStore
from everlong.storage.instrumented import describe_outcome
from everlong.storage.pack_store import PackStore, WriteStats
from everlong.telemetry import Meters
from everlong.telemetry.metrics import Labels


def record_store_call(
    meters: Meters, operation: str, seconds: float, error: BaseException | None
) -> None:
    """Record a call to the store."""
    outcome = describe_outcome(error)
    labels = {"operation": operation, "outcome": outcome}
    meters.record("everlong.store.duration", seconds, labels)
    if error is not None and outcome in ("error", "cancelled"):
        # A cancelled call mostly took too long, so it counts as an error.
        kind = type(error).__name__ if outcome == "error" else outcome
        meters.add("everlong.store.errors", 1, {"operation": operation, "error": kind})


def observe_codec(
    meters: Meters, packs: PackStore, offloaded: OffloadStats, memory: MemoryStats
) -> None:
    """Export the counters of the codec, the packs and the cache. They are read at each collection."""
    store = packs.store
    sources: tuple[tuple[str, OffloadStats | WriteStats], ...] = (
        ("payload", offloaded),
        ("journal", packs.stats),
    )

    def payloads() -> Iterable[tuple[float, Labels]]:
        for source, stats in sources:
            repeated_bytes = stats.repeated_bytes
            new_bytes = stats.payload_bytes - repeated_bytes
            yield new_bytes, {"outcome": "new", "source": source}
            yield repeated_bytes, {"outcome": "deduplicated", "source": source}
        yield offloaded.fallback_bytes, {"outcome": "inline", "source": "payload"}

    def written() -> Iterable[tuple[float, Labels]]:
        for source, stats in sources:
            yield stats.written_bytes, {"source": source}

    meters.observe("everlong.offload.payload", payloads)
    meters.observe("everlong.offload.written", written)
    meters.observe("everlong.encoder.dropped", lambda: [(memory.dropped_bytes, {})])
    meters.observe("everlong.encoder.forgotten", lambda: [(memory.forgotten_threads, {})])
    meters.observe("everlong.encoder.rewritten", lambda: [(memory.rewritten_bytes, {})])
    if isinstance(store, CachedBlobStore):
        cache = store

        def reads() -> Iterable[tuple[float, Labels]]:
            stats = cache.stats()
            yield stats.memory_hits, {"tier": "memory"}
            yield stats.disk_hits, {"tier": "disk"}
            yield stats.misses, {"tier": "store"}

        meters.observe("everlong.cache.reads", reads)
