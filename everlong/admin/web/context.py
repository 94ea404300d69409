"""What the requests of one server share: the connection, the store, the list of threads."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from temporalio.client import Client
from temporalio.converter import PayloadCodec

from everlong.admin.fleet import StoreHealth, check_store_health
from everlong.admin.web.jobs import Jobs
from everlong.client.query_cache import keep_answers
from everlong.client.sweeps import read_last_sweep
from everlong.client.thread import ThreadHandle
from everlong.client.threads import Directory
from everlong.errors import EverlongError, ServerUnreachable
from everlong.models import SweepOptions, SweepReport
from everlong.storage.pack_store import PackStore

# A probe writes and deletes an object: once in a while is enough, however many look.
_HEALTH_SECONDS: Final = 15.0
# A listing and one small object.
_SWEEP_SECONDS: Final = 15.0
CONNECT_SECONDS_MAX: Final = 10.0
"""So long a request waits for the connection, whoever makes it. One that is there takes a second."""

T = TypeVar("T")


class AppContext:
    """What the API and the pages work with. It connects once somebody asks for threads."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        packs: PackStore,
        *,
        task_queue: str,
        temporal_ui: str = "",
        sweeps: SweepOptions | None = None,
        index_dir: Path | None = None,
        inner_codec: PayloadCodec | None = None,
    ) -> None:
        self.packs = packs
        self.task_queue = task_queue
        self.sweeps = sweeps or SweepOptions()
        """What sweeps are done with."""
        self.index_dir = index_dir
        """Where sweeps remember what they have read; None for nowhere."""
        self.inner_codec = inner_codec
        """The codec that the workers have inside Everlong's; the connection has the same."""
        self.jobs = Jobs()
        self.temporal_ui = temporal_ui
        """Where the Temporal UI is, for links; empty if nobody said."""
        self.directory = Directory(self.client)
        self._connect = connect
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._health = _Kept(lambda: check_store_health(packs), _HEALTH_SECONDS)
        self._sweep = _Kept(self._last_sweep, _SWEEP_SECONDS)

    async def thread(self, thread_id: str) -> ThreadHandle:
        """Return the handle of a thread."""
        return ThreadHandle(
            await self.client(), thread_id, packs=self.packs, task_queue=self.task_queue
        )

    async def client(self) -> Client:
        """Return the connection to Temporal; raise `ServerUnreachable` if there is no server."""
        if self._client is not None:
            return self._client
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX), self._connecting:
                if self._client is None:
                    self._client = await self._connect()
                    # Pages refresh themselves every two seconds.
                    keep_answers(self._client)
                return self._client
        except TimeoutError:
            raise ServerUnreachable(
                f"the Temporal server did not answer within {CONNECT_SECONDS_MAX:.0f} s. Look whether "
                "it runs, and whether TEMPORAL_ADDRESS leads to it."
            ) from None

    async def store_health(self) -> StoreHealth:
        """Return how the store is, as it was found within the last seconds."""
        return await self._health.get()

    async def last_sweep(self) -> SweepReport | None:
        """Return the report of the newest sweep, as it was found within the last seconds."""
        return await self._sweep.get()

    def forget_sweep(self) -> None:
        """Look for the newest report again: there is one more."""
        self._sweep.forget()

    async def _last_sweep(self) -> SweepReport | None:
        with contextlib.suppress(EverlongError):  # What asks for it is there without it.
            return await read_last_sweep(await self.client(), self.packs)
        return None

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep the list of threads fresh meanwhile; at the end, give up what is still under way."""
        async with self.directory.kept_fresh(), self.jobs.opened():
            yield


class _Kept(Generic[T]):
    """Something that is found out once in a while, however many ask."""

    def __init__(self, find: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._find = find
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._found: tuple[float, T] | None = None

    async def get(self) -> T:
        async with self._lock:
            if self._found is None or time.monotonic() - self._found[0] > self._seconds:
                self._found = (time.monotonic(), await self._find())
            return self._found[1]

    def forget(self) -> None:
        self._found = None
