"""Checked JSON: objects whose last field is a digest of all bytes before it.

A reader detects any change since the object was written: a flipped bit, white space, a missing or
duplicate field, a truncated end. The digest needs no key, so it detects damage but not forgery. Where
keys are configured, tags and encryption detect forgery.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from pydantic_core import to_json

from everlong.errors import BlobCorrupt, UnknownVersion

DIGEST: Final = "digest"
_START: Final = re.compile(rb'\{\n  "version": ([0-9]{1,9}),\n')
_LAST: Final = b',\n  "digest": "'
_END: Final = re.compile(rb'([0-9a-f]{64})"\n\}\n')
_END_BYTES: Final = 64 + len(b'"\n}\n')


def dump(fields: Mapping[str, Any]) -> bytes:
    """Return the stored form of an object. Its first field is `version`."""
    signed = dump_prefix(fields) + _LAST
    return signed + hashlib.sha256(signed).hexdigest().encode() + b'"\n}\n'


def dump_prefix(fields: Mapping[str, Any]) -> bytes:
    """Return the beginning of the stored form, up to the last of these fields."""
    return to_json(fields, indent=2).removesuffix(b"\n}")


def load(data: bytes, key: str, *, version: int) -> dict[str, Any]:
    """Return the fields of an object, without its digest. Raises if any byte was changed."""
    signed, end = data[:-_END_BYTES], _END.fullmatch(data[-_END_BYTES:])
    is_sound = end is not None and hashlib.sha256(signed).hexdigest().encode() == end[1]
    start = _START.match(data)
    if start is not None and int(start[1]) != version:
        raise UnknownVersion(
            f"{key!r} has version {int(start[1])}, which this Everlong does not read, or it is damaged. "
            "Upgrade Everlong here, or restore the object from a backup of the store."
        )
    if start is None or not is_sound or not signed.endswith(_LAST):
        raise BlobCorrupt(
            f"{key!r} is not what was written: it is damaged. Restore it from a backup of the store; "
            "until then it is passed over."
        )
    try:
        fields: dict[str, Any] = json.loads(
            data.decode(), object_pairs_hook=_unique, parse_constant=_refuse
        )
    except (ValueError, RecursionError):
        raise malformed_error(key) from None
    del fields[DIGEST]
    return fields


def malformed_error(key: str) -> BlobCorrupt:
    """Return the error for an object with a valid digest and invalid fields: no writer makes one."""
    return BlobCorrupt(
        f"{key!r} has fields that no writer gives it: it is forged, or written by another program. Find "
        "out which, and restore it from a backup of the store; until then it is passed over."
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("duplicate field")
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
