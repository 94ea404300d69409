"""`everlong serve`: the dashboard, its API and the codec server."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated, Final

import typer
from temporalio.client import Client

from everlong import limits
from everlong.admin.fleet import refresh_gauges
from everlong.admin.watcher import HeldWatcher
from everlong.admin.web import Access, AppContext, check_exposure, create_admin_app, load_access
from everlong.admin.web.server import return_large_blocks, run_server
from everlong.banner import describe_server, format_banner
from everlong.cli.help import Commands
from everlong.cli.sweep import choose_index_dir, read_retention
from everlong.cli.values import whole_number
from everlong.config import is_loopback, load_settings
from everlong.connection import (
    connect,
    load_codec,
    load_configured_notify,
    open_configured_packs,
    open_configured_providers,
)
from everlong.console import out
from everlong.embedded.server import is_free
from everlong.errors import PortInUse
from everlong.format import format_duration
from everlong.models import SweepOptions
from everlong.policy.retention import Retention
from everlong.storage.pack_store import ByteBudget

commands = Commands()

_GRANTS_SHOWN_MAX: Final = 10


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
    return_large_blocks()
    settings = load_settings()
    inner = load_codec(codec or settings.codec, "--codec" if codec else "EVERLONG_CODEC")
    settings = dataclasses.replace(settings, codec=codec or settings.codec)
    access = load_access(settings)
    check_exposure(host, is_guarded=not access.is_open, allow_anonymous=allow_anonymous)
    packs = open_configured_packs(
        settings,
        memory_bytes_max=limits.SERVER_CACHE_BYTES_MAX,
        budget=ByteBudget(limits.SERVER_READ_BYTES_MAX),
    )

    if not is_free(port, host):
        raise PortInUse(
            f"port {port} is in use. Stop the process that listens there, or choose another port "
            "with --port."
        )

    async def connect_server() -> Client:
        # The admin server only decodes small payloads: a thread's state, answers to queries.
        return await connect(
            settings, store=packs.store, decode_bytes_max=limits.SERVER_DECODE_BYTES_MAX
        )

    providers = open_configured_providers(settings, "everlong-admin")
    providers.install()
    notify = load_configured_notify(settings)

    @contextlib.asynccontextmanager
    async def run_background() -> AsyncIterator[None]:
        try:
            async with contextlib.AsyncExitStack() as tasks:
                if providers.has_metrics:
                    await tasks.enter_async_context(
                        refresh_gauges(connect_server, providers.meters)
                    )
                if notify is not None:
                    watcher = HeldWatcher(context.client, notify, settings.task_queue)
                    await tasks.enter_async_context(watcher.watching())
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
        notify=notify,
    )
    rows = describe_server(
        settings,
        url=f"http://{f'[{host}]' if ':' in host else host}:{port}",
        access=_describe_access(access, host),
        temporal_ui=context.temporal_ui,
        cors_origins=cors_origin or (),
        retention=_describe_retention(context.sweep_options.retention),
        metrics_url=providers.endpoint.url if providers.endpoint else "",
    )
    out.print(format_banner("serve", rows), markup=False, soft_wrap=True)
    app = create_admin_app(
        context, access, cors_origins=cors_origin or (), background=run_background
    )
    run_server(app, host, port, on_stop=context.live.close)


def _describe_access(access: Access, host: str) -> str:
    """Return who may do what, without tokens."""
    if access.is_open:
        reach = "this machine" if is_loopback(host) else f"{host}, as localhost"
        return f"no token: everyone on {reach} is an admin"
    parts = [f"{grant.name} ({grant.role})" for grant in access.grants[:_GRANTS_SHOWN_MAX]]
    if len(access.grants) > len(parts):
        parts.append(f"and {len(access.grants) - len(parts)} more")
    text = f"tokens of {', '.join(parts)}" if parts else ""
    if access.proxy is not None:
        networks = ", ".join(map(str, access.proxy.networks))
        text += f"{'; ' * bool(text)}users that {networks} names in {access.proxy.user_header}"
    return text


def _describe_retention(retention: Retention) -> str:
    """Return how long a sweep keeps objects that nothing reaches."""
    archive = retention.archive_seconds
    kept = {
        "payloads": format_duration(retention.payload_seconds),
        "journals": format_duration(retention.journal_seconds),
        "archives": "for ever" if archive is None else format_duration(archive),
        "quarantine": format_duration(retention.quarantine_seconds),
    }
    return ", ".join(f"{name} {text}" for name, text in kept.items())
