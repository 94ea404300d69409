"""One contract that every blob store keeps."""

import asyncio
from pathlib import Path

import pytest

from everlong.errors import BlobMissing, InvalidKey
from everlong.storage import BlobInfo, BlobStore, open_store


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return open_store("memory:" if request.param == "memory" else tmp_path.as_uri())


async def listed(store: BlobStore, prefix: str = "") -> set[tuple[str, int]]:
    return {(info.key, info.size_bytes) async for info in store.list(prefix)}


def test_store_is_one(store: BlobStore) -> None:
    assert isinstance(store, BlobStore)


async def test_get_returns_what_was_put(store: BlobStore) -> None:
    for data in (b"", b"x", bytes(range(256)) * 5000):
        await store.put("v1/a/b", data)
        assert await store.get("v1/a/b") == data


async def test_range_is_a_slice_and_ends_with_the_object(store: BlobStore) -> None:
    await store.put("k", b"0123456789")
    assert await store.get_range("k", 2, 3) == b"234"
    assert await store.get_range("k", 8, 100) == b"89"
    assert await store.get_range("k", 20, 5) == b""
    assert await store.get_range("k", 3, 0) == b""


async def test_missing_object_is_named(store: BlobStore) -> None:
    await store.put("v1/a/b", b"x")
    for key in ("nothing", "v1", "v1/a", "v1/a/b/c"):
        with pytest.raises(BlobMissing, match=f"'{key}'"):
            await store.get(key)
        with pytest.raises(BlobMissing):
            await store.get_range(key, 0, 1)


async def test_list_yields_keys_and_sizes_under_a_prefix(store: BlobStore) -> None:
    for key, data in (("v1/a/1", b"x"), ("v1/a/2", b"xx"), ("v1/ab/1", b""), ("v2/a/1", b"x")):
        await store.put(key, data)
    assert await listed(store, "v1/a/") == {("v1/a/1", 1), ("v1/a/2", 2)}
    assert await listed(store, "v1/a") == {("v1/a/1", 1), ("v1/a/2", 2), ("v1/ab/1", 0)}
    assert len(await listed(store)) == 4
    assert await listed(store, "v3/") == set()
    assert BlobInfo("v2/a/1", 1) in [info async for info in store.list("v2/")]


async def test_delete_forgets_and_passes_over_what_is_not_there(store: BlobStore) -> None:
    await store.put("v1/a/1", b"x")
    await store.put("v1/a/2", b"x")
    await store.delete(["v1/a/1", "v1/a/9"])
    assert await listed(store) == {("v1/a/2", 1)}
    await store.delete([])


async def test_putting_again_is_harmless(store: BlobStore) -> None:
    await asyncio.gather(*(store.put("v1/a/1", b"same") for _ in range(20)))
    assert await store.get("v1/a/1") == b"same"
    assert await listed(store) == {("v1/a/1", 4)}


@pytest.mark.parametrize(
    "key",
    [
        "|",
        "/",
        "/etc/passwd",
        "..",
        "a/../b",
        "a/..",
        "a//b",
        "a/",
        ".hidden",
        "a/.b",
        "a|b",
        "ä",
        "a\\b",
        "a\x00b",
        "a\n",
        "",
        "a b",
        "x" * 600,
    ],
)
async def test_keys_that_could_escape_are_refused(store: BlobStore, key: str) -> None:
    for call in (store.put(key, b"x"), store.get(key), store.delete([key])):
        with pytest.raises(InvalidKey):
            await call
    assert await listed(store) == set()


@pytest.mark.parametrize("prefix", ["/", "/etc", "../", "a/../", ".", "a//", "a b"])
async def test_prefixes_that_could_escape_are_refused(store: BlobStore, prefix: str) -> None:
    with pytest.raises(InvalidKey):
        await listed(store, prefix)
