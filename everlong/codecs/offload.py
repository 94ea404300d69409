"""Offload: decides which payloads stay inline in history, and moves the others to the store and back.

`Placement` decides for the payloads of one call. `Offloader` writes and reads, with a bounded number of
retries.

A workflow task has 10 s by default, so a call to the store gets a few seconds, and then the caller must
go on without it. While the store is known to be down, callers don't wait for it again.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry import trace
from opentelemetry.trace import Span
from temporalio import activity
from temporalio.api.common.v1 import Payload

from everlong import limits
from everlong.codecs.budget import ACTIVITY_RESULT, BUDGET, CompletionBudget
from everlong.codecs.pack_layout import Plan
from everlong.codecs.payloads import INLINE_ENCODING, OUR_ENCODINGS
from everlong.codecs.refs import PackRef
from everlong.codecs.thread_memory import MemoryStats, ThreadMemories, ThreadMemory
from everlong.errors import BlobCorrupt, BlobMissing, PayloadTooLarge, StoreUnavailable
from everlong.storage.encryption_keys import Keys
from everlong.storage.objects import build_object_async, run_in_thread
from everlong.storage.pack_store import NO_THREAD, PackStore, pack_key
from everlong.storage.packs import build_pack
from everlong.telemetry import Spans
from everlong.telemetry.spans import OFFLOAD, RUN, THREAD, Attributes

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSES: Final = (0.1, 0.4)
_FALLBACK_LOG_SECONDS: Final = 60.0
# Envelope of a payload without metadata. It is not valid protobuf, so no payload has it by itself; and
# an empty envelope would make the pack look like a part of a journal.
_BARE: Final = b"\0"
# Overhead of a protobuf field: tags and lengths.
_FIELD_BYTES: Final = 8


@dataclasses.dataclass
class OffloadStats:
    """Counters of what this process has offloaded."""

    payloads: int = 0
    payload_bytes: int = 0
    written_bytes: int = 0
    """Growth of the store."""
    repeated_bytes: int = 0
    """Payload bytes that the store had already."""
    fallbacks: int = 0
    """Payloads that stayed inline because the store was down."""
    fallback_bytes: int = 0


class Placement:
    """Decides for each payload of one call whether it stays inline or is offloaded, and encodes it.

    A payload stays inline if it is small after compression and fits: the server bounds the payloads of
    one call, which it counts as one value, and those of one completion (`budget`). It also stays inline,
    if it fits, when its bytes are not worth an object (a replay, an answer to a query), and when the
    store is down or the completion is late. All others are offloaded.

    Args:
        offloader: Writes to the store.
        budget: Inline bytes left for the completion; None outside of a workflow task.
        thread: Key of the thread under which packs are stored; empty without a workflow.
        workflow_id: Id of the thread, for spans.
        inline_bytes_max: Payloads above this, after compression, are offloaded.
        is_nexus: The payloads leave the namespace.
        may_leave_namespace: Payloads that leave the namespace may be offloaded too.
        is_local: The payloads belong to a local activity.
        spans: Receives a span for each offload.

    """

    def __init__(
        self,
        offloader: "Offloader",
        budget: CompletionBudget | None,
        *,
        thread: str,
        workflow_id: str,
        inline_bytes_max: int,
        is_nexus: bool,
        may_leave_namespace: bool,
        is_local: bool,
        spans: Spans,
    ) -> None:
        self._offloader = offloader
        self._budget = budget
        self._thread = thread
        self._workflow_id = workflow_id
        self._inline_bytes_max = inline_bytes_max
        self._is_nexus = is_nexus
        self._may_leave_namespace = may_leave_namespace
        self._is_local = is_local
        self._spans = spans
        self._left_bytes = limits.FALLBACK_BYTES_MAX

    async def encode(self, payload: Payload) -> Payload:
        """Return what goes into history: the payload, its compressed or sealed form, or a ref."""
        # Read `data` once: each access copies it. And don't call payload.ByteSize(): for a large payload
        # it takes longer than everything else here.
        data = payload.data
        size_bytes = len(data) + sum(len(k) + len(v) for k, v in payload.metadata.items())
        budget = self._budget
        leaves = self._is_nexus or (budget is not None and budget.leaves_namespace)
        offloads = self._may_leave_namespace or not leaves
        inline_max = self._inline_bytes_max
        if not offloads or (budget is not None and budget.prefers_inline):
            inline_max = limits.FALLBACK_BYTES_MAX
        inline: Payload | None = None
        if size_bytes <= limits.INLINE_TRIAL_FACTOR * inline_max or not offloads:
            inline = await self._inline(payload, size_bytes)
            inline_bytes = _get_inline_bytes(inline)
            if inline_bytes <= inline_max and self._take(inline_bytes):
                return inline
            if not offloads:
                # The SDK passes on the text but not the type, so the text begins with the type.
                raise PayloadTooLarge(
                    f"PayloadTooLarge: a Nexus payload of {size_bytes} bytes is {inline_bytes} after "
                    f"compression; the limit is {inline_max}, and {limits.COMPLETION_BYTES_MAX} for "
                    "one workflow task. Nexus payloads leave the namespace, so they are not "
                    "offloaded: send less, or set nexus_offload=True on both sides if they share a "
                    "store."
                )
        return await self._offload(payload, data, inline, size_bytes)

    async def _inline(self, payload: Payload, size_bytes: int) -> Payload:
        """Return the payload in the form that may stay in history: sealed, compressed, or unchanged."""
        keys = await self._offloader.packs.keys()
        # Wrap a user's payload that looks like one of ours, since decode would take it for ours.
        wrap = keys is not None or payload.metadata.get("encoding") in OUR_ENCODINGS
        if size_bytes < limits.COMPRESS_BYTES_MIN and not wrap:
            return payload
        sealed = await build_object_async(payload.SerializeToString(deterministic=True), keys)
        if not wrap and len(sealed) > limits.COMPRESS_RATIO_MAX * size_bytes:
            return payload
        return Payload(metadata={"encoding": INLINE_ENCODING}, data=sealed)

    async def _offload(
        self,
        payload: Payload,
        data: bytes,
        inline: Payload | None,
        size_bytes: int,
    ) -> Payload:
        if self._budget is not None and self._budget.is_late:
            inline = inline or await self._inline(payload, size_bytes)
            if self._take(_get_inline_bytes(inline)):
                return inline
        if self._offloader.is_down:
            inline = inline or await self._inline(payload, size_bytes)
            if self._stays_inline(inline):
                return inline
        try:
            with _offload_span(self._spans, self._workflow_id, size_bytes) as span:
                ref, written_bytes = await self._offloader.write(self._thread, payload, data)
                span.set_attribute("everlong.offload.written_bytes", written_bytes)
        except StoreUnavailable:
            inline = inline or await self._inline(payload, size_bytes)
            if self._stays_inline(inline):
                return inline
            raise
        return ref

    def _stays_inline(self, inline: Payload) -> bool:
        """Return whether a payload that the store did not take fits inline; if so, count it."""
        inline_bytes = _get_inline_bytes(inline)
        if self._is_local and self._budget is None:
            # The results of local activities go out with a completion whose budget is unknown here.
            return False
        if not self._take(inline_bytes):
            return False
        self._offloader.note_fallback(inline_bytes)
        return True

    def _take(self, size_bytes: int) -> bool:
        """Take bytes for a payload that stays inline; return whether enough were left."""
        if size_bytes > self._left_bytes:
            return False
        if self._budget is not None and not self._budget.take(size_bytes):
            return False
        self._left_bytes -= size_bytes
        return True

    def take_plain(self, payloads: Sequence[Payload]) -> bool:
        """Take bytes for values that may stay plain in a draining run; return whether they fit."""
        if self._budget is not None:
            bound = self._budget.stays_plain_bytes_max
        else:
            # An activity's result is always encoded. A run without a hook may or may not be draining.
            bound = 0 if ACTIVITY_RESULT.get() else limits.DRAIN_HANDOVER_BYTES_MAX
        size_bytes = sum(map(_get_inline_bytes, payloads)) if bound else 0
        return 0 < size_bytes <= bound and self._take(size_bytes)


@contextlib.contextmanager
def _offload_span(spans: Spans, workflow_id: str, size_bytes: int) -> Iterator[Span]:
    """Emit a span for an offload: a child of the current span, or of the run's."""
    run_id = _find_run_id()
    attributes: Attributes = {
        "everlong.offload.payload_bytes": size_bytes,
        **({THREAD: workflow_id} if workflow_id else {}),
        **({RUN: run_id} if run_id else {}),
    }
    current = trace.get_current_span().get_span_context()
    span = spans.start(OFFLOAD, attributes, run_id=run_id, parent=current)
    with spans.use(span):
        yield span


def _find_run_id() -> str:
    """Return the run whose payload is encoded, if known."""
    budget = BUDGET.get()
    if budget is not None:
        return budget.run_id
    return (activity.info().workflow_run_id or "") if activity.in_activity() else ""


def _get_inline_bytes(payload: Payload) -> int:
    metadata = sum(len(k) + len(v) + _FIELD_BYTES for k, v in payload.metadata.items())
    return len(payload.data) + metadata + _FIELD_BYTES


class Offloader:
    """Writes and reads payloads as packs, for all threads of a process."""

    def __init__(self, packs: PackStore, bytes_max: int = limits.ENCODER_BYTES_MAX) -> None:
        self.packs = packs
        self.stats = OffloadStats()
        self._memory = ThreadMemories(bytes_max)
        self._is_warned = False
        self._down_until = 0.0
        self._failed_key = ""
        self._fallback_logged_at = float("-inf")

    @property
    def is_down(self) -> bool:
        """Whether the store failed so recently that another wait is not worth it."""
        return time.monotonic() < self._down_until

    async def write(self, thread: str, payload: Payload, data: bytes) -> tuple[Payload, int]:
        """Store a payload, durably; return the ref for history and the bytes written.

        `data` is the payload's data, which the caller has copied already. With an empty `thread`,
        nothing is deduplicated.
        """
        envelope = _envelope(payload)
        memory = self._memory.get(thread) if thread else ThreadMemory()
        if self._memory.is_full:
            await self._trim(thread)
        keys = await self.packs.keys()
        key_id = "" if keys is None else keys.active
        where = thread or NO_THREAD
        if len(data) < limits.LOOP_BYTES_MAX:
            built = self._build(memory, where, envelope, data, keys)
        else:
            built = await run_in_thread(self._build, memory, where, envelope, data, keys)
        plan, name, pack = built
        if plan.same_as is not None:
            self._count(data, repeated_bytes=len(data))
            ref = PackRef(where, plan.same_as.name, len(data), plan.same_as.packs, key_id)
            return ref.to_payload(keys), 0
        is_new = await self._put(pack_key(where, name), pack)
        written_bytes = len(pack) if is_new else 0
        memory.commit(plan, name, self._memory.now())
        await self._trim(thread)
        if memory.was_forgotten:
            self._count_rewritten(memory, written_bytes)
        new_bytes = min(len(data), plan.new_bytes) if is_new else 0
        self._count(data, repeated_bytes=len(data) - new_bytes, written_bytes=written_bytes)
        ref = PackRef(where, name, len(data), plan.packs, key_id)
        return ref.to_payload(keys), written_bytes

    def _count(self, data: bytes, *, repeated_bytes: int, written_bytes: int = 0) -> None:
        self.stats.payloads += bool(written_bytes)
        self.stats.payload_bytes += len(data)
        self.stats.repeated_bytes += repeated_bytes
        self.stats.written_bytes += written_bytes

    def note_fallback(self, inline_bytes: int) -> None:
        """Count a payload that stayed inline because the store was down; log at most once a minute."""
        self.stats.fallbacks += 1
        self.stats.fallback_bytes += inline_bytes
        if time.monotonic() - self._fallback_logged_at < _FALLBACK_LOG_SECONDS:
            return
        self._fallback_logged_at = time.monotonic()
        logger.warning(
            "the blob store is down: %d payloads (%d bytes) so far were kept in history instead. "
            "Check the store: history is bounded at 50 MB.",
            self.stats.fallbacks,
            self.stats.fallback_bytes,
        )

    def _build(
        self, memory: ThreadMemory, thread: str, envelope: bytes, data: bytes, keys: Keys | None
    ) -> tuple[Plan, bytes, bytes]:
        key_id = "" if keys is None else keys.active
        plan = memory.plan(envelope, data, key_id, self._memory.now())
        if plan.same_as is not None:
            return plan, b"", b""
        name, pack = build_pack(plan.contents, thread, keys)
        return plan, name, pack

    async def read(self, ref: PackRef, *, learn: bool) -> Payload:
        """Return a stored payload.

        With `learn`, the encoder remembers it, so the thread's next payloads can refer to its packs.
        """
        found = self._memory.find(ref.thread, ref.pack, ref.key_id)
        if found is not None:
            return _payload(*found)
        try:
            reading = await retry_store_call(
                lambda: self.packs.read(ref.thread, ref.pack, ref.size_bytes, ref.key_id),
                store_timeout_seconds(ref.size_bytes),
            )
        except (BlobMissing, BlobCorrupt):
            # The thread's next packs must not refer to the lost one.
            self._memory.forget(ref.thread)
            raise
        if learn and ref.thread != NO_THREAD:
            memory = self._memory.get(ref.thread)
            memory.learn(reading, self._memory.now())
            await self._trim(ref.thread)
        # The payload copies the data. Release the stored bytes first, to have fewer copies in memory.
        reading.pack.release()
        return _payload(reading.pack.envelope, reading.data)

    @property
    def memory_stats(self) -> MemoryStats:
        """Costs of the bound on the encoder's memory."""
        return self._memory.stats

    async def _trim(self, thread: str) -> None:
        self._memory.note_growth(thread)
        if self._memory.is_full:
            await run_in_thread(self._memory.trim, thread)

    def _count_rewritten(self, memory: ThreadMemory, written_bytes: int) -> None:
        memory.was_forgotten = False
        self._memory.stats.rewritten_bytes += written_bytes
        if not self._is_warned:
            self._is_warned = True
            logger.warning(
                "the encoder's memory is too small for the threads of this process: a forgotten thread "
                "wrote %d bytes again. Raise encoder_bytes_max (EVERLONG_ENCODER_BYTES_MAX), or run "
                "fewer threads on a worker. The metric everlong.encoder.rewritten counts these bytes; "
                "this is logged once.",
                written_bytes,
            )

    async def _put(self, key: str, data: bytes) -> bool:
        try:
            is_new = await retry_store_call(
                lambda: self.packs.put(key, data), store_timeout_seconds(len(data))
            )
        except StoreUnavailable:
            # One object may be refused, or be too large for its timeout. Two different objects in a row
            # mean that the store is down.
            if self._failed_key not in ("", key):
                self._down_until = time.monotonic() + limits.STORE_DOWN_SECONDS
            self._failed_key = key
            raise
        self._down_until = 0.0
        self._failed_key = ""
        return is_new


def _envelope(payload: Payload) -> bytes:
    """Return a payload without its data, serialised."""
    if len(UnknownFieldSet(payload)):  # Written by a newer Temporal: keep its unknown fields.
        rest = Payload()
        rest.CopyFrom(payload)
        rest.ClearField("data")
    else:
        rest = Payload(metadata=payload.metadata, external_payloads=payload.external_payloads)
    return rest.SerializeToString(deterministic=True) or _BARE


def _payload(envelope: bytes, data: bytes) -> Payload:
    try:
        payload = Payload.FromString(b"" if envelope == _BARE else envelope)
    except DecodeError:
        raise BlobCorrupt("a pack that was read holds no payload") from None
    payload.data = data
    return payload


def store_timeout_seconds(size_bytes: int) -> float:
    """Return the timeout of one call to the store. A forged ref may claim any size, so it is capped."""
    most = min(size_bytes, limits.OBJECT_BYTES_MAX)
    return limits.STORE_TRY_SECONDS + most / limits.STORE_BYTES_PER_SECOND_MIN


async def retry_store_call(
    call: Callable[[], Awaitable[T]], seconds: float = limits.STORE_TRY_SECONDS
) -> T:
    """Call the store, and retry a few times after a pause if it fails."""
    started = time.monotonic()
    for pause in (*_PAUSES, None):
        try:
            async with asyncio.timeout(seconds):
                return await call()
        except (StoreUnavailable, TimeoutError) as error:
            waited = time.monotonic() - started
            if pause is None or waited > limits.STORE_TRY_SECONDS:
                if isinstance(error, StoreUnavailable):
                    raise
                raise StoreUnavailable(
                    f"the blob store did not answer in {waited:.0f} s. Check the store and the "
                    "network; Everlong retries."
                ) from error
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
    raise AssertionError("the last round returns or raises")
