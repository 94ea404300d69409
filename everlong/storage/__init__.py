"""Storage: blob stores, the formats of stored objects, and the journal."""

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from everlong.errors import ConfigError, UnknownStoreScheme
from everlong.storage.base import BlobInfo, BlobStore
from everlong.storage.file import FileBlobStore
from everlong.storage.memory import MemoryBlobStore

__all__ = ["BlobInfo", "BlobStore", "open_store"]

_FORMS: Final = (
    "file:///absolute/dir, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or memory: "
    "for a trial."
)


def open_store(url: str) -> BlobStore:
    """Open the store at a URL, and check that it can be reached.

    `file:///absolute/dir`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or
    `memory:` for a trial. docs/how-to/deploy.md lists the options of bucket URLs.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # Not chained: the original error may quote credentials.
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
        # Imported here: obstore takes a quarter of a second to import.
        from everlong.storage.buckets import open_bucket

        return open_bucket(url)
    if not parts.scheme and url.startswith("/"):
        raise UnknownStoreScheme(
            f"the store is a path, and not a URL. Write it as file://{parts.path}"
        )
    # The rest of the URL may hold credentials, so only the scheme is quoted.
    raise UnknownStoreScheme(f"unknown store scheme {parts.scheme!r}. Use {_FORMS}")
