"""Commands that run processes: the demo, the embedded stack, a worker, the admin server."""

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from temporalio.client import Client

from everlong import limits, worker_options
from everlong.cli.help import Commands
from everlong.cli.sweep import choose_index_dir, read_retention
from everlong.cli.values import whole_number
from everlong.config import (
    Settings,
    drop_temporal_variables,
    load_settings,
)
from everlong.connection import (
    connect,
    load_codec,
    open_configured_packs,
    open_configured_providers,
)
from everlong.console import find_command, out
from everlong.demo.run import run_demo
from everlong.embedded import EmbeddedStack
from everlong.embedded.server import is_free
from everlong.errors import PortInUse
from everlong.models import SweepOptions
from everlong.storage.pack_store import ByteBudget
from everlong.worker import load_agent, run_worker

commands = Commands()

Port = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        parser=whole_number("--port", 1, 65535),
        help="Port for Temporal; 7233, or a free one.",
    ),
]
UiPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        parser=whole_number("--ui-port", 1, 65535),
        help="Port for the Temporal UI; 8233, or a free one.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIRECTORY", help="Directory for all data."),
]


def _make_worker_option(allowed: worker_options.Range, text: str, metavar: str = "N") -> Any:
    """Return an option of `everlong worker` with its bounds."""
    return typer.Option(min=allowed.least, max=allowed.most, metavar=metavar, help=text)


@commands.command()
def demo(port: Port = None, ui_port: UiPort = None, data_dir: DataDir = None) -> None:
    """Run an agent for 60 steps, kill its worker, resume it, and print the figures.

    Needs no API key and no network. It checks every figure, and exits with 0 only if all hold.

    Examples:
        everlong demo

    """
    settings = _load_embedded_settings(data_dir or Path(".everlong/demo"))
    if _run_until_signal(run_demo(settings, port=port, ui_port=ui_port)):
        raise typer.Exit(130)


@commands.command()
def dev(
    agents: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODULE:AGENT", help="Agents to run; by default the demo's agent."),
    ] = None,
    port: Port = None,
    ui_port: UiPort = None,
    data_dir: DataDir = None,
) -> None:
    """Start Temporal, a blob store and a worker on this machine, until Ctrl-C.

    All data, blobs included, stays in the data directory, and the next start uses it again.
    EVERLONG_STORE is ignored.

    Examples:
        everlong dev
        everlong dev app:ops --data-dir ./data

    """
    settings = _load_embedded_settings(data_dir)
    if _run_until_signal(_dev(settings, agents or ["everlong.demo:agent"], port, ui_port)):
        out.print("Stopped.")


@commands.command()
def worker(
    agents: Annotated[list[str], typer.Argument(metavar="MODULE:AGENT", help="Agents to run.")],
    deployment: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Worker deployment, for worker versioning; or EVERLONG_DEPLOYMENT. It gets no "
            "threads until one of its versions is current.",
        ),
    ] = "",
    build_id: Annotated[
        str,
        typer.Option(metavar="ID", help="Version within the deployment; or EVERLONG_BUILD_ID."),
    ] = "",
    workflow_tasks: Annotated[
        int | None,
        _make_worker_option(
            worker_options.WORKFLOW_TASKS,
            "Concurrent workflow tasks: steps of threads, without their model calls and tools. With "
            "fewer, tasks wait at the server and may time out; with more, each one is slower. "
            f"Default: {limits.WORKFLOW_TASKS}.",
        ),
    ] = None,
    activities: Annotated[
        int | None,
        _make_worker_option(
            worker_options.ACTIVITIES,
            "Concurrent model calls and tools. They mostly wait: raise it if slots are used up while "
            "the processor is idle, lower it if tools need much memory. Default: 100.",
        ),
    ] = None,
    cached_threads: Annotated[
        int | None,
        _make_worker_option(
            worker_options.CACHED_THREADS,
            "Threads kept in memory between their steps; others are replayed. Raise it above the number "
            "of threads that are active at once, lower it if memory is short. "
            "Default: 1000.",
        ),
    ] = None,
    sticky_seconds: Annotated[
        float | None,
        _make_worker_option(
            worker_options.STICKY_SECONDS,
            "Seconds that a task waits for the worker that has its thread in memory, before any worker "
            "may take it. Shorter: threads of a killed worker resume sooner. Longer: fewer replays "
            f"while workers are busy. Default: {limits.STICKY_SECONDS:g}.",
            "SECONDS",
        ),
    ] = None,
    workflow_pollers: Annotated[
        int | None,
        _make_worker_option(
            worker_options.WORKFLOW_POLLERS,
            "Concurrent polls for workflow tasks. One in 20 of them, and at least one, accepts threads "
            "that are not in memory; with fewer polls, a busy worker accepts new threads faster than it "
            f"advances those it has. Default: {limits.WORKFLOW_POLLERS}.",
        ),
    ] = None,
    activity_pollers: Annotated[
        int | None,
        _make_worker_option(
            worker_options.ACTIVITY_POLLERS,
            "Concurrent polls for model calls and tools. Raise it if they wait in the queue while slots "
            "are free. Default: 5.",
        ),
    ] = None,
    identity: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The worker's name in histories, lists of pollers and everlong doctor. Must be unique. "
            "Default: process id and host.",
        ),
    ] = "",
) -> None:
    """Run agents on the configured Temporal server, until Ctrl-C.

    It reads TEMPORAL_ADDRESS, EVERLONG_STORE, EVERLONG_TASK_QUEUE, OTEL_TRACES_EXPORTER and
    OTEL_METRICS_EXPORTER. Each option has a variable, as EVERLONG_WORKFLOW_TASKS for --workflow-tasks;
    the option wins.

    Examples:
        everlong worker app:ops app:support

    """
    settings = load_settings()
    given = {
        "workflow_tasks": workflow_tasks,
        "activities": activities,
        "cached_threads": cached_threads,
        "sticky_seconds": sticky_seconds,
        "workflow_pollers": workflow_pollers,
        "activity_pollers": activity_pollers,
        "identity": worker_options.check_identity("--identity", identity) or None,
    }
    settings = dataclasses.replace(
        settings,
        deployment=deployment or settings.deployment,
        build_id=build_id or settings.build_id,
        worker=settings.worker.merge(given),
    )
    asyncio.run(run_worker(settings, [load_agent(path) for path in agents]))


@commands.command()
def serve(
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", parser=whole_number("--port", 1, 65535), help="Port to listen on."
        ),
    ] = 8234,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="The Temporal UI's origin, as in http://127.0.0.1:8233."),
    ] = None,
    temporal_ui: Annotated[
        str,
        typer.Option(
            metavar="URL", help="URL of the Temporal UI, for links; or EVERLONG_TEMPORAL_UI."
        ),
    ] = "",
    allow_anonymous: Annotated[
        bool,
        typer.Option(
            "--allow-anonymous",
            help="Listen beyond loopback without a token. Only requests with the host localhost "
            "or 127.0.0.1 are then answered.",
        ),
    ] = False,
    codec: Annotated[
        str,
        typer.Option(
            metavar="MODULE:NAME",
            help="The payload codec that your workers use inside Everlong's, as acme.codecs:make: a "
            "PayloadCodec, or a function without arguments that returns one. Without it, values that "
            "the codec has encrypted stay encrypted here. Or EVERLONG_CODEC.",
        ),
    ] = "",
) -> None:
    """Serve the dashboard, its JSON API, and the Temporal UI's codec endpoints.

    Open http://127.0.0.1:8234. The Temporal CLI can use the codec endpoints too.

    Examples:
        everlong serve
        temporal workflow show --codec-endpoint http://127.0.0.1:8234 -w ops-7

    """
    # Imported here: other commands should not wait for a web server's imports.
    from everlong.admin.fleet import refresh_gauges
    from everlong.admin.web import AppContext, check_exposure, create_admin_app, load_access
    from everlong.admin.web.server import return_large_blocks, run_server

    return_large_blocks()
    settings = load_settings()
    inner = load_codec(codec or settings.codec, "--codec" if codec else "EVERLONG_CODEC")
    settings = dataclasses.replace(settings, codec=codec or settings.codec)
    access = load_access(settings)
    check_exposure(host, is_guarded=not access.is_open, allow_anonymous=allow_anonymous)
    if not is_free(port, host):
        raise PortInUse(
            f"port {port} is in use. Stop the process that listens there, or choose another port "
            "with --port."
        )
    packs = open_configured_packs(
        settings,
        memory_bytes_max=limits.SERVER_CACHE_BYTES_MAX,
        budget=ByteBudget(limits.SERVER_READ_BYTES_MAX),
    )

    async def connect_server() -> Client:
        # The admin server only decodes small payloads: a thread's state, answers to queries.
        return await connect(
            settings, store=packs.store, decode_bytes_max=limits.SERVER_DECODE_BYTES_MAX
        )

    providers = open_configured_providers(settings, "everlong-admin")
    providers.install()

    @contextlib.asynccontextmanager
    async def publish_gauges() -> AsyncIterator[None]:
        gauges = refresh_gauges(connect_server, providers.meters)
        try:
            async with gauges if providers.has_metrics else contextlib.nullcontext():
                yield
        finally:
            await asyncio.to_thread(providers.shutdown)

    context = AppContext(
        connect_server,
        packs,
        task_queue=settings.task_queue,
        temporal_ui=temporal_ui or settings.temporal_ui,
        sweep_options=SweepOptions(retention=read_retention(settings.retention)),
        index_dir=choose_index_dir(settings),
        inner_codec=inner,
    )
    app = create_admin_app(
        context, access, cors_origins=cors_origin or (), background=publish_gauges
    )
    run_server(app, host, port)


async def _dev(
    settings: Settings, agents: list[str], port: int | None, ui_port: int | None
) -> None:
    out.print("Starting ...")
    async with EmbeddedStack.open(settings, agents, port=port, ui_port=ui_port) as stack:
        out.print(
            f"Temporal server  {stack.server.address}\n"
            f"dashboard        {stack.admin_url}\n"
            f"Temporal UI      {stack.server.ui_url}\n"
            f"blob store       {stack.settings.store}\n"
            f"worker           {', '.join(agents)} on task queue {settings.task_queue}\n"
            f"logs             {settings.data_dir}\n\n"
            "In a second terminal:\n"
            f"  export TEMPORAL_ADDRESS={stack.server.address} EVERLONG_STORE={stack.settings.store}\n"
            f"  {find_command()} send hello-1 'Hello' --agent NAME\n\n"
            "Ctrl-C stops everything; the data stays.",
            soft_wrap=True,
        )
        await stack.wait()


def _load_embedded_settings(data_dir: Path | None) -> Settings:
    """Return settings for the embedded stack, without the user's own Temporal connection."""
    settings = load_settings(drop_temporal_variables())
    if data_dir is not None:
        settings = dataclasses.replace(settings, data_dir=data_dir.absolute())
    return settings


def _run_until_signal(work: Coroutine[Any, Any, None]) -> bool:
    """Run work to its end, clean-up included; return whether Ctrl-C or SIGTERM cancelled it."""

    async def until_stopped() -> bool:
        task = asyncio.ensure_future(work)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    return asyncio.run(until_stopped())
