"""From a store's URL to a store."""

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from everlong import limits
from everlong.errors import ConfigError, UnknownStoreScheme
from everlong.storage.base import BlobStore
from everlong.storage.byte_budget import ByteBudget
from everlong.storage.cache import CachedBlobStore
from everlong.storage.file import FileBlobStore
from everlong.storage.instrumented import Called, CountedBlobStore
from everlong.storage.keys import Keyring, KeySource
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from everlong.storage.quarantine import RestoringBlobStore

_FORMS: Final = (
    "file:///absolute/dir, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or memory: "
    "for a trial."
)


def open_store(url: str) -> BlobStore:
    """Open the store at a URL, and check that it is there.

    `file:///absolute/dir`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or
    `memory:` for a trial. What may stand after a `?` in those of buckets is in docs/deploy.md.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # It would repeat what may be credentials.
        raise ConfigError(f"the store URL cannot be read. Use {_FORMS}") from None
    if parts.scheme == "memory":
        return MemoryBlobStore()
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ConfigError(
                "the store URL is not an absolute path. Write three slashes: file:///var/lib/blobs"
            )
        return FileBlobStore(Path(unquote(parts.path)))
    if parts.scheme in ("s3", "gs", "az"):
        # Here, because what it brings takes a quarter of a second to import.
        from everlong.storage.bucket_urls import open_bucket

        return open_bucket(url)
    # The rest of the URL may hold credentials, so only the scheme is repeated.
    raise UnknownStoreScheme(f"unknown store scheme {parts.scheme!r}. Use {_FORMS}")


# From what a user gives to the store as everything here uses it: with its cache and its keys.


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
