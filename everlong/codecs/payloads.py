"""Walk over the payloads in protobuf messages of Temporal's API.

It is the only one in the code: replays, prefetches, drains and sweeps must find the same payloads.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload

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
