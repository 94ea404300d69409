"""Connections made from settings: the Temporal client, the blob store, the telemetry providers."""

import dataclasses
import importlib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from temporalio.client import Client, Plugin
from temporalio.converter import DataConverter, PayloadCodec

from everlong import limits
from everlong.client_plugin import ClientPlugin
from everlong.codecs.composition import ExplainingPayloadConverter
from everlong.config import (
    Settings,
    copy_environment,
    read_dev_live_url,
    require_metrics_host,
    require_store,
)
from everlong.errors import ConfigError, EverlongError, ServerUnreachable
from everlong.live.models import LiveServer
from everlong.models import make_printable
from everlong.storage import BlobStore
from everlong.storage.encryption_keys import parse_keys
from everlong.storage.pack_store import ByteBudget, PackStore, open_packs

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from temporalio.runtime import Runtime

    from everlong.agents import Agent
    from everlong.notify.sinks import Notify
    from everlong.telemetry.exporters import Providers


async def connect(
    settings: Settings,
    *,
    agents: "Sequence[Agent]" = (),
    tracer_provider: "TracerProvider | None" = None,
    meter_provider: "MeterProvider | None" = None,
    runtime: "Runtime | None" = None,
    store: BlobStore | None = None,
    decode_bytes_max: int = limits.DECODE_BYTES_MAX,
) -> Client:
    """Connect to Temporal with the plugin; raise `ServerUnreachable` if no server answers.

    An open `store` replaces the configured one.
    """
    inner = load_codec(settings.codec, "EVERLONG_CODEC")
    plugin: Plugin
    shared: dict[str, Any] = {
        "store": require_store(settings) if store is None else store,
        "keys": _parse_keys(settings),
        "accept_unsealed": settings.accept_unsealed,
        "outer_codec": load_codec(settings.outer_codec, "EVERLONG_OUTER_CODEC"),
        "cache_dir": settings.cache_dir or None,
        "inline_bytes_max": settings.inline_bytes_max,
        "encoder_bytes_max": settings.encoder_bytes_max,
        "decode_bytes_max": decode_bytes_max,
    }
    if agents:
        # Imported here: a command that runs no worker needs none of it.
        from everlong.plugin import EverlongPlugin

        plugin = EverlongPlugin(
            **shared,
            agents=agents,
            sticky_seconds=settings.worker.sticky_seconds,
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            record_contents=settings.record_contents,
            live=get_live_server(settings),
            notify=load_configured_notify(settings),
        )
    else:
        plugin = ClientPlugin(**shared)
    # As on a team's workers, the plugin wraps its codec around the one that it finds here.
    converter = dataclasses.replace(DataConverter.default, payload_codec=inner)
    if not agents:
        converter = dataclasses.replace(
            converter, payload_converter_class=ExplainingPayloadConverter
        )
    try:
        return await Client.connect(
            **settings.temporal, data_converter=converter, plugins=[plugin], runtime=runtime
        )
    except (RuntimeError, ValueError) as error:
        raise _explain_failure(settings, error) from error


def _explain_failure(settings: Settings, error: Exception) -> EverlongError:
    """Return our error for one of `Client.connect`, whose texts are those of its libraries."""
    text = str(error)
    address = settings.temporal.get("target_host")
    reason = make_printable(text.removeprefix("Failed client connect: "), 200)
    if "ParseError" in text or "client cert" in text:
        return ConfigError(
            f"the TLS settings for {address} cannot be used: TEMPORAL_TLS_CLIENT_CERT_PATH and "
            "TEMPORAL_TLS_CLIENT_KEY_PATH (or _DATA) name a certificate and its key, both in PEM and "
            f"both or neither. ({reason})"
        )
    if "InvalidCertificate" in text:
        return ServerUnreachable(
            f"the certificate of {address} is not trusted. If its authority is your own, set "
            "TEMPORAL_TLS_SERVER_CA_CERT_PATH; if the name is another one, set "
            f"TEMPORAL_TLS_SERVER_NAME. ({reason})"
        )
    if "code: PermissionDenied" in text or "code: Unauthenticated" in text:
        return ServerUnreachable(
            f"{address} refuses these credentials for the namespace "
            f"{settings.temporal.get('namespace', 'default')!r}. Check TEMPORAL_API_KEY: has it "
            f"expired, and may its account use the namespace? ({reason})"
        )
    if "error after connection" in text:
        return ServerUnreachable(
            f"{address} ended the connection. If the server expects TLS, set TEMPORAL_API_KEY, "
            "TEMPORAL_TLS=true or a client certificate (TEMPORAL_TLS_CLIENT_CERT_PATH, "
            f"TEMPORAL_TLS_CLIENT_KEY_PATH) that it accepts. ({reason})"
        )
    # The libraries' texts nest errors as Rust prints them: the innermost one says it.
    inner = re.findall(r'message: "([^"]+)"', text)
    return ServerUnreachable(
        f"no Temporal server answers at {address}. Start one with `everlong dev`, or set "
        f"TEMPORAL_ADDRESS. ({make_printable(inner[-1], 200) if inner else reason})"
    )


def get_live_server(settings: Settings) -> LiveServer | None:
    """Return the configured server of live output, or None."""
    if not settings.live_url:
        return None
    return LiveServer(url=settings.live_url, token=settings.live_token)


def find_live_server(settings: Settings) -> LiveServer | None:
    """Return the server that a command reads live output from: as configured, or of `everlong dev`."""
    found = get_live_server(settings)
    if found is None and (url := read_dev_live_url(settings.data_dir)):
        found = LiveServer(url=url)
    return found


def open_configured_packs(
    settings: Settings,
    *,
    memory_bytes_max: int = limits.CACHE_MEMORY_BYTES_MAX,
    budget: ByteBudget | None = None,
) -> PackStore:
    """Open the configured store, with its keys and its cache."""
    return open_packs(
        require_store(settings),
        keys=_parse_keys(settings),
        accept_unsealed=settings.accept_unsealed,
        cache_dir=settings.cache_dir or None,
        memory_bytes_max=memory_bytes_max,
        budget=budget,
    )


def open_configured_providers(settings: Settings, service_name: str) -> "Providers":
    """Open the configured span and metric providers. Shut them down before the process exits."""
    from everlong.telemetry.exporters import ExportSettings, open_providers

    wants_prometheus = "prometheus" in settings.metrics_exporter
    host = require_metrics_host(settings) if wants_prometheus else settings.metrics_host
    return open_providers(
        ExportSettings(
            service_name=service_name,
            traces=settings.traces_exporter,
            metrics=settings.metrics_exporter,
            traces_protocol=settings.traces_protocol,
            metrics_protocol=settings.metrics_protocol,
            prometheus_host=host,
            prometheus_port=settings.metrics_port,
            # No token for scrapes if the operator has declared that the port is protected otherwise.
            prometheus_token="" if settings.metrics_anonymous else settings.token,
        )
    )


def load_configured_notify(settings: Settings) -> "Notify | None":
    """Return the configuration of notifications; None without one."""
    if not settings.notify:
        return None
    # Imported here: most commands send no notification.
    from everlong.notify.config import load_notify

    return load_notify(settings.notify, copy_environment())


def load_codec(path: str, setting: str) -> PayloadCodec | None:
    """Return the codec at `module:name`, calling it first if it is a factory; None for an empty path.

    `setting` names the option or variable that holds the path, for error messages.
    """
    if not path:
        return None
    found = _import_name(path, setting)
    if isinstance(found, PayloadCodec):
        return found
    name = path.partition(":")[2]
    if not callable(found):
        raise _build_load_error(
            path, setting, f"{name!r} is a {type(found).__name__} and not callable"
        )
    try:
        codec = found()
    except Exception as error:  # The team's code may raise anything.
        why = f"calling {name!r} without arguments failed ({type(error).__name__})"
        raise _build_load_error(path, setting, why) from error
    if not isinstance(codec, PayloadCodec):
        returned = type(codec).__name__
        raise _build_load_error(
            path, setting, f"{name!r} returned a {returned}, not a PayloadCodec"
        )
    return codec


def _import_name(path: str, setting: str) -> object:
    """Return the object at `module:name`."""
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise _build_load_error(path, setting, "it has no module or no name")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # The team's code may raise anything.
        why = f"the module {module_name!r} cannot be imported ({type(error).__name__})"
        if isinstance(error, ModuleNotFoundError):
            why = f"there is no module {error.name!r} on Python's path"
        raise _build_load_error(path, setting, why) from error
    if not hasattr(module, name):
        raise _build_load_error(path, setting, f"the module {module_name!r} has no {name!r}")
    return getattr(module, name)


def _build_load_error(path: str, setting: str, why: str) -> ConfigError:
    return ConfigError(
        f"{setting} is {path[:200]!r}, which cannot be loaded: {why}. Give module:name of a "
        "PayloadCodec, or of a callable that returns one, as in acme.codecs:make_codec."
    )


def _parse_keys(settings: Settings) -> dict[str, bytes] | None:
    return parse_keys(settings.keys) if settings.keys else None
