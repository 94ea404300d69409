"""Links: finds the names of stored objects in histories, payloads, packs and plain bytes.

A name is 64 hex digits, the digest of the object. Any text that looks like a name counts as one: a
wrong guess keeps an object that could be deleted, and never deletes one that is needed. A payload that
cannot be read raises, and then the sweep deletes nothing.

A link is vouched for if one of Everlong's own structures names it: the head and the snapshot of a
thread, and the fields of a segment that point to others. Text from a tool or a model may look like a
ref, but it is never in these fields. So if a vouched object is missing, the store has lost it.
"""

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    PayloadCodec,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.codecs.composition import OuterCodec, find_everlong_codec
from everlong.codecs.payloads import plain_bytes
from everlong.codecs.refs import ENCODING, is_ref, parse_ref
from everlong.errors import (
    BlobCorrupt,
    BlobMissing,
    ConfigError,
    EverlongError,
    StoreUnavailable,
    UnknownVersion,
)
from everlong.models import Kind, Ref, SweepClass
from everlong.storage.pack_store import READ_OBSERVER, PackStore, gather_bounded
from everlong.storage.packs import Pack, parse_key_id
from everlong.sweep.index import Link, SweepIndex

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
# Bodies of messages: text of a person, a model or a tool has no links.
_LEAVES: Final = frozenset({Kind.MESSAGE, Kind.REPLY, Kind.TOOL_RESULT, Kind.FAILURE})

# A state has at most 64 KiB, and the JSON of a segment 26 KiB: see `STATE_BYTES_MAX` and
# `SEGMENT_ENTRIES_MAX`.
_JSON_BYTES_MAX: Final = limits.MIB
_REF: Final = TypeAdapter(Ref)


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
    for rows in _find_rows(data):
        yield {link for start, end in rows for link in _parse_row(data, start, end)}


def _find_rows(data: bytes) -> Iterator[list[tuple[int, int]]]:
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


def _parse_row(data: bytes, start: int, end: int) -> Iterator[Link]:
    if end - start > _NAME_DIGITS:
        starts = {start, end - _NAME_DIGITS}
        if end - start <= _ROW_DIGITS_MAX:
            starts.update(range(start, end - _NAME_DIGITS, _NAME_DIGITS))
        for each in starts:
            yield Link(_parse_name(data, each))
        return
    before = _BEFORE.search(data, max(0, start - _BEFORE_BYTES), start)
    after = _AFTER.match(data, end)
    kind, thread, is_part = b"", b"", False
    if after is not None:
        kind = after["kind"] or after["sorted_kind"]
        thread, is_part = after["sorted_thread"] or b"", bool(after["part"])
    if before is not None:
        thread = before["thread"]
    yield Link(_parse_name(data, start), thread.decode(), is_part or kind.decode() in _LEAVES)


def _parse_name(data: bytes, start: int) -> bytes:
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
    value = _parse_object(data)
    found = [
        _parse_link(_get_field(place, key, "ref"))
        for place in (value, _get_field(value, "state"), _get_field(value, "context"))
        for key in ("head", "snapshot")
    ]
    calls = _iter_items(_get_field(value, "state"), "calls")  # Sub-agents that have answered.
    found += [_parse_link(_get_field(each, "report", "head", "ref")) for each in calls]
    return {link for link in found if link is not None}


def find_segment_links(data: bytes) -> set[Link]:
    """Return the earlier segments and snapshots that a segment names; empty if it is no segment."""
    value = _parse_object(data[data.rfind(b"\n") + 1 :])
    found = [_parse_link(_get_field(each, "ref")) for each in _iter_items(value, "before")]
    found += [
        _parse_link(_get_field(each, "data", "snapshot", "ref"))
        for each in _iter_items(value, "entries")
        if _get_field(each, "kind") == Kind.COMPACTION
    ]
    return {link for link in found if link is not None}


def _parse_object(data: bytes) -> Any:
    if len(data) > _JSON_BYTES_MAX or data.lstrip()[:1] != b"{":
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _get_field(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _iter_items(value: Any, key: str) -> Iterator[Any]:
    found = _get_field(value, key)
    yield from found if isinstance(found, list) else ()


def _parse_link(value: Any) -> Link | None:
    if value is None:
        return None
    try:
        ref = _REF.validate_python(value)
    except ValidationError:
        return None
    if ref.kind not in (Kind.SEGMENT, Kind.SNAPSHOT):
        return None
    return Link(bytes.fromhex(ref.digest), ref.thread, is_vouched=True)


# Encodings that leave a name in plain text. `binary/null` has no data.
_LEGIBLE: Final = frozenset(
    {"json/plain", "json/protobuf", "binary/plain", "binary/protobuf", "binary/null", ""}
)
# References of the SDK's external storage: as a protobuf message, and as older SDKs wrote them.
_REFERENCE: Final = b"temporal.api.sdk.v1.ExternalStorageReference"
_OLD_REFERENCE: Final = b"json/external-storage-reference"


class Unreadable(Exception):
    """A payload or object of a history cannot be read here. The message has the reason and a remedy."""


def check_codec(codec: PayloadCodec | None) -> None:
    """Reject an unknown codec around ours: it may hide refs, and their objects would be deleted."""
    if codec is not None and find_everlong_codec(codec) is None:
        raise ConfigError(
            f"the client's codec is {type(codec).__name__}, and its payloads may hide refs, so nothing "
            "can be freed safely. Sweep with a client that has the EverlongPlugin, last of its plugins: "
            "then Everlong's codec is around the others, and sees its refs. Give a codec that has to "
            "stay around Everlong's to the plugin: outer_codec=."
        )


class LinkReader:
    """Reads payloads with a client's own codec, and packs. Counts the packs."""

    def __init__(
        self,
        index: SweepIndex,
        packs: PackStore,
        codec: PayloadCodec | None,
        namespace: str,
        encodings: Iterable[str] = (),
    ) -> None:
        check_codec(codec)
        self._index = index
        self._packs = packs
        self._codec = (
            codec.with_packs(packs) if isinstance(codec, EverlongCodec | OuterCodec) else codec
        )
        self._namespace = namespace
        self._legible = _LEGIBLE | set(encodings)
        self.packs_read = 0

    async def find_links(
        self, payloads: Iterable[tuple[Payload, bool]], workflow_id: str
    ) -> set[Link]:
        """Return the links of a workflow's payloads.

        Header payloads are encoded only if the client is configured so: their encoding shows it.
        """
        links: set[Link] = set()
        encoded: list[Payload] = []
        for payload, has_passed in payloads:
            encoding = payload.metadata.get("encoding", b"").decode("latin-1")
            if has_passed or encoding not in self._legible:
                encoded.append(payload)
            else:
                links |= await search(payload.data)
        codec = self._codec
        if isinstance(codec, WithSerializationContext):
            context = WorkflowSerializationContext(
                namespace=self._namespace, workflow_id=workflow_id
            )
            codec = codec.with_context(context)
        if isinstance(codec, OuterCodec):
            encoded = await _unwrap(codec, encoded)
            codec = codec.ours
        for batch in _divide(encoded):
            for found in await gather_bounded(
                [partial(self._follow, codec, each) for each in batch]
            ):
                links |= found
        return links

    async def _follow(self, codec: PayloadCodec | None, payload: Payload) -> set[Link]:
        if not is_ref(payload):
            return await self._search(codec, payload)
        try:
            ref = parse_ref(payload)
        except EverlongError as error:
            raise Unreadable(str(error)) from error
        thread, name = ref.thread, ref.pack
        # Only the pack itself: its own links are recorded once, for all holders that name it.
        link = Link(name, thread, is_vouched=True)
        if not self._index.is_decoded(name):
            links = await self._search(codec, payload)
            links |= await self._find_sources(thread, await self._open(thread, name))
            others = {each for each in links if each.name != name}
            self._index.add_scanned(name, others, is_decoded=True)
        return {link}

    async def _search(self, codec: PayloadCodec | None, payload: Payload) -> set[Link]:
        self.packs_read += is_ref(payload)
        links: set[Link] = set()

        def note(packs: PackStore, what: str) -> None:
            # An Everlong codec inside another codec, as where plugins are applied twice.
            if packs is not self._packs:
                links.update(find_links(what.encode()))

        token = READ_OBSERVER.set(note)
        try:
            decoded = [payload] if codec is None else await codec.decode([payload])
        except EverlongError as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error
        except Exception as error:  # A team's own codec may raise anything, and quote anything.
            raise Unreadable(
                f"a payload does not decode ({type(error).__name__}). Sweep where the codec and the "
                "keys of the workers are configured."
            ) from error
        finally:
            READ_OBSERVER.reset(token)
        for each in decoded:
            links |= await self._search_plain(codec, each)
        return links

    async def _search_plain(self, codec: PayloadCodec | None, payload: Payload) -> set[Link]:
        encoding = payload.metadata.get("encoding", b"")
        is_reference = payload.metadata.get("messageType") == _REFERENCE
        if is_reference or encoding == _OLD_REFERENCE:
            return await self._search_claims(codec, payload)
        if encoding.decode("latin-1") not in self._legible:
            raise Unreadable(
                f"a payload has the encoding {encoding[:40]!r}, in which names cannot be found. Sweep "
                "where the codec of the workers is configured, by `everlong sweep --every`; or name the "
                "encoding, if it is a converter's that leaves text as it is: --encoding."
            )
        links = await search(payload.data)
        if any(link.thread for link in links):
            vouched = find_state_links(payload.data)
            links |= {link for link in vouched if self._index.has_thread(link.thread)}
        return links

    async def _search_claims(self, codec: PayloadCodec | None, payload: Payload) -> set[Link]:
        """Follow a reference of the SDK's external storage, if our driver wrote it."""
        links = await search(payload.data)
        for data in find_claims(payload.data):
            ref = Payload(metadata={"encoding": ENCODING}, data=data)
            try:
                parse_ref(ref)
            except (BlobCorrupt, UnknownVersion):
                continue  # Written by another driver.
            links |= await self._follow(codec, ref)
        return links

    async def scan(self, thread: str, name: bytes) -> set[Link]:
        """Return the links in a pack's bytes; raises `BlobMissing` if it is not in the store.

        For a payload these may not be all links: only a ref says how to decode it.
        """
        self.packs_read += 1
        try:
            pack = await self._packs.open(thread, name)
            reading = await self._packs.read(thread, name, pack.size_bytes)
        except (BlobMissing, StoreUnavailable):
            raise
        except EverlongError as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error
        links = await search(reading.data) | await self._find_sources(thread, pack)
        return links if pack.envelope else links | find_segment_links(reading.data)

    async def classify(self, data: bytes, thread: str, name: bytes) -> SweepClass:
        """Return the class of a pack; `unknown` if it cannot be read here."""
        try:
            pack = Pack(data, name, thread, await self._packs.keys(parse_key_id(data)))
        except EverlongError:
            return "unknown"
        return "payload" if pack.envelope else "journal"

    async def _open(self, thread: str, name: bytes) -> Pack:
        try:
            return await self._packs.open(thread, name)
        except EverlongError as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error

    async def _find_sources(self, thread: str, pack: Pack) -> set[Link]:
        """Return the packs that a pack needs: its sources, and those of its base.

        They are leaves: a read uses their frames, and not the packs in their own manifests.
        """
        try:
            names = await self._packs.find_needed(thread, pack)
        except EverlongError as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error
        return {Link(name, thread, is_leaf=True) for name in names}


async def _unwrap(codec: OuterCodec, payloads: Sequence[Payload]) -> list[Payload]:
    """Remove the outer layer from each payload alone: payloads here were not encoded together."""
    found: list[Payload] = []
    for payload in payloads:
        try:
            found += await codec.unwrap([payload])
        except Exception as error:  # A team's own codec may raise anything, and quote anything.
            raise Unreadable(
                f"the outer codec {type(codec.outer).__name__} does not decode a payload "
                f"({type(error).__name__}). Sweep where it has the keys of the workers."
            ) from error
    return found


def _divide(payloads: Sequence[Payload]) -> Iterable[list[Payload]]:
    """Divide payloads into batches that are decoded concurrently."""
    batch: list[Payload] = []
    size_bytes = 0
    for payload in payloads:
        try:
            plain = plain_bytes(payload)
        except EverlongError as error:
            raise Unreadable(str(error)) from error
        is_full = size_bytes + plain > limits.SWEEP_DECODE_BYTES_MAX
        if batch and (is_full or len(batch) >= limits.SWEEP_DECODES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(payload)
        size_bytes += plain
    if batch:
        yield batch
