"""Composition of Everlong's codec with a team's own codecs and data converter.

On encode the order is: inner codec, Everlong's, outer codec. Code that reads raw payloads (prefetch,
sweeps) must remove the outer layer first, so an outer codec is given to the plugin by name, and any
other codec around Everlong's is refused.

An inner codec is inspected. Everlong stores what is new in a payload; a codec that encrypts first makes
every payload new, and a codec that compresses first hides most repeats. The type of a codec does not
show that, so the codec is tried on sample payloads.
"""

import asyncio
import dataclasses
import hashlib
import types
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    DataConverter,
    DefaultPayloadConverter,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from everlong.codecs.codec import EverlongCodec
from everlong.errors import ConfigError
from everlong.storage.pack_store import PackStore

# A codec holds another one in an attribute, or in a list of codecs. Four levels cover a chain of codecs
# inside a wrapper; the bound on objects limits the cost of attributes with large contents.
_DEPTH_MAX: Final = 4
_OBJECTS_MAX: Final = 256
_OPAQUE: Final = (
    *(str, bytes, bytearray, memoryview, int, float, type),
    *(types.ModuleType, types.FunctionType, types.BuiltinFunctionType),
)

# Bound of the cache: about 2 KB a copy. A step of a thread has about four contexts.
_COPIES_MAX: Final = 1024


class OuterCodec(PayloadCodec, WithSerializationContext):
    """Everlong's codec with a team's codec around it.

    The outer codec sees inline payloads and refs. Bodies in the store do not pass through it, so the
    plugin accepts one only together with Everlong's own keys.
    """

    def __init__(self, ours: EverlongCodec, outer: PayloadCodec) -> None:
        self.ours = ours
        self.outer = outer

    def with_context(self, context: SerializationContext) -> Self:
        """Return both codecs with the context; the outer one only if it takes a context."""
        outer = self.outer
        if isinstance(outer, WithSerializationContext):
            outer = outer.with_context(context)
        return type(self)(self.ours.with_context(context), outer)

    def with_packs(self, packs: PackStore) -> Self:
        """Return a copy that reaches the same store through other packs."""
        return type(self)(self.ours.with_packs(packs), self.outer)

    def as_read_only(self) -> Self:
        """Return a copy in which Everlong's codec encodes to plain payloads."""
        return type(self)(self.ours.as_read_only(), self.outer)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See `PayloadCodec`."""
        encoded = await self.ours.encode(payloads)
        return encoded if self.ours.is_plain else await self.outer.encode(encoded)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See `PayloadCodec`."""
        return await self.ours.decode(await self.unwrap(payloads))

    async def unwrap(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode the outer layer only, down to the payloads that Everlong's codec wrote."""
        return list(payloads) if self.ours.is_plain else await self.outer.decode(payloads)

    def is_wanted(self, payload: Payload) -> bool:
        """See `Warmer`. The outer codec hides refs, so every payload may be one."""
        return True

    async def warm(self, payload: Payload) -> int | None:
        """See `Warmer`."""
        refs = [each for each in await self.unwrap([payload]) if self.ours.is_wanted(each)]
        return sum([await self.ours.warm(each) for each in refs]) if refs else None


def find_everlong_codec(codec: PayloadCodec | None) -> EverlongCodec | None:
    """Return Everlong's codec if it is outermost, or inside an outer codec that the plugin knows."""
    if isinstance(codec, OuterCodec):
        return codec.ours
    return codec if isinstance(codec, EverlongCodec) else None


def check_order(codec: PayloadCodec | None) -> None:
    """Raise `ConfigError` if a client's codec hides Everlong's or has replaced it."""
    if find_everlong_codec(codec) is not None:
        return
    if codec is None:
        raise ConfigError(
            "the client has an EverlongPlugin, but its data converter has no payload codec: another "
            "plugin has replaced the data converter, so payloads would not be encoded. Put "
            "EverlongPlugin last of the client's plugins."
        )
    check_inside(codec)
    raise ConfigError(
        f"the client has an EverlongPlugin, but its payload codec is {type(codec).__name__}, and "
        "Everlong's codec is not found in it: another plugin has replaced or hidden it, so payloads "
        "would not be encoded. Put EverlongPlugin last of the client's plugins."
    )


def configure_converter(
    converter: DataConverter | None, codec: EverlongCodec, outer: PayloadCodec | None
) -> DataConverter:
    """Wrap the converter's codec in Everlong's. Does nothing the second time: the SDK may repeat it."""
    converter = converter or DataConverter.default
    found = converter.payload_codec
    ours = find_everlong_codec(found)
    if ours is not None:
        if ours.packs is not codec.packs:
            raise ConfigError(
                "this client has another EverlongPlugin already; give it one, with all agents"
            )
        return converter
    if found is not None:
        check_inside(found)
    converter = cache_contexts(converter)
    return dataclasses.replace(converter, payload_codec=wrap_codec(codec.with_inner(found), outer))


def wrap_codec(codec: EverlongCodec, outer: PayloadCodec | None) -> "EverlongCodec | OuterCodec":
    """Return the codec inside the outer codec, if there is one."""
    return codec if outer is None else OuterCodec(codec, outer)


def check_outer(codec: PayloadCodec, *, has_keys: bool) -> None:
    """Raise `ConfigError` for an outer codec without keys, or one that holds Everlong's codec."""
    name = type(codec).__name__
    if not has_keys:
        raise ConfigError(
            f"outer_codec={name} needs keys: bodies in the store do not pass through {name}, so without "
            "keys of Everlong's own they would be stored unencrypted. Give keys= (EVERLONG_KEYS) too."
        )
    if holds_everlong(codec):
        raise ConfigError(
            f"outer_codec={name} holds Everlong's codec already. Give the outer codec alone: the plugin "
            "puts it around Everlong's."
        )


def check_inside(codec: PayloadCodec) -> None:
    """Raise `ConfigError` if a team's codec wraps Everlong's codec."""
    if not holds_everlong(codec):
        return
    name = type(codec).__name__
    raise ConfigError(
        f"the payload codec {name} is around Everlong's: bodies would go to the store outside of "
        f"{name}, and sweeps could not see the refs in what it writes. Put EverlongPlugin last of the "
        f"client's plugins, so that {name} is inside; or use Everlong's own keys instead of {name} "
        f"(keys=, EVERLONG_KEYS); or give EverlongPlugin both: outer_codec={name}(...) and keys."
    )


def holds_everlong(codec: object) -> bool:
    """Return whether an object's attributes hold a codec of Everlong's; the search is bounded."""
    level: list[object] = [codec]
    seen: set[int] = set()
    for _ in range(_DEPTH_MAX + 1):
        following: list[object] = []
        for each in level:
            if isinstance(each, EverlongCodec | OuterCodec):
                return True
            if id(each) in seen or isinstance(each, _OPAQUE):
                continue
            seen.add(id(each))
            if len(seen) > _OBJECTS_MAX:
                return False
            following += _parts(each)
        level = following
    return False


def _parts(value: object) -> Iterable[object]:
    """Return the values that an object holds, without running its code."""
    if isinstance(value, dict):
        return list(value.values())[:_OBJECTS_MAX]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)[:_OBJECTS_MAX]
    attributes = list(getattr(value, "__dict__", {}).values())
    for each in type(value).__mro__:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = each.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                attributes.append(getattr(value, name, None))
    return attributes


INSPECTION_SECONDS_MAX: Final = 5.0
"""Bound on all calls of an inspected codec. A key service answers within a second or two."""
# Below the thresholds of codecs that offload payloads elsewhere.
_SHARED_BYTES: Final = 8 * 1024
_TAIL_BYTES: Final = 512
_WINDOW_BYTES: Final = 32
_WORKFLOW_ID: Final = "everlong-codec-inspection"


@dataclasses.dataclass(frozen=True)
class Inspection:
    """Result of trying a codec: whether its output repeats where its input does."""

    codec: str
    """Name of its type."""
    repeats: bool | None
    """Whether equal input gives similar output; None if the codec failed or was too slow."""

    @property
    def warning(self) -> str:
        """Warning for the operator; empty if nothing is wrong or nothing is known."""
        if self.repeats is not False:
            return ""
        return (
            f"the payload codec {self.codec} encrypts or compresses payloads before Everlong sees them, "
            "so every payload is new and is stored whole: a loop stores its whole list at each step"
        )


INSPECTION_REMEDY: Final = (
    "Use Everlong's own keys instead of that codec (keys=, EVERLONG_KEYS): Everlong compresses and "
    "seals what is left after deduplication."
)


async def inspect_codec(codec: PayloadCodec, namespace: str) -> Inspection:
    """Try a codec on payloads that are equal or share a prefix. Never raises the codec's errors."""
    name = type(codec).__name__
    try:
        async with asyncio.timeout(INSPECTION_SECONDS_MAX):
            return Inspection(name, await _repeats(codec, namespace))
    except Exception:  # noqa: BLE001 - a team's codec may raise anything; then nothing is known
        return Inspection(name, None)


async def _repeats(codec: PayloadCodec, namespace: str) -> bool | None:
    if isinstance(codec, WithSerializationContext):
        codec = codec.with_context(
            WorkflowSerializationContext(namespace=namespace, workflow_id=_WORKFLOW_ID)
        )
    first = await _encode_sample(codec, "first")
    if len(first) < _SHARED_BYTES // 2:
        # Random digits do not compress to less than half, so the codec stores the bytes elsewhere.
        return None
    return _is_similar(first, await _encode_sample(codec, "first")) and _is_similar(
        first, await _encode_sample(codec, "other")
    )


async def _encode_sample(codec: PayloadCodec, tail: str) -> bytes:
    """Return a codec's output for a sample: a long prefix that all samples share, and an end."""
    shared = hashlib.shake_256(b"shared").hexdigest(_SHARED_BYTES // 2)
    end = hashlib.shake_256(tail.encode()).hexdigest(_TAIL_BYTES // 2)
    payload = Payload(metadata={"encoding": b"json/plain"}, data=f'"{shared}{end}"'.encode())
    return b"".join([each.data for each in await codec.encode([payload])])


def _is_similar(one: bytes, other: bytes) -> bool:
    """Return whether at least half of the windows of one occur in the other, at any place."""
    known = {other[at : at + _WINDOW_BYTES] for at in range(len(other) - _WINDOW_BYTES + 1)}
    windows = range(0, len(one) - _WINDOW_BYTES + 1, _WINDOW_BYTES)
    found = sum(one[at : at + _WINDOW_BYTES] in known for at in windows)
    return 2 * found >= len(windows)


@dataclasses.dataclass(frozen=True)
class ContextConverter(DataConverter):
    """A `DataConverter` that makes one copy for each serialization context.

    The SDK calls `with_context` several times for each payload, and builds new converters each time.
    """

    _copies: dict[SerializationContext, Self] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def with_context(self, context: SerializationContext) -> Self:
        """See `DataConverter`."""
        found = self._copies.get(context)
        if found is None:
            found = super().with_context(context)
            if len(self._copies) >= _COPIES_MAX:
                self._copies.clear()
            self._copies[context] = found
        return found


def cache_contexts(converter: DataConverter) -> DataConverter:
    """Return a converter that caches its copies; a team's own converter class is returned unchanged."""
    if type(converter) is not DataConverter:
        return converter
    values = {
        each.name: getattr(converter, each.name)
        for each in dataclasses.fields(converter)
        if each.init
    }
    return ContextConverter(**values)


class ExplainingPayloadConverter(DefaultPayloadConverter):
    """The SDK's converter, with a remedy in its error for a payload that another codec has encoded.

    It is for clients of Everlong's own workflows. They exchange JSON, so any other payload was encoded
    by a codec that the workers have and this client lacks.
    """

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        """See `PayloadConverter`."""
        try:
            return super().from_payloads(payloads, type_hints)
        except (KeyError, RuntimeError, UnicodeDecodeError):
            # Not chained: these errors quote the payload.
            encodings = {each.metadata.get("encoding", b"") for each in payloads}
            names = ", ".join(
                sorted(repr(each[:60].decode(errors="replace")) for each in encodings)
            )
            raise ConfigError(
                f"a thread's values cannot be read here (encoding {names}): its workers have a payload "
                "codec that this process lacks, or a different one of the same name. Name the codec: "
                "everlong serve --codec module:name, or EVERLONG_CODEC=module:name for every command."
            ) from None
