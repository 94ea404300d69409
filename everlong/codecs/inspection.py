"""Inspection of a team's codec inside Everlong's: whether its output repeats where its input does.

Everlong stores what is new in a payload. A codec that encrypts first makes every payload new; one that
compresses first hides most of what repeats. The type of a codec does not say so, so the codec is tried
on payloads of this module. A codec that fails or takes too long is not judged.
"""

import asyncio
import dataclasses
import hashlib
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    PayloadCodec,
    WithSerializationContext,
    WorkflowSerializationContext,
)

SECONDS_MAX: Final = 5.0
"""For all calls of the codec together. A key service answers within a second or two."""
# Small enough to stay below the thresholds of codecs that move payloads elsewhere.
_SHARED_BYTES: Final = 8 * 1024
_TAIL_BYTES: Final = 512
_WINDOW_BYTES: Final = 32
_WORKFLOW_ID: Final = "everlong-codec-inspection"


@dataclasses.dataclass(frozen=True)
class Inspection:
    """How a codec's output follows its input."""

    codec: str
    """Name of its type."""
    repeats: bool | None
    """Whether equal input gives similar output; None if the codec failed, or was too slow."""

    @property
    def warning(self) -> str:
        """What to tell an operator; empty if nothing is wrong, or nothing is known."""
        if self.repeats is not False:
            return ""
        return (
            f"the payload codec {self.codec} encrypts or compresses payloads before Everlong sees them, "
            "so every payload is new and is stored whole: a loop stores its whole list at each step"
        )


REMEDY: Final = (
    "Use Everlong's own keys instead of that codec (keys=, EVERLONG_KEYS): Everlong compresses and "
    "seals what is left after deduplication."
)


async def inspect(codec: PayloadCodec, namespace: str) -> Inspection:
    """Try a codec on payloads that are equal, or begin equally. Never raises what the codec raises."""
    name = type(codec).__name__
    try:
        async with asyncio.timeout(SECONDS_MAX):
            return Inspection(name, await _repeats(codec, namespace))
    except Exception:  # noqa: BLE001 - a team's codec may raise anything: then nothing is known
        return Inspection(name, None)


async def _repeats(codec: PayloadCodec, namespace: str) -> bool | None:
    if isinstance(codec, WithSerializationContext):
        codec = codec.with_context(
            WorkflowSerializationContext(namespace=namespace, workflow_id=_WORKFLOW_ID)
        )
    first = await _encoded(codec, "first")
    if len(first) < _SHARED_BYTES // 2:
        # Random digits do not shrink to less than half: the bytes went elsewhere.
        return None
    return _is_similar(first, await _encoded(codec, "first")) and _is_similar(
        first, await _encoded(codec, "other")
    )


async def _encoded(codec: PayloadCodec, tail: str) -> bytes:
    """Return what a codec makes of a payload: a long beginning that all share, and an end."""
    shared = hashlib.shake_256(b"shared").hexdigest(_SHARED_BYTES // 2)
    end = hashlib.shake_256(tail.encode()).hexdigest(_TAIL_BYTES // 2)
    payload = Payload(metadata={"encoding": b"json/plain"}, data=f'"{shared}{end}"'.encode())
    return b"".join([each.data for each in await codec.encode([payload])])


def _is_similar(one: bytes, other: bytes) -> bool:
    """Return whether at least half of the windows of one are found in the other, at any place."""
    known = {other[at : at + _WINDOW_BYTES] for at in range(len(other) - _WINDOW_BYTES + 1)}
    windows = range(0, len(one) - _WINDOW_BYTES + 1, _WINDOW_BYTES)
    found = sum(one[at : at + _WINDOW_BYTES] in known for at in windows)
    return 2 * found >= len(windows)
