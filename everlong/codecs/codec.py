"""The payload codec: compress what is small, move what is large to the blob store.

The blob is durable before the ref to it exists. Every fault raises plainly, so that Temporal
retries the task; nothing here ends a workflow.
"""

from collections.abc import Sequence
from typing import Final, Self

from google.protobuf.message import DecodeError
from pydantic import TypeAdapter, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from everlong import limits
from everlong.errors import BlobCorrupt, ConfigError, UnknownVersion
from everlong.models import APPEND_JOURNAL, CALL_MODEL, RUN_TOOL, Kind, Ref
from everlong.storage import BlobStore
from everlong.storage.objects import (
    declared_bytes,
    read_object,
    seal_object,
    thread_key,
    unseal_object,
    write_object,
)

INLINE_ENCODING: Final = b"binary/everlong"
REF_ENCODING: Final = b"json/everlong-ref"
REF_VERSION: Final = b"1"
_VERSION_KEY: Final = "everlong-version"
_REF = TypeAdapter(Ref)


class EverlongCodec(PayloadCodec, WithSerializationContext):
    """Compresses payloads, and offloads those above `inline_bytes_max` to the store.

    It works alone, without context, and around another codec (`inner`, which then sees the plain
    payloads). Payloads that it did not write pass through decode as they are. With `read_only` it
    decodes as ever, and writes nothing.
    """

    def __init__(
        self,
        store: BlobStore,
        *,
        inline_bytes_max: int = limits.INLINE_BYTES_MAX,
        inner: PayloadCodec | None = None,
        thread: str = "",
        read_only: bool = False,
    ) -> None:
        if inline_bytes_max < 0:
            raise ConfigError(
                f"inline_bytes_max is {inline_bytes_max}; give 0 to offload every payload, or a "
                f"positive number of bytes (default {limits.INLINE_BYTES_MAX})"
            )
        self.store = store
        self._inline_bytes_max = inline_bytes_max
        self._inner = inner
        self._read_only = read_only
        # Where no context tells the thread, objects lie under that of the empty name.
        self._thread = thread or thread_key("", "")

    def with_context(self, context: SerializationContext) -> Self:
        """Return a codec that files what it offloads under the context's thread."""
        thread = self._thread
        inline_bytes_max = self._inline_bytes_max
        if isinstance(context, ActivitySerializationContext) and _is_ours(context):
            # They are small, and have to get through while the store is down.
            inline_bytes_max = max(inline_bytes_max, limits.STATE_BYTES_MAX)
        if isinstance(context, WorkflowSerializationContext | ActivitySerializationContext):
            # An activity that was started without a workflow has a namespace but no workflow id.
            thread = thread_key(context.namespace, context.workflow_id or "")
        inner = self._inner
        if isinstance(inner, WithSerializationContext):
            inner = inner.with_context(context)
        return self._copy(inner=inner, thread=thread, inline_bytes_max=inline_bytes_max)

    def around(self, inner: PayloadCodec | None) -> Self:
        """Return this codec with another inside."""
        return self._copy(inner=inner)

    def reading(self) -> Self:
        """Return this codec without its writing half: it encodes to plain payloads."""
        return self._copy(read_only=True)

    def _copy(
        self,
        *,
        inner: PayloadCodec | None = None,
        thread: str = "",
        inline_bytes_max: int | None = None,
        read_only: bool | None = None,
    ) -> Self:
        if inline_bytes_max is None:
            inline_bytes_max = self._inline_bytes_max
        return type(self)(
            self.store,
            inline_bytes_max=inline_bytes_max,
            inner=inner or self._inner,
            thread=thread or self._thread,
            read_only=self._read_only if read_only is None else read_only,
        )

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See `PayloadCodec`."""
        if self._inner is not None:
            payloads = await self._inner.encode(payloads)
        if self._read_only:
            return list(payloads)
        return [await self._encode(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See `PayloadCodec`."""
        decoded = [await self._decode(payload) for payload in payloads]
        return decoded if self._inner is None else await self._inner.decode(decoded)

    async def _encode(self, payload: Payload) -> Payload:
        size_bytes = payload.ByteSize()
        # A payload that only looks like one of ours would be taken for one by decode.
        disguised = payload.metadata.get("encoding") in (INLINE_ENCODING, REF_ENCODING)
        small = size_bytes < limits.COMPRESS_BYTES_MIN
        if small and size_bytes <= self._inline_bytes_max and not disguised:
            return payload
        plaintext = payload.SerializeToString(deterministic=True)
        sealed = await seal_object(plaintext)
        inline = Payload(metadata={"encoding": INLINE_ENCODING}, data=sealed)
        pays = inline.ByteSize() <= limits.COMPRESS_RATIO_MAX * size_bytes
        smaller = inline if pays or disguised else payload
        if smaller.ByteSize() <= self._inline_bytes_max:
            return smaller
        ref, _ = await write_object(
            self.store, self._thread, Kind.PAYLOAD, plaintext, sealed=sealed
        )
        return Payload(
            metadata={"encoding": REF_ENCODING, _VERSION_KEY: REF_VERSION},
            data=_REF.dump_json(ref, exclude_defaults=True),
        )

    async def _decode(self, payload: Payload) -> Payload:
        encoding = payload.metadata.get("encoding")
        if encoding == INLINE_ENCODING:
            return _parse(await unseal_object(payload.data))
        if encoding == REF_ENCODING:
            return _parse(await read_object(self.store, _parse_ref(payload)))
        return payload


def _is_ours(context: ActivitySerializationContext) -> bool:
    return (context.activity_type or "") in (CALL_MODEL, RUN_TOOL, APPEND_JOURNAL)


def plain_bytes(payload: Payload) -> int:
    """Return the size that a payload claims to have once it is decoded, without decoding it."""
    encoding = payload.metadata.get("encoding")
    if encoding == INLINE_ENCODING:
        return declared_bytes(payload.data)
    if encoding == REF_ENCODING:
        return _parse_ref(payload).size_bytes
    return payload.ByteSize()


def _parse_ref(payload: Payload) -> Ref:
    version = payload.metadata.get(_VERSION_KEY, b"")
    if version != REF_VERSION:
        raise UnknownVersion(
            f"payload ref version {version[:20]!r} is not one that this Everlong reads. Upgrade "
            "Everlong on this worker or client."
        )
    try:
        return _REF.validate_json(payload.data)
    except ValidationError:
        # Not chained: pydantic's message quotes the input.
        raise BlobCorrupt("a payload ref in history is damaged: it does not parse") from None


def _parse(plaintext: bytes) -> Payload:
    try:
        return Payload.FromString(plaintext)
    except DecodeError:
        raise BlobCorrupt("an object decompressed to something that is not a payload") from None
