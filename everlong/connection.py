"""From settings to a connected client, to the store, and to where spans and metrics go."""

import importlib
import sys
from collections.abc import Sequence

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider
from temporalio.client import Client
from temporalio.converter import PayloadCodec
from temporalio.runtime import Runtime

from everlong.agents import Agent
from everlong.config import Settings, checked_metrics_host, checked_store
from everlong.errors import ConfigError, ServerUnreachable
from everlong.models import printable
from everlong.plugin import EverlongPlugin
from everlong.storage.keys import parse_keys
from everlong.storage.opening import open_packs
from everlong.storage.packstore import PackStore
from everlong.telemetry.exporters import Exports, Providers, open_providers
from everlong.telemetry.listening import Listen


async def connect(
    settings: Settings,
    *,
    agents: Sequence[Agent] = (),
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    runtime: Runtime | None = None,
) -> Client:
    """Connect to Temporal with the plugin, or say which address did not answer."""
    plugin = EverlongPlugin(
        store=checked_store(settings),
        agents=agents,
        keys=_keys(settings),
        accept_unsealed=settings.accept_unsealed,
        outer_codec=_outer_codec(settings.outer_codec),
        cache_dir=settings.cache_dir or None,
        inline_bytes_max=settings.inline_bytes_max,
        encoder_bytes_max=settings.encoder_bytes_max,
        sticky_seconds=settings.tuning.sticky_seconds,
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        record_contents=settings.record_contents,
    )
    try:
        return await Client.connect(**settings.temporal, plugins=[plugin], runtime=runtime)
    except (RuntimeError, ValueError) as error:
        raise ServerUnreachable(
            f"no Temporal server answers at {settings.temporal.get('target_host')}. Start one with "
            f"`everlong dev`, or set TEMPORAL_ADDRESS. ({printable(str(error), 200)})"
        ) from error


def open_configured_packs(settings: Settings) -> PackStore:
    """Open the store of the settings, with its keys and its cache."""
    return open_packs(
        checked_store(settings),
        keys=_keys(settings),
        accept_unsealed=settings.accept_unsealed,
        cache_dir=settings.cache_dir or None,
    )


def open_configured_providers(settings: Settings, service_name: str) -> Providers:
    """Open what the settings say of spans and metrics. Shut it down before you exit."""
    wants_prometheus = "prometheus" in settings.metrics_exporter
    host = checked_metrics_host(settings) if wants_prometheus else settings.metrics_host
    return open_providers(
        Exports(
            service_name=service_name,
            traces=settings.traces_exporter,
            metrics=settings.metrics_exporter,
            traces_protocol=settings.traces_protocol,
            metrics_protocol=settings.metrics_protocol,
            listen=Listen(
                host,
                settings.metrics_port,
                # The dashboard's token is not for who scrapes, where somebody else guards the port.
                "" if settings.metrics_anonymous else settings.token,
            ),
        )
    )


def _outer_codec(path: str) -> PayloadCodec | None:
    """Return the codec that `module:name` leads to, or what that returns when it is called."""
    if not path:
        return None
    module_name, _, name = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), name)
        codec = found if isinstance(found, PayloadCodec) else found()
    except Exception as error:  # The module is the team's: it may raise anything.
        raise ConfigError(
            f"EVERLONG_OUTER_CODEC is {path!r}, which cannot be loaded ({type(error).__name__}). Give "
            "module:name of a PayloadCodec, or of a callable that returns one."
        ) from error
    if not isinstance(codec, PayloadCodec):
        raise ConfigError(f"EVERLONG_OUTER_CODEC is {path!r}, which is no PayloadCodec")
    return codec


def _keys(settings: Settings) -> dict[str, bytes] | None:
    return parse_keys(settings.keys) if settings.keys else None
