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


ROLES = roles()
# An application takes 0.3 s of CPU to create, so each event loop keeps one for each set of arguments.
_Arguments = tuple[AppContext | None, Access | None, tuple[str, ...]]
_APPS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Arguments, FastAPI]] = WeakKeyDictionary()


def _app(context: AppContext | None, access: Access | None, cors_origins: Sequence[str]) -> FastAPI:
    made = _APPS.setdefault(asyncio.get_running_loop(), {})
    key = (context, access, tuple(cors_origins))
    if key not in made:
        made[key] = create_admin_app(
            context or make_context(), access or Access(), cors_origins=cors_origins
        )
    return made[key]


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
