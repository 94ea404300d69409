"""The segment format: a piece of a journal as the plaintext of a pack (docs/wire-format.md).

Long bodies come first, one after another, then a newline, then the segment's JSON, in which an entry
names the part of the plaintext that is its body. So a body is at the same place for whoever reads the
pack, and a merge writes only where it lies. Here are only the bytes; `journal` reads and writes them.
"""

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_json

from everlong import limits
from everlong.errors import BlobCorrupt, BlobMissing, UnknownVersion
from everlong.models import (
    Compacted,
    Entry,
    Kind,
    Message,
    Ref,
    Segment,
    SegmentRef,
    Slice,
    parse_message,
    seq_after,
)
from everlong.models.journal import Body
from everlong.storage.objects import object_key

T = TypeVar("T")

SEGMENT_VERSION: Final = 2
_VERSION_END: Final = b'"version":%d}' % SEGMENT_VERSION
MESSAGE_KINDS: Final = frozenset({Kind.MESSAGE, Kind.REPLY, Kind.TOOL_RESULT, Kind.FAILURE})


@dataclass(frozen=True, kw_only=True)
class _Versioned:
    version: int


_VERSIONED = TypeAdapter(_Versioned)
_SEGMENT = TypeAdapter(Segment)
_BODY = TypeAdapter(Body)
_COMPACTED = TypeAdapter(Compacted)


def to_plaintext(segment: Segment) -> tuple[bytes, Segment]:
    """Return a segment as it is stored, with long bodies beside its entries.

    Beside it stands what `from_plaintext` makes of that, so that the writer need not parse it.
    """
    bodies: list[bytes] = []
    start = 0
    entries: list[Entry] = []
    for entry in segment.entries:
        if entry.body is None:
            entries.append(entry)
            continue
        body = to_json(entry.body)
        if len(body) <= limits.ENTRY_BODY_BYTES_MAX:
            same = entry.size_bytes == len(body)
            entries.append(entry if same else dataclasses.replace(entry, size_bytes=len(body)))
            continue
        part = Slice(start=start, size_bytes=len(body))
        entries.append(
            dataclasses.replace(entry, body=None, ref=None, part=part, size_bytes=len(body))
        )
        bodies.append(body)
        start += len(body)
    written = dataclasses.replace(segment, entries=tuple(entries))
    text = _SEGMENT.dump_json(written)
    return b"".join([*bodies, b"\n", text]) if bodies else text, written


def from_plaintext(data: bytes) -> Segment:
    """Return a segment as it was written."""
    # JSON as it is written here has no newline in it.
    return _parse_segment(data[data.rfind(b"\n") + 1 :])


def placed(segment: Segment, place: SegmentRef) -> Segment:
    """Return what a place leads to: a segment's first `count` entries, with refs that stand alone."""
    if place.folded:
        segment = dataclasses.replace(
            segment, before=tuple(_upto(segment.before, seq_after(place)))
        )
        sound = not segment.entries and _are_consecutive(
            segment.before, place.first_seq, seq_after(place)
        )
    else:
        entries = tuple(_alone(entry, place.ref) for entry in segment.entries[: place.count])
        segment = dataclasses.replace(segment, entries=entries)
        seqs = [entry.seq for entry in entries]
        sound = seqs == list(range(place.first_seq, seq_after(place))) and _are_consecutive(
            segment.before, 1, place.first_seq
        )
    if not sound or place.count < 1:
        raise BlobCorrupt(
            f"segment {object_key(place.ref)!r} does not hold the entries {place.first_seq} to "
            f"{seq_after(place) - 1} that its ref tells of: the ref is damaged or forged. Find out "
            "who gave it to this thread."
        )
    return segment


def body_in(plaintext: bytes, entry: Entry) -> Body:
    """Return the body of an entry from the pack that its ref leads to."""
    part = entry.part
    if part is not None:
        if part.start + part.size_bytes > len(plaintext):
            raise BlobCorrupt(
                f"the body of entry {entry.seq} is said to be at {part.start}, {part.size_bytes} "
                f"bytes long, in a pack of {len(plaintext)}: the entry is damaged or forged. Find "
                "out who wrote it."
            )
        plaintext = plaintext[part.start : part.start + part.size_bytes]
    return parsed(_BODY, plaintext)


def parsed_compaction(entry: Entry) -> Compacted:
    """Return what a compaction entry says."""
    if entry.data is not None and "snapshot" not in entry.data:
        raise BlobMissing(
            f"the snapshot of entry {entry.seq} was gone before this thread was revived from its "
            "archive; look at a later entry."
        )
    try:
        return _COMPACTED.validate_python(entry.data)
    except ValidationError:
        raise UnknownVersion(
            f"entry {entry.seq}, a {entry.kind}, is intact but not understood. A newer Everlong wrote "
            "it: upgrade Everlong here."
        ) from None


def to_message(entry: Entry, body: Body) -> Message:
    """Return the message of an entry whose body this is."""
    try:
        return parse_message(entry.kind, body)
    except (KeyError, TypeError, ValueError):
        # Not chained: these errors quote what they met.
        raise UnknownVersion(
            f"the body of entry {entry.seq}, a {entry.kind}, is intact but not understood. A newer "
            "Everlong wrote it: upgrade Everlong here."
        ) from None


def overlapping(
    places: Iterable[SegmentRef], first_seq: int, last_seq: int
) -> Iterable[SegmentRef]:
    """Return the places that hold entries of a range."""
    return (each for each in places if each.first_seq <= last_seq and seq_after(each) > first_seq)


def parsed(adapter: TypeAdapter[T], data: bytes) -> T:
    """Return what a part of a journal says."""
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        # Not chained, and without input: pydantic's own message quotes what it read.
        found = error.errors(include_input=False, include_url=False, include_context=False)
        places = ", ".join(str(each["loc"]) for each in found[:3])
        raise UnknownVersion(
            f"a part of a journal is intact but not understood, at {places}. A newer Everlong wrote "
            "it: upgrade Everlong here."
        ) from None


def _parse_segment(text: bytes) -> Segment:
    if len(text) > limits.SEGMENT_JSON_BYTES_MAX:
        raise BlobCorrupt(
            f"a segment has {len(text)} bytes of entries, and {limits.SEGMENT_JSON_BYTES_MAX} is the "
            "most that is parsed: it is damaged or forged. Find out who gave it to this thread."
        )
    # The version is the last field as it is written here, so most segments are parsed only once. What
    # follows it closes the outermost object: nothing further inside can end with the same bytes.
    is_ours = text.endswith(_VERSION_END)
    version = SEGMENT_VERSION if is_ours else parsed(_VERSIONED, text).version
    if version != SEGMENT_VERSION:
        raise UnknownVersion(
            f"segment version {version} is not one that this Everlong reads ({SEGMENT_VERSION}). "
            "Upgrade Everlong on this worker or client."
        )
    return parsed(_SEGMENT, text)


def _alone(entry: Entry, ref: Ref) -> Entry:
    """Return an entry that says itself in which pack its body lies."""
    if entry.part is None or entry.ref is not None:
        return entry
    # Not `dataclasses.replace`, which validates all fields of the entry once more.
    alone = copy.copy(entry)
    object.__setattr__(alone, "ref", ref)
    return alone


def _upto(places: Sequence[SegmentRef], end_seq: int) -> Iterable[SegmentRef]:
    """Return the places before a seq, the last one cut off there."""
    for place in places:
        if seq_after(place) <= end_seq:
            yield place
        elif place.first_seq < end_seq:
            yield dataclasses.replace(place, count=end_seq - place.first_seq)


def _are_consecutive(places: Sequence[SegmentRef], first_seq: int, end_seq: int) -> bool:
    """Return whether places hold the entries from one seq to before another, without gaps."""
    for place in places:
        if place.first_seq != first_seq or place.count < 1:
            return False
        first_seq = seq_after(place)
    return first_seq == end_seq
