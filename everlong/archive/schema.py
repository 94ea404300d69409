"""Rows of an archive: what each entry of a journal becomes, and what it can be made from again.

A row says a message once. Where role, text and calls are all there is to it, `body` is empty; where a
provider sent more, `body` has it as it was stored. So an entry and its row say the same, both ways.
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
    body_of,
    message_of,
    note,
)
from everlong.models.journal import Body
from everlong.storage.segments import MESSAGE_KINDS, to_message

_DATA: Final = TypeAdapter(dict[str, Any])
# In the data of a compaction (`Compacted`).
_SNAPSHOT: Final = "snapshot"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One entry. Its columns are in docs/archive.md."""

    seq: int
    kind: str
    time_ms: int
    role: str | None = None
    text: str | None = None
    """The whole message, also where a model is shown less."""
    tool: str | None = None
    call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    body: str | None = None
    """The message as it is stored, where the columns before do not say it all. JSON."""
    shown: str | None = None
    """What a model is shown of a message that is too long for it. JSON: how many characters of `text`
    at its beginning and its end, and what stands between; or a message as it is stored."""
    data: str | None = None
    """What happened, of kinds that are no message. JSON."""
    snapshot: str | None = None
    """Of a compaction: the snapshot that it made. JSON."""
    size_bytes: int = 0
    original_bytes: int | None = None
    """Size of the whole message as JSON, where a model is shown less."""
    tokens: int = 0
    cost_usd: float = 0.0
    step: StepInfo | None = None


def to_row(entry: Entry, body: Body | None, shown: Body | None, snapshot: bytes | None) -> Row:
    """Return the row of an entry, with the whole of its message and what a model is shown of it."""
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
    return row if body is None else _with_message(row, entry, body, shown)


def _with_message(row: Row, entry: Entry, body: Body, shown: Body | None) -> Row:
    stored = None if shown is None else to_json(shown).decode()
    try:
        message = to_message(entry, body)
        less = None if shown is None else to_message(entry, shown)
    except UnknownVersion:  # Of a newer Everlong: kept as it is.
        return dataclasses.replace(row, body=to_json(body).decode(), shown=stored)
    plain = dataclasses.replace(message, native=None)
    # Most of what is shown is in `text` already.
    if less is not None and body_of(dataclasses.replace(plain, text=less.text)) == shown:
        stored = to_json(_cut(less.text, message.text)).decode()
    return dataclasses.replace(
        row,
        role=message.role,
        text=message.text,
        tool=message.tool or None,
        call_id=message.call_id or None,
        tool_calls=message.tool_calls,
        body=None if body_of(plain) == body else to_json(body).decode(),
        shown=stored,
    )


def read_body(row: Row, *, whole: bool) -> Body:
    """Return the message of a row as it was stored: the whole, or what a model is shown."""
    if not whole and row.shown is not None:
        return _shown_body(row, _parse(row, row.shown))
    if row.body is not None:
        return _parse(row, row.body)
    if row.role is None:
        raise ValueError(f"entry {row.seq}, a {row.kind}, is no message")
    return _body(row, row.text or "")


def _body(row: Row, text: str) -> Body:
    return body_of(
        Message(
            role=row.role or "",
            text=text,
            tool_calls=row.tool_calls,
            call_id=row.call_id or "",
            tool=row.tool or "",
        )
    )


def _cut(shown: str, whole: str) -> dict[str, Any]:
    """Return what a text is by what a longer one has too: its beginning and its end."""
    head = _alike(shown, whole)
    # The end is looked for in what is left of both, so that the two do not overlap.
    left, rest = shown[head:], whole[head:]
    tail = _alike(left[::-1], rest[::-1])
    return {"head": head, "middle": left[: len(left) - tail], "tail": tail}


def _alike(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    both = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(both) if a != b), min(len(one), len(other)))


def _shown_body(row: Row, shown: Body) -> Body:
    if "head" not in shown:
        return shown
    text = row.text or ""
    try:
        head, middle, tail = shown["head"], shown["middle"], shown["tail"]
        less = text[:head] + middle + text[len(text) - tail :]
    except (KeyError, TypeError):
        raise BlobCorrupt(f"entry {row.seq} of an archive does not say what was shown") from None
    return _body(row, less)


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
        # Not chained: pydantic quotes what it was given.
        raise UnknownVersion(
            f"entry {row.seq} of an archive is not understood. A newer Everlong wrote it: upgrade "
            "Everlong here."
        ) from None


def has_snapshot(entry: Entry) -> bool:
    """Tell whether a compaction says where its snapshot lies."""
    return _SNAPSHOT in (entry.data or {})


def drop_snapshot(entry: Entry) -> Entry:
    """Return a compaction that names no snapshot, since that is gone.

    A name that leads nowhere would keep a sweep from taking anything.
    """
    data = {name: value for name, value in (entry.data or {}).items() if name != _SNAPSHOT}
    return note(entry.seq, entry.kind, data, entry.time_ms)


def read_message(row: Row, *, whole: bool) -> Message:
    """Return the message of a row."""
    kind = Kind(row.kind)
    if kind not in MESSAGE_KINDS:
        raise ValueError(f"entry {row.seq}, a {row.kind}, is no message")
    body = read_body(row, whole=whole)
    try:
        return message_of(kind, body)
    except (KeyError, TypeError, ValueError):
        raise UnknownVersion(
            f"the message of entry {row.seq} of an archive is not understood. A newer Everlong wrote "
            "it: upgrade Everlong here."
        ) from None


def _parse(row: Row, text: str) -> dict[str, Any]:
    try:
        return _DATA.validate_python(from_json(text))
    except ValueError:
        raise BlobCorrupt(f"entry {row.seq} of an archive holds what is no JSON object") from None
