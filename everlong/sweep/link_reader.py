"""Link reader: decodes payloads and stored objects, and finds the object names in them.

A payload that cannot be read raises, and then the sweep deletes nothing: links are never guessed.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    PayloadCodec,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.codecs.codec import plain_bytes
from everlong.codecs.composition import OuterCodec, own_codec
from everlong.codecs.refs import ENCODING, is_ref, parse_ref
from everlong.errors import (
    BlobCorrupt,
    BlobMissing,
    ConfigError,
    EverlongError,
    StoreUnavailable,
    UnknownVersion,
)
from everlong.models import SweepClass
from everlong.storage.pack_store import ASKED, PackStore, gathered
from everlong.storage.packs import Pack, key_id_of
from everlong.sweep.index import SweepIndex
from everlong.sweep.links import (
    Link,
    find_claims,
    find_links,
    find_segment_links,
    find_state_links,
    search,
)

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
    if codec is not None and own_codec(codec) is None:
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
        for batch in _batches(encoded):
            for found in await gathered([partial(self._links, codec, each) for each in batch]):
                links |= found
        return links

    async def _links(self, codec: PayloadCodec | None, payload: Payload) -> set[Link]:
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
            links |= await self._sources(thread, await self._open(thread, name))
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

        token = ASKED.set(note)
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
            ASKED.reset(token)
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
            links |= {link for link in vouched if self._index.knows(link.thread)}
        return links

    async def _search_claims(self, codec: PayloadCodec | None, payload: Payload) -> set[Link]:
        """Follow a reference of the SDK's external storage, if our driver wrote it."""
        links = await search(payload.data)
        for data in find_claims(payload.data):
            ref = Payload(metadata={"encoding": ENCODING}, data=data)
            try:
                parse_ref(ref)
            except (BlobCorrupt, UnknownVersion):
                continue  # Another driver's.
            links |= await self._links(codec, ref)
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
        links = await search(reading.data) | await self._sources(thread, pack)
        return links if pack.envelope else links | find_segment_links(reading.data)

    async def classify(self, data: bytes, thread: str, name: bytes) -> SweepClass:
        """Return the class of a pack; `unknown` if it cannot be read here."""
        try:
            pack = Pack(data, name, thread, await self._packs.keys(key_id_of(data)))
        except EverlongError:
            return "unknown"
        return "payload" if pack.envelope else "journal"

    async def _open(self, thread: str, name: bytes) -> Pack:
        try:
            return await self._packs.open(thread, name)
        except EverlongError as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error

    async def _sources(self, thread: str, pack: Pack) -> set[Link]:
        """Return the packs that a pack needs: its sources, and those of its base.

        They are leaves: a read uses their frames, and not the packs in their own manifests.
        """
        try:
            names = await self._packs.needed(thread, pack)
        except EverlongError as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error
        return {Link(name, thread, is_leaf=True) for name in names}


async def _unwrap(codec: OuterCodec, payloads: Sequence[Payload]) -> list[Payload]:
    """Remove the outer layer, one payload at a time: each was encoded with other payloads around it."""
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


def _batches(payloads: Sequence[Payload]) -> Iterable[list[Payload]]:
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
