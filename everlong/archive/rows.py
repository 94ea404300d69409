"""Rows of an archive: converts each entry of a journal to a row, and back without loss.

A row holds a message once. If role, text and tool calls are the whole message, `body` is empty; if a
provider sent more, `body` has the message as it was stored.
"""

import dataclasses
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from everlong.errors import BlobCorrupt, UnknownVersion
from everlong.models import (
    Entry,
    Kind,
    Message,
    Ref,
    StepInfo,
    ToolCall,
    build_body,
    build_note,
    parse_message,
)
from everlong.models.journal import Body
from everlong.storage.segments import MESSAGE_KINDS, to_message

_DATA: Final = TypeAdapter(dict[str, Any])
# Field in the data of a compaction (`CompactionNote`).
_SNAPSHOT: Final = "snapshot"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One entry. docs/how-to/archive.md describes the columns."""

    seq: int
    kind: str
    time_ms: int
    role: str | None = None
    text: str | None = None
    """The whole message, even if the model is shown less."""
    tool: str | None = None
    call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    body: str | None = None
    """The message as it is stored, if the columns before do not have all of it. JSON."""
    shown: str | None = None
    """The part of a long message that the model is shown. JSON: the number of characters from the
    beginning and from the end of `text`, and the text between; or a message as it is stored."""
    data: str | None = None
    """Data of an entry that is not a message. JSON."""
    snapshot: str | None = None
    """Snapshot of a compaction. JSON."""
    size_bytes: int = 0
    original_bytes: int | None = None
    """Size of the whole message as JSON, if the model is shown less."""
    tokens: int = 0
    cost_usd: float = 0.0
    step: StepInfo | None = None


def to_row(entry: Entry, body: Body | None, shown: Body | None, snapshot: bytes | None) -> Row:
    """Return the row of an entry, with the whole message and the part that the model is shown."""
    row = Row(
        seq=entry.seq,
        kind=entry.kind.value,
        time_ms=entry.time_ms,
        data=None if entry.data is None else to_json(entry.data).decode(),
        snapshot=None if snapshot is None else snapshot.decode(),
        size_bytes=entry.size_bytes,
        original_bytes=None if entry.original is None else entry.original.size_bytes,
        tokens=entry.tokens,
        cost_usd=entry.cost_usd,
        step=entry.step,
    )
    return row if body is None else _add_message(row, entry, body, shown)


def _add_message(row: Row, entry: Entry, body: Body, shown: Body | None) -> Row:
    stored = None if shown is None else to_json(shown).decode()
    try:
        message = to_message(entry, body)
        less = None if shown is None else to_message(entry, shown)
    except UnknownVersion:  # From a newer Everlong: kept as it is stored.
        return dataclasses.replace(row, body=to_json(body).decode(), shown=stored)
    plain = dataclasses.replace(message, native=None)
    # Most of the shown text is in `text` already.
    if less is not None and build_body(dataclasses.replace(plain, text=less.text)) == shown:
        stored = to_json(_cut(less.text, message.text)).decode()
    return dataclasses.replace(
        row,
        role=message.role,
        text=message.text,
        tool=message.tool or None,
        call_id=message.call_id or None,
        tool_calls=message.tool_calls,
        body=None if build_body(plain) == body else to_json(body).decode(),
        shown=stored,
    )


def read_body(row: Row, *, whole: bool) -> Body:
    """Return the message of a row as it was stored: whole, or the part that the model is shown."""
    if not whole and row.shown is not None:
        return _restore_shown(row, _parse(row, row.shown))
    if row.body is not None:
        return _parse(row, row.body)
    if row.role is None:
        raise ValueError(f"entry {row.seq}, a {row.kind}, is not a message")
    return _build_body(row, row.text or "")


def _build_body(row: Row, text: str) -> Body:
    return build_body(
        Message(
            role=row.role or "",
            text=text,
            tool_calls=row.tool_calls,
            call_id=row.call_id or "",
            tool=row.tool or "",
        )
    )


def _cut(shown: str, whole: str) -> dict[str, Any]:
    """Return a shortened text as a cut of the whole: lengths of head and tail, and the text between."""
    head = _count_common(shown, whole)
    # The tail is searched in the rest of both, so that head and tail do not overlap.
    left, rest = shown[head:], whole[head:]
    tail = _count_common(left[::-1], rest[::-1])
    return {"head": head, "middle": left[: len(left) - tail], "tail": tail}


def _count_common(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    both = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(both) if a != b), min(len(one), len(other)))


def _restore_shown(row: Row, shown: Body) -> Body:
    if "head" not in shown:
        return shown
    text = row.text or ""
    try:
        head, middle, tail = shown["head"], shown["middle"], shown["tail"]
        less = text[:head] + middle + text[len(text) - tail :]
    except (KeyError, TypeError):
        raise BlobCorrupt(f"entry {row.seq} of an archive has an invalid `shown` column") from None
    return _build_body(row, less)


def to_entry(row: Row, original: Ref | None = None) -> Entry:
    """Return the entry of a row, without its message."""
    try:
        return Entry(
            seq=row.seq,
            kind=Kind(row.kind),
            time_ms=row.time_ms,
            size_bytes=row.size_bytes,
            original=original,
            data=None if row.data is None else _parse(row, row.data),
            tokens=row.tokens,
            cost_usd=row.cost_usd,
            step=row.step,
        )
    except ValueError:
        # Not chained: pydantic quotes its input.
        raise UnknownVersion(
            f"entry {row.seq} of an archive cannot be parsed. A newer Everlong wrote it: upgrade "
            "Everlong here."
        ) from None


def has_snapshot(entry: Entry) -> bool:
    """Return whether a compaction names its snapshot."""
    return _SNAPSHOT in (entry.data or {})


def drop_snapshot(entry: Entry) -> Entry:
    """Return a compaction without the name of its snapshot, which no longer exists.

    The name of a missing object would keep sweeps from deleting anything.
    """
    data = {name: value for name, value in (entry.data or {}).items() if name != _SNAPSHOT}
    return build_note(entry.seq, entry.kind, data, entry.time_ms)


def read_message(row: Row, *, whole: bool) -> Message:
    """Return the message of a row."""
    kind = Kind(row.kind)
    if kind not in MESSAGE_KINDS:
        raise ValueError(f"entry {row.seq}, a {row.kind}, is not a message")
    body = read_body(row, whole=whole)
    try:
        return parse_message(kind, body)
    except (KeyError, TypeError, ValueError):
        raise UnknownVersion(
            f"the message of entry {row.seq} of an archive cannot be parsed. A newer Everlong wrote "
            "it: upgrade Everlong here."
        ) from None


def _parse(row: Row, text: str) -> dict[str, Any]:
    try:
        return _DATA.validate_python(from_json(text))
    except ValueError:
        raise BlobCorrupt(
            f"entry {row.seq} of an archive holds a value that is not a JSON object"
        ) from None
