"""Banner of a process that runs until it is stopped: addresses, store, keys, and what is on.

It holds no secret: a key appears by its id, a token by its user's name, a store's URL without options.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import everlong
from everlong.agents import Agent, Tool
from everlong.config import Settings
from everlong.storage.encryption_keys import parse_keys

Row = tuple[str, str]
"""Label and text of a line. An empty label continues the line before."""
_AGENTS_MAX: Final = 20
_TOOLS_MAX: Final = 12
_MODEL_CHARS_MAX: Final = 80


def format_banner(title: str, rows: Sequence[Row]) -> str:
    """Return the lines of a banner: version and title, then the rows with their texts aligned."""
    width = max(len(label) for label, _ in rows)
    lines = [f"  {label:<{width}}  {text}" for label, text in rows]
    return "\n".join([f"everlong {everlong.__version__} {title}", *lines])


def describe_worker(
    settings: Settings, agents: Sequence[Agent], *, version: str = "", metrics_url: str = ""
) -> list[Row]:
    """Return the rows of `everlong worker`. Without a `version` there is no worker versioning."""
    return [
        ("Temporal", describe_temporal(settings)),
        ("store", describe_store(settings)),
        *describe_agents(agents),
        *_describe_codec(settings),
        ("telemetry", describe_telemetry(settings, metrics_url)),
        ("live", f"to {settings.live_url}" if settings.live_url else "off"),
        ("version", version or "none: no worker versioning"),
        ("stop", "Ctrl-C or SIGTERM; calls in progress get 10 s to finish"),
    ]


def describe_server(
    settings: Settings,
    *,
    url: str,
    access: str,
    temporal_ui: str,
    cors_origins: Sequence[str],
    retention: str,
    metrics_url: str = "",
) -> list[Row]:
    """Return the rows of `everlong serve`."""
    origins = ", ".join(cors_origins)
    return [
        ("dashboard", url),
        ("API", f"{url}/api/v1, described at {url}/api/docs"),
        (
            "codec",
            f"{url}, for the Temporal CLI" + (f" and the UI at {origins}" if origins else ""),
        ),
        ("access", access),
        ("Temporal", describe_temporal(settings)),
        *([("UI", temporal_ui)] if temporal_ui else []),
        ("store", describe_store(settings)),
        *_describe_codec(settings),
        ("retention", retention),
        ("telemetry", describe_telemetry(settings, metrics_url)),
        ("stop", "Ctrl-C or SIGTERM"),
    ]


def describe_temporal(settings: Settings) -> str:
    """Return the server's address, the namespace, the task queue, and how the connection is secured."""
    temporal: Mapping[str, object] = {**settings.temporal}
    parts = [
        str(temporal.get("target_host", "")),
        f"namespace {temporal.get('namespace') or 'default'}",
        f"task queue {settings.task_queue}",
    ]
    parts += [name for name, key in (("TLS", "tls"), ("API key", "api_key")) if temporal.get(key)]
    return ", ".join(parts)


def describe_store(settings: Settings) -> str:
    """Return the store's URL without its options, and the disk cache."""
    # Credentials in a store's URL are refused when it is opened.
    url = settings.store.partition("?")[0]
    return f"{url}, cache in {settings.cache_dir}" if settings.cache_dir else url


def describe_agents(agents: Sequence[Agent]) -> list[Row]:
    """Return a row for each agent and sub-agent: its name, its model and its tools."""
    family = {each.name: each for agent in agents for each in agent.family}
    texts = [f"{name}: {_describe_agent(each)}" for name, each in family.items()]
    if len(texts) > _AGENTS_MAX:
        texts[_AGENTS_MAX:] = [f"and {len(texts) - _AGENTS_MAX} more"]
    return [("" if number else "agents", text) for number, text in enumerate(texts)]


def describe_telemetry(settings: Settings, metrics_url: str = "") -> str:
    """Return the exporters of spans and metrics, and the URL of the Prometheus endpoint."""
    traces, metrics = settings.traces_exporter, settings.metrics_exporter
    if "otlp" in traces:
        traces += f" ({settings.traces_protocol})"
    if "otlp" in metrics:
        metrics += f" ({settings.metrics_protocol})"
    if metrics_url:
        metrics += f" at {metrics_url}"
    recorded = ", contents of messages in spans" if settings.record_contents else ""
    return f"traces {traces}, metrics {metrics}{recorded}"


def _describe_agent(agent: Agent) -> str:
    # A long list of tools would hide the other lines.
    names = [_describe_tool(each) for each in agent.callable_tools]
    if len(names) > _TOOLS_MAX:
        names[_TOOLS_MAX:] = [f"and {len(names) - _TOOLS_MAX} more"]
    return f"model {_describe_model(agent.model)}; tools {', '.join(names) or 'none'}"


def _describe_tool(tool: Tool) -> str:
    if tool.call_options.agent:
        return f"{tool.name} (agent)"
    asks = "approval by rule" if callable(tool.needs_approval) else "approval"
    return f"{tool.name} ({asks})" if tool.needs_approval else tool.name


def _describe_model(model: object) -> str:
    """Return a provider's model by name; an object of the user's own by its type."""
    name = model if isinstance(model, str) else getattr(model, "model_name", None)
    text = name if isinstance(name, str) and name else type(model).__name__
    return "".join(each for each in text if each.isprintable())[:_MODEL_CHARS_MAX]


def _describe_codec(settings: Settings) -> Iterator[Row]:
    yield "keys", _describe_keys(settings)
    if settings.codec:
        yield "codec", f"{settings.codec}, inside Everlong's"
    if settings.outer_codec:
        yield "codec", f"{settings.outer_codec}, around Everlong's"


def _describe_keys(settings: Settings) -> str:
    if not settings.keys:
        return "none: stored bytes are not sealed"
    active, *others = parse_keys(settings.keys)
    text = f"{active} seals" + (f"; only to read: {', '.join(others)}" if others else "")
    return f"{text}; objects without a key are read too" if settings.accept_unsealed else text
