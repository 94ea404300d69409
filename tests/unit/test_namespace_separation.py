"""Namespaces that share a store: each claim of docs/concepts/security.md about reads between them.

A *team* here is a namespace. Each claim is shown with the codec that workers use.
"""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import WorkflowSerializationContext

from everlong.archive import Manifest, StoredArchive
from everlong.archive import manifest as manifests
from everlong.client.archives import list_archives
from everlong.codecs import EverlongCodec
from everlong.codecs.refs import PackRef, is_ref, parse_ref
from everlong.errors import BlobCorrupt, BlobMissing, EverlongError, KeyMissing, RefRefused
from everlong.models import Kind, Message, thread_key
from everlong.storage import BlobStore, open_store
from everlong.storage.encryption_keys import Keyring
from everlong.storage.journal import Journal
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from tests.support.sample_archive import ThreadBuilder, build_thread
from tests.support.sample_payloads import KEY_1, KEY_2, noise, payload

ONE = {"k1": KEY_1}
OTHER = {"k2": KEY_2}
SAME_ID = {"k1": KEY_2}
SECRET = payload(noise(9000))
SMALL = payload(b'"the password is swordfish"' * 20)
Keys = Mapping[str, bytes] | None


def team(store: BlobStore, keys: Keys, namespace: str, workflow_id: str = "ops-7") -> EverlongCodec:
    """Return the codec of a worker of one namespace, for one of its workflows."""
    context = WorkflowSerializationContext(namespace=namespace, workflow_id=workflow_id)
    return EverlongCodec(store, keys=keys).with_context(context)


async def copy_payload(store: BlobStore, keys: Keys, original: Payload = SECRET) -> Payload:
    """Return what stands in a history of namespace `red` for a payload."""
    [stored] = await team(store, keys, "red").encode([original])
    return stored


@pytest.mark.parametrize("keys", [None, ONE], ids=["no keys", "the same keys"])
async def test_a_copied_ref_opens_in_any_thread_and_namespace_with_the_same_store_and_keys(
    keys: Keys,
) -> None:
    store = MemoryBlobStore()
    ref = await copy_payload(store, keys)
    assert is_ref(ref)
    for namespace, workflow_id in (("red", "ops-8"), ("blue", "ops-7"), ("blue", "x")):
        assert await team(store, keys, namespace, workflow_id).decode([ref]) == [SECRET]


async def test_a_copied_inline_payload_opens_with_the_key_anywhere() -> None:
    inline = await copy_payload(MemoryBlobStore(), ONE, SMALL)
    assert not is_ref(inline)
    assert b"swordfish" not in inline.data
    # Another namespace, and another store: only the key counts.
    assert await team(MemoryBlobStore(), ONE, "blue").decode([inline]) == [SMALL]
    with pytest.raises(KeyMissing):
        await team(MemoryBlobStore(), OTHER, "blue").decode([inline])
    with pytest.raises(BlobCorrupt):
        await team(MemoryBlobStore(), SAME_ID, "blue").decode([inline])


async def test_a_ref_can_be_forged_from_a_listing_without_keys() -> None:
    store = MemoryBlobStore()
    await copy_payload(store, None)
    # No secret is in the name of a thread's place: namespace and id are enough.
    [key] = [each.key async for each in store.list(f"v1/{thread_key('red', 'ops-7')}/")]
    name = bytes.fromhex(key.rpartition("/")[2].removesuffix(".pack"))
    forged = PackRef(thread_key("red", "ops-7"), name, len(SECRET.data), 1).to_payload(None)
    assert await team(store, None, "blue").decode([forged]) == [SECRET]


async def test_a_ref_cannot_be_forged_with_keys() -> None:
    store = MemoryBlobStore()
    real = parse_ref(await copy_payload(store, ONE))
    forged = PackRef(real.thread, real.pack, real.size_bytes, real.packs).to_payload(None)
    with pytest.raises(RefRefused):
        await team(store, ONE, "blue").decode([forged])


@pytest.mark.parametrize(
    ("keys", "error"), [(OTHER, KeyMissing), (SAME_ID, RefRefused), (None, KeyMissing)]
)
async def test_separate_keys_isolate_namespaces_in_one_store(
    keys: Keys, error: type[EverlongError]
) -> None:
    store = MemoryBlobStore()
    ref = await copy_payload(store, ONE)
    with pytest.raises(error):
        await team(store, keys, "blue").decode([ref])


async def test_a_separate_prefix_isolates_a_namespace_without_keys(tmp_path: Path) -> None:
    red, blue = (open_store((tmp_path / name).as_uri()) for name in ("red", "blue"))
    ref = await copy_payload(red, None)
    with pytest.raises(BlobMissing):
        await team(blue, None, "blue").decode([ref])


@pytest.mark.parametrize("keys", [None, ONE], ids=["no keys", "the same keys"])
async def test_a_thread_reads_no_journal_of_another_thread_with_or_without_keys(keys: Keys) -> None:
    packs = PackStore(MemoryBlobStore(), None if keys is None else Keyring(keys))
    red = ThreadBuilder(packs)
    await red.say(Kind.MESSAGE, Message(role="user", text="the password is swordfish"))
    assert red.head is not None
    for other in (thread_key("blue", "ops-7"), thread_key("default", "ops-8")):
        with pytest.raises(RefRefused, match="belongs to another thread"):
            await Journal(packs, other).read(red.head)


def make_client(namespace: str) -> Any:
    return SimpleNamespace(namespace=namespace)


async def write_archive(store: BlobStore, keys: Keys) -> Manifest:
    packs = PackStore(store, None if keys is None else Keyring(keys))
    return await (await build_thread(packs)).write_archive()


async def test_the_store_lists_archives_without_the_keys() -> None:
    store = MemoryBlobStore()
    manifest = await write_archive(store, ONE)
    listed = await store.get(
        manifests.make_archive_key(manifest.thread, manifest.archive_id, manifests.MANIFEST)
    )
    # The manifest has ids, agents and counts in plain text, but no messages, authors or reasons.
    assert b'"thread_id": "ops-7"' in listed
    assert b"it is over" not in listed
    with pytest.raises(KeyMissing):
        await StoredArchive.open(PackStore(store, Keyring(OTHER)), manifest)


@pytest.mark.parametrize("keys", [None, ONE], ids=["no keys", "the same keys"])
async def test_a_copied_archive_opens_only_under_its_own_thread(keys: Keys) -> None:
    store = MemoryBlobStore()
    manifest = await write_archive(store, keys)
    blue = thread_key("blue", "ops-7")
    for key, data in list(store._objects.items()):
        if key.startswith("archive/"):
            store._objects[key.replace(manifest.thread, blue)] = data
    packs = PackStore(store, None if keys is None else Keyring(keys))
    with pytest.raises(EverlongError, match="of another thread"):
        await manifests.read(packs, blue, manifest.archive_id)


async def test_a_listing_shows_a_namespace_only_its_own_archives() -> None:
    store = MemoryBlobStore()
    await write_archive(store, ONE)
    page = await list_archives(make_client("blue"), PackStore(store, Keyring(OTHER)))
    assert (page.archives, page.unreadable) == ((), ())
    page = await list_archives(make_client("default"), PackStore(store, Keyring(ONE)))
    assert [each.thread_id for each in page.archives] == ["ops-7"]
