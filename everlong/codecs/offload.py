"""Offloader: moves payloads to the blob store and back, with a bounded number of retries.

A workflow task has 10 s by default, so a call to the store gets a few seconds, and then the caller must
go on without it. While the store is known to be down, callers don't wait for it again.
"""

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from temporalio.api.common.v1 import Payload

from everlong import limits
from everlong.codecs.encoder import EncoderMemory, MemoryStats, ThreadMemory
from everlong.codecs.pack_layout import Plan
from everlong.codecs.refs import PackRef
from everlong.errors import BlobCorrupt, BlobMissing, StoreUnavailable
from everlong.storage.keys import Keys
from everlong.storage.objects import run_in_thread
from everlong.storage.pack_store import NO_THREAD, PackStore, pack_key
from everlong.storage.packs import build_pack

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSES: Final = (0.1, 0.4)
_FALLBACK_LOG_SECONDS: Final = 60.0
# Envelope of a payload without metadata. It is not valid protobuf, so no payload has it by itself; and
# an empty envelope would make the pack look like a part of a journal.
_BARE: Final = b"\0"


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


class FallbackLog:
    """Logs that payloads stayed inline, at most once a minute."""

    def __init__(self) -> None:
        self._logged_at = float("-inf")

    def note(self, stats: OffloadStats) -> None:
        """Log the totals, unless they were logged within the last minute."""
        if time.monotonic() - self._logged_at < _FALLBACK_LOG_SECONDS:
            return
        self._logged_at = time.monotonic()
        logger.warning(
            "the blob store is down: %d payloads (%d bytes) so far were kept in history instead. "
            "Check the store: history is bounded at 50 MB.",
            stats.fallbacks,
            stats.fallback_bytes,
        )


class Offloader:
    """Writes and reads payloads as packs, for all threads of a process."""

    def __init__(self, packs: PackStore, bytes_max: int = limits.ENCODER_BYTES_MAX) -> None:
        self.packs = packs
        self.stats = OffloadStats()
        self._memory = EncoderMemory(bytes_max)
        self._is_warned = False
        self._down_until = 0.0
        self._failed_key = ""

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
