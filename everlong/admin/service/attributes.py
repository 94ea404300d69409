"""Our search attributes on the server: which are there, and adding those that are not.

Nothing is changed if one of them is there with another type.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Final, Literal

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everlong.errors import EverlongError, ServerUnreachable, SetupRefused
from everlong.models import SEARCH_ATTRIBUTES, printable

# The server's own caches know a new attribute after a few seconds.
_LISTED_SECONDS_MAX: Final = 30.0
_POLL_SECONDS: Final = 0.2
_CLOUD: Final = (".tmprl.cloud", ".api.temporal.io")
_TYPE_PREFIX: Final = "INDEXED_VALUE_TYPE_"


async def listed_attributes(client: Client) -> dict[str, str]:
    """Return the custom search attributes of the namespace, and their types as in `Keyword`."""
    try:
        found = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError as error:
        raise _refusal(client, error) from error
    return {name: type_name(kind) for name, kind in found.custom_attributes.items()}


async def set_up(client: Client) -> dict[str, Literal["added", "present"]]:
    """Add our search attributes that the namespace lacks; return once the server lists them all."""
    before = await listed_attributes(client)
    if clashes := clashing(before):
        raise SetupRefused(
            f"the namespace {client.namespace!r} has {clashes}. Nothing was changed. Remove them there, "
            "if nobody uses them, and run this again; or use another namespace."
        )
    missing = [name for name in SEARCH_ATTRIBUTES if name not in before]
    if missing:
        await _add(client, missing)
        await _until_listed(client)
    return {name: "added" if name in missing else "present" for name in SEARCH_ATTRIBUTES}


def clashing(listed: Mapping[str, str]) -> str:
    """Return in words which of our attributes are there with another type; empty if none is."""
    return ", ".join(
        f"{name} as {listed[name]} instead of {kind}"
        for name, kind in SEARCH_ATTRIBUTES.items()
        if listed.get(name, kind) != kind
    )


def type_name(kind: IndexedValueType.ValueType) -> str:
    """Return the name of a type as people write it: `Keyword`, `KeywordList`."""
    name = IndexedValueType.Name(kind).removeprefix(_TYPE_PREFIX)
    return "".join(word.capitalize() for word in name.split("_"))


async def _add(client: Client, names: list[str]) -> None:
    kinds = {
        name: IndexedValueType.Value(f"{_TYPE_PREFIX}{SEARCH_ATTRIBUTES[name].upper()}")
        for name in names
    }
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=kinds)
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        # Somebody else was faster, who may have added some of them only.
        if error.status != RPCStatusCode.ALREADY_EXISTS:
            raise _refusal(client, error) from error


async def _until_listed(client: Client) -> None:
    deadline = time.monotonic() + _LISTED_SECONDS_MAX
    while missing := SEARCH_ATTRIBUTES.keys() - await listed_attributes(client):
        if time.monotonic() > deadline:
            raise SetupRefused(
                f"the server took the search attributes, and does not list {', '.join(sorted(missing))} "
                f"after {_LISTED_SECONDS_MAX:.0f} s. Run this again: those that are there stay."
            )
        await asyncio.sleep(_POLL_SECONDS)


def _refusal(client: Client, error: RPCError) -> EverlongError:
    address = client.service_client.config.target_host
    said = printable(error.message, 200)
    host = address.rpartition(":")[0] or address
    if error.status == RPCStatusCode.UNIMPLEMENTED or host.endswith(_CLOUD):
        wanted = " ".join(
            f"--search-attribute {name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items()
        )
        return SetupRefused(
            f"{address} does not let programs add search attributes, as Temporal Cloud does not "
            f"({said}). Add them in its UI, or with: tcld namespace search-attributes add "
            f"--namespace {client.namespace} {wanted}"
        )
    if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
        return SetupRefused(
            f"{address} does not allow it ({said}). It takes an administrator of the server: run this "
            "with such credentials, or have them run it."
        )
    if error.status == RPCStatusCode.NOT_FOUND:
        return SetupRefused(
            f"there is no namespace {client.namespace!r} at {address}. Create it, or set "
            "TEMPORAL_NAMESPACE."
        )
    if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
        return ServerUnreachable(
            f"the Temporal server at {address} does not answer: {said}. Try again."
        )
    return SetupRefused(
        f"{address} refuses: {said}. With SQL visibility, a namespace has 10 columns for Keyword and 3 "
        "each for Int, Double and Datetime; those that others use are taken."
    )
