"""Payloads of an agent, and calls of the codec as the SDK makes them.

Only the public API is used: `EverlongCodec(store)`, `with_context`, `encode`, `decode`.
"""

from collections.abc import Sequence
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, WorkflowSerializationContext

from everlong.codecs import EverlongCodec
from everlong.storage.memory import MemoryBlobStore
from everlong.testing import workload

MB: Final = 1_000_000
_NEW_FROM: Final = (
    100_000  # Far beyond the steps of the growing list, so that they share no content.
)


def make_codec() -> EverlongCodec:
    """Return a new codec on an empty store."""
    return EverlongCodec(MemoryBlobStore())


async def encode(codec: EverlongCodec, payload: Payload, workflow_id: str = "bench") -> Payload:
    """Encode as the SDK does, with a codec for the context of this call."""
    [encoded] = await codec.with_context(_build_context(workflow_id)).encode([payload])
    return encoded


async def decode(codec: EverlongCodec, payload: Payload, workflow_id: str = "bench") -> Payload:
    """Decode as the SDK does."""
    [decoded] = await codec.with_context(_build_context(workflow_id)).decode([payload])
    return decoded


def make_json_payload(data: bytes) -> Payload:
    """Return JSON as the SDK's converter passes it to a codec."""
    return Payload(metadata={"encoding": b"json/plain"}, data=data)


def encode_messages(messages: Sequence[Any]) -> bytes:
    """Return a list as the SDK's converter writes it."""
    return encode_value(list(messages))


def encode_value(value: Any) -> bytes:
    """Return a JSON value as the SDK's converter writes it."""
    [payload] = DataConverter.default.payload_converter.to_payloads([value])
    return payload.data


def build_new_bytes(size_bytes: int) -> bytes:
    """Return `size_bytes` of an agent's messages."""
    found = b""
    for index in range(_NEW_FROM, _NEW_FROM + size_bytes):
        if len(found) >= size_bytes:
            break
        found += encode_messages(workload.step(index))
    return found[:size_bytes]


def replace_end(body: bytes, number: int) -> bytes:
    """Return the body with a unique last hundredth."""
    new = len(body) // 100
    return body[:-new] + workload.passage(2 * _NEW_FROM + number, new).encode()


def _build_context(workflow_id: str) -> WorkflowSerializationContext:
    return WorkflowSerializationContext(namespace="default", workflow_id=workflow_id)
