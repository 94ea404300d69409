"""Keys: seal stored bytes and refs, if a team configures them (docs/reference/wire-format.md).

A team's key is never used directly. For each object a key is derived from it with a fresh salt (BLAKE2b
with key, salt and purpose), so no two objects share a key, and nonces can be small counters. The first
key writes. The others still read: to rotate, put a new key first.
"""

import asyncio
import base64
import hashlib
import hmac
import inspect
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeAlias

from everlong.errors import BlobCorrupt, ConfigError, KeyMissing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

logger = logging.getLogger(__name__)

KEY_BYTES: Final = 32  # AES-256.
KEY_ID_CHARS_MAX: Final = 32
SALT_BYTES: Final = 16
TAG_BYTES: Final = 16
PACK_PURPOSE: Final = b"everlong-pack"
INLINE_PURPOSE: Final = b"everlong-inline"
REF_PURPOSE: Final = b"everlong-ref"
ARCHIVE_PURPOSE: Final = b"everlong-archive"
MANIFEST_PURPOSE: Final = b"everlong-listing"

# A callable is called again after the first interval, so that a rotation needs no restart, and for a
# key id that it did not return, at most once in the second. A workflow task has 10 s to wait for it.
_REFRESH_SECONDS: Final = 300.0
_UNKNOWN_SECONDS: Final = 5.0
_CALL_SECONDS_MAX: Final = 3.0
_NO_SALT: Final = bytes(SALT_BYTES)
_KEY_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{KEY_ID_CHARS_MAX}}}")

KeyMap: TypeAlias = Mapping[str, bytes]
KeySource: TypeAlias = KeyMap | Callable[[], KeyMap | Awaitable[KeyMap]]


class Keys:
    """All keys at one moment, by id. The first one writes."""

    def __init__(self, keys: KeyMap) -> None:
        if not keys:
            raise ConfigError("the mapping of keys is empty. Give at least one key, or no mapping.")
        for key_id, key in keys.items():
            if not _KEY_ID.fullmatch(key_id):
                # Not quoted: if id and key are swapped, or the id is missing, this is a key.
                raise ConfigError(
                    f"a key id of {len(key_id)} characters is refused: letters, digits, '.', '_' and "
                    f"'-', {KEY_ID_CHARS_MAX} at most"
                )
            if not isinstance(key, bytes | bytearray | memoryview):
                raise ConfigError(f"key {key_id!r} is {type(key).__name__}, not bytes")
            if len(key) != KEY_BYTES:
                raise ConfigError(
                    f"key {key_id!r} has {len(key)} bytes; AES-256 takes {KEY_BYTES}. Make one with: "
                    "openssl rand -base64 32"
                )
        self._keys = {key_id: bytes(key) for key_id, key in keys.items()}
        self.active = next(iter(self._keys))

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._keys)})"

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys. The first one writes."""
        return tuple(self._keys)

    def derive(self, key_id: str, purpose: bytes, salt: bytes = _NO_SALT) -> bytes:
        """Return the key for one purpose and one salt."""
        if key_id not in self._keys:
            raise KeyMissing(
                f"stored bytes are sealed with key {key_id!r}, which this process does not have. Add "
                "it after the key that writes; waiting work then continues by itself."
            )
        return hashlib.blake2b(
            key=self._keys[key_id], salt=salt, person=purpose, digest_size=KEY_BYTES
        ).digest()

    def tag(self, key_id: str, ref: bytes) -> bytes:
        """Return the tag of a ref, which proves that its writer had the key."""
        key = self.derive(key_id, REF_PURPOSE)
        return hashlib.blake2b(ref, key=key, digest_size=TAG_BYTES).digest()

    def check_tag(self, key_id: str, ref: bytes, tag: bytes) -> bool:
        """Return whether a ref's tag is correct."""
        return hmac.compare_digest(self.tag(key_id, ref), tag)


class Keyring:
    """Keys from a mapping, or from a callable that queries a key service."""

    def __init__(self, source: KeySource) -> None:
        _aead()  # Raises now if the package is missing.
        self._source = source
        self._keys = None if callable(source) else Keys(source)
        self._called_at = float("-inf")
        self._task: asyncio.Task[Keys | KeyMissing] | None = None
        # A dedicated thread: a key service that hangs blocks only this one.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="everlong-keys")

    async def keys(self, wanted: str = "") -> Keys:
        """Return the keys. A callable is called again for a `wanted` id that is unknown."""
        if callable(self._source) and self._is_due(wanted):
            task = self._task
            if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
                task = self._task = asyncio.create_task(self._refresh(self._source))
            # All waiters share one call. Unlike awaiting the task, this does not cancel it.
            await asyncio.wait([task])
            answer = task.result()
            if isinstance(answer, KeyMissing):
                raise answer
            return answer
        if self._keys is None:
            raise KeyMissing("there are no keys")
        return self._keys

    def _is_due(self, wanted: str) -> bool:
        age = time.monotonic() - self._called_at
        unknown = wanted and self._keys is not None and wanted not in self._keys
        return self._keys is None or age > (_UNKNOWN_SECONDS if unknown else _REFRESH_SECONDS)

    async def _refresh(self, source: Callable[[], KeyMap | Awaitable[KeyMap]]) -> Keys | KeyMissing:
        try:
            async with asyncio.timeout(_CALL_SECONDS_MAX):
                self._keys = Keys(await self._call_source(source))
        except Exception as error:  # noqa: BLE001 - the callable is the team's: it may raise anything
            if self._keys is None:
                # Not chained: the callable's message may hold secrets.
                return KeyMissing(
                    f"the keys are not available: {type(error).__name__}. Check the callable given as "
                    "`keys` and the key service behind it."
                )
            logger.warning("the keys were not refreshed: %s", type(error).__name__)
        self._called_at = time.monotonic()
        return self._keys

    async def _call_source(self, source: Callable[[], KeyMap | Awaitable[KeyMap]]) -> KeyMap:
        answer: KeyMap | Awaitable[KeyMap]
        if inspect.iscoroutinefunction(source):
            answer = source()
        else:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._thread, source)
        return await answer if isinstance(answer, Awaitable) else answer


def parse_keys(text: str) -> dict[str, bytes]:
    """Read `id:base64,id:base64`, as in `EVERLONG_KEYS`. The first writes."""
    keys: dict[str, bytes] = {}
    for number, item in enumerate(text.split(","), 1):
        key_id, _, encoded = item.strip().partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except ValueError:
            key = b""
        if not key or not _KEY_ID.fullmatch(key_id):
            raise ConfigError(
                f"EVERLONG_KEYS: item {number} is not id:base64. Make a key with: "
                "openssl rand -base64 32"
            )
        if key_id in keys:
            raise ConfigError(f"EVERLONG_KEYS: item {number} has the id of an earlier one")
        keys[key_id] = key
    Keys(keys)
    return keys


def seal_bytes(key: bytes, number: int, plaintext: bytes, bound: bytes = b"") -> bytes:
    """Encrypt one numbered part of an object. Decryption needs the same `bound` bytes."""
    return _aead()(key).encrypt(number.to_bytes(12), plaintext, bound)


def open_bytes(key: bytes, number: int, sealed: bytes, bound: bytes = b"") -> bytes:
    """Decrypt the result of `seal_bytes`, or raise `BlobCorrupt`."""
    from cryptography.exceptions import InvalidTag

    try:
        return _aead()(key).decrypt(number.to_bytes(12), sealed, bound)
    except InvalidTag:
        raise BlobCorrupt(
            "it does not open with its key: it is damaged, or the key of that id is another"
        ) from None


def _aead() -> "type[AESGCM]":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigError("keys need a package: pip install 'everlong[encryption]'") from error
    return AESGCM
