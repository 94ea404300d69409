"""The contract of blob stores, as a test suite for your own store.

It runs with plain pytest, without plugins:

    from everlong.testing.contract import BlobStoreContract

    class TestMyStore(BlobStoreContract):
        async def new_store(self):
            return MyStore(...)  # An empty store: each test calls this once.

`new_store` can use fixtures in the usual way:

        @pytest.fixture(autouse=True)
        def place(self, tmp_path):
            self.root = tmp_path

Each test runs in its own event loop, from `new_store` to `close_store`.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

from everlong.errors import BlobMissing, InvalidKey
from everlong.limits import MIB
from everlong.storage.base import BlobInfo, BlobStore, FileUploader

_LARGE_BYTES: Final = 8 * MIB
_FILE_BYTES: Final = 20 * MIB + 3  # Several parts of a multipart upload.
_MANY: Final = 1_100  # More than S3's page of a listing and batch of a deletion, 1,000 each.
_AT_ONCE: Final = 50
_CLOCK_MS: Final = 60_000
_UNSAFE_KEYS: Final = (
    *("", "|", "/", "/etc/passwd", "..", "a/../b", "a/..", "a//b", "a/", ".hidden", "a/.b"),
    *("a|b", "a b", "a\\b", "a\x00b", "a\n", "a%2e", "a?b", "a#b", "x" * 600),
    # Homoglyphs, combining characters, and a surrogate that cannot be encoded.
    *("ä", "a\u0308", "\u0430", "a\u202eb", "a\u200bb", "\uff0e\uff0e", "😀", "a\ud800"),
)
_UNSAFE_PREFIXES: Final = ("/", "/etc", "../", "a/../", ".", "a//", "a b", "ä", "a\x00", "a?")

_TestBody = Callable[["BlobStoreContract", BlobStore], Coroutine[Any, Any, None]]


def _case(check: _TestBody) -> Callable[["BlobStoreContract"], None]:
    """Turn an async check into a plain test that needs no pytest plugin and no fixture."""

    def test(self: "BlobStoreContract") -> None:
        async def run() -> None:
            async with asyncio.timeout(self.seconds_max):
                store = await self.new_store()
                try:
                    await check(self, store)
                finally:
                    await self.close_store(store)

        asyncio.run(run())

    test.__name__, test.__qualname__ = check.__name__, check.__qualname__
    test.__doc__, test.__module__ = check.__doc__, check.__module__
    return test


class BlobStoreContract:
    """The tests. Subclass it with a name that begins with `Test`, and define `new_store`."""

    seconds_max: float = 120.0
    """Time limit of one test."""

    async def new_store(self) -> BlobStore:
        """Return an empty store."""
        raise NotImplementedError("a subclass of BlobStoreContract must define `new_store`")

    async def close_store(self, store: BlobStore) -> None:
        """Release the resources of the store, if it has any."""

    @_case
    async def test_the_store_is_a_blob_store(self, store: BlobStore) -> None:
        """It has all methods, and its repr is meant for error messages."""
        _check(isinstance(store, BlobStore), "the store does not have all methods of `BlobStore`")
        _check(repr(store) != object.__repr__(store), "errors show `repr(store)`: make it a URL")

    @_case
    async def test_get_returns_what_was_put(self, store: BlobStore) -> None:
        """The same bytes, for any content and size."""
        contents = (b"", b"x", b"\x00", b"\r\n\r\n", bytes(range(256)) * 5000)
        # One key each: a store may leave the object of a name that exists.
        for number, data in enumerate(contents):
            await store.put(f"v1/a/{number}", data)
            _check_equal(await store.get(f"v1/a/{number}"), data, "get after put")

    @_case
    async def test_an_empty_object_is_an_object(self, store: BlobStore) -> None:
        """It exists, it is listed, and all its ranges are empty."""
        await store.put("v1/empty", b"")
        _check_equal(await store.get("v1/empty"), b"", "get of an empty object")
        _check_equal(await store.get_range("v1/empty", 0, 10), b"", "range of an empty object")
        _check_equal(await _list_all(store), {("v1/empty", 0)}, "listing")

    @_case
    async def test_a_large_object_comes_back_whole_and_in_ranges(self, store: BlobStore) -> None:
        """8 MiB without repeated pages."""
        data = b"".join(number.to_bytes(8, "big") for number in range(_LARGE_BYTES // 8))
        await store.put("v1/large", data)
        _check_equal(await store.get("v1/large"), data, "get of 8 MiB")
        middle = _LARGE_BYTES // 2 - 3
        part = data[middle : middle + MIB]
        _check_equal(await store.get_range("v1/large", middle, MIB), part, "range within 8 MiB")
        _check_equal(await store.get_range("v1/large", _LARGE_BYTES - 1, 9), data[-1:], "last byte")

    @_case
    async def test_a_range_is_a_slice_and_ends_with_the_object(self, store: BlobStore) -> None:
        """Like `data[start : start + length]`."""
        await store.put("k", b"0123456789")
        for start, length in ((0, 10), (2, 3), (8, 100), (9, 1), (10, 1), (20, 5), (3, 0), (99, 0)):
            expected = b"0123456789"[start : start + length]
            found = await store.get_range("k", start, length)
            _check_equal(found, expected, f"range of {length} from {start}")

    @_case
    async def test_a_missing_object_is_named(self, store: BlobStore) -> None:
        """`BlobMissing` with the key in quotes, also for a prefix of another key."""
        await store.put("v1/a/b", b"x")
        for key in ("nothing", "v1", "v1/a", "v1/a/b/c"):
            with _raises(BlobMissing, f"get of {key!r}", mention=f"'{key}'"):
                await store.get(key)
            for length in (1, 0):
                with _raises(BlobMissing, f"get_range of {key!r}", mention=f"'{key}'"):
                    await store.get_range(key, 0, length)

    @_case
    async def test_a_deleted_object_is_missing(self, store: BlobStore) -> None:
        """It can be put again."""
        await store.put("v1/a", b"x")
        await store.delete(["v1/a"])
        with _raises(BlobMissing, "get of a deleted object", mention="'v1/a'"):
            await store.get("v1/a")
        await store.put("v1/a", b"x")
        _check_equal(await store.get("v1/a"), b"x", "get after a second put")

    @_case
    async def test_list_yields_keys_and_sizes_under_a_prefix(self, store: BlobStore) -> None:
        """A prefix is a string: it may end within a path segment, or equal the key."""
        objects = {
            "v1/a/1": b"x",
            "v1/a/2": b"xx",
            "v1/ab/1": b"",
            "v1/ab/c/d": b"",
            "v2/a/1": b"x",
        }
        for key, data in objects.items():
            await store.put(key, data)
        for prefix in (
            "",
            "v",
            "v1",
            "v1/",
            "v1/a",
            "v1/a/",
            "v1/ab/c/d",
            "v1/b",
            "v3/",
            "v2/a/1x",
        ):
            expected = {(key, len(data)) for key, data in objects.items() if key.startswith(prefix)}
            _check_equal(await _list_all(store, prefix), expected, f"listing of {prefix!r}")
        first = [info async for info in store.list("v2/")]
        _check_equal(first, [BlobInfo("v2/a/1", 1)], "what a listing yields")

    @_case
    async def test_a_listing_has_the_time_of_the_put_or_none(self, store: BlobStore) -> None:
        """Within a minute of this clock: a sweep deletes by age, and must not take young objects."""
        before_ms = 1000 * time.time()
        await store.put("v1/a/1", b"x")
        [info] = [info async for info in store.list("v1/")]
        if info.modified_ms is not None:
            late_ms = info.modified_ms - before_ms
            _check(abs(late_ms) < _CLOCK_MS, f"modified_ms is {late_ms:.0f} ms off")

    @_case
    async def test_many_objects_are_listed_once_each_and_deleted_at_once(
        self, store: BlobStore
    ) -> None:
        """More objects than fit into one page of a listing."""
        keys = [f"v1/many/{number:05}" for number in range(_MANY)]
        await store.put("v1/manyfold", b"x")
        for first in range(0, _MANY, _AT_ONCE):
            await asyncio.gather(*(store.put(key, b"x") for key in keys[first : first + _AT_ONCE]))
        found = [info.key async for info in store.list("v1/many/")]
        _check_equal(sorted(found), keys, "listing of many objects")
        await store.delete(iter(keys))
        _check_equal(await _list_all(store), {("v1/manyfold", 1)}, "listing after a deletion")

    @_case
    async def test_a_listing_can_be_left_early(self, store: BlobStore) -> None:
        """The caller may stop iterating, and the store keeps working."""
        for number in range(5):
            await store.put(f"v1/{number}", b"x")
        async for info in store.list("v1/"):
            _check(info.key.startswith("v1/"), "a listing left its prefix")
            break
        _check_equal(len(await _list_all(store, "v1/")), 5, "listing after one that was left")

    @_case
    async def test_delete_ignores_missing_objects(self, store: BlobStore) -> None:
        """Missing keys and an empty list are no errors; existing objects are deleted."""
        for key in ("v1/a/1", "v1/a/2", "v1/a/3"):
            await store.put(key, b"x")
        await store.delete(["v1/a/9", "v1/a/1", "v1/b", "v1/a", "v1/a/3", "v1/a/3"])
        _check_equal(await _list_all(store), {("v1/a/2", 1)}, "listing after a deletion")
        await store.delete([])
        await store.delete(["v1/a/1"])
        _check_equal(await _list_all(store), {("v1/a/2", 1)}, "listing after deletions of nothing")

    @_case
    async def test_putting_the_same_again_is_harmless(self, store: BlobStore) -> None:
        """Objects are immutable: a second `put` of the same content has no visible effect."""
        for number in range(3):
            is_new = await store.put("v1/a/1", b"same")
            _check(is_new in (None, number == 0), f"put number {number + 1} says {is_new}")
            _check_equal(await store.get("v1/a/1"), b"same", "get after putting again")
        _check_equal(await _list_all(store), {("v1/a/1", 4)}, "listing")

    @_case
    async def test_puts_of_one_key_at_once_leave_one_whole_object(self, store: BlobStore) -> None:
        """A concurrent reader sees no object or the whole object."""
        data = bytes(range(256)) * 1024

        async def read() -> None:
            for _ in range(5):
                with contextlib.suppress(BlobMissing):
                    _check_equal(await store.get("v1/a/1"), data, "get while it is being put")

        writers = (store.put("v1/a/1", data) for _ in range(20))
        await asyncio.gather(*writers, *(read() for _ in range(4)))
        _check_equal(await store.get("v1/a/1"), data, "get after many puts at once")
        _check_equal(await _list_all(store), {("v1/a/1", len(data))}, "listing")

    @_case
    async def test_a_file_becomes_one_object(self, store: BlobStore) -> None:
        """For stores with `put_file`: empty, small and multipart files."""
        if not isinstance(store, FileUploader):
            return
        with tempfile.TemporaryDirectory(prefix="everlong-contract-") as folder:
            path = Path(folder, "file")
            for size_bytes in (0, 1, _FILE_BYTES):
                _write_file(path, size_bytes)
                await store.put_file("v1/file", path)
                _check_equal(
                    await _list_all(store), {("v1/file", size_bytes)}, "listing after put_file"
                )
                for start in range(0, size_bytes, _LARGE_BYTES):
                    found = await store.get_range("v1/file", start, _LARGE_BYTES)
                    _check(
                        found == _file_content(start, size_bytes), f"put_file: bytes from {start}"
                    )
            with _raises(InvalidKey, "put_file to a key that could escape"):
                await store.put_file("../file", path)

    @_case
    async def test_a_cancelled_file_leaves_nothing(self, store: BlobStore) -> None:
        """For stores with `put_file`: a cancelled upload is not visible."""
        if not isinstance(store, FileUploader):
            return
        with tempfile.TemporaryDirectory(prefix="everlong-contract-") as folder:
            path = Path(folder, "file")
            _write_file(path, _FILE_BYTES)
            putting = asyncio.ensure_future(store.put_file("v1/file", path))
            await asyncio.wait({putting}, timeout=0.02)
            putting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await putting
            for key, size_bytes in await _list_all(store):
                # If the upload finished before the cancel, the whole object is visible.
                _check_equal((key, size_bytes), ("v1/file", _FILE_BYTES), "listing after a cancel")

    @_case
    async def test_many_calls_at_once_do_not_mix(self, store: BlobStore) -> None:
        """Each call gets its own bytes."""

        async def round_trip(number: int) -> None:
            data = f"{number} ".encode() * 1000
            await store.put(f"v1/{number}", data)
            _check_equal(await store.get(f"v1/{number}"), data, f"get of object {number}")
            start = number * 3
            part = await store.get_range(f"v1/{number}", start, 100)
            _check_equal(part, data[start : start + 100], f"range of object {number}")

        await asyncio.gather(*(round_trip(number) for number in range(_AT_ONCE)))

    @_case
    async def test_long_keys_are_kept(self, store: BlobStore) -> None:
        """Deep paths, long segments, and every class of allowed character."""
        keys = ["/".join(["seg"] * 40), "-_.aZ09/_._-/-", "a" * 200 + "/" + "b" * 200]
        for key in keys:
            await store.put(key, key.encode())
        for key in keys:
            _check_equal(await store.get(key), key.encode(), f"get of {key[:40]!r}")
        _check_equal({key for key, _ in await _list_all(store)}, set(keys), "listing")

    @_case
    async def test_keys_that_could_escape_are_refused(self, store: BlobStore) -> None:
        """`InvalidKey` from every method, before any effect."""
        for key in _UNSAFE_KEYS:
            calls: tuple[tuple[Callable[..., Awaitable[object]], tuple[object, ...]], ...] = (
                (store.put, (key, b"x")),
                (store.get, (key,)),
                (store.get_range, (key, 0, 1)),
                (store.delete, (["v1/safe", key],)),
            )
            for method, arguments in calls:
                with _raises(InvalidKey, f"the key {key[:40]!a}"):
                    await method(*arguments)
        _check_equal(await _list_all(store), set(), "listing after refused keys")

    @_case
    async def test_prefixes_that_could_escape_are_refused(self, store: BlobStore) -> None:
        """`InvalidKey` at the first step of the listing."""
        for prefix in _UNSAFE_PREFIXES:
            with _raises(InvalidKey, f"the prefix {prefix!a}"):
                await _list_all(store, prefix)


def _file_content(start: int, end: int) -> bytes:
    """Return at most 8 MiB of the test file's content, which has no repeated pages."""
    stop = min(start + _LARGE_BYTES, end)
    return b"".join(at.to_bytes(8, "big") for at in range(start // 8, -(-stop // 8)))[
        : stop - start
    ]


def _write_file(path: Path, size_bytes: int) -> None:
    with path.open("wb") as file:
        for start in range(0, size_bytes, _LARGE_BYTES):
            file.write(_file_content(start, size_bytes))


async def _list_all(store: BlobStore, prefix: str = "") -> set[tuple[str, int]]:
    return {(info.key, info.size_bytes) async for info in store.list(prefix)}


def _check(truth: bool, otherwise: str) -> None:
    if not truth:
        raise AssertionError(otherwise)


def _check_equal(found: object, expected: object, what: str) -> None:
    _check(found == expected, f"{what}: found {_short(found)}, expected {_short(expected)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


@contextlib.contextmanager
def _raises(kind: type[Exception], what: str, mention: str = "") -> Iterator[None]:
    try:
        yield
    except kind as error:
        _check(mention in str(error), f"{what}: the message does not hold {mention}: {error}")
    else:
        raise AssertionError(f"{what}: {kind.__name__} was not raised")
