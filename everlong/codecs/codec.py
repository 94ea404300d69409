"""The payload codec: compresses small payloads, and offloads large ones to the blob store.

It adapts the SDK's interface: contexts, an inner codec, read mode, decoding. `offload` decides which
payloads stay inline, and writes the others.

A blob is durable before the ref to it exists. Every fault raises an ordinary error, so Temporal retries
the task; nothing here ends a workflow.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Self

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    NexusSerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from everlong import limits
from everlong.codecs.budget import (
    BUDGET,
    ActivityResult,
    drains,
)
from everlong.codecs.offload import Offloader, OffloadStats, Placement
from everlong.codecs.payloads import INLINE_ENCODING, is_encoded, is_large_when_plain, plain_bytes
from everlong.codecs.refs import PackRef, check_ref, is_ref, parse_ref
from everlong.codecs.thread_memory import MemoryStats
from everlong.errors import (
    BlobCorrupt,
    ConfigError,
    EverlongError,
    ObjectTooLarge,
)
from everlong.models import APPEND_JOURNAL, CALL_MODEL, CHECK, RUN_TOOL, Kind, thread_key
from everlong.storage import BlobStore
from everlong.storage.cache import CachedBlobStore
from everlong.storage.encryption_keys import Keyring, KeySource
from everlong.storage.instrumented import READS, Reads
from everlong.storage.objects import get_key_id, parse_object_async
from everlong.storage.pack_store import PackStore, WriteStats, gather_bounded
from everlong.telemetry import Meters, Spans, Telemetry
from everlong.telemetry.metrics import Labels


class EverlongCodec(PayloadCodec, WithSerializationContext):
    """Compresses payloads, and offloads those above `inline_bytes_max` to the store.

    It works alone, without context, and around another codec (`inner`, which then sees the plain
    payloads). Decode leaves payloads unchanged that this codec did not write.

    Args:
        store: A `BlobStore`, or a `PackStore` over one, with its keys.
        inline_bytes_max: Payloads above this, after compression, go to the store.
        inner: A codec that is applied before this one when encoding, and after it when decoding.
        keys: Keys by id, or a callable that returns them. The first key writes.
        read_only: Decode as usual, but encode to plain payloads. Only a run whose history holds refs,
            and the activities of such a run, continue to offload (see `interceptors/read_mode.py`).
        nexus_offload: Offload Nexus payloads too. They leave the namespace, so the other side needs
            the same store, and the same keys.
        encoder_bytes_max: Memory of the encoder, for all threads together.
        decode_bytes_max: Bytes that the payloads of one call may decode to, in all; more is refused.
        spans: Receives a span for each offload; OpenTelemetry's global provider by default.

    """

    def __init__(
        self,
        store: BlobStore | PackStore,
        *,
        inline_bytes_max: int = limits.INLINE_BYTES_MAX,
        inner: PayloadCodec | None = None,
        keys: KeySource | None = None,
        read_only: bool = False,
        nexus_offload: bool = False,
        encoder_bytes_max: int = limits.ENCODER_BYTES_MAX,
        decode_bytes_max: int = limits.DECODE_BYTES_MAX,
        spans: Spans | None = None,
    ) -> None:
        if inline_bytes_max < 0:
            raise ConfigError(
                f"inline_bytes_max is {inline_bytes_max}; give 0 to offload every payload, or a "
                f"positive number of bytes (default {limits.INLINE_BYTES_MAX})"
            )
        if inline_bytes_max > limits.FALLBACK_BYTES_MAX:
            raise ConfigError(
                f"inline_bytes_max is {inline_bytes_max}; the server takes payloads of "
                f"{limits.FALLBACK_BYTES_MAX} bytes at most"
            )
        if encoder_bytes_max < limits.ENCODER_BYTES_MIN:
            raise ConfigError(
                f"encoder_bytes_max is {encoder_bytes_max}; give at least {limits.ENCODER_BYTES_MIN} "
                f"bytes (default {limits.ENCODER_BYTES_MAX})"
            )
        if not isinstance(store, PackStore):
            store = PackStore(store, None if keys is None else Keyring(keys))
        elif keys is not None:
            raise ConfigError("a PackStore has its own keys: give the keys to it, not to the codec")
        self.packs = store
        self._offloader = Offloader(store, encoder_bytes_max)
        self._inline_bytes_max = inline_bytes_max
        self._inner = inner
        self._read_only = read_only
        self._nexus_offload = nexus_offload
        self._decode_bytes_max = decode_bytes_max
        self._spans = spans or Telemetry().spans
        self._workflow_id = ""
        self._thread = ""
        self._learns = False
        self._is_local = False
        self._is_nexus = False
        self._is_plain = False

    @property
    def stats(self) -> OffloadStats:
        """Counters of what this codec and its copies have offloaded."""
        return self._offloader.stats

    @property
    def memory_stats(self) -> MemoryStats:
        """Costs of the bound on the encoder's memory, for this codec and its copies."""
        return self._offloader.memory_stats

    @property
    def inner(self) -> PayloadCodec | None:
        """The codec that is applied before this one when encoding."""
        return self._inner

    @property
    def is_plain(self) -> bool:
        """Whether payloads pass unchanged: those of the activity that `everlong doctor` uses."""
        return self._is_plain

    def export_metrics(self, meters: Meters) -> None:
        """Export the counters of the codec, its packs and their cache, read at each collection."""
        packs, memory, offloaded = self.packs, self.memory_stats, self.stats
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
            yield offloaded.written_bytes, {"source": "payload", "kind": "payload"}
            for kind in Kind:
                written_bytes = packs.stats.written_bytes_by_kind[kind]
                if (
                    written_bytes or kind == Kind.SEGMENT
                ):  # Most kinds have no objects of their own.
                    yield written_bytes, {"source": "journal", "kind": kind}

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

    def _copy(self) -> Self:
        # Faster than `copy.copy`: the SDK calls `with_context` for each payload.
        codec = object.__new__(type(self))
        codec.__dict__.update(self.__dict__)
        return codec

    def with_context(self, context: SerializationContext) -> Self:
        """Return a codec that stores its packs under the context's thread."""
        codec = self._copy()
        if isinstance(context, ActivitySerializationContext) and _is_ours(context):
            # Our own activities' payloads are small, and must get through while the store is down.
            codec._inline_bytes_max = max(self._inline_bytes_max, limits.STATE_BYTES_MAX)
        if isinstance(context, ActivitySerializationContext):
            codec._is_local = context.is_local
        if isinstance(context, WorkflowSerializationContext | ActivitySerializationContext):
            # A standalone activity has a namespace but no workflow id.
            codec._workflow_id = context.workflow_id or ""
            codec._thread = (
                thread_key(context.namespace, context.workflow_id) if context.workflow_id else ""
            )
        # This side runs the activity. After a crash its worker may run the workflow too, whose next
        # input then mostly repeats this one, so the encoder learns it. (On the workflow's side there
        # is an activity id only where a team has set one.)
        codec._learns = bool(getattr(context, "activity_id", None))
        if isinstance(context, NexusSerializationContext):
            codec._is_nexus = True
        # Workers' answers to `everlong doctor` must get through even if keys differ.
        codec._is_plain = getattr(context, "activity_type", None) == CHECK
        if isinstance(self._inner, WithSerializationContext):
            codec._inner = self._inner.with_context(context)
        return codec

    def with_inner(self, inner: PayloadCodec | None) -> Self:
        """Return a copy of this codec around another one."""
        codec = self._copy()
        codec._inner = inner
        return codec

    def with_packs(self, packs: PackStore) -> Self:
        """Return a copy of this codec that reaches the same store through other packs."""
        codec = self._copy()
        codec.packs = packs
        codec._offloader = Offloader(packs)
        return codec

    def as_read_only(self) -> Self:
        """Return a copy that encodes to plain payloads."""
        codec = self._copy()
        codec._read_only = True
        return codec

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See `PayloadCodec`."""
        if self._is_plain:
            return list(payloads)
        if self._inner is not None:
            payloads = await self._inner.encode(payloads)
        # The arguments of a local activity never leave the worker, and a replay encodes them again. Its
        # result does leave; it is encoded on the activity's side, where there is no completion.
        budget = BUDGET.get()
        if self._is_local and budget is not None:
            return list(payloads)
        if self._read_only and not await drains(in_activity=self._learns):
            return list(payloads)
        if budget is not None:
            budget.begin()
        placement = Placement(
            self._offloader,
            budget,
            thread=self._thread,
            workflow_id=self._workflow_id,
            inline_bytes_max=self._inline_bytes_max,
            may_leave_namespace=self._nexus_offload,
            is_nexus=self._is_nexus,
            is_local=self._is_local,
            spans=self._spans,
        )
        if self._read_only and placement.take_plain(payloads):
            return list(payloads)
        with _drop_causes():
            encoded = [await placement.encode(payload) for payload in payloads]
        if budget is not None and budget.drain is not None and any(map(is_ref, encoded)):
            budget.drain.note_refs()
        return encoded

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See `PayloadCodec`."""
        if self._is_plain:
            return list(payloads)
        large, refs = sum(map(is_large_when_plain, payloads)), sum(map(is_ref, payloads))
        if large and self._learns:
            ActivityResult.current().offloads = True
        with _drop_causes(), _count_reads(refs, large):
            self._check_inflated(payloads)
            if len(payloads) == 1:
                decoded = [await self._decode(payloads[0])]
            else:
                alone = asyncio.Lock()
                decoded = await gather_bounded(
                    [partial(self._decode_in_turn, payload, alone) for payload in payloads]
                )
        return decoded if self._inner is None else await self._inner.decode(decoded)

    def is_wanted(self, payload: Payload) -> bool:
        """Return whether decoding a payload fetches objects."""
        return is_ref(payload)

    async def warm(self, payload: Payload) -> int:
        """Fetch the objects that a ref will need when it is decoded; return their bytes."""
        ref = parse_ref(payload)
        await check_ref(self.packs, payload, ref)
        return await self.packs.warm(ref.thread, ref.pack, alone=ref.packs == 1)

    def _check_inflated(self, payloads: Sequence[Payload]) -> None:
        """Reject payloads that together would take too much memory once decoded."""
        most = self._decode_bytes_max
        if len(payloads) < 2 and most >= limits.OBJECT_BYTES_MAX:
            return
        if sum(plain_bytes(each) for each in payloads if is_encoded(each)) > most:
            raise ObjectTooLarge(
                f"these {len(payloads)} payloads decode to over {most} bytes in all, the limit of one "
                "call here: they are damaged, or forged to fill this process's memory"
            )

    async def _decode_in_turn(self, payload: Payload, alone: asyncio.Lock) -> Payload:
        """Decode a payload; one large payload at a time, since its data is briefly in memory twice."""
        if not is_encoded(payload) or plain_bytes(payload) < limits.DECODE_ALONE_BYTES_MIN:
            return await self._decode(payload)
        async with alone:
            return await self._decode(payload)

    async def _decode(self, payload: Payload) -> Payload:
        encoding = payload.metadata.get("encoding")
        if encoding == INLINE_ENCODING:
            keys = await self.packs.keys(get_key_id(payload.data))
            return _parse(await parse_object_async(payload.data, keys))
        if is_ref(payload):
            return await self._fetch(payload, parse_ref(payload))
        return payload

    async def _fetch(self, payload: Payload, ref: PackRef) -> Payload:
        await check_ref(self.packs, payload, ref)
        # A workflow task decodes the results that its next list will contain, and another process may
        # have written them.
        learns = self._learns or BUDGET.get() is not None
        learn = learns and ref.thread == self._thread
        return await self._offloader.read(ref, learn=learn)


@contextlib.contextmanager
def _drop_causes() -> Iterator[None]:
    """Drop the traceback and causes of Everlong's errors.

    The SDK sends them along, and the server replaces a failure of more than a few KiB with a note that
    it was too large, so the remedy in the message would be lost.
    """
    try:
        yield
    except EverlongError as error:
        raise error.with_traceback(None) from None


@contextlib.contextmanager
def _count_reads(refs: int, large: int) -> Iterator[None]:
    """Measure the decoding of offloaded payloads, and count those by which a run drains.

    The asyncio task that decodes a workflow's first payloads also creates the workflow instance, which
    reads these figures.
    """
    if not large:
        yield
        return
    reads = READS.get()
    if reads is None:
        READS.set(reads := Reads())
    reads.large_when_plain += large
    if not refs:
        yield
        return
    started = time.monotonic()
    try:
        yield
    finally:
        reads.blobs += refs
        reads.seconds += time.monotonic() - started


def _is_ours(context: ActivitySerializationContext) -> bool:
    return (context.activity_type or "") in (CALL_MODEL, RUN_TOOL, APPEND_JOURNAL)


def _parse(plaintext: bytes) -> Payload:
    try:
        return Payload.FromString(plaintext)
    except DecodeError:
        raise BlobCorrupt("an object does not decompress to a payload") from None
