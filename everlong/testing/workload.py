"""A synthetic workload: steps of an agent with realistic tool results, the same on every machine.

In every block of 20 tool results, 16 have 2 KiB, 3 have 32 KiB and 1 has 512 KiB, shuffled. They consist
of log lines, JSON records and prose, which zstd compresses about 4 times; no two are alike.
"""

import itertools
import json
import random
from typing import Any, Final

from everlong import limits

BLOCK: Final = 20
_SIZES: Final = [512 * limits.KIB] + [32 * limits.KIB] * 3 + [2 * limits.KIB] * 16
SEED: Final = 7
_TOOLS: Final = ["search_logs", "read_file", "run_sql"]
_SERVICES: Final = ["auth", "billing", "gateway", "search", "indexer", "scheduler"]
_LEVELS: Final = ["INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR"]
_SYLLABLES: Final = [
    "ba",
    "con",
    "der",
    "est",
    "fi",
    "gra",
    "hol",
    "ker",
    "men",
    "pre",
    "qui",
    "ter",
]


def _vocabulary() -> list[str]:
    source = random.Random(SEED)  # noqa: S311 - test data, not a secret
    return ["".join(source.choices(_SYLLABLES, k=source.randint(1, 4))) for _ in range(3000)]


_WORDS: Final = _vocabulary()
# Few words are common and most are rare, as in real text.
_WEIGHTS: Final = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(_WORDS))))


def result_bytes(index: int, seed: int = SEED) -> int:
    """Return the size of the tool result with this index."""
    block = list(_SIZES)
    random.Random(seed * 1009 + index // BLOCK).shuffle(block)  # noqa: S311
    return block[index % BLOCK]


def result(index: int, seed: int = SEED) -> str:
    """Return the tool result with this index: ASCII, exactly `result_bytes(index, seed)` long."""
    return passage(index, result_bytes(index, seed), seed)


def step(
    index: int, seed: int = SEED, size_bytes: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the two messages of a step: the assistant's with a tool call, and the tool's result.

    The result has `size_bytes`, or `result_bytes(index, seed)` if no size is given. Steps of different
    seeds share only their vocabulary.
    """
    source = random.Random(f"{seed} step {index}")  # noqa: S311
    call_id = f"call_{source.getrandbits(64):016x}"
    arguments = {
        "query": _prose(source, 8)[:64],
        "path": "/srv/" + "/".join(source.choices(_WORDS, k=3)),
        "limit": source.randrange(10, 1000),
    }
    function = {"name": source.choice(_TOOLS), "arguments": json.dumps(arguments)}
    assistant = {
        "role": "assistant",
        "id": f"assistant-{index}",
        "content": _prose(source, 64)[:288],
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
    tool = {
        "role": "tool",
        "id": f"tool-{index}",
        "tool_call_id": call_id,
        "content": result(index, seed) if size_bytes is None else passage(index, size_bytes, seed),
    }
    return assistant, tool


def passage(index: int, wanted: int, seed: int = SEED) -> str:
    """Return the text with this index: ASCII, exactly `wanted` characters long."""
    source = random.Random(seed * 1_000_003 + index)  # noqa: S311
    lines = [f"# result {index}"]
    length = len(lines[0])
    while length < wanted:
        line = _line(source)
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)[:wanted]


def _line(source: random.Random) -> str:
    kind = source.random()
    if kind < 0.45:
        clock = f"{source.randrange(24):02}:{source.randrange(60):02}:{source.randrange(60):02}"
        return (
            f"2026-03-{source.randint(1, 28):02}T{clock}Z {source.choice(_LEVELS)} "
            f"{source.choice(_SERVICES)} request={source.getrandbits(40):010x} "
            f'latency_ms={source.randrange(900)} msg="{_prose(source, 6)}"'
        )
    if kind < 0.75:
        record = {
            "id": source.getrandbits(32),
            "service": source.choice(_SERVICES),
            "amount": round(source.random() * 500, 2),
            "tags": _prose(source, 3).split(),
            "note": _prose(source, 5),
        }
        return json.dumps(record)
    return _prose(source, 14).capitalize() + "."


def _prose(source: random.Random, words: int) -> str:
    return " ".join(source.choices(_WORDS, cum_weights=_WEIGHTS, k=words))
