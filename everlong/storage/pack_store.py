"""Pack store: writes packs to a blob store, and reads them back checked.

It bounds what a read fetches before it fetches it: refs and manifests may be forged.
"""

import asyncio
import collections
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from everlong import limits
from everlong.errors import (
    BlobCorrupt,
    BlobMissing,
    KeyMissing,
    ObjectTooLarge,
    RefRefused,
    UnknownVersion,
)
from everlong.models import Kind, Ref, make_printable, thread_key
from everlong.storage import open_store
from everlong.storage.base import BlobStore, FailedPuts, get_bounded
from everlong.storage.cache import CachedBlobStore
from everlong.storage.encryption_keys import Keyring, Keys, KeySource
from everlong.storage.instrumented import READS, CallObserver, InstrumentedBlobStore
from everlong.storage.objects import JOURNAL_LEVEL, run_in_thread
from everlong.storage.packs import (
    DICTIONARY_BYTES_MAX,
    ENVELOPE_BYTES_MAX,
    FRAME_BYTES,
    Contents,
    DamagedPack,
    Extent,
    Pack,
    build_contents,
    build_pack,
    compute_stored_bytes_max,
    parse_key_id,
    share_ends,
)
from everlong.storage.quarantine import RestoringBlobStore

T = TypeVar("T")

_LAYOUT: Final = "v1"

READ_OBSERVER: Final[ContextVar[Callable[["PackStore", str], None] | None]] = ContextVar(
    "everlong_read_observer", default=None
)
"""Called with the pack store and a description of each object before it is read, even if the object is
then found in memory. A sweep finds the refs that a foreign codec hides this way."""

# Plaintext of parsed bodies, over all threads. The parsed objects take several times as much memory. A
# step of a thread with a context of 64 KiB reads about 64 KiB of bodies.
_PARSED_BYTES_MAX: Final = 8 * limits.MIB
_PARSED_ENTRY_BYTES: Final = 500
# A writer uses at least a quarter of each pack that it refers to (limits.SPARSE_RATIO), so the stream
# of a source is at most 4 times the bytes that are used of it.
_SOURCE_FACTOR: Final = int(1 / limits.SPARSE_RATIO)
# Bounds of sources are rounded up to this, so that most reads of one pack share a fetch.
_BOUND_STEP_BYTES: Final = 512 * limits.KIB
# Bound on the sources that are fetched at the same time. A larger source is fetched alone.
_FETCHED_BYTES_MAX: Final = 64 * limits.MIB
# Metadata that a server with a budget allows for each source.
_SMALL_ENVELOPE_BYTES: Final = 64 * limits.KIB
# A read reserves 5 times its data of a server's budget (its own pack, and 4 times for the sources), and
# these bytes for the heads of up to 88 packs of some KiB each.
_HEADS_BYTES: Final = 8 * limits.MIB
# A body is compressed with a dictionary only if that reduces it to this share or less. The packs of
# the dictionary have at most this many stored bytes: servers fetch up to 512 KiB for a source without
# extents.
_DICTIONARY_RATIO_MAX: Final = 2 / 3
_DICTIONARY_STORED_BYTES_MAX: Final = 256 * limits.KIB
# The largest pack that is ever written.
_PACK_BYTES_MAX: Final = compute_stored_bytes_max(limits.OBJECT_BYTES_MAX)
_RESTORE = "Restore it from a backup of the store; waiting work then continues by itself."


# Payloads of an unknown thread are stored under this one.
NO_THREAD: Final = thread_key("", "")


def thread_prefix(thread: str) -> str:
    """Return the listing prefix of all objects of a thread."""
    return f"{_LAYOUT}/{thread}/"


def pack_key(thread: str, name: bytes) -> str:
    """Return the store key of a pack."""
    return f"{thread_prefix(thread)}{name.hex()}.pack"


def object_key(ref: Ref) -> str:
    """Return the store key of the pack that a ref names."""
    return f"{thread_prefix(ref.thread)}{ref.digest}.pack"


@runtime_checkable
class _EvictableCache(Protocol):
    """A store that keeps copies, and can drop a damaged one."""

    async def forget(self, keys: Sequence[str]) -> None: ...


@dataclasses.dataclass(frozen=True)
class ReadResult:
    """A pack that was read, the packs that it refers to, and their data."""

    pack: Pack
    sources: list[Pack]
    extents: list[Extent]
    """Extents of all of the data. Source 0 is the pack itself, source n the n-th of `sources`."""
    data: bytes = dataclasses.field(repr=False)


class _ParsedBody(NamedTuple):
    """A parsed body. It is valid for one object in memory; equal bytes must be checked first."""

    stored: bytes
    size_bytes: int
    key_id: str
    value: Any


class _ParsedBodyCache:
    """LRU cache of bodies that were read and checked.

    A step reads the newest segments of a journal several times, and the next step reads them again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bodies: collections.OrderedDict[tuple[str, object], _ParsedBody] = (
            collections.OrderedDict()
        )
        self._bytes = 0

    def get(self, key: str, parse: object) -> _ParsedBody | None:
        with self._lock:
            found = self._bodies.get((key, parse))
            if found is not None:
                self._bodies.move_to_end((key, parse))
            return found

    def keep(self, key: str, parse: object, parsed: _ParsedBody) -> None:
        if parsed.size_bytes > _PARSED_BYTES_MAX // 64:
            return
        with self._lock:
            self._forget((key, parse))
            self._bodies[key, parse] = parsed
            self._bytes += parsed.size_bytes + _PARSED_ENTRY_BYTES
            while self._bytes > _PARSED_BYTES_MAX:
                self._forget(next(iter(self._bodies)))

    def _forget(self, place: tuple[str, object]) -> None:
        found = self._bodies.pop(place, None)
        if found is not None:
            self._bytes -= found.size_bytes + _PARSED_ENTRY_BYTES


@dataclasses.dataclass
class WriteStats:
    """Counters of journal writes by this process: segments, message bodies and snapshots."""

    payload_bytes: int = 0
    """Bytes before compression, repeats included."""
    repeated_bytes: int = 0
    """Bytes before compression of packs that the store already had."""
    written_bytes_by_kind: collections.Counter[Kind] = dataclasses.field(
        default_factory=collections.Counter
    )
    """Growth of the store, by the kind of the objects."""

    @property
    def written_bytes(self) -> int:
        """Growth of the store."""
        return self.written_bytes_by_kind.total()


class ByteBudget:
    """A semaphore that counts bytes, shared by concurrent work. Waiters are served in order.

    Each task reserves once, before it begins, and waits for nothing else of the same budget while it
    holds its share. Therefore tasks cannot deadlock.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken_bytes = 0
        self._waiting: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()

    @contextlib.asynccontextmanager
    async def reserve(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold a share during the body. A larger size than the budget takes all of it, alone."""
        share = min(size_bytes, self.bytes_max)
        await self._take(share)
        try:
            yield
        finally:
            self.taken_bytes -= share
            self._serve()

    async def _take(self, share: int) -> None:
        if not self._waiting and self.taken_bytes + share <= self.bytes_max:
            self.taken_bytes += share
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((share, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # Served and cancelled at the same time.
                self.taken_bytes -= share
            self._serve()
            raise

    def _serve(self) -> None:
        while self._waiting:
            share, place = self._waiting[0]
            if place.done():  # Cancelled while it waited.
                self._waiting.popleft()
                continue
            if self.taken_bytes + share > self.bytes_max:
                return
            self._waiting.popleft()
            self.taken_bytes += share
            place.set_result(None)


class PackStore:
    """Reads and writes the packs of all threads. It keeps counters, and a cache of parsed bodies.

    With a keyring, everything is sealed when written, and unsealed objects are refused when read. Set
    `accept_unsealed` while older histories still refer to unsealed packs.

    With a `budget`, concurrent reads together hold no more stored bytes than the budget, and a single
    read that needs more is refused. A server has a budget, since its clients decide what it reads.
    """

    def __init__(
        self,
        store: BlobStore,
        keyring: Keyring | None = None,
        *,
        accept_unsealed: bool = False,
        budget: ByteBudget | None = None,
    ) -> None:
        self.store = store
        self.keyring = keyring
        self.accept_unsealed = accept_unsealed
        self._budget = budget
        self.stats = WriteStats()
        self._parsed = _ParsedBodyCache()
        self._unsure = FailedPuts()

    async def keys(self, wanted: str = "") -> Keys | None:
        """Return the keys, if any. A key service is called again for an unknown `wanted` id."""
        return None if self.keyring is None else await self.keyring.keys(wanted)

    def check_sealed(self, key_id: str, what: str) -> None:
        """Raise `RefRefused` for an unsealed object if keys are configured. `what` names the object."""
        if (observe := READ_OBSERVER.get()) is not None:
            observe(self, what)
        if self.keyring is not None and not key_id and not self.accept_unsealed:
            raise RefRefused(
                f"{what} is not sealed, and keys are configured here, so it is not read. If it was "
                "written before there were keys, set accept_unsealed (EVERLONG_ACCEPT_UNSEALED=1) until "
                "those histories are gone."
            )

    async def read(
        self,
        thread: str,
        name: bytes,
        size_bytes: int,
        key_id: str | None = None,
        *,
        stored: bytes | None = None,
    ) -> ReadResult:
        """Return the data of a pack, assembled from it and from earlier packs.

        Args:
            thread: Key of the thread.
            name: Name of the pack.
            size_bytes: Size of the data; any other size is refused.
            key_id: Key that the pack must be sealed with; empty for an unsealed pack, None for any.
            stored: The stored bytes, if the caller has just read them.

        """
        async with self._reserve(size_bytes):
            try:
                return await self._read(thread, name, size_bytes, key_id, stored)
            except (BlobCorrupt, UnknownVersion, KeyMissing, RefRefused):
                # Perhaps only a cached copy is damaged: drop it, and read the store once more.
                if not isinstance(self.store, _EvictableCache):
                    raise
            await self._forget(self.store, thread, name, size_bytes)
            return await self._read(thread, name, size_bytes, key_id)

    @contextlib.asynccontextmanager
    async def _reserve(self, size_bytes: int) -> AsyncIterator[None]:
        """Reserve the budget for a read during the body, if there is a budget."""
        if self._budget is None:
            yield
            return
        if size_bytes > self._budget.bytes_max:
            raise ObjectTooLarge(
                f"{size_bytes} bytes are not read here: this server holds {self._budget.bytes_max} at a "
                "time. Read them with a client that has the plugin."
            )
        async with self._budget.reserve(_get_share_bytes(size_bytes)):
            yield

    async def _read(
        self,
        thread: str,
        name: bytes,
        size_bytes: int,
        key_id: str | None,
        stored: bytes | None = None,
    ) -> ReadResult:
        pack = await self.open(thread, name, stored, bytes_max=_get_pack_bytes_max(size_bytes))
        if key_id is not None and pack.key_id != key_id:
            raise RefRefused(
                f"pack {pack_key(thread, name)!r} is sealed with key {pack.key_id!r}, and its ref was "
                f"made with {key_id!r}: it is forged. Find its writer; nothing was read."
            )
        if pack.size_bytes != size_bytes:
            # Checked before any source is fetched or inflated: the ref may be damaged or forged.
            raise _explain_damage(
                pack_key(thread, name),
                BlobCorrupt(f"it holds {pack.size_bytes} bytes, and its ref says {size_bytes}"),
            )
        if not pack.sources:
            return await self._assemble(thread, pack, [], pack.extents)
        base = None if pack.base is None else await self._open_base(thread, pack, pack.base)
        try:
            names, extents = pack.resolve(base)
        except BlobCorrupt as error:
            raise _explain_damage(pack_key(thread, name), error) from error
        sources = await self._open_sources(thread, pack, names, extents, base)
        return await self._assemble(thread, pack, sources, extents)

    async def _open_base(self, thread: str, pack: Pack, name: bytes) -> Pack:
        bound = compute_stored_bytes_max(_get_stream_bytes_max(pack.size_bytes))
        return await self.open(thread, name, bytes_max=bound)

    async def _assemble(
        self, thread: str, pack: Pack, sources: list[Pack], extents: list[Extent]
    ) -> ReadResult:
        if any(source.key_id != pack.key_id for source in sources):
            # No writer mixes keys. A forged unsealed pack could expose a sealed one this way.
            raise RefRefused(
                f"pack {pack_key(thread, pack.name)!r} points to packs of another key: it is forged. "
                "Find its writer; nothing was read."
            )
        try:
            if pack.size_bytes < limits.LOOP_BYTES_MAX:
                data = pack.assemble(sources, extents)
            else:
                data = await run_in_thread(pack.assemble, sources, extents)
        except DamagedPack as error:
            raise _explain_damage(pack_key(thread, error.name), error) from error
        except BlobCorrupt as error:
            raise _explain_damage(pack_key(thread, pack.name), error) from error
        for source in sources:
            source.release()
        return ReadResult(pack, sources, extents, data)

    async def _open_sources(
        self,
        thread: str,
        pack: Pack,
        names: Sequence[bytes],
        extents: Sequence[Extent],
        base: Pack | None,
    ) -> list[Pack]:
        """Open the packs that a read needs, each with a bound on its stored size."""
        opened: dict[bytes, Pack] = {} if base is None else {base.name: base}
        if self._budget is None:
            bounds = zip(names, _bound_sources(len(names), extents), strict=True)
            wanted = collections.deque(each for each in bounds if each[0] not in opened)
            while wanted:
                opened |= await self._open_batch(thread, wanted, _FETCHED_BYTES_MAX)
            return [opened[name] for name in names]
        share = min(_get_share_bytes(pack.size_bytes), self._budget.bytes_max)
        bounds = zip(names, _bound_sources(len(names), extents, _SMALL_ENVELOPE_BYTES), strict=True)
        wanted = collections.deque(each for each in bounds if each[0] not in opened)
        while wanted:
            room_bytes = share - sum(len(each.stored) for each in (pack, *opened.values()))
            name, bound = wanted[0]
            wanted[0] = (name, min(bound, room_bytes))
            try:
                opened |= await self._open_batch(thread, wanted, room_bytes)
            except BlobCorrupt as error:
                if not isinstance(error.__cause__, ObjectTooLarge):
                    raise
                raise ObjectTooLarge(
                    f"a payload of {pack.size_bytes} bytes needs packs of over {share}, more than "
                    "this server holds for it. Read it with a client that has the plugin."
                ) from error
        return [opened[name] for name in names]

    async def _open_batch(
        self, thread: str, wanted: collections.deque[tuple[bytes, int]], room_bytes: int
    ) -> dict[bytes, Pack]:
        """Open the first wanted pack, and the next ones that fit into `room_bytes`."""
        reads: list[Callable[[], Awaitable[Pack]]] = []
        while wanted and (not reads or wanted[0][1] <= room_bytes):
            name, bound = wanted.popleft()
            room_bytes -= bound
            reads.append(partial(self.open, thread, name, bytes_max=bound))
        return {pack.name: pack for pack in await gather_bounded(reads)}

    async def find_needed(self, thread: str, pack: Pack) -> set[bytes]:
        """Return the names of all other packs that a reader of a pack needs."""
        base = None if pack.base is None else await self.open(thread, pack.base)
        return {*pack.sources, *(base.sources if base else ())}

    async def _forget(
        self, store: _EvictableCache, thread: str, name: bytes, size_bytes: int
    ) -> None:
        """Drop the cached copies of a pack and of all packs that it refers to."""
        await store.forget([pack_key(thread, name)])
        pack = await self.open(thread, name, bytes_max=_get_pack_bytes_max(size_bytes))
        await store.forget([pack_key(thread, each) for each in pack.sources])
        if pack.base is not None:
            base = await self._open_base(thread, pack, pack.base)
            await store.forget([pack_key(thread, each) for each in base.sources])

    async def warm(self, thread: str, name: bytes, *, alone: bool) -> int:
        """Fetch a pack and, unless it is `alone`, the packs that it refers to; return the bytes."""
        size_bytes = await self._fetch(thread, name)
        if not alone:
            pack = await self.open(thread, name)
            size_bytes += await self._fetch_all(thread, pack.sources)
            if pack.base is not None:
                base = await self.open(thread, pack.base)
                others = [each for each in base.sources if each not in pack.sources]
                size_bytes += await self._fetch_all(thread, others)
        return size_bytes

    async def _fetch_all(self, thread: str, names: Sequence[bytes]) -> int:
        return sum(await gather_bounded([partial(self._fetch, thread, name) for name in names]))

    async def _fetch(self, thread: str, name: bytes) -> int:
        return len(await get_bounded(self.store, pack_key(thread, name), _PACK_BYTES_MAX))

    async def open(
        self,
        thread: str,
        name: bytes,
        stored: bytes | None = None,
        *,
        bytes_max: int = _PACK_BYTES_MAX,
    ) -> Pack:
        """Return a pack with a checked manifest, which lists the earlier packs that it refers to.

        A pack of more than `bytes_max` stored bytes is refused before it is read.
        """
        key = pack_key(thread, name)
        data = await self._get(key, bytes_max) if stored is None else stored
        try:
            key_id = parse_key_id(data)
            self.check_sealed(key_id, f"pack {key!r}")
            return Pack(data, name, thread, await self.keys(key_id))
        except BlobCorrupt as error:
            raise _explain_damage(key, error) from error
        except (UnknownVersion, KeyMissing) as error:
            raise type(error)(f"pack {key!r}: {error}") from error

    async def _get(self, key: str, bytes_max: int = _PACK_BYTES_MAX) -> bytes:
        try:
            return await get_bounded(self.store, key, bytes_max)
        except BlobMissing as error:
            raise BlobMissing(f"pack {key!r} is missing: {error}") from error
        except ObjectTooLarge as error:
            raise BlobCorrupt(str(error)) from error

    async def write_body(
        self,
        thread: str,
        kind: Kind,
        plaintext: bytes,
        *,
        preview: str = "",
        parsed: tuple[Callable[[bytes], T], T] | None = None,
        excerpt: Ref | None = None,
        previous: Ref | None = None,
    ) -> tuple[Ref, int]:
        """Store a plaintext as a pack of its own; return its ref, once durable, and bytes written.

        A body has no envelope and a payload always has one, so neither can be passed off as the other.

        Args:
            thread: Key of the thread.
            kind: Kind of the plaintext.
            plaintext: The bytes to store.
            preview: Text whose first characters go into the ref.
            parsed: A function for `parse_body` and its result for this plaintext, so that this process
                need not parse it again.
            excerpt: A body of the thread that holds the beginning and the end of this one. Those bytes
                are not stored again, and a reader of this body fetches the excerpt too.
            previous: An earlier version of this body. If it saves a third, it serves as the dictionary,
                and a reader of this body fetches it too.

        """
        keys = await self.keys()
        contents = build_contents(plaintext, JOURNAL_LEVEL)
        if excerpt is not None:
            reading = await self._read_source(thread, excerpt, keys)
            if reading is not None and not reading.sources:
                contents = share_ends(contents, plaintext, reading.pack, reading.data)
        name, data = await _build(contents, thread, keys)
        if previous is not None:
            reading = await self._read_source(thread, previous, keys)
            if reading is not None and _is_dictionary(reading, plaintext):
                shorter = _with_dictionary(contents, reading)
                built = await _build(shorter, thread, keys)
                if len(built[1]) <= _DICTIONARY_RATIO_MAX * len(data):
                    name, data = built
        size_bytes = await self._store(thread, kind, name, data, len(plaintext), parsed)
        ref = Ref(
            thread=thread,
            digest=name.hex(),
            size_bytes=len(plaintext),
            kind=kind,
            preview=make_printable(preview, limits.PREVIEW_CHARS_MAX),
        )
        return ref, size_bytes

    async def _store(
        self,
        thread: str,
        kind: Kind,
        name: bytes,
        data: bytes,
        plain_bytes: int,
        parsed: tuple[Callable[[bytes], Any], Any] | None = None,
    ) -> int:
        """Store the bytes of a pack and count them; return the bytes written.

        A pack that the store already has counts as 0 bytes, unless the current work stored it itself in
        an earlier attempt, whose count was lost.
        """
        key = pack_key(thread, name)
        is_new = await self.put(key, data)
        if parsed is not None:
            parse, value = parsed
            known = _ParsedBody(data, plain_bytes, parse_key_id(data), value)
            self._parsed.keep(key, parse, known)
        self.stats.payload_bytes += plain_bytes
        if is_new:
            self.stats.written_bytes_by_kind[kind] += len(data)
        else:
            self.stats.repeated_bytes += plain_bytes
        return len(data) if _counts_as_written(key, len(data), is_new=is_new) else 0

    async def _read_source(self, thread: str, ref: Ref, keys: Keys | None) -> ReadResult | None:
        """Read a body that a new pack may refer to: one of the same thread and key; otherwise None."""
        if ref.thread != thread:
            return None
        reading = await self.read(thread, bytes.fromhex(ref.digest), ref.size_bytes)
        return reading if reading.pack.key_id == (keys.active if keys else "") else None

    async def put(self, key: str, data: bytes) -> bool:
        """Store the bytes of a pack; return whether the store grew by them.

        It did not grow if the object existed: names are digests, so the content is the same.
        """
        try:
            is_new = await self.store.put(key, data)
        except BaseException:
            # The store may have taken the object, and only its answer was lost. Then the next PUT of
            # this key finds an object that has not been counted.
            self._unsure.add(key)
            raise
        if is_new is False and key not in self._unsure:
            return False
        self._unsure.discard(key)
        return True

    async def read_body(self, ref: Ref) -> bytes:
        """Return the plaintext of a ref, checked against its digest and size."""
        return await self.parse_body(ref, bytes)

    async def parse_body(self, ref: Ref, parse: Callable[[bytes], T]) -> T:
        """Return the result of `parse`, a module-level function, for the plaintext of a ref.

        The store is always read. While it returns the identical object, as the memory cache does, the
        object is not checked, inflated and parsed again.
        """
        name = bytes.fromhex(ref.digest)
        key = pack_key(ref.thread, name)
        stored = await self._get(key, _get_pack_bytes_max(ref.size_bytes))
        known = self._parsed.get(key, parse)
        if known is not None and await self._is_known(known, key, stored, ref.size_bytes):
            value: T = known.value
            return value
        reading = await self.read(ref.thread, name, ref.size_bytes, stored=stored)
        if reading.pack.envelope:
            # A payload may hold any bytes, even those of a valid journal segment.
            raise RefRefused(
                f"{ref.kind} {key!r} is a workflow's payload and no part of a journal: the ref is "
                "forged. Find out which program gave it to this thread."
            )
        value = parse(reading.data)
        if not reading.sources:  # A pack with sources is valid only together with them.
            parsed = _ParsedBody(reading.pack.stored, ref.size_bytes, reading.pack.key_id, value)
            self._parsed.keep(key, parse, parsed)
        return value

    async def _is_known(self, known: _ParsedBody, key: str, stored: bytes, size_bytes: int) -> bool:
        """Return whether a cached parsed body is valid for this read."""
        if stored is not known.stored or size_bytes != known.size_bytes:
            return False
        if known.key_id:
            keys = await self.keys(known.key_id)
            if keys is None or known.key_id not in keys:
                return False  # The read that follows raises an error that names the missing key.
        self.check_sealed(known.key_id, f"pack {key!r}")
        return True


def open_packs(
    store: str | BlobStore,
    *,
    keys: KeySource | None = None,
    accept_unsealed: bool = False,
    cache_dir: str | Path | None = None,
    on_call: CallObserver | None = None,
    memory_bytes_max: int = limits.CACHE_MEMORY_BYTES_MAX,
    budget: ByteBudget | None = None,
) -> PackStore:
    """Open a store by its URL, or use an open one, and wrap it with the cache.

    `on_call` is called after each call that the cache passes on. Quarantined objects are restored when
    they are read. A `budget` bounds the bytes that concurrent reads hold.
    """
    if isinstance(store, str):
        store = open_store(store)
    if not isinstance(store, CachedBlobStore):
        store = CachedBlobStore(
            RestoringBlobStore(
                store if on_call is None else InstrumentedBlobStore(store, on_call), on_call
            ),
            memory_bytes_max=memory_bytes_max,
            disk=None if cache_dir is None else Path(cache_dir),
            disk_bytes_max=limits.CACHE_DISK_BYTES_MAX,
        )
    keyring = None if keys is None else Keyring(keys)
    return PackStore(store, keyring, accept_unsealed=accept_unsealed, budget=budget)


async def _build(contents: Contents, thread: str, keys: Keys | None) -> tuple[bytes, bytes]:
    """Return the name and the bytes of a pack; large ones are compressed in a thread."""
    if contents.size_bytes < limits.LOOP_BYTES_MAX:
        return build_pack(contents, thread, keys)
    return await run_in_thread(build_pack, contents, thread, keys)


def _is_dictionary(reading: ReadResult, plaintext: bytes) -> bool:
    """Return whether a body may serve as a dictionary within the bounds of readers."""
    pack = reading.pack
    packs = [pack, *reading.sources]
    return (
        len(plaintext) <= FRAME_BYTES
        and pack.stream_bytes == pack.size_bytes <= DICTIONARY_BYTES_MAX
        and len(packs) <= limits.DICTIONARIES_MAX
        and all(each.stored_stream_bytes <= _DICTIONARY_STORED_BYTES_MAX for each in packs)
        and sum(each.stream_bytes for each in packs) <= _SOURCE_FACTOR * len(plaintext)
    )


def _with_dictionary(contents: Contents, reading: ReadResult) -> Contents:
    """Return contents that use a whole earlier body as the compression dictionary.

    The packs that the earlier body needs are listed too, so a reader fetches all of them at once.
    """
    return dataclasses.replace(
        contents,
        sources=[reading.pack.name, *(source.name for source in reading.sources)],
        dictionary=Extent(1, 0, len(reading.data)),
        dictionary_data=reading.data,
    )


def _counts_as_written(key: str, size_bytes: int, *, is_new: bool) -> bool:
    """Return whether a pack counts as written by the current step or resume."""
    reads = READS.get()
    if reads is None or reads.stored is None:
        return is_new
    if is_new:
        reads.stored.add(key)
    elif key not in reads.stored:
        reads.repeated_bytes += size_bytes
        return False
    return True


def _explain_damage(key: str, error: BlobCorrupt) -> BlobCorrupt:
    return BlobCorrupt(f"{key!r} in the blob store is damaged: {error}. {_RESTORE}")


def _get_pack_bytes_max(size_bytes: int) -> int:
    """Return the bound on a pack's stored size by its data: its stream is never larger than its data."""
    return compute_stored_bytes_max(min(size_bytes, limits.OBJECT_BYTES_MAX))


def _get_stream_bytes_max(used_bytes: int) -> int:
    """Return the bound on the stream of a pack of which `used_bytes` are used."""
    return min(_SOURCE_FACTOR * max(used_bytes, 16 * limits.KIB), limits.OBJECT_BYTES_MAX)


def _bound_sources(
    sources: int, extents: Sequence[Extent], envelope_bytes: int = ENVELOPE_BYTES_MAX
) -> list[int]:
    """Return the bound on each source's stored size, by the bytes that the extents use of it."""
    used = [0] * (sources + 1)
    for source, _, length in extents:
        used[source] += length
    bounds = (
        compute_stored_bytes_max(_get_stream_bytes_max(each), envelope_bytes) for each in used[1:]
    )
    return [_BOUND_STEP_BYTES * (bound // _BOUND_STEP_BYTES + 1) for bound in bounds]


def _get_share_bytes(size_bytes: int) -> int:
    """Return the bytes that a read reserves of a server's budget."""
    return (1 + _SOURCE_FACTOR) * min(size_bytes, limits.OBJECT_BYTES_MAX) + _HEADS_BYTES


async def gather_bounded(reads: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run all reads, a bounded number at a time; return the results, or raise the first error.

    It waits for all reads before it raises, so that a retry does not run next to an earlier read.
    """
    if len(reads) <= 1:  # Most reads are of a single pack without sources, and need no task.
        return [await read() for read in reads]
    slots = asyncio.Semaphore(limits.STORE_READS_MAX)

    async def one(read: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await read()

    results = await asyncio.gather(*(one(read) for read in reads), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("list[T]", results)
