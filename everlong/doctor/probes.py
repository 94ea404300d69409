"""Probes: random bytes that `everlong doctor` and workers exchange, each with its own converter.

A probe reports errors instead of raising them, and within seconds: its purpose is to find faults.
"""

import asyncio
import base64
import contextlib
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, WorkflowSerializationContext

from everlong.errors import EverlongError
from everlong.models import ProbeResult, make_printable
from everlong.storage import BlobStore

PREFIX: Final = "doctor/"
"""Prefix of the probes' store keys. Keys of threads begin with a version, as in `v1/`."""
SECONDS_MAX: Final = 4.0
"""Time limit of one probe. A worker runs two within an activity's 10 s."""
_REASON_CHARS_MAX: Final = 400


def bind_converter(converter: DataConverter, namespace: str, workflow_id: str) -> DataConverter:
    """Return the converter with the context of a workflow: it stores payloads under that workflow."""
    return converter.with_context(
        WorkflowSerializationContext(namespace=namespace, workflow_id=workflow_id)
    )


async def encode(converter: DataConverter, data: bytes) -> str:
    """Return the encoded payload of some bytes, as base64 text."""
    [payload] = await converter.encode([data])
    return base64.b64encode(payload.SerializeToString()).decode()


async def decode(converter: DataConverter, text: str) -> bytes:
    """Return the bytes of a payload that `encode` returned."""
    [value] = await converter.decode([Payload.FromString(base64.b64decode(text))], [bytes])
    return bytes(value)


async def try_read(read: Callable[[], Awaitable[bytes]]) -> ProbeResult:
    """Return the digest of the bytes that `read` returns, or the error in words."""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            return ProbeResult(digest=digest(await read()))
    except Exception as error:  # noqa: BLE001 - a team's own converter may raise anything
        return ProbeResult(error=describe_error(error))


def digest(data: bytes) -> str:
    """Return a digest by which two ends compare bytes."""
    return hashlib.sha256(data).hexdigest()


def describe_error(error: Exception) -> str:
    """Describe an error. Messages of foreign errors are left out: they may quote payloads."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, EverlongError):
        return make_printable(str(error), _REASON_CHARS_MAX)
    return type(error).__name__


def create_key() -> str:
    """Return a new store key for a probe, outside any thread."""
    return f"{PREFIX}{uuid.uuid4().hex}"


@contextlib.asynccontextmanager
async def delete_after(store: BlobStore, key: str) -> AsyncIterator[None]:
    """Delete an object when the context ends, also after an error."""
    try:
        yield
    finally:
        # Another check reports whether deleting is allowed.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(SECONDS_MAX):
                await store.delete([key])
