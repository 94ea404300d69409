"""Recorded sessions of a coding agent, replayed as a list-passing loop.

A session is a file of JSON lines as pi and OpenClaw write it: a `session` header, then `message` and
other entries. In OpenClaw's format entries have an `id` and a `parentId`, and form a tree: the branch
that ends with the last entry is replayed. Every assistant message is a model call.
"""

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench import measure
from bench.amplification import READ_BYTES_MAX, WRITTEN_MAX, show_progress
from bench.conversation import Turn, list_data
from bench.exchange import ColdRead, Loop, Sides, Tally, read_cold
from bench.external_storage import SdkStorage
from bench.payloads import encode_value, make_json_payload
from bench.report import Report, Series
from bench.stores import CountingStore
from everlong.storage.memory import MemoryBlobStore

_ASSISTANT: Final = "assistant"
_RESULT: Final = "toolResult"
# In shorter sessions most of the written bytes are the first list, which is written whole.
_JUDGED_CALLS_MIN: Final = 100


def find_sessions(folder: Path) -> list[Path]:
    """Return the files below a directory that begin with a session header."""
    found = []
    for path in sorted(folder.rglob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            header = _build_entry(lines.readline())
        if header is not None and header.get("type") == "session":
            found.append(path)
    return found


def read_session(path: Path) -> list[Turn]:
    """Return the turns of a session: one for each model call."""
    messages = [
        entry["message"]
        for entry in _find_branch(_read_entries(path))
        if entry.get("type") == "message" and isinstance(entry.get("message"), dict)
    ]
    return list(_build_turns(messages))


def _read_entries(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            entry = _build_entry(line)
            if entry is not None:
                yield entry


def _build_entry(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None  # A session whose process was killed ends in the middle of a line.
    return entry if isinstance(entry, dict) else None


def _find_branch(entries: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of the last branch, in order; all of them if they form no tree."""
    listed = [entry for entry in entries if entry.get("type") != "session"]
    if not any("parentId" in entry for entry in listed):
        return listed
    by_id = {entry["id"]: entry for entry in listed if "id" in entry}
    branch: list[dict[str, Any]] = []
    # Bounded by the number of entries: a damaged file may have a cycle.
    at = listed[-1] if listed else None
    while at is not None and len(branch) < len(listed):
        branch.append(at)
        at = by_id.get(at.get("parentId") or "")
    return branch[::-1]


def _build_turns(messages: Sequence[dict[str, Any]]) -> Iterator[Turn]:
    before: list[bytes] = []
    reply: bytes | None = None
    results: list[bytes] = []
    for message in messages:
        role = message.get("role")
        if role == _RESULT and reply is not None:
            results.append(encode_value(message))
            continue
        if reply is not None:
            yield Turn(before, reply, results)
            before, reply, results = [], None, []
        if role == _ASSISTANT:
            reply = encode_value(message)
        else:
            before.append(encode_value(message))
    if reply is not None:
        yield Turn(before, reply, results)


@dataclasses.dataclass(frozen=True)
class Replay:
    """Costs of one session."""

    calls: int
    tally: Tally
    floor_bytes: int
    """zstd-3 of all messages as one stream."""
    written_bytes: int
    objects: int
    cold: ColdRead
    sdk: SdkStorage


async def replay_session(turns: Sequence[Turn], workers: int = 1) -> Replay:
    """Send a session's payloads through the codec, and through the SDK's ExternalStorage."""
    store = CountingStore(MemoryBlobStore())
    sides = Sides.of_one_worker(store) if workers == 1 else Sides.of_two_workers(store)
    tally = Tally()
    loop = Loop(sides, tally)
    sdk = SdkStorage()
    messages: list[bytes] = []
    for turn in turns:
        await loop.take(turn)
        for data in (loop.last_data, turn.reply, *turn.results):
            await sdk.send(make_json_payload(data))
        messages += turn.messages
    return Replay(
        calls=len(turns),
        tally=tally,
        floor_bytes=len(measure.compress(list_data(messages))),
        written_bytes=store.put_bytes,
        objects=store.puts,
        cold=await read_cold(store, [loop]),
        sdk=sdk,
    )


async def measure_transcripts(folder: Path) -> Report:
    """Replay every session below a directory."""
    report = Report("Recorded sessions as a list-passing loop")
    paths = find_sessions(folder)
    if not paths:
        raise SystemExit(
            f"error: no session was found in {folder}: name a directory of .jsonl files"
        )
    for path in paths:
        turns = read_session(path)
        if not turns:
            report.notes.append(f"{path.stem}: no model call")
            continue
        for workers in (1, 2):
            began = time.monotonic()
            replay = await replay_session(turns, workers)
            what = f"{path.stem}, {workers} worker(s)"
            _add(report, what, replay)
            show_progress(what, began)
    return report


def _add(report: Report, what: str, replay: Replay) -> None:
    tally, cold = replay.tally, replay.cold
    history_bytes = tally.inline_bytes + tally.ref_bytes
    rows = [
        ("plain", tally.raw_bytes, 0, 0),
        (
            "SDK ExternalStorage",
            replay.sdk.history_bytes,
            replay.sdk.stored_bytes,
            replay.sdk.objects,
        ),
        ("Everlong", history_bytes, replay.written_bytes, replay.objects),
    ]
    columns = ("variant", "bytes in history", "bytes stored", "objects")
    report.series.append(Series(f"{what}: {replay.calls} model calls", columns, rows))
    judged = replay.calls >= _JUDGED_CALLS_MIN
    report.add(f"{what}: unique, zstd-3 of each step's messages", tally.unique_bytes, "bytes")
    report.add(f"{what}: floor, zstd-3 of all messages as one stream", replay.floor_bytes, "bytes")
    report.add(
        f"{what}: written over unique",
        replay.written_bytes / tally.unique_bytes,
        "times",
        most=WRITTEN_MAX if judged else None,
    )
    report.add(
        f"{what}: written over the floor", replay.written_bytes / replay.floor_bytes, "times"
    )
    both = replay.written_bytes + history_bytes
    report.add(
        f"{what}: written and left in history over unique", both / tally.unique_bytes, "times"
    )
    report.add(
        f"{what}: cold read of the last list",
        cold.gets,
        "GETs",
        most=cold.gets_max,
    )
    report.add(
        f"{what}: ... bytes over zstd-3",
        cold.over_compressed,
        "times",
        most=READ_BYTES_MAX if judged else None,
    )
    report.add(f"{what}: payloads that decode to other bytes", tally.changed, most=0)
