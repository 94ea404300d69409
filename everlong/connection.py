"""From settings to a connected client, and to the store."""

from collections.abc import Sequence

from opentelemetry.trace import TracerProvider
from temporalio.client import Client

from everlong.agents import Agent
from everlong.config import Settings, checked_store
from everlong.errors import ServerUnreachable
from everlong.models import printable
from everlong.plugin import EverlongPlugin
from everlong.storage.keys import parse_keys
from everlong.storage.opening import open_packs
from everlong.storage.packstore import PackStore


async def connect(
    settings: Settings,
    *,
    agents: Sequence[Agent] = (),
    tracer_provider: TracerProvider | None = None,
) -> Client:
    """Connect to Temporal with the plugin, or say which address did not answer."""
    plugin = EverlongPlugin(
        store=checked_store(settings),
        agents=agents,
        keys=_keys(settings),
        accept_unsealed=settings.accept_unsealed,
        cache_dir=settings.cache_dir or None,
        inline_bytes_max=settings.inline_bytes_max,
        tracer_provider=tracer_provider,
    )
    try:
        return await Client.connect(**settings.temporal, plugins=[plugin])
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


def _keys(settings: Settings) -> dict[str, bytes] | None:
    return parse_keys(settings.keys) if settings.keys else None
