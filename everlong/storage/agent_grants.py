"""Grants of agents: permissions for later calls, which all threads of an agent in a namespace share.

Each grant is one immutable object below `grants/v1/`, outside of what sweeps may take. It holds from the
moment that its object is complete until the object is deleted: each use lists the objects, and a listing
is never cached. Where keys are configured, the objects are sealed, and unsealed ones are not read. One
that cannot be read allows nothing.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from everlong import limits
from everlong.errors import (
    BlobCorrupt,
    BlobMissing,
    EverlongError,
    KeyMissing,
    RefRefused,
    StoreUnavailable,
)
from everlong.models.grants import Grant
from everlong.storage.base import get_bounded
from everlong.storage.encryption_keys import SALT_BYTES, open_bytes, seal_bytes
from everlong.storage.pack_store import PackStore, gather_bounded

logger = logging.getLogger(__name__)

PREFIX: Final = "grants/v1/"
_PURPOSE: Final = b"everlong-grant"
_PERSON: Final = b"everlong-grants"


@dataclass(frozen=True, kw_only=True)
class _Record:
    """A grant as it is stored: plain, or sealed."""

    version: Literal[1] = 1
    grant: Annotated[Grant | None, Field(exclude_if=lambda grant: grant is None)] = None
    key_id: Annotated[str, Field(exclude_if=lambda text: not text)] = ""
    salt: Annotated[str, Field(exclude_if=lambda text: not text)] = ""
    sealed: Annotated[str, Field(exclude_if=lambda text: not text)] = ""


_RECORD: Final = TypeAdapter(_Record)
_GRANT: Final = TypeAdapter(Grant)


def make_folder(namespace: str, agent: str = "") -> str:
    """Return the prefix of the grants of a namespace, or of one agent in it."""
    folder = f"{PREFIX}{_digest(namespace)}/"
    return f"{folder}{_digest(namespace, agent)}/" if agent else folder


def _digest(*names: str) -> str:
    data = "\0".join(names).encode(errors="surrogatepass")
    return hashlib.blake2b(data, digest_size=16, person=_PERSON).hexdigest()


class AgentGrants:
    """The grants of the agents of one namespace."""

    def __init__(self, packs: PackStore, namespace: str) -> None:
        self._packs = packs
        self._namespace = namespace

    async def list(self, agent: str = "") -> list[Grant]:
        """Return the grants of an agent, or of all agents, oldest first. Expired ones are among them."""
        keys = await self._list_keys(make_folder(self._namespace, agent))
        found = await gather_bounded([partial(self._read, key) for key in keys])
        grants = [each for each in found if each is not None]
        return sorted(grants, key=lambda each: (each.granted_ms, each.id))

    async def has(self, agent: str, grant_id: str) -> bool:
        """Whether a grant holds now. Raises `StoreUnavailable` if that cannot be found out now."""
        key = self._make_key(agent, grant_id)
        if key not in await self._list_keys(key):
            return False
        try:
            return (await self._load(key)).is_active(time.time_ns() // 1_000_000)
        except StoreUnavailable:
            raise
        except (EverlongError, ValueError):  # Revoked since the listing, or not readable here.
            return False

    async def add(self, grant: Grant, now_ms: int) -> str:
        """Store a grant, and delete the agent's expired ones. Return why it is refused, if it is."""
        known = await self.list(grant.agent)
        expired = [each for each in known if not each.is_active(now_ms)]
        if expired:
            await self._packs.store.delete(
                [self._make_key(each.agent, each.id) for each in expired]
            )
        others = {each.id for each in known if each.is_active(now_ms)} - {grant.id}
        if reason := explain_count(len(others) + 1, grant.agent):
            return reason
        key = self._make_key(grant.agent, grant.id)
        await self._packs.store.put(key, await self._write(grant, key))
        return ""

    async def revoke(self, grant_id: str) -> tuple[bool, Grant | None]:
        """Delete a grant; return whether it was there, and the grant.

        One that cannot be read here, for example without keys, is deleted too: workers may read it.
        """
        for key in await self._list_keys(make_folder(self._namespace)):
            if key.endswith(f"/{grant_id}.json"):
                grant = await self._read(key)
                await self._packs.store.delete([key])
                return True, grant
        return False, None

    def _make_key(self, agent: str, grant_id: str) -> str:
        return f"{make_folder(self._namespace, agent)}{grant_id}.json"

    async def _list_keys(self, prefix: str) -> Sequence[str]:
        return sorted([info.key async for info in self._packs.store.list(prefix)])

    async def _write(self, grant: Grant, key: str) -> bytes:
        keys = await self._packs.keys()
        if keys is None:
            return _RECORD.dump_json(_Record(grant=grant))
        data = _GRANT.dump_json(grant)
        # By the content, so that the object is the same if it is stored twice.
        salt = hashlib.blake2b(key.encode() + b"\0" + data, digest_size=SALT_BYTES).digest()
        own = keys.derive(keys.active, _PURPOSE, salt)
        sealed = seal_bytes(own, 0, data, key.encode())
        return _RECORD.dump_json(_Record(key_id=keys.active, salt=salt.hex(), sealed=sealed.hex()))

    async def _read(self, key: str) -> Grant | None:
        try:
            grant = await self._load(key)
        except BlobMissing:  # Revoked since the listing.
            return None
        except (EverlongError, ValueError) as error:
            # The name of the error only: a message of pydantic quotes its input.
            logger.warning("grant %s cannot be read: %s", key, type(error).__name__)
            return None
        return grant

    async def _load(self, key: str) -> Grant:
        data = await get_bounded(self._packs.store, key, limits.AGENT_GRANT_BYTES_MAX)
        grant = await self._open(data, key)
        if self._make_key(grant.agent, grant.id) != key:
            raise RefRefused(f"grant {key!r} belongs to another place")
        return grant

    async def _open(self, data: bytes, key: str) -> Grant:
        try:
            record = _RECORD.validate_json(data)
        except ValidationError:
            raise BlobCorrupt(f"{key!r} is no grant of a known version") from None
        # Also with `accept_unsealed`: there are no grants from before there were keys to read.
        if self._packs.keyring is not None and not record.key_id:
            raise RefRefused(f"grant {key!r} is not sealed, and keys are configured here")
        if record.grant is not None and not record.key_id:
            return record.grant
        keys = await self._packs.keys(record.key_id)
        if keys is None:
            raise KeyMissing(f"{key!r} is sealed with key {record.key_id!r}; set EVERLONG_KEYS")
        own = keys.derive(record.key_id, _PURPOSE, bytes.fromhex(record.salt))
        return _GRANT.validate_json(open_bytes(own, 0, bytes.fromhex(record.sealed), key.encode()))


def explain_count(count: int, agent: str) -> str:
    """Return why an agent cannot have so many grants; empty if it can."""
    if count <= limits.AGENT_GRANTS_MAX:
        return ""
    return (
        f"agent {agent!r} has {count - 1} grants; the maximum is {limits.AGENT_GRANTS_MAX}. Revoke one "
        "first"
    )


async def find_grants(grants: AgentGrants, agent: str, now_ms: int) -> list[Grant]:
    """Return an agent's active grants; none if the store does not answer in time: a person decides."""
    try:
        async with asyncio.timeout(limits.GRANT_LOOKUP_SECONDS_MAX):
            return [each for each in await grants.list(agent) if each.is_active(now_ms)]
    except (EverlongError, TimeoutError) as error:
        logger.warning("the grants of agent %r are not known: %s", agent, type(error).__name__)
        return []
