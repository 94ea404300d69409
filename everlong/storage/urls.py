"""From a store's URL to a store."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from everlong.errors import ConfigError, UnknownStoreScheme
from everlong.storage.blobs import BlobStore
from everlong.storage.files import FileBlobStore
from everlong.storage.memory import MemoryBlobStore


def open_store(url: str) -> BlobStore:
    """Open the store at `file:///absolute/dir` or `memory:`, and check that it can be written to."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"the store URL cannot be read: {error}") from error
    if parts.scheme == "memory":
        return MemoryBlobStore()
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ConfigError(
                f"store URL {url!r} is not an absolute path. Write three slashes: file:///var/lib/blobs"
            )
        return FileBlobStore(Path(unquote(parts.path)))
    # The rest of the URL may hold credentials, so only the scheme is repeated.
    raise UnknownStoreScheme(
        f"unknown store scheme {parts.scheme!r}. Use file:///absolute/dir, or memory: for a trial."
    )
