"""Driver for the SDK's own `ExternalStorage`, over the same packs.

For teams that have standardised on it. The plugin does more: the SDK stores payloads after the codec has
compressed or encrypted them, so they are deduplicated only without a codec, and a replay stores
everything again.

    ExternalStorage(drivers=[EverlongStorageDriver("s3://bucket/prefix")])
"""

import base64
import binascii
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

from everlong.codecs.offload import Offloader
from everlong.codecs.refs import ENCODING, check_ref, parse_ref
from everlong.errors import BlobCorrupt
from everlong.models import thread_key
from everlong.storage import BlobStore
from everlong.storage.encryption_keys import KeySource
from everlong.storage.pack_store import gather_bounded, open_packs

_CLAIM: Final = "ref"


class EverlongStorageDriver(StorageDriver):
    """Stores payloads as packs, deduplicated within each thread.

    Args:
        store: A URL or a `BlobStore`, as for the plugin.
        keys: Keys by id, or a callable that returns them. The first key writes.
        accept_unsealed: With keys, also read objects that were stored before there were keys.
        cache_dir: A directory for copies of stored objects.
        name: Name of this driver in the references of a history.

    """

    def __init__(
        self,
        store: str | BlobStore,
        *,
        keys: KeySource | None = None,
        accept_unsealed: bool = False,
        cache_dir: str | Path | None = None,
        name: str = "everlong",
    ) -> None:
        self._packs = open_packs(
            store, keys=keys, accept_unsealed=accept_unsealed, cache_dir=cache_dir
        )
        self._offloader = Offloader(self._packs)
        self._name = name

    def name(self) -> str:
        """See `StorageDriver`."""
        return self._name

    def type(self) -> str:
        """See `StorageDriver`."""
        return "everlong.packs"

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload]
    ) -> list[StorageDriverClaim]:
        """See `StorageDriver`."""
        target = context.target
        thread = ""
        if isinstance(target, StorageDriverWorkflowInfo) and target.id:
            thread = thread_key(target.namespace, target.id)
        return [await self._store(thread, payload) for payload in payloads]

    async def retrieve(
        self,
        context: StorageDriverRetrieveContext,
        claims: Sequence[StorageDriverClaim],
    ) -> list[Payload]:
        """See `StorageDriver`."""
        return await gather_bounded([partial(self._retrieve, claim) for claim in claims])

    async def _store(self, thread: str, payload: Payload) -> StorageDriverClaim:
        ref, _ = await self._offloader.write(thread, payload, payload.data)
        return StorageDriverClaim({_CLAIM: base64.b64encode(ref.data).decode()})

    async def _retrieve(self, claim: StorageDriverClaim) -> Payload:
        try:
            data = base64.b64decode(claim.claim_data[_CLAIM], validate=True)
        except (KeyError, binascii.Error):
            raise BlobCorrupt("an external storage reference holds no Everlong ref") from None
        payload = Payload(metadata={"encoding": ENCODING}, data=data)
        ref = parse_ref(payload)
        await check_ref(self._packs, payload, ref)
        return await self._offloader.read(ref, learn=False)
