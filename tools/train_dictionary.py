"""Trains the built-in dictionary of small objects: `python -m tools.train_dictionary FILE`.

Everlong's own payloads and journal segments have some hundred bytes each, mostly names of fields, so a
compressor that starts with those names halves them. The samples are made up: their texts are excerpts of
Python's own help, so that only what Everlong writes around a text recurs.

The result depends on the version of zstd. Once objects are stored with a dictionary, it never changes:
train another one, give it the next number, and keep the old one for reading.
"""

import asyncio
import dataclasses
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Final

import zstandard
from temporalio.converter import DefaultPayloadConverter

from everlong.models import (
    CallOptions,
    Context,
    Entry,
    Kind,
    Message,
    ModelCall,
    ModelTurn,
    SegmentRef,
    StepInfo,
    ThreadStart,
    ThreadState,
    ToolCall,
    ToolResult,
    ToolRun,
    Turn,
    WantedCall,
    build_entry,
    seq_after,
    thread_key,
)
from everlong.models.journal import SnapshotRef
from everlong.models.json_payloads import to_raw
from everlong.policy import Policy
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore

_DICTIONARY_BYTES: Final = 8192
# Only short segments and messages are samples: a long text has little that recurs.
_TEXT_BYTES_MAX: Final = 900
_THREADS: Final = 12
_STEPS: Final = 24
_WORDS: Final = " ".join(topics.values()).split()
_TOOLS: Final = ("search_logs", "read_file", "run_sql", "fetch_page", "apply_patch", "list_orders")
_LEVEL: Final = 8


def main() -> int:
    """Train the dictionary and write it to the file that is named."""
    samples = asyncio.run(_samples())
    dictionary = zstandard.train_dictionary(
        _DICTIONARY_BYTES, [*samples], level=_LEVEL, d=6, steps=40, threads=2
    )
    Path(sys.argv[1]).write_bytes(dictionary.as_bytes())
    print(f"{len(dictionary.as_bytes())} bytes from {len(samples)} samples")
    return 0


async def _samples() -> list[bytes]:
    return [sample for number in range(_THREADS) for sample in await _thread(number)]


async def _thread(number: int) -> list[bytes]:
    """Return what a thread writes in some steps: payloads of its activities, segments, bodies."""
    source = random.Random(number)  # noqa: S311 - samples, not secrets
    store = _Plaintexts()
    packs = PackStore(MemoryBlobStore())
    thread = thread_key("default", f"thread-{number}")
    journal = Journal(packs, thread)
    now_ms = 1_790_000_000_000 + source.randrange(10**10)
    asked = build_entry(1, Kind.MESSAGE, Message(role="user", text=_text(source, 12)), now_ms)
    head, written_bytes = await journal.append(None, [asked])
    tail: tuple[Entry, ...] = ()
    snapshot: SnapshotRef | None = None
    for step in range(_STEPS):
        now_ms += source.randrange(20_000)
        context = Context(
            agent=source.choice(("ops", "reader", "helper")),
            head=head,
            snapshot=snapshot,
            now_ms=now_ms,
            policy={} if step % 2 else {"turn_steps_max": 100},
            last_run=f"0199{source.getrandbits(112):028x}" if step > _STEPS // 2 else "",
            turn=Turn(number=1 + step // 8, began_ms=now_ms - source.randrange(9000)),
        )
        info = StepInfo(number=step, thread_bytes=written_bytes, context_bytes=9 * written_bytes)
        call = _call(source, step)
        model_call = ModelCall(
            context=context,
            tail=tail,
            state_bytes=source.randrange(1500, 4000),
            thread_bytes=written_bytes,
            growth_bytes_per_hour=source.randrange(10**6) / 7,
            steps=step,
        )
        reply = Message(role="assistant", text=_text(source, 30), tool_calls=(call,))
        entry = build_entry(seq_after(head, tail), Kind.REPLY, reply, now_ms)
        entry = dataclasses.replace(entry, step=info, tokens=source.randrange(90_000))
        head, segment_bytes = await journal.append(head, [*tail, entry])
        wanted = WantedCall(
            call_id=call.id,
            tool=call.tool,
            preview="",
            digest=f"{source.getrandbits(32):08x}",
            options=CallOptions(),
        )
        turn = ModelTurn(
            head=head,
            tool_calls=(wanted,),
            context_bytes=info.context_bytes,
            written_bytes=segment_bytes,
            tokens=entry.tokens,
            time_ms=now_ms,
            attributes=True,
        )
        run = ToolRun(
            context=dataclasses.replace(context, head=head),
            call_id=call.id,
            tool=call.tool,
            inline_bytes_max=1024,
        )
        text = _text(source, source.choice((6, 20, 60, 300, 600)))
        message = Message(role="tool", text=text, call_id=call.id, tool=call.tool)
        result_entry, result_bytes = await journal.write_body_entry(
            Kind.TOOL_RESULT, message, now_ms, inline_bytes_max=1024
        )
        result = ToolResult(
            entry=result_entry,
            written_bytes=result_bytes,
            outcome="ok",
            digest=f"{source.getrandbits(32):08x}",
        )
        tail = (dataclasses.replace(result_entry, seq=seq_after(head)),)
        written_bytes += segment_bytes + result_bytes
        if step % 8 == 7 and result_entry.ref is not None:
            ref = dataclasses.replace(result_entry.ref, kind=Kind.SNAPSHOT, preview="")
            snapshot = SnapshotRef(ref=ref, upto_seq=seq_after(head) - 4, context_bytes=65_000)
        store.payloads += [model_call, turn, run, result]
        store.texts += [await _newest_segment(packs, head), _body(message)]
    state = ThreadState(head=head, snapshot=snapshot, tail=tail, in_turn=True)
    start = ThreadStart(agent="ops", policy=Policy(), state=state)
    return [*store.as_bytes(), _sdk_payload(start)]


@dataclasses.dataclass
class _Plaintexts:
    payloads: list[object] = dataclasses.field(default_factory=list)
    texts: list[bytes] = dataclasses.field(default_factory=list)

    def as_bytes(self) -> Iterator[bytes]:
        for value in self.payloads:
            raw = to_raw(value, DefaultPayloadConverter())
            yield raw.payload.SerializeToString(deterministic=True)
        yield from (text for text in self.texts if len(text) < _TEXT_BYTES_MAX)


async def _newest_segment(packs: PackStore, head: SegmentRef) -> bytes:
    return await packs.read_body(head.ref)


def _body(message: Message) -> bytes:
    entry = build_entry(1, Kind.TOOL_RESULT, message, 0)
    return json.dumps(entry.body, separators=(",", ":")).encode()


def _sdk_payload(value: object) -> bytes:
    [payload] = DefaultPayloadConverter().to_payloads([value])
    return payload.SerializeToString(deterministic=True)


def _call(source: random.Random, step: int) -> ToolCall:
    arguments = {"query": _text(source, 4), "limit": source.randrange(1000), "step": step}
    return ToolCall(
        id=f"call_{source.getrandbits(64):016x}",
        tool=source.choice(_TOOLS),
        arguments=json.dumps(arguments),
    )


def _text(source: random.Random, words: int) -> str:
    start = source.randrange(len(_WORDS) - words)
    return " ".join(_WORDS[start : start + words])


if __name__ == "__main__":
    sys.exit(main())
