"""Grants of agents in the store: they hold until they expire or are revoked; none can be forged."""

import time
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import DefaultPayloadConverter

from everlong import ThreadStart, limits
from everlong.codecs import EverlongCodec
from everlong.errors import StoreUnavailable
from everlong.models import Call, Edit, Grant, Kind, ThreadState, thread_key
from everlong.models.grants import make_grant_id
from everlong.models.json_payloads import to_raw
from everlong.storage.agent_grants import PREFIX, AgentGrants, find_grants, make_folder
from everlong.storage.cache import CachedBlobStore
from everlong.storage.encryption_keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, object_key
from tests.support.fake_namespace import NAMESPACE, FakeNamespace
from tests.support.fake_stores import CountingStore

NOW_MS = 1_000_000
KEYS = {"k1": b"1" * 32}


def make_grant(number: int = 1, **fields: Any) -> Grant:
    known: dict[str, Any] = {
        "id": make_grant_id("agent", str(number)),
        "tool": "pay",
        "by": "ann",
        "granted_ms": NOW_MS + number,
        "thread_id": "ops-7",
        "agent": "ops",
    }
    return Grant(**{**known, **fields})


def open_grants(
    store: MemoryBlobStore, keys: dict[str, bytes] | None = None, namespace: str = "default"
) -> AgentGrants:
    packs = PackStore(
        CachedBlobStore(store, memory_bytes_max=2**20, disk_bytes_max=0),
        None if keys is None else Keyring(keys),
    )
    return AgentGrants(packs, namespace)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "sealed"])
async def test_a_grant_is_there_for_its_agent_and_namespace_until_it_is_revoked(
    keys: dict[str, bytes] | None,
) -> None:
    store = MemoryBlobStore()
    grants, grant = open_grants(store, keys), make_grant()
    assert await grants.add(grant, NOW_MS) == ""
    assert await grants.add(grant, NOW_MS) == ""  # Sent again: the same object.
    assert await grants.list("ops") == await grants.list() == [grant]
    assert await grants.list("dev") == []
    assert await open_grants(store, keys, "other").list() == []
    assert await grants.has("ops", grant.id)
    reader = open_grants(store, keys)
    assert await reader.list("ops") == [grant]
    # A process without the keys cannot read it, and revokes it nevertheless.
    assert await open_grants(store).revoke(grant.id) == (True, None if keys else grant)
    # The reader has the object in its cache; a listing is never cached.
    assert await reader.list("ops") == []
    assert not await reader.has("ops", grant.id)
    assert await grants.revoke(grant.id) == (False, None)
    assert [info async for info in store.list(PREFIX)] == []


@pytest.mark.guarantee(115)
async def test_a_sealed_grant_shows_nothing_and_opens_in_its_place_only() -> None:
    store = MemoryBlobStore()
    grants, grant = open_grants(store, KEYS), make_grant(arguments='{"service": "prod"}')
    await grants.add(grant, NOW_MS)
    [key] = [info.key async for info in store.list(PREFIX)]
    data = await store.get(key)
    for secret in (b"pay", b"prod", b"ann", b"ops"):
        assert secret not in data
    # Copied to another agent, changed, sealed with another key, or not sealed.
    await store.put(f"{make_folder('default', 'dev')}{grant.id}.json", data)
    assert await grants.list("dev") == []
    assert await open_grants(store, {"k1": b"2" * 32}).list("ops") == []
    assert await open_grants(store).list("ops") == []
    await store.put(key, data.replace(b'"sealed":"', b'"sealed":"00'))
    assert await open_grants(store, KEYS).list("ops") == []


async def test_an_unsealed_grant_is_not_read_where_there_are_keys() -> None:
    store = MemoryBlobStore()
    await open_grants(store).add(make_grant(), NOW_MS)
    assert await open_grants(store, KEYS).list("ops") == []
    assert len(await open_grants(store).list("ops")) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"version":2}',
        b'{"version":1,"key_id":"k1","salt":"zz","sealed":"00"}',
        b'{"version":1,"grant":{"id":"a-1"}}',
        b"x" * (limits.AGENT_GRANT_BYTES_MAX + 1),
    ],
)
async def test_an_object_that_is_no_grant_allows_nothing(data: bytes) -> None:
    store = MemoryBlobStore()
    grants, grant = open_grants(store), make_grant()
    await grants.add(grant, NOW_MS)
    await store.put(f"{make_folder('default', 'ops')}{make_grant_id('agent', '9')}.json", data)
    assert await grants.list("ops") == [grant]
    assert await open_grants(store, KEYS).list("ops") == []


async def test_an_agent_has_a_bounded_number_of_grants_and_expired_ones_make_room() -> None:
    store = MemoryBlobStore()
    grants = open_grants(store)
    for number in range(limits.AGENT_GRANTS_MAX):
        assert await grants.add(make_grant(number, expires_ms=NOW_MS + 5), NOW_MS) == ""
    refused = await grants.add(make_grant(99), NOW_MS)
    assert refused == "agent 'ops' has 32 grants; the maximum is 32. Revoke one first"
    assert await grants.add(make_grant(99), NOW_MS + 5) == ""
    assert [each.id for each in await grants.list("ops")] == [make_grant(99).id]


async def test_a_person_is_asked_if_the_store_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> list[Grant]:
        raise StoreUnavailable("away")

    grants = open_grants(MemoryBlobStore())
    await grants.add(make_grant(), NOW_MS)
    monkeypatch.setattr(grants, "list", fail)
    assert await find_grants(grants, "ops", NOW_MS) == []


async def test_a_look_for_grants_costs_one_request_after_the_first() -> None:
    store = CountingStore()
    grants = open_grants(store)
    for number in range(3):
        await grants.add(make_grant(number), NOW_MS)
    reader = open_grants(store)
    assert len(await find_grants(reader, "ops", NOW_MS)) == 3
    gets = store.gets
    assert len(await find_grants(reader, "ops", NOW_MS)) == 3
    assert store.gets == gets


@pytest.mark.guarantee(115)
async def test_a_grant_holds_until_it_expires_and_an_outage_is_no_end_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grants, now_ms = open_grants(MemoryBlobStore()), time.time_ns() // 1_000_000
    for number, expires_ms in enumerate((None, now_ms + 3_600_000, now_ms)):
        await grants.add(make_grant(number, expires_ms=expires_ms), NOW_MS)
    ids = [make_grant(number).id for number in range(3)]
    assert [await grants.has("ops", each) for each in ids] == [True, True, False]

    async def fail(*_: object) -> bytes:
        raise StoreUnavailable("away")

    monkeypatch.setattr("everlong.storage.agent_grants.get_bounded", fail)
    with pytest.raises(StoreUnavailable):
        await grants.has("ops", ids[0])


async def test_an_expired_grant_is_not_found() -> None:
    grants = open_grants(MemoryBlobStore())
    await grants.add(make_grant(expires_ms=NOW_MS + 9), NOW_MS)
    assert len(await find_grants(grants, "ops", NOW_MS + 8)) == 1
    assert await find_grants(grants, "ops", NOW_MS + 9) == []


async def test_a_sweep_keeps_grants_and_the_arguments_that_a_person_has_changed(
    tmp_path: Path,
) -> None:
    store = MemoryBlobStore()
    world = FakeNamespace(store)
    run = world.start("ops-7")
    await open_grants(store).add(make_grant(), NOW_MS)
    thread = thread_key(NAMESPACE, "ops-7")
    packs = PackStore(store)
    kept, _ = await packs.write_body(thread, Kind.ARGUMENTS, b'{"arguments":{"euros":9}}')
    lost, _ = await packs.write_body(thread, Kind.ARGUMENTS, b'{"arguments":{"euros":8}}')
    start = ThreadStart(
        agent="ops",
        state=ThreadState(
            calls=(
                Call(
                    id="2-1-ab",
                    call_id="c",
                    tool="pay",
                    edit=Edit(digest=kept.digest, size_bytes=9),
                ),
            )
        ),
    )
    [payload] = await EverlongCodec(packs).encode([to_payload(start)])
    run.payloads.append(payload)
    for _ in range(3):
        await world.sweep(index_dir=tmp_path, whole_store=True)
    keys = await world.keys()
    assert object_key(kept) in keys
    assert object_key(lost) not in keys
    assert len(await open_grants(store).list("ops")) == 1


def to_payload(value: object) -> Payload:
    return to_raw(value, DefaultPayloadConverter()).payload
