"""From what a user gives to the store as everything here uses it: with its cache and its keys."""

from pathlib import Path

from everlong import limits
from everlong.storage.blobs import BlobStore
from everlong.storage.byte_budget import ByteBudget
from everlong.storage.cache import CachedBlobStore
from everlong.storage.counting import Called, CountedBlobStore
from everlong.storage.keys import Keyring, KeySource
from everlong.storage.packstore import PackStore
from everlong.storage.quarantine import RestoringBlobStore
from everlong.storage.urls import open_store


def open_packs(
    store: str | BlobStore,
    *,
    keys: KeySource | None = None,
    accept_unsealed: bool = False,
    cache_dir: str | Path | None = None,
    called: Called | None = None,
    memory_bytes_max: int = limits.CACHE_MEMORY_BYTES_MAX,
    budget: ByteBudget | None = None,
) -> PackStore:
    """Open a store by its URL, or take one that is open, and put the cache in front of it.

    `called` is told of each call that gets past the cache. What a sweep has quarantined is put back
    when it is read. A `budget` bounds what reads hold at the same time.
    """
    if isinstance(store, str):
        store = open_store(store)
    if not isinstance(store, CachedBlobStore):
        store = CachedBlobStore(
            RestoringBlobStore(
                store if called is None else CountedBlobStore(store, called), called
            ),
            memory_bytes_max=memory_bytes_max,
            disk=None if cache_dir is None else Path(cache_dir),
            disk_bytes_max=limits.CACHE_DISK_BYTES_MAX,
        )
    keyring = None if keys is None else Keyring(keys)
    return PackStore(store, keyring, accept_unsealed=accept_unsealed, budget=budget)
