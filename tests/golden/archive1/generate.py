"""Wrote the files beside it, once: `python -m tests.golden.archive1.generate DIRECTORY`.

They are never written again: what is committed is what a release has written. A sealed file has a salt
of its own, so another run gives other bytes that say the same.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

from everlong.archive.manifest import MANIFEST, archive_key
from everlong.storage.keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.packstore import PackStore
from tests.archives import lived

KEYS: Final = {"2026-11": bytes(range(32))}


async def write(directory: Path) -> None:
    """Write a small archive of every kind of entry, plain and sealed."""
    directory.mkdir(parents=True, exist_ok=True)
    for kind, keys in (("plain", None), ("sealed", Keyring(KEYS))):
        store = MemoryBlobStore()
        manifest = await (await lived(PackStore(store, keys))).archived()
        listed = archive_key(manifest.thread, manifest.archive_id, MANIFEST)
        (directory / f"{kind}-manifest.bin").write_bytes(await store.get(listed))
        (directory / f"{kind}-file.bin").write_bytes(await store.get(manifest.file_key))


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
