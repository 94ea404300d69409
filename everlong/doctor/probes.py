"""Random bytes that `everlong doctor` and workers pass to each other, each with its own converter.

What a probe meets is told, not raised, and within seconds: it is there to find faults.
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
from everlong.models import Seen, printable
from everlong.storage import BlobStore

PREFIX: Final = "doctor/"
"""Of the store keys of probes. What belongs to threads begins with a version, as in `v1/`."""
SECONDS_MAX: Final = 4.0
"""For one probe. Of an activity's 10 s a worker takes two of them."""
_REASON_CHARS_MAX: Final = 400


def converter_for(converter: DataConverter, namespace: str, workflow_id: str) -> DataConverter:
    """Return the converter as it is used for a workflow: it stores payloads among that one's."""
    return converter.with_context(
        WorkflowSerializationContext(namespace=namespace, workflow_id=workflow_id)
    )


async def encoded(converter: DataConverter, data: bytes) -> str:
    """Return the payload that a converter makes of some bytes, as text."""
    [payload] = await converter.encode([data])
    return base64.b64encode(payload.SerializeToString()).decode()


async def decoded(converter: DataConverter, text: str) -> bytes:
    """Return the bytes of a payload that `encoded` returned."""
    [value] = await converter.decode([Payload.FromString(base64.b64decode(text))], [bytes])
    return bytes(value)


async def seen(read: Callable[[], Awaitable[bytes]]) -> Seen:
    """Return the digest of what is read, or why it cannot be."""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            return Seen(digest=digest(await read()))
    except Exception as error:  # noqa: BLE001 - a team's own converter may raise anything
        return Seen(error=reason(error))


def digest(data: bytes) -> str:
    """Return what tells whether two ends have the same bytes."""
    return hashlib.sha256(data).hexdigest()


def reason(error: Exception) -> str:
    """Return in words why something failed. Words of others may hold what they were given."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, EverlongError):
        return printable(str(error), _REASON_CHARS_MAX)
    return type(error).__name__


def new_key() -> str:
    """Return a key for a probe, which no thread has."""
    return f"{PREFIX}{uuid.uuid4().hex}"


@contextlib.asynccontextmanager
async def removed(store: BlobStore, key: str) -> AsyncIterator[None]:
    """Delete an object at the end, however that comes about."""
    try:
        yield
    finally:
        # Whether that is allowed is checked elsewhere.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(SECONDS_MAX):
                await store.delete([key])
