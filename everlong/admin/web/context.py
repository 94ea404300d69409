"""App context: the connection, store, jobs and list of threads that all requests of a server share."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from temporalio.client import Client
from temporalio.converter import PayloadCodec

from everlong.admin.conversation import RunStarts
from everlong.admin.fleet import StoreHealth, check_store_health
from everlong.admin.web.jobs import Jobs
from everlong.admin.web.slack_clicks import SlackClicks
from everlong.client.status import keep_answers
from everlong.client.sweeps import read_last_sweep
from everlong.client.thread import ThreadHandle
from everlong.client.thread_list import ThreadList
from everlong.errors import EverlongError, ServerUnreachable
from everlong.live.hub import LiveHub
from everlong.models import SweepOptions, SweepReport
from everlong.notify.sinks import Notify
from everlong.storage.pack_store import PackStore
from everlong.telemetry import Telemetry

# A probe writes and deletes an object, so its result is cached for all pages.
_HEALTH_SECONDS: Final = 15.0
# Reading the last report takes a listing and one small object.
_SWEEP_SECONDS: Final = 15.0
CONNECT_SECONDS_MAX: Final = 10.0
"""Time that a request waits for the connection. A reachable server takes a second."""

T = TypeVar("T")


class AppContext:
    """Shared state of the API and the pages. Connects to Temporal on the first request that needs it."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        packs: PackStore,
        *,
        task_queue: str,
        temporal_ui: str = "",
        sweep_options: SweepOptions | None = None,
        index_dir: Path | None = None,
        inner_codec: PayloadCodec | None = None,
        notify: Notify | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.packs = packs
        self.task_queue = task_queue
        self.sweep_options = sweep_options or SweepOptions()
        """Options of the sweeps that this server runs."""
        self.index_dir = index_dir
        """Folder of the sweep index; None for no index."""
        self.inner_codec = inner_codec
        """The workers' own codec, inside Everlong's. The connection uses the same."""
        self.jobs = Jobs()
        self.live = LiveHub()
        self.run_starts = RunStarts()
        """Start times of runs, for the conversations of open pages."""
        self.slack_clicks = SlackClicks(self, notify or Notify(), telemetry)
        self.temporal_ui = temporal_ui
        """URL of the Temporal UI, for links; empty if it is not configured."""
        self.thread_list = ThreadList(self.client)
        self._connect = connect
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._health = _Cached(lambda: check_store_health(packs), _HEALTH_SECONDS)
        self._sweep = _Cached(self._read_last_sweep, _SWEEP_SECONDS)

    async def thread(self, thread_id: str) -> ThreadHandle:
        """Return the handle of a thread."""
        return ThreadHandle(
            await self.client(), thread_id, packs=self.packs, task_queue=self.task_queue
        )

    async def client(self) -> Client:
        """Return the connection to Temporal. Raises ServerUnreachable if the server does not answer."""
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
                f"the Temporal server did not answer within {CONNECT_SECONDS_MAX:.0f} s. Check that it "
                "runs, and that TEMPORAL_ADDRESS is its address."
            ) from None

    async def store_health(self) -> StoreHealth:
        """Return the store's health, at most some seconds old."""
        return await self._health.get()

    async def last_sweep(self) -> SweepReport | None:
        """Return the report of the newest sweep, at most some seconds old; None without one."""
        return await self._sweep.get()

    def forget_sweep(self) -> None:
        """Drop the cached report, since a sweep has written a new one."""
        self._sweep.forget()

    async def _read_last_sweep(self) -> SweepReport | None:
        with contextlib.suppress(EverlongError):  # The fleet page shows the rest without it.
            return await read_last_sweep(await self.client(), self.packs)
        return None

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Keep the list of threads up to date until the server stops, then cancel running jobs."""
        async with (
            self.thread_list.keep_fresh(),
            self.jobs.lifespan(),
            self.live.lifespan(),
            self.slack_clicks.lifespan(),
        ):
            yield


class _Cached(Generic[T]):
    """A value that is read again when it is older than `seconds`."""

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
