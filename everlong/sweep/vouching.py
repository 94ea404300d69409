"""What our own structures name: where a thread's journal is, and what its segments lead to.

What a tool or a model wrote may look like a ref. It never stands where these look: at the head and the
snapshot of a thread, and in the fields of a segment that lead on. So if what is named here is missing,
the store has lost it.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from everlong import limits
from everlong.models import Kind, Ref
from everlong.sweep.searching import Link

# A state has at most 64 KiB, and the JSON of a segment 26 KiB: see `STATE_BYTES_MAX` and
# `SEGMENT_ENTRIES_MAX`.
_JSON_BYTES_MAX: Final = limits.MIB
_REF: Final = TypeAdapter(Ref)


def vouched_in_payload(data: bytes) -> set[Link]:
    """Return what a payload says of journals, as a thread's state, or as what a step gets and gives."""
    value = _parsed(data)
    found = [
        _link(_field(place, key, "ref"))
        for place in (value, _field(value, "state"), _field(value, "context"))
        for key in ("head", "snapshot")
    ]
    calls = _items(_field(value, "state"), "calls")  # Of sub-agents that have answered.
    found += [_link(_field(each, "report", "head", "ref")) for each in calls]
    return {link for link in found if link is not None}


def vouched_in_segment(data: bytes) -> set[Link]:
    """Return what a segment leads to: those before it, and snapshots. Of what is none, nothing."""
    value = _parsed(data[data.rfind(b"\n") + 1 :])
    found = [_link(_field(each, "ref")) for each in _items(value, "before")]
    found += [
        _link(_field(each, "data", "snapshot", "ref"))
        for each in _items(value, "entries")
        if _field(each, "kind") == Kind.COMPACTION
    ]
    return {link for link in found if link is not None}


def _parsed(data: bytes) -> Any:
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
