"""The embedded stack in one data directory: Temporal server, blob store, admin server and worker."""

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from everlong.config import (
    Settings,
    build_embedded_environment,
    get_dev_live_file,
    point_to_embedded,
)
from everlong.embedded.process import ManagedProcess
from everlong.embedded.server import (
    LOOPBACK,
    TemporalServer,
    claim_port,
    start_server,
)
from everlong.errors import DataDirUnusable, ProcessFailed
from everlong.worker_options import READY as WORKER_READY

CODEC_SERVER_READY: Final = "Uvicorn running on"
ADMIN_PORT_DEFAULT: Final = 8234
"""Default port of `everlong serve`."""
_READY_SECONDS_MAX: Final = 60.0


@dataclasses.dataclass
class EmbeddedStack:
    """A running stack. `open` starts all its processes, and stops them on exit."""

    settings: Settings
    """Settings that point to the stack's own server and store."""
    agents: Sequence[str]
    server: TemporalServer
    codec_server: ManagedProcess
    worker: ManagedProcess
    admin_port: int
    _ready: str = ""
    """The line that the worker prints once it polls."""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        settings: Settings,
        agents: Sequence[str],
        *,
        port: int | None = None,
        ui_port: int | None = None,
        prepare: Callable[[Path], None] = lambda _: None,
        report: Callable[[str, float | None], None] = lambda _name, _seconds: None,
        worker_may_fail: bool = False,
        live: bool = False,
    ) -> AsyncIterator[Self]:
        """Start the stack in `settings.data_dir`, with the data that is there.

        `prepare` is called with the directory once it is locked. Without explicit ports, Temporal's
        usual ones are used if they are free, or else any free ones. `report` is called with a part's
        name and None when it is waited for, and with its seconds when it is ready. A worker that does
        not start is an error, unless it `may_fail`: then the stack runs without one. With `live`, the
        worker sends live output to the dashboard.
        """
        data_dir = settings.data_dir
        async with contextlib.AsyncExitStack() as cleanup:
            cleanup.enter_context(lock_data_dir(data_dir))
            prepare(data_dir)
            codec_port = cleanup.enter_context(claim_port(ADMIN_PORT_DEFAULT))
            started = time.monotonic()
            report("Temporal server", None)
            server = await start_server(
                data_dir,
                port=port,
                ui_port=ui_port,
                usual_ports=True,
                codec_endpoint=f"http://{LOOPBACK}:{codec_port}",
            )
            cleanup.callback(server.process.stop)
            report("Temporal server", time.monotonic() - started)
            settings = point_to_embedded(settings, server.address)
            settings = dataclasses.replace(
                settings,
                temporal_ui=server.ui_url,
                live_url=f"http://{LOOPBACK}:{codec_port}" if live else "",
                live_token="",
            )
            started = time.monotonic()
            codec_server = start_codec_server(settings, codec_port, server.ui_port)
            cleanup.callback(codec_server.stop)
            worker = start_worker(settings, agents)
            stack = cls(settings, agents, server, codec_server, worker, codec_port)
            cleanup.callback(lambda: stack.worker.stop())
            report("dashboard", None)
            await codec_server.wait_for_output(CODEC_SERVER_READY, _READY_SECONDS_MAX)
            report("dashboard", time.monotonic() - started)
            if live:
                live_file = get_dev_live_file(data_dir)
                live_file.write_text(settings.live_url, encoding="ascii")
                cleanup.callback(live_file.unlink, missing_ok=True)
            report("worker", None)
            try:
                await stack._wait_for_worker()
            except ProcessFailed:
                if not worker_may_fail:
                    raise
            else:
                report("worker", time.monotonic() - started)
            yield stack

    @property
    def admin_url(self) -> str:
        """URL of the dashboard."""
        return f"http://{LOOPBACK}:{self.admin_port}"

    @property
    def agent_names(self) -> list[str]:
        """Names of the agents that the worker has loaded; empty if it did not start."""
        names = self._ready.removeprefix(f"{WORKER_READY}: ").rpartition(" on task queue ")[0]
        if len(self.agents) == 1 and names:
            return [names]  # It may contain a comma.
        return names.split(", ") if names else []

    async def replace_worker(self) -> None:
        """Stop the worker and start another; raise `ProcessFailed` if it does not start."""
        # In an OS thread: a worker takes up to 10 s to complete the calls in progress.
        await asyncio.to_thread(self.worker.stop)
        self.worker = start_worker(self.settings, self.agents)
        await self._wait_for_worker()

    async def _wait_for_worker(self) -> None:
        self._ready = ""
        self._ready = await self.worker.wait_for_output(WORKER_READY, _READY_SECONDS_MAX)

    async def wait(self, *, without_worker: bool = False) -> None:
        """Wait until a process of the stack ends by itself, and raise its error."""
        parts = [self.server.process, self.codec_server]
        parts += [] if without_worker else [self.worker]
        waits = [asyncio.ensure_future(part.wait()) for part in parts]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        raise next(part for part in parts if part.returncode is not None).make_exit_error()


def start_worker(
    settings: Settings, agents: Sequence[str], *, name: str = "worker"
) -> ManagedProcess:
    """Start `everlong worker`; it prints `WORKER_READY` once it polls."""
    return _start_everlong(name, ["worker", *agents], settings)


def start_codec_server(settings: Settings, port: int, ui_port: int) -> ManagedProcess:
    """Start `everlong serve`, and allow the Temporal UI's origin by both names of loopback."""
    arguments = ["serve", "--port", str(port)]
    for host in (LOOPBACK, "localhost"):
        arguments += ["--cors-origin", f"http://{host}:{ui_port}"]
    # The worker uses the configured metrics port, so the admin server takes the next one.
    settings = dataclasses.replace(
        settings, metrics_port=settings.metrics_port and settings.metrics_port + 1
    )
    return _start_everlong("codec-server", arguments, settings)


def _start_everlong(name: str, arguments: Sequence[str], settings: Settings) -> ManagedProcess:
    return ManagedProcess(
        name,
        [sys.executable, "-m", "everlong", *arguments],
        env=build_embedded_environment(settings),
        log=settings.data_dir / f"{name}.log",
    )


@contextlib.contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[None]:
    """Lock a data directory, which is created if missing; raise if another stack has locked it."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise DataDirUnusable(
            f"the data directory {data_dir} cannot be used: {error.strerror}. Choose one that this "
            "user may write to with --data-dir or EVERLONG_DATA_DIR."
        ) from error
    try:
        _take_lock(descriptor, data_dir)
        yield
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, data_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DataDirUnusable(
            f"another Everlong stack runs in {data_dir}. Stop it, or choose another directory with "
            "--data-dir."
        ) from error
