"""In-process clients of the admin server, without a network: a browser or an API program."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from weakref import WeakKeyDictionary

import httpx
from fastapi import FastAPI
from temporalio.client import Client

from everlong.admin.web import Access, AppContext, create_admin_app
from everlong.admin.web.auth import Grant, Role
from everlong.errors import ServerUnreachable
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore

HOST = "http://127.0.0.1:8234"
TOKENS = {role: f"{role}-token-of-sixteen" for role in Role}
"""A token for each role; the name of each is its role with a capital."""
# The header that a browser sends with requests of our own pages.
OWN = {"sec-fetch-site": "same-origin", "origin": HOST}


def roles() -> Access:
    """Return an access list with one person for each role."""
    return Access(
        grants=tuple(Grant(name=role.capitalize(), role=role, token=TOKENS[role]) for role in Role)
    )


def bearer(role: Role) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[role]}"}


async def raise_unreachable() -> Client:
    raise ServerUnreachable("there is no server in this test")


def make_context(
    client: Client | None = None, packs: PackStore | None = None, queue: str = "q"
) -> AppContext:
    async def connect() -> Client:
        return await raise_unreachable() if client is None else client

    return AppContext(
        connect,
        packs or PackStore(MemoryBlobStore()),
        task_queue=queue,
        temporal_ui="http://127.0.0.1:8233",
    )


# An application takes 0.25 s to create, so each event loop keeps one: without a Temporal server, and
# either open to all or with one person for each role.
_APPS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, FastAPI]] = WeakKeyDictionary()
ROLES = roles()


def _app(context: AppContext | None, access: Access | None, cors_origins: Sequence[str]) -> FastAPI:
    if context is not None or cors_origins or not (access is None or access is ROLES):
        return create_admin_app(
            context or make_context(), access or Access(), cors_origins=cors_origins
        )
    made = _APPS.setdefault(asyncio.get_running_loop(), {})
    is_open = access is None
    if is_open not in made:
        made[is_open] = create_admin_app(make_context(), access or Access())
    return made[is_open]


@contextlib.asynccontextmanager
async def open_http_client(
    context: AppContext | None = None,
    access: Access | None = None,
    *,
    host: str = HOST,
    address: str = "127.0.0.1",
    cors_origins: Sequence[str] = (),
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield an HTTP client of the server. An unexpected error in the server fails the test."""
    app = _app(context, access, cors_origins)
    transport = httpx.ASGITransport(app, client=(address, 50_000))
    async with httpx.AsyncClient(transport=transport, base_url=host) as client:
        yield client
