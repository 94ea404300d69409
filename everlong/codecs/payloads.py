"""Payloads without decoding: which ones Everlong's codec wrote, their sizes, and the walk over messages.

The walk is the only one in the code: replays, prefetches, drains and sweeps must find the same payloads.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload

from everlong import limits
from everlong.codecs.refs import ENCODING as REF_ENCODING
from everlong.codecs.refs import RETIRED_ENCODING, is_ref, parse_ref
from everlong.errors import EverlongError
from everlong.storage.objects import get_declared_bytes

INLINE_ENCODING: Final = b"binary/everlong"
OUR_ENCODINGS: Final = (INLINE_ENCODING, REF_ENCODING, RETIRED_ENCODING)

# The SDK applies no codec to these fields.
_NOT_ENCODED: Final = frozenset({"header", "headers", "search_attributes"})


def walk_payloads(message: Message, *, encoded: bool = True) -> Iterator[tuple[Payload, bool]]:
    """Yield every payload in a message, at any depth, and whether it has passed through a codec."""
    if isinstance(message, Payload):
        yield message, encoded
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        inside = encoded and field.name not in _NOT_ENCODED
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for each in value.values():
                    yield from walk_payloads(each, encoded=inside)
        elif isinstance(value, Message):
            yield from walk_payloads(value, encoded=inside)
        else:  # Repeated. Each major version of protobuf has another descriptor API for that.
            for each in value:
                yield from walk_payloads(each, encoded=inside)


def walk_encoded_payloads(message: Message) -> Iterator[Payload]:
    """Yield every payload in a message, at any depth, that has passed through a codec."""
    return (payload for payload, is_encoded in walk_payloads(message) if is_encoded)


def is_encoded(payload: Payload) -> bool:
    """Return whether Everlong's codec wrote a payload."""
    return payload.metadata.get("encoding") in OUR_ENCODINGS


def plain_bytes(payload: Payload) -> int:
    """Return the decoded size that a payload claims, without decoding it."""
    if payload.metadata.get("encoding") == INLINE_ENCODING:
        return get_declared_bytes(payload.data)
    if is_ref(payload):
        return parse_ref(payload).size_bytes
    return payload.ByteSize()


def is_large_when_plain(payload: Payload) -> bool:
    """Return whether a payload may be too large for a history once plain, so that its run drains.

    It is a ref, or a large inline value: `inline_bytes_max` may be set high, and values stay inline
    while the store is down.
    """
    if payload.metadata.get("encoding") != INLINE_ENCODING:
        return is_ref(payload)
    try:
        return get_declared_bytes(payload.data) > limits.DRAIN_HANDOVER_BYTES_MAX
    except EverlongError:
        return True  # Damaged, or of a newer version; decode raises the error.
