"""Conversations of an agent: the messages of each step, as the SDK's converter writes them.

A list-passing loop sends three kinds of payloads in a step: the whole list to the model, the model's
reply, and the result of each tool that the reply calls. A `Turn` has the messages that a step adds.
"""

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bench.payloads import encode_value
from everlong.testing import workload

# Message sizes of a real coding session of 453 model calls, as quantiles in steps of 5%. The mean of
# replies is 942 bytes, of tool results 1,218.
_REPLY_BYTES: Final = (
    *(317, 455, 483, 501, 511, 521, 526, 538, 559, 584, 607),
    *(642, 694, 786, 878, 956, 1060, 1303, 1651, 2315, 21_922),
)
_RESULT_BYTES: Final = (
    *(173, 176, 181, 203, 253, 253, 326, 436, 598, 651, 701),
    *(769, 819, 911, 1023, 1261, 1471, 1871, 2244, 3046, 49_176),
)
# Four replies in five call a tool; after the others the user writes.
_TOOL_SHARE: Final = 0.8
_ENVELOPE_BYTES: Final = 130
_REPLY_TEXT_FROM: Final = (
    500_000  # Replies use other indices than results, so that their texts differ.
)


@dataclasses.dataclass(frozen=True)
class Turn:
    """One step of a conversation: messages as JSON."""

    before: Sequence[bytes]
    """User messages, which join the list before the model is called."""
    reply: bytes
    results: Sequence[bytes]

    @property
    def messages(self) -> list[bytes]:
        """All messages that the step adds to the list."""
        return [*self.before, self.reply, *self.results]


def list_data(messages: Sequence[bytes]) -> bytes:
    """Return a list of messages as the SDK's converter writes it."""
    return b"[" + b",".join(messages) + b"]"


def build_mixed_turns(seed: int, count: int) -> list[Turn]:
    """Return steps of the agent workload: results of 2, 32 and 512 KiB."""
    return [_turn(index, seed, *workload.step(index, seed)) for index in range(count)]


def build_session_turns(seed: int, count: int) -> list[Turn]:
    """Return steps whose messages have the sizes of a real coding session: small ones."""
    return list(_build_session_turns(seed, count))


def _build_session_turns(seed: int, count: int) -> Iterator[Turn]:
    source = random.Random(f"{seed} session")  # noqa: S311 - test data, not a secret
    for index in range(count):
        reply_bytes = _draw(source, _REPLY_BYTES)
        result_bytes = max(1, _draw(source, _RESULT_BYTES) - _ENVELOPE_BYTES)
        reply, result = workload.step(index, seed, result_bytes)
        more = reply_bytes - len(encode_value(reply))
        if more > 0:
            reply["content"] += workload.passage(_REPLY_TEXT_FROM + index, more, seed)
        calls = source.random() < _TOOL_SHARE
        yield _turn(index, seed, reply, *([result] if calls else []), asks=index == 0 or not calls)


def _turn(
    index: int, seed: int, reply: dict[str, Any], *results: dict[str, Any], asks: bool = False
) -> Turn:
    asked = {"role": "user", "id": f"user-{index}", "content": f"Go on with task {seed}-{index}."}
    return Turn(
        before=[encode_value(asked)] if asks or index == 0 else [],
        reply=encode_value(reply),
        results=[encode_value(result) for result in results],
    )


def _draw(source: random.Random, sizes: Sequence[int]) -> int:
    """Draw from a distribution given by its quantiles, log-uniform between two of them."""
    place = source.random() * (len(sizes) - 1)
    low, high = sizes[int(place)], sizes[int(place) + 1]
    return round(low * math.pow(high / low, place % 1))
