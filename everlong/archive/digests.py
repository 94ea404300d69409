"""Digests of an archive's file: of all its bytes, and of its footer, which locates everything else.

Parquet has checksums for its pages but none for its footer. So a reader checks the footer when it opens
a file, and checks the whole file before it relies on all of it.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Final

from everlong import limits
from everlong.archive.manifest import Manifest
from everlong.errors import BlobCorrupt
from everlong.storage.base import BlobStore
from everlong.storage.objects import run_in_thread

# A file ends with the footer, its length in 4 bytes, and 4 magic bytes: sealed or plain.
_END_BYTES: Final = 8
_READ_BYTES: Final = 8 * limits.MIB


@dataclasses.dataclass(frozen=True)
class Digests:
    """Sizes and digests of a file, as its manifest has them."""

    size_bytes: int
    sha256: str
    footer_bytes: int
    footer_sha256: str


def hash_file(path: Path) -> Digests:
    """Return the digests of a file on disk after its writer has closed it."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(size_bytes - _END_BYTES)
        footer_bytes = int.from_bytes(file.read(4), "little") + _END_BYTES
        file.seek(size_bytes - footer_bytes)
        footer_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Digests(size_bytes, sha256, footer_bytes, footer_sha256)


async def hash_stored(store: BlobStore, manifest: Manifest) -> tuple[int, str]:
    """Return the size and the digest of the file in the store."""
    digest, at = hashlib.sha256(), 0
    while at <= manifest.size_bytes:
        data = await store.get_range(manifest.file_key, at, _READ_BYTES)
        if not data:
            break
        await run_in_thread(digest.update, data)
        at += len(data)
    return at, digest.hexdigest()


async def read_footer(store: BlobStore, manifest: Manifest) -> bytes:
    """Return the footer of the file. Raises `BlobCorrupt` if it is damaged."""
    start = max(0, manifest.size_bytes - manifest.footer_bytes)
    footer = await store.get_range(manifest.file_key, start, manifest.footer_bytes)
    if hashlib.sha256(footer).hexdigest() != manifest.footer_sha256:
        raise BlobCorrupt(
            f"the footer of archive {manifest.file_key!r} is not what was written: the file is damaged. "
            "Restore it from a backup of the store."
        )
    return footer
