"""Search attributes of a namespace: a worker asks for them until it knows that they are there.

A program that starts threads asks once too, and starts them with their first attributes.

A thread that writes an attribute that its namespace lacks is stuck, so threads write none until then.
A failed call is no answer. After an outage while a worker starts, or an `everlong setup` later, the
worker need not be started again.
"""

import asyncio
import dataclasses
import logging
import math
import re
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Final, Literal

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everlong.errors import EverlongError, ServerUnreachable, SetupRefused
from everlong.models import make_printable
from everlong.models.search_attributes import LABELS, OPTIONAL_ATTRIBUTES, SEARCH_ATTRIBUTES

_LOG: Final = logging.getLogger(__name__)
_CALL: Final = timedelta(seconds=5)
# After a failed call: 1, 2, 4 s and so on. A server that refuses the call is asked 12 times an hour.
RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 300.0
# After the answer that some are missing: 60 calls an hour, for a worker.
MISSING_SECONDS: Final = 60.0
# After the answer that an optional one is missing: the error has just named `everlong setup`.
OPTIONAL_SECONDS: Final = 5.0


class AttributeWatch:
    """Asks a worker's server for Everlong's search attributes, until they are all there."""

    def __init__(self, client: Callable[[], Client], found: Callable[[str], None]) -> None:
        self._client = client
        self._found = found
        """Called once, with the namespace that has them."""
        self._retry_seconds = RETRY_SECONDS
        self._warned: set[str] = set()
        self.calls = 0
        """How often the server was asked."""

    async def ask(self) -> float | None:
        """Ask once. Return after how many seconds to ask again; None if all attributes are there."""
        client = self._client()
        try:
            self.calls += 1
            missing = await find_missing_attributes(client)
        except (RPCError, RuntimeError) as error:  # The second, if a lazy client cannot connect.
            self._warn(
                "failed",
                "threads write no search attributes yet, and cannot be found by status or agent: the "
                f"server did not list those that it has ({error}). It is asked again",
            )
            seconds = self._retry_seconds
            self._retry_seconds = min(2 * seconds, RETRY_SECONDS_MAX)
            return seconds
        self._retry_seconds = RETRY_SECONDS
        if missing:
            self._warn(
                "missing",
                f"threads write no search attributes, since the server lacks {', '.join(missing)}, or "
                "has it with another type. Add them with: everlong setup. This worker asks again each "
                f"{MISSING_SECONDS:.0f} s",
            )
            return MISSING_SECONDS
        if self._warned:
            _LOG.info("the server has all search attributes now: threads write them")
        self._found(client.namespace)
        return None

    async def run(self, seconds: float | None) -> None:
        """Ask again after so many seconds, and so on. It ends once all attributes are there."""
        while seconds is not None:
            await asyncio.sleep(seconds)
            seconds = await self.ask()

    def _warn(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            _LOG.warning("%s", text)


async def has_attributes(client: Client) -> bool:
    """Whether the client's namespace has our search attributes. The answer is kept for the client.

    While the server lacks them, or does not say, it is asked again after a minute.
    """
    known = _known.setdefault(client, _Known())
    if known.found:
        return True
    async with known.lock:  # A thousand threads that are started at once ask once.
        if time.monotonic() >= known.asks_again_at:
            try:
                known.found = not await find_missing_attributes(client)
            except (RPCError, RuntimeError):  # The second, if a lazy client cannot connect.
                _LOG.debug("the server did not list its search attributes", exc_info=True)
            known.asks_again_at = time.monotonic() + MISSING_SECONDS
    return known.found


async def has_optional(client: Client, name: str, retry_seconds: float = OPTIONAL_SECONDS) -> bool:
    """Whether the client's namespace has one of `OPTIONAL_ATTRIBUTES`. A yes is kept for the client.

    After a no, the server is asked again once the last answer is `retry_seconds` old.
    """
    known = _known.setdefault(client, _Known())
    if name in known.optional:
        return True
    async with known.lock:
        if time.monotonic() >= known.optional_asked_at + retry_seconds:
            known.optional |= await _list_optional(client)  # A failed call is no answer.
            known.optional_asked_at = time.monotonic()
    return name in known.optional


async def require_labels(client: Client) -> None:
    """Raise `SetupRefused` if the namespace has no labels: a thread that wrote one would be stuck."""
    if not await has_optional(client, LABELS.name):
        raise SetupRefused(
            f"threads of the namespace {client.namespace!r} have no labels: it lacks the search "
            f"attribute {LABELS.name} of type KeywordList, or does not say that it has it. Add it with: "
            "everlong setup. All else works without it."
        )


async def _list_optional(client: Client) -> frozenset[str]:
    try:
        listed = await _read_attributes(client)
    except (RPCError, RuntimeError):
        _LOG.debug("the server did not list its search attributes", exc_info=True)
        return frozenset()
    return frozenset(
        name for name in OPTIONAL_ATTRIBUTES if listed.get(name) == SEARCH_ATTRIBUTES[name]
    )


@dataclasses.dataclass
class _Known:
    """What a client knows of its namespace."""

    found: bool = False
    asks_again_at: float = 0.0
    optional: frozenset[str] = frozenset()
    optional_asked_at: float = -math.inf
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


_known: "weakref.WeakKeyDictionary[Client, _Known]" = weakref.WeakKeyDictionary()


async def find_missing_attributes(client: Client) -> list[str]:
    """Return the names of attributes that the namespace lacks, or has with another type.

    Optional ones are not among them: threads publish the others without them.
    """
    listed = await _read_attributes(client)
    return [
        name
        for name, kind in SEARCH_ATTRIBUTES.items()
        if listed.get(name) != kind and name not in OPTIONAL_ATTRIBUTES
    ]


async def _read_attributes(client: Client) -> dict[str, str]:
    """Return the custom search attributes of the namespace, and their types as in `Keyword`.

    A caller that may not list them learns which of ours a query accepts. Temporal Cloud documents no
    permission to list them, and servers with Temporal's own authorizer refuse it to some roles.
    """
    try:
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace), timeout=_CALL
        )
    except RPCError as error:
        if error.status not in _MAY_NOT_LIST:
            raise
        return await _try_attributes(client)
    return {name: get_type_name(kind) for name, kind in listed.custom_attributes.items()}


async def _try_attributes(client: Client) -> dict[str, str]:
    """Return those of our attributes that queries accept, with their types: in one call if it is all."""

    async def accepts(query: str) -> bool:
        try:
            await client.count_workflows(query, rpc_timeout=_CALL)
        except RPCError as error:
            if error.status != RPCStatusCode.INVALID_ARGUMENT:
                raise
            return False
        return True

    conditions = {name: f"{name} {_SAMPLES[kind]}" for name, kind in SEARCH_ATTRIBUTES.items()}
    if await accepts(" AND ".join(conditions.values())):
        return dict(SEARCH_ATTRIBUTES)
    return {
        name: SEARCH_ATTRIBUTES[name]
        for name, condition in conditions.items()
        if await accepts(condition)
    }


# The server's own caches know a new attribute after a few seconds.
_LISTED_SECONDS_MAX: Final = 30.0
_POLL_SECONDS: Final = 0.2
_CLOUD: Final = (".tmprl.cloud", ".api.temporal.io")
_TYPE_PREFIX: Final = "INDEXED_VALUE_TYPE_"
_MAY_NOT_LIST: Final = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)
# A condition for each type. The server refuses it for an attribute of another type (a number fits both
# Int and Double), and for a name that is no attribute.
_SAMPLES: Final = {
    "Keyword": "= ''",
    "KeywordList": "= ''",
    "Int": "= 0",
    "Double": "= 0.5",
    "Datetime": "< '2020-01-01T00:00:00Z'",
}


async def list_attributes(client: Client) -> dict[str, str]:
    """Return the custom search attributes of the namespace, and their types as in `Keyword`."""
    try:
        return await _read_attributes(client)
    except RPCError as error:
        raise _make_refusal(client, error) from error


async def set_up(client: Client) -> dict[str, Literal["added", "present", "refused"]]:
    """Add our search attributes that the namespace lacks; return once the server lists them all.

    An optional one that the server refuses, for example since others have taken its columns, is reported
    as `refused`, and the others are there.
    """
    before = await list_attributes(client)
    if clashes := find_clashes(before):
        raise SetupRefused(
            f"the namespace {client.namespace!r} has {clashes}. Nothing was changed. Remove them there, "
            "if they are not in use, and run this again; or use another namespace."
        )
    missing = [name for name in SEARCH_ATTRIBUTES if name not in before]
    needed = [name for name in missing if name not in OPTIONAL_ATTRIBUTES]
    added = set(needed)
    if needed:
        await _add_attributes(client, needed)
    for name in missing:
        if name not in OPTIONAL_ATTRIBUTES:
            continue
        try:
            await _add_attributes(client, [name])
        except SetupRefused as error:
            lost = OPTIONAL_ATTRIBUTES[name]
            _LOG.warning("the namespace has no %s: %s. %s", name, lost, error)
        else:
            added.add(name)
    if added:
        await _wait_until_listed(client, added)

    def describe(name: str) -> Literal["added", "present", "refused"]:
        if name in added:
            return "added"
        return "present" if before.get(name) == SEARCH_ATTRIBUTES[name] else "refused"

    return {name: describe(name) for name in SEARCH_ATTRIBUTES}


def find_clashes(listed: Mapping[str, str]) -> str:
    """Return in words which of our attributes are there with another type; empty if none is."""
    return ", ".join(
        f"{name} as {listed[name]} instead of {kind}"
        for name, kind in SEARCH_ATTRIBUTES.items()
        if listed.get(name, kind) != kind and name not in OPTIONAL_ATTRIBUTES
    )


def get_type_name(kind: IndexedValueType.ValueType) -> str:
    """Return the name of a type as people write it: `Keyword`, `KeywordList`."""
    name = IndexedValueType.Name(kind).removeprefix(_TYPE_PREFIX)
    return "".join(word.capitalize() for word in name.split("_"))


def parse_type_name(name: str) -> IndexedValueType.ValueType:
    """Return a type by its name, as `get_type_name` returns it."""
    words = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).upper()
    return IndexedValueType.Value(f"{_TYPE_PREFIX}{words}")


async def _add_attributes(client: Client, names: list[str]) -> None:
    kinds = {name: parse_type_name(SEARCH_ATTRIBUTES[name]) for name in names}
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=kinds)
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        # Another client was faster, and may have added only some of them.
        if error.status != RPCStatusCode.ALREADY_EXISTS:
            raise _make_refusal(client, error) from error


async def _wait_until_listed(client: Client, names: Collection[str]) -> None:
    deadline = time.monotonic() + _LISTED_SECONDS_MAX
    while missing := set(names) - (await list_attributes(client)).keys():
        if time.monotonic() > deadline:
            raise SetupRefused(
                f"the server took the search attributes, and does not list {', '.join(sorted(missing))} "
                f"after {_LISTED_SECONDS_MAX:.0f} s. Run this again: those that are there stay."
            )
        await asyncio.sleep(_POLL_SECONDS)


def _make_refusal(client: Client, error: RPCError) -> EverlongError:
    address = client.service_client.config.target_host
    reason = make_printable(error.message, 200)
    host = address.rpartition(":")[0] or address
    if error.status == RPCStatusCode.UNIMPLEMENTED or host.endswith(_CLOUD):
        wanted = " ".join(
            f"--search-attribute {name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items()
        )
        return SetupRefused(
            f"{address} does not let programs add search attributes, as Temporal Cloud does not "
            f"({reason}). Add them in its UI, or with: tcld namespace search-attributes add "
            f"--namespace {client.namespace} {wanted}"
        )
    if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
        return SetupRefused(
            f"{address} does not allow it ({reason}). It takes an administrator of the server: run this "
            "with such credentials, or have them run it."
        )
    if error.status == RPCStatusCode.NOT_FOUND:
        return SetupRefused(
            f"there is no namespace {client.namespace!r} at {address}. Create it, or set "
            "TEMPORAL_NAMESPACE."
        )
    if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
        return ServerUnreachable(
            f"the Temporal server at {address} does not answer: {reason}. Try again."
        )
    return SetupRefused(
        f"{address} refuses: {reason}. With SQL visibility, a namespace has 10 columns for Keyword and "
        "3 each for Int, Double, Datetime and KeywordList; those that others use are taken."
    )
