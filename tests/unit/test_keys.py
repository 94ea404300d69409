"""Keys: where they come from, what they seal, and what they never show."""

import asyncio
import base64
import logging
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.codecs import EverlongCodec
from everlong.errors import BlobCorrupt, ConfigError, KeyMissing
from everlong.storage import encryption_keys as keys_module
from everlong.storage.encryption_keys import (
    INLINE_PURPOSE,
    PACK_PURPOSE,
    REF_PURPOSE,
    KeyMap,
    Keyring,
    Keys,
    open_bytes,
    parse_keys,
    seal_bytes,
)
from everlong.storage.memory import MemoryBlobStore
from tests.support.sample_payloads import KEY_1, KEY_2, noise, payload, read_objects, text, workflow

ENCODED_1 = base64.b64encode(KEY_1).decode()
ENCODED_2 = base64.b64encode(KEY_2).decode()


def test_the_first_key_writes() -> None:
    assert Keys({"new": KEY_2, "old": KEY_1}).active == "new"
    assert "old" in Keys({"new": KEY_2, "old": KEY_1})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "mapping of keys is empty"),
        ({"k": KEY_1[:31]}, "31 bytes"),
        ({"k": KEY_1 + b"x"}, "33 bytes"),
        ({"": KEY_1}, "refused"),
        ({"a b": KEY_1}, "refused"),
        ({"a" * 33: KEY_1}, "refused"),
        ({"ü": KEY_1}, "refused"),
        ({"k": "x" * 32}, "not bytes"),
    ],
)
def test_an_invalid_key_is_refused_with_a_remedy(keys: KeyMap, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Keys(keys)


def test_keys_are_read_from_a_setting() -> None:
    assert parse_keys(f"new:{ENCODED_2}, old:{ENCODED_1}") == {"new": KEY_2, "old": KEY_1}
    assert list(parse_keys(f"new:{ENCODED_2},old:{ENCODED_1}")) == ["new", "old"]


@pytest.mark.guarantee(23)
@pytest.mark.parametrize(
    "setting",
    [
        "",
        ",",
        "k1",
        ENCODED_1,
        f"{ENCODED_1}:k1",
        f"{ENCODED_1}:kkkk",
        f"{ENCODED_1}:{ENCODED_2}",
        f"k1:{ENCODED_1},",
        f"k1:{ENCODED_1}:{ENCODED_2}",
        f"k1:{ENCODED_1[:-5]}",
        f"k1:{ENCODED_1}é",
        f"k1={ENCODED_1}",
        f"k1:{ENCODED_1},k1:{ENCODED_2}",
        f"k1:{ENCODED_1},{ENCODED_2}",
    ],
)
def test_a_setting_without_keys_is_refused_and_not_quoted(setting: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_keys(setting)
    assert raised.value.__cause__ is None
    for secret in (ENCODED_1, ENCODED_2):
        assert not any(secret[n : n + 8] in str(raised.value) for n in range(len(secret) - 8))


@pytest.mark.guarantee(23)
def test_neither_keys_nor_a_keyring_show_a_key() -> None:
    keys = Keys({"k1": KEY_1})
    for shown in (repr(keys), str(keys), repr(Keyring({"k1": KEY_1}))):
        assert repr(KEY_1)[2:20] not in shown
    assert repr(keys) == "Keys(k1)"


def test_each_purpose_and_salt_has_a_key_of_its_own() -> None:
    keys = Keys({"k1": KEY_1, "k2": KEY_2})
    derived = {
        keys.derive(key_id, purpose, bytes([salt]) * 16)
        for key_id in ("k1", "k2")
        for purpose in (PACK_PURPOSE, INLINE_PURPOSE, REF_PURPOSE)
        for salt in range(5)
    }
    assert len(derived) == 2 * 3 * 5
    assert KEY_1 not in derived


def test_a_missing_key_is_named() -> None:
    with pytest.raises(KeyMissing, match=r"key 'k9'.*Add it after the key that writes"):
        Keys({"k1": KEY_1}).derive("k9", PACK_PURPOSE)


@given(st.binary(max_size=500), st.integers(0, 1 << 32), st.binary(max_size=40))
def test_a_seal_opens_only_with_its_key_nonce_and_associated_data(
    plaintext: bytes, number: int, bound: bytes
) -> None:
    sealed = seal_bytes(KEY_1, number, plaintext, bound)
    assert open_bytes(KEY_1, number, sealed, bound) == plaintext
    for key, other, tied in (
        (KEY_2, number, bound),
        (KEY_1, number + 1, bound),
        (KEY_1, number, bound + b"x"),
    ):
        with pytest.raises(BlobCorrupt):
            open_bytes(key, other, sealed, tied)


def test_a_tag_is_of_one_key_and_one_ref() -> None:
    keys = Keys({"k1": KEY_1, "k2": KEY_2})
    tag = keys.tag("k1", b"ref")
    assert keys.check_tag("k1", b"ref", tag)
    assert not keys.check_tag("k2", b"ref", tag)
    assert not keys.check_tag("k1", b"reg", tag)
    assert not keys.check_tag("k1", b"ref", tag[:-1])


class Service:
    """A key service that can be asked, fail, and hang."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        self.keys = keys
        self.asked = 0
        self.fails = False
        self.hangs = False

    def __call__(self) -> dict[str, bytes]:
        self.asked += 1
        if self.fails:
            raise RuntimeError("hunter2 is the password of the key service")
        return dict(self.keys)

    async def slowly(self) -> dict[str, bytes]:
        await asyncio.sleep(3600 if self.hangs else 0.01)
        return self()


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        # Not the clock of the event loop.
        monkeypatch.setattr(keys_module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_keys_come_from_a_mapping_a_function_or_a_coroutine() -> None:
    service = Service({"k1": KEY_1})

    def returns_a_coroutine() -> object:
        return service.slowly()

    for source in ({"k1": KEY_1}, service, service.slowly, returns_a_coroutine):
        keys = await Keyring(source).keys()  # type: ignore[arg-type]
        assert keys.active == "k1"
    with pytest.raises(ConfigError):
        Keyring({})


@pytest.mark.guarantee(22)
async def test_a_key_function_is_called_again_so_a_rotation_needs_no_restart(
    clock: Clock,
) -> None:
    service = Service({"k1": KEY_1})
    keyring = Keyring(service)
    await keyring.keys()
    service.keys = {"k2": KEY_2, "k1": KEY_1}
    clock.now += 299
    assert (await keyring.keys()).active == "k1"
    assert service.asked == 1
    clock.now += 2
    assert (await keyring.keys()).active == "k2"
    assert service.asked == 2


async def test_an_unknown_id_is_looked_up_at_once_but_not_repeatedly(clock: Clock) -> None:
    service = Service({"k1": KEY_1})
    keyring = Keyring(service)
    await keyring.keys()
    service.keys = {"k2": KEY_2, "k1": KEY_1}
    clock.now += 6
    assert "k2" in await keyring.keys("k2")
    for _ in range(10):
        clock.now += 0.6
        assert "k3" not in await keyring.keys("k3")
    assert service.asked == 3
    assert "k1" in await keyring.keys("k1")
    assert service.asked == 3


@pytest.mark.guarantee(22)
async def test_a_failed_key_service_keeps_the_last_keys_and_is_logged_without_its_message(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service({"k1": KEY_1})
    keyring = Keyring(service)
    await keyring.keys()
    service.fails = True
    clock.now += 301
    with caplog.at_level(logging.WARNING):
        assert (await keyring.keys()).active == "k1"
        assert (await keyring.keys()).active == "k1"
    assert service.asked == 2
    assert [record.getMessage() for record in caplog.records] == [
        "the keys were not refreshed: RuntimeError"
    ]
    service.fails = False
    service.keys = {"short": b"x"}
    clock.now += 301
    assert (await keyring.keys()).active == "k1"


async def test_a_key_service_that_never_answered_is_a_clear_error_and_is_retried() -> None:
    service = Service({"k1": KEY_1})
    service.fails = True
    keyring = Keyring(service)
    with pytest.raises(KeyMissing, match=r"not available: RuntimeError.*key service") as raised:
        await keyring.keys()
    assert "hunter2" not in str(raised.value)
    service.fails = False
    assert (await keyring.keys()).active == "k1"


async def test_calls_to_a_hanging_key_service_time_out(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(keys_module, "_CALL_SECONDS_MAX", 0.05)
    service = Service({"k1": KEY_1})
    keyring = Keyring(service.slowly)
    await keyring.keys()
    service.hangs = True
    clock.now += 301
    started = time.perf_counter()
    assert (await keyring.keys()).active == "k1"
    with pytest.raises(KeyMissing, match="TimeoutError"):
        await Keyring(service.slowly).keys()
    assert time.perf_counter() - started < 5


async def test_concurrent_lookups_share_one_call(clock: Clock) -> None:
    service = Service({"k1": KEY_1})
    keyring = Keyring(service.slowly)
    await asyncio.gather(*(keyring.keys() for _ in range(20)))
    assert service.asked == 1
    service.keys = {"k2": KEY_2}
    clock.now += 6
    found = await asyncio.gather(*(keyring.keys("k2") for _ in range(20)))
    assert all("k2" in keys for keys in found)
    assert service.asked == 2


async def test_a_cancelled_lookup_does_not_fail_the_others() -> None:
    service = Service({"k1": KEY_1})
    keyring = Keyring(service.slowly)
    first = asyncio.create_task(keyring.keys())
    second = asyncio.create_task(keyring.keys())
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).active == "k1"
    assert first.cancelled()


def test_a_keyring_serves_one_event_loop_after_another() -> None:
    service = Service({"k1": KEY_1})
    keyring = Keyring(service.slowly)
    for _ in range(2):
        keyring._called_at = float("-inf")
        assert asyncio.run(keyring.keys()).active == "k1"
    assert service.asked == 2


@pytest.mark.guarantee(20)
async def test_equal_content_shows_neither_across_threads_nor_within_one() -> None:
    store = MemoryBlobStore()
    secret = text(20_000, 3)
    for forget in range(2):
        codec = EverlongCodec(store, keys={"k1": KEY_1})
        for thread in ("a", "b"):
            [ref] = await codec.with_context(workflow(thread)).encode([payload(secret)])
            assert await EverlongCodec(store, keys={"k1": KEY_1}).decode([ref]) == [payload(secret)]
        assert len(await read_objects(store)) == 2 * (forget + 1)
    objects = await read_objects(store)
    assert len({key.rsplit("/")[-1] for key in objects}) == 4
    assert len({data[-100:] for data in objects.values()}) == 4
    for data in objects.values():
        assert secret[100:108] not in data
        assert b"json/plain" not in data


async def test_another_key_with_the_same_id_is_a_clear_error() -> None:
    store = MemoryBlobStore()
    right, wrong = (EverlongCodec(store, keys={"k1": key}) for key in (KEY_1, KEY_2))
    [inline, ref] = await right.encode([payload(b"small"), payload(noise(20_000))])
    with pytest.raises(BlobCorrupt, match="the key of that id is another"):
        await wrong.decode([inline])
    with pytest.raises(Exception, match="key 'k1' but was not written with it"):
        await wrong.decode([ref])
