"""Links: finds the names of stored objects in plain bytes.

A name is 64 hex digits, the digest of the object. Any text that looks like a name counts as one: a
wrong guess keeps an object that could be deleted, and never deletes one that is needed.

A link is vouched for if one of Everlong's own structures names it: the head and the snapshot of a
thread, and the fields of a segment that point to others. Text from a tool or a model may look like a
ref, but it is never in these fields. So if a vouched object is missing, the store has lost it.
"""

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from everlong import limits
from everlong.models import Kind, Ref

_NAME_DIGITS: Final = 64
# Digits may directly adjoin a name: another name, or the bytes that follow it in protobuf. In a row of
# up to this many digits a name may start at each multiple of 64; in a longer row at its start and end.
_ROW_DIGITS_MAX: Final = 256
# Bytes that are searched before yielding to the event loop: 2 ms without names, 10 ms if all are names.
_SLICE_BYTES: Final = 256 * limits.KIB
# Bytes are translated to two letters, digit or other, so that `bytes.find` does the search.
_DIGIT, _OTHER = b"d", b" "
_LETTERS: Final = bytes(
    (_DIGIT if chr(each) in "0123456789abcdef" else _OTHER)[0] for each in range(256)
)
_ROW: Final = _DIGIT * _NAME_DIGITS

# Refs in JSON: with their fields in order, as in journals, or sorted, as the SDK's converter writes
# them. A name in any other form counts too, but without its thread.
_BEFORE: Final = re.compile(rb'"thread"\s*:\s*"(?P<thread>[0-9a-f]{32})"\s*,\s*"digest"\s*:\s*"\Z')
_BEFORE_BYTES: Final = 128
_AFTER: Final = re.compile(
    rb'"\s*,\s*"size_bytes"\s*:\s*\d+\s*,\s*"kind"\s*:\s*"(?P<kind>[a-z_]+)"'
    # An entry that uses a part of the named object: the part is a body, whatever else the object has.
    rb'(?:(?:,"preview":"[^"\\]*")?\},"part":(?P<part>\{))?'
    rb'|"\s*,\s*"kind"\s*:\s*"(?P<sorted_kind>[a-z_]+)"'
    rb'(?:\s*,\s*"preview"\s*:\s*"(?:[^"\\]|\\.){0,800}")?\s*,\s*"size_bytes"\s*:\s*\d+'
    rb'\s*,\s*"thread"\s*:\s*"(?P<sorted_thread>[0-9a-f]{32})"'
)
# A claim of Everlong's driver for the SDK's external storage: a ref of 60 bytes or more.
_CLAIM: Final = re.compile(rb'"([A-Za-z0-9+/]{80,}={0,2})"')
# Bodies of messages. Text of a person, a model or a tool has no links.
_LEAVES: Final = frozenset({Kind.MESSAGE, Kind.REPLY, Kind.TOOL_RESULT, Kind.FAILURE})

# A state has at most 64 KiB, and the JSON of a segment 26 KiB: see `STATE_BYTES_MAX` and
# `SEGMENT_ENTRIES_MAX`.
_JSON_BYTES_MAX: Final = limits.MIB
_REF: Final = TypeAdapter(Ref)


class Link(NamedTuple):
    """A name that a holder (a run, a pack, a schedule) contains."""

    name: bytes
    thread: str = ""
    """Key of the thread that the object is stored under; empty if the link does not say it."""
    is_leaf: bool = False
    """Whether the named object is known to have no links of its own."""
    is_vouched: bool = False
    """Whether a structure of Everlong names it, and not just some text: then it must exist."""


async def search(data: bytes) -> set[Link]:
    """Return the names in some bytes, without blocking the event loop."""
    links: set[Link] = set()
    for number, found in enumerate(_search_slices(data)):
        if number:
            await asyncio.sleep(0)
        links |= found
    return links


def find_links(data: bytes) -> set[Link]:
    """Return the names in some bytes."""
    return {link for found in _search_slices(data) for link in found}


def _search_slices(data: bytes) -> Iterator[set[Link]]:
    for rows in _rows(data):
        yield {link for start, end in rows for link in _links(data, start, end)}


def _rows(data: bytes) -> Iterator[list[tuple[int, int]]]:
    """Yield, for each slice of the data, the start and end of rows of digits that may hold names."""
    before = 0  # Digits at the end of the slices so far.
    for at in range(0, len(data), _SLICE_BYTES):
        letters = data[at : at + _SLICE_BYTES].translate(_LETTERS)
        first, last = letters.find(_OTHER), letters.rfind(_OTHER)
        if first < 0:
            before += len(letters)
            yield []
            continue
        found = [(at - before, at + first)] if before + first >= _NAME_DIGITS else []
        start = letters.find(_ROW, first, last)
        while start >= 0:
            end = letters.index(_OTHER, start)
            found.append((at + start, at + end))
            start = letters.find(_ROW, end, last)
        before = len(letters) - 1 - last
        yield found
    if before >= _NAME_DIGITS:
        yield [(len(data) - before, len(data))]


def _links(data: bytes, start: int, end: int) -> Iterator[Link]:
    if end - start > _NAME_DIGITS:
        starts = {start, end - _NAME_DIGITS}
        if end - start <= _ROW_DIGITS_MAX:
            starts.update(range(start, end - _NAME_DIGITS, _NAME_DIGITS))
        for each in starts:
            yield Link(_name(data, each))
        return
    before = _BEFORE.search(data, max(0, start - _BEFORE_BYTES), start)
    after = _AFTER.match(data, end)
    kind, thread, is_part = b"", b"", False
    if after is not None:
        kind = after["kind"] or after["sorted_kind"]
        thread, is_part = after["sorted_thread"] or b"", bool(after["part"])
    if before is not None:
        thread = before["thread"]
    yield Link(_name(data, start), thread.decode(), is_part or kind.decode() in _LEAVES)


def _name(data: bytes, start: int) -> bytes:
    return bytes.fromhex(data[start : start + _NAME_DIGITS].decode())


def find_claims(data: bytes) -> Iterator[bytes]:
    """Yield possible refs in a reference of the SDK's external storage."""
    for text in _CLAIM.findall(data):
        try:
            yield base64.b64decode(text, validate=True)
        except binascii.Error:
            continue


def find_state_links(data: bytes) -> set[Link]:
    """Return the heads and snapshots in a payload: a thread's state, or a step's input or result."""
    value = _parse(data)
    found = [
        _link(_field(place, key, "ref"))
        for place in (value, _field(value, "state"), _field(value, "context"))
        for key in ("head", "snapshot")
    ]
    calls = _items(_field(value, "state"), "calls")  # Sub-agents that have answered.
    found += [_link(_field(each, "report", "head", "ref")) for each in calls]
    return {link for link in found if link is not None}


def find_segment_links(data: bytes) -> set[Link]:
    """Return the earlier segments and snapshots that a segment names; empty if it is no segment."""
    value = _parse(data[data.rfind(b"\n") + 1 :])
    found = [_link(_field(each, "ref")) for each in _items(value, "before")]
    found += [
        _link(_field(each, "data", "snapshot", "ref"))
        for each in _items(value, "entries")
        if _field(each, "kind") == Kind.COMPACTION
    ]
    return {link for link in found if link is not None}


def _parse(data: bytes) -> Any:
    if len(data) > _JSON_BYTES_MAX or data.lstrip()[:1] != b"{":
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _field(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _items(value: Any, key: str) -> Iterator[Any]:
    found = _field(value, key)
    yield from found if isinstance(found, list) else ()


def _link(value: Any) -> Link | None:
    if value is None:
        return None
    try:
        ref = _REF.validate_python(value)
    except ValidationError:
        return None
    if ref.kind not in (Kind.SEGMENT, Kind.SNAPSHOT):
        return None
    return Link(bytes.fromhex(ref.digest), ref.thread, is_vouched=True)
