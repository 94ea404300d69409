"""A listing under way, kept in the store in parts.

The index is on a local disk. A worker that goes on with the sweep of another one has another disk, so
it reads the parts and lists what is behind them. A sweep deletes its parts when it ends.
"""

import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from everlong import limits
from everlong.errors import EverlongError
from everlong.storage.blobs import BlobInfo, BlobStore
from everlong.storage.packstore import PackStore
from everlong.storage.threads import in_thread
from everlong.sweep.envelope import sealing_key_id, unwrap, wrap

_Row = tuple[str, int, int]  # Key, size, and when it was put.
# The end of the range with `_` for `/`, the number of the part, and when the listing began.
_NAME: Final = re.compile(r"([0-9a-z_]+)-([0-9]{6})-([0-9]{13})\.bin")
# Two attempts of one sweep may write parts of the same number: each says where it begins and ends.
_PART: Final = TypeAdapter(tuple[str, str, list[_Row]])


class Cursor(NamedTuple):
    """How far a range of keys has been listed."""

    folder: str
    before: str
    """The end of the range, which is not in it."""
    after: str
    """The last key that was listed; the same as `before` if all were."""
    kept: str
    """The last key that is in a part in the store."""
    parts: int
    """Number of those parts."""


class StoredPart(NamedTuple):
    """One part that lies in the store."""

    before: str
    number: int
    began_ms: int
    key: str

    @property
    def folder(self) -> str:
        """The folder that was listed."""
        return self.before[: self.before.rindex("/") + 1]


class StoredListing:
    """Parts of the listing of one sweep.

    Args:
        store: The store itself.
        packs: Has the keys by which parts are sealed.
        place: Prefix of all records of the namespace.
        sweep: Id of the sweep, the same in all of its activities.

    """

    def __init__(self, store: BlobStore, packs: PackStore, place: str, sweep: str) -> None:
        self._store = store
        self._packs = packs
        self._all = f"{place}/listing/"
        self._place = f"{self._all}{sweep}/"
        self.sweep = sweep

    async def write(self, cursor: Cursor, start: str, began_ms: int, rows: Sequence[_Row]) -> None:
        """Keep what was listed of a range from `start` on. One PUT: it is there or it is not."""
        end = cursor.before.replace("/", "_")
        key = f"{self._place}{end}-{cursor.parts:06d}-{began_ms:013d}.bin"
        plain = json.dumps([start, cursor.kept, rows], separators=(",", ":")).encode()
        keys = await self._packs.keys()
        await self._store.put(key, await in_thread(wrap, plain, key, keys))

    async def find(self) -> list[StoredPart]:
        """Return the parts of this sweep, by range and number."""
        found: list[StoredPart] = []
        async for info in self._store.list(self._place):
            name = _NAME.fullmatch(info.key.removeprefix(self._place))
            if name is not None:
                before = name[1].replace("_", "/")
                found.append(StoredPart(before, int(name[2]), int(name[3]), info.key))
        return sorted(found)

    async def read(self, part: StoredPart, cursor: Cursor) -> tuple[Cursor, list[BlobInfo]] | None:
        """Return the objects of a part, and the cursor behind it.

        None if it cannot be read, or does not begin where the cursor is: behind that point the store is
        listed again.
        """
        try:
            data = await self._store.get(part.key)
            keys = await self._packs.keys(sealing_key_id(data))
            plain = await in_thread(unwrap, data, part.key, keys)
            start, end, rows = _PART.validate_json(plain)
        except (EverlongError, ValidationError):
            return None
        if (start, part.number) != (cursor.after, cursor.parts + 1):
            return None
        if not start < end <= cursor.before:
            return None
        infos = [BlobInfo(*row) for row in rows]
        return cursor._replace(after=end, kept=end, parts=part.number), infos

    async def delete(self, now_ms: int) -> None:
        """Delete the parts of this sweep, and those of sweeps that were given up."""
        oldest_ms = now_ms - 2000 * limits.SWEEP_LISTING_SECONDS_MAX
        found: list[str] = []
        async for info in self._store.list(self._all):
            name = _NAME.fullmatch(info.key.rpartition("/")[2])
            is_own = info.key.startswith(self._place)
            if is_own or (name is not None and int(name[3]) < oldest_ms):
                found.append(info.key)
        await self._store.delete(found)
