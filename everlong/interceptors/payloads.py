"""Finding the payloads in the messages that the SDK and the server exchange."""

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload

# These never pass through a codec.
_NOT_ENCODED: Final = {"header", "headers", "search_attributes"}


def payloads_of(message: Message) -> Iterator[Payload]:
    """Yield every payload in a message that a codec encodes, however deep."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.name in _NOT_ENCODED:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for each in value.values():
                    yield from payloads_of(each)
        elif isinstance(value, Message):
            yield from payloads_of(value)
        else:  # Repeated. Descriptors say so in another way in each major version of protobuf.
            for each in value:
                yield from payloads_of(each)
