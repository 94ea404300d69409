"""Settings, read from the environment. No other module reads it; everything else takes arguments.

The connection to Temporal comes from the SDK's own environment configuration (`TEMPORAL_ADDRESS`,
`TEMPORAL_NAMESPACE`, profiles, TLS, API key). Everlong's own variables begin with `EVERLONG_`.
"""

import dataclasses
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from temporalio.envconfig import ClientConfig, ClientConnectConfig

from everlong import limits
from everlong.errors import ConfigError
from everlong.worker_options import WorkerOptions, load_worker_options

DATA_DIR_DEFAULT: Final = ".everlong/dev"
TASK_QUEUE_DEFAULT: Final = "everlong"
EMBEDDED_NAMESPACE: Final = "default"
LOOPBACK: Final = "127.0.0.1"
METRICS_PORT_DEFAULT: Final = 9464
_PORT_MAX: Final = 65_535
_URL_CHARS_MAX: Final = 100
# The name that OpenTelemetry's GenAI conventions define.
_CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a worker or a command."""

    data_dir: Path
    """`EVERLONG_DATA_DIR`: the directory of `everlong dev`."""
    store: str
    """`EVERLONG_STORE`: URL of the blob store; by default the store of `everlong dev`, if it exists.
    Empty otherwise: a store is never created by accident in the current directory."""
    task_queue: str
    """`EVERLONG_TASK_QUEUE`: task queue of threads and workers."""
    deployment: str
    """`EVERLONG_DEPLOYMENT`: the worker deployment of `everlong worker`. Empty: no worker versioning."""
    build_id: str
    """`EVERLONG_BUILD_ID`: the worker's version within that deployment."""
    worker: WorkerOptions
    """Concurrency, caching and polling of `everlong worker`."""
    inline_bytes_max: int
    """`EVERLONG_INLINE_BYTES_MAX`: payloads above this size go to the store."""
    encoder_bytes_max: int
    """`EVERLONG_ENCODER_BYTES_MAX`: memory in which the encoder tracks what each thread has stored."""
    traces_exporter: str
    """`OTEL_TRACES_EXPORTER`: none (the default), console or otlp."""
    metrics_exporter: str
    """`OTEL_METRICS_EXPORTER`: none (the default), or a comma-separated list of console, otlp and
    prometheus."""
    traces_protocol: str
    """`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`, or `OTEL_EXPORTER_OTLP_PROTOCOL`: http/protobuf or grpc."""
    metrics_protocol: str
    """`OTEL_EXPORTER_OTLP_METRICS_PROTOCOL`, or `OTEL_EXPORTER_OTLP_PROTOCOL`: http/protobuf or grpc."""
    metrics_host: str
    """`OTEL_EXPORTER_PROMETHEUS_HOST`: address of the Prometheus endpoint; loopback by default."""
    metrics_port: int
    """`OTEL_EXPORTER_PROMETHEUS_PORT`: 9464 by default. Each process on a host needs its own port."""
    metrics_anonymous: bool
    """`EVERLONG_METRICS_ANONYMOUS`: serve metrics beyond loopback without a token."""
    record_contents: bool
    """`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`: record the inputs and outputs of models and
    tools in their spans. Off by default."""
    cache_dir: str
    """`EVERLONG_CACHE_DIR`: directory of the disk cache for stored objects. Empty: memory only."""
    retention: str
    """`EVERLONG_RETENTION`: how long a sweep keeps unreachable objects, as
    `payload=1d,journal=1d,archive=never,quarantine=7d`."""
    keys: str = dataclasses.field(repr=False)
    """`EVERLONG_KEYS`: comma-separated `id:base64` of 32 bytes; the first key writes. Empty: none."""
    accept_unsealed: bool
    """`EVERLONG_ACCEPT_UNSEALED`: with keys, also read objects that were stored without a key."""
    outer_codec: str
    """`EVERLONG_OUTER_CODEC`: `module:name` of a payload codec around Everlong's, or of a callable that
    returns one. It needs keys. Empty: none."""
    codec: str
    """`EVERLONG_CODEC`: `module:name` of a payload codec inside Everlong's, or of a callable that
    returns one. It encodes first, like the codec of a team's own workers. Empty: none."""
    token: str = dataclasses.field(repr=False)
    """`EVERLONG_TOKEN`: bearer token for `everlong serve` and the metrics beyond loopback."""
    tokens: str = dataclasses.field(repr=False)
    """`EVERLONG_TOKENS`: comma-separated `name:role:token`, for `everlong serve`."""
    hosts: str
    """`EVERLONG_HOSTS`: comma-separated host names of `everlong serve`, as browsers use them."""
    trust_user_header: str
    """`EVERLONG_TRUST_USER_HEADER`: header in which a proxy names the user. Empty: none is trusted."""
    trust_role_header: str
    """`EVERLONG_TRUST_ROLE_HEADER`: header in which the proxy names the user's role."""
    trust_role_default: str
    """`EVERLONG_TRUST_ROLE_DEFAULT`: role of users without that header; viewer by default."""
    trusted_proxies: str
    """`EVERLONG_TRUSTED_PROXIES`: comma-separated addresses or networks of the proxy."""
    notify: str
    """`EVERLONG_NOTIFY`: TOML file of who gets notifications, of what, and how. Empty:
    no notifications."""
    temporal_ui: str
    """`EVERLONG_TEMPORAL_UI`: URL of the Temporal UI, for links to runs."""
    live_url: str
    """`EVERLONG_LIVE_URL`: URL of the admin server for live output: workers send it there, and
    `everlong chat` and `everlong send --follow` read it. Empty: off."""
    live_token: str = dataclasses.field(repr=False)
    """`EVERLONG_LIVE_TOKEN`: token of that server; for a worker, of a user with the role worker."""
    temporal: ClientConnectConfig = dataclasses.field(repr=False)
    """Arguments of `Client.connect`."""


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read and check the settings, from `environ` if given, else from the process's environment."""
    env = dict(os.environ if environ is None else environ)
    data_dir = Path(env.get("EVERLONG_DATA_DIR") or DATA_DIR_DEFAULT).absolute()
    try:
        temporal = ClientConfig.load_client_connect_config(override_env_vars=env)
    except (RuntimeError, OSError) as error:  # The second: a file of a certificate or key.
        raise ConfigError(
            f"the Temporal connection settings cannot be read: {error}. Check the TEMPORAL_* variables "
            "and the profile file."
        ) from error
    temporal.setdefault("target_host", f"{LOOPBACK}:7233")
    is_silent = _read_flag(env, "OTEL_SDK_DISABLED")
    protocol = env.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
    return Settings(
        data_dir=data_dir,
        store=env.get("EVERLONG_STORE") or _find_dev_store(data_dir),
        task_queue=env.get("EVERLONG_TASK_QUEUE") or TASK_QUEUE_DEFAULT,
        deployment=env.get("EVERLONG_DEPLOYMENT", ""),
        build_id=env.get("EVERLONG_BUILD_ID", ""),
        worker=load_worker_options(env),
        inline_bytes_max=_read_bytes(env, "EVERLONG_INLINE_BYTES_MAX", limits.INLINE_BYTES_MAX),
        encoder_bytes_max=_read_bytes(env, "EVERLONG_ENCODER_BYTES_MAX", limits.ENCODER_BYTES_MAX),
        traces_exporter="none" if is_silent else env.get("OTEL_TRACES_EXPORTER") or "none",
        metrics_exporter="none" if is_silent else env.get("OTEL_METRICS_EXPORTER") or "none",
        traces_protocol=env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or protocol,
        metrics_protocol=env.get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or protocol,
        metrics_host=_read_host(env, "OTEL_EXPORTER_PROMETHEUS_HOST"),
        metrics_port=_read_port(env, "OTEL_EXPORTER_PROMETHEUS_PORT", METRICS_PORT_DEFAULT),
        metrics_anonymous=_read_flag(env, "EVERLONG_METRICS_ANONYMOUS"),
        record_contents=_read_flag(env, _CAPTURE),
        cache_dir=env.get("EVERLONG_CACHE_DIR", ""),
        retention=env.get("EVERLONG_RETENTION", ""),
        keys=env.get("EVERLONG_KEYS", ""),
        accept_unsealed=_read_flag(env, "EVERLONG_ACCEPT_UNSEALED"),
        outer_codec=env.get("EVERLONG_OUTER_CODEC", ""),
        codec=env.get("EVERLONG_CODEC", ""),
        token=env.get("EVERLONG_TOKEN", ""),
        tokens=env.get("EVERLONG_TOKENS", ""),
        hosts=env.get("EVERLONG_HOSTS", ""),
        trust_user_header=env.get("EVERLONG_TRUST_USER_HEADER", ""),
        trust_role_header=env.get("EVERLONG_TRUST_ROLE_HEADER", ""),
        trust_role_default=env.get("EVERLONG_TRUST_ROLE_DEFAULT", ""),
        trusted_proxies=env.get("EVERLONG_TRUSTED_PROXIES", ""),
        notify=env.get("EVERLONG_NOTIFY", ""),
        temporal_ui=env.get("EVERLONG_TEMPORAL_UI", ""),
        live_url=env.get("EVERLONG_LIVE_URL", ""),
        live_token=env.get("EVERLONG_LIVE_TOKEN", ""),
        temporal=temporal,
    )


def build_store_url(data_dir: Path) -> str:
    """Return the URL of the blob store inside a data directory."""
    return (data_dir / "blobs").absolute().as_uri()


def _find_dev_store(data_dir: Path) -> str:
    return build_store_url(data_dir) if (data_dir / "blobs").is_dir() else ""


def get_dev_live_file(data_dir: Path) -> Path:
    """Return the file in which a running `everlong dev` names its dashboard."""
    return data_dir / "live-url"


def read_dev_live_url(data_dir: Path) -> str:
    """Return the URL of the dashboard of a running `everlong dev`; empty if there is none."""
    try:
        with get_dev_live_file(data_dir).open(encoding="ascii") as file:
            url = file.read(_URL_CHARS_MAX)
    except (OSError, UnicodeDecodeError):
        return ""
    # A directory may come from anywhere: only this machine is read from.
    return url if re.fullmatch(rf"http://{re.escape(LOOPBACK)}:[0-9]{{1,5}}", url) else ""


def require_store(settings: Settings) -> str:
    """Return the store's URL; raise `ConfigError` if none is configured."""
    if not settings.store:
        raise ConfigError(
            "no blob store is set. Set EVERLONG_STORE=s3://bucket/prefix or file:///absolute/dir, or "
            f"run this where `everlong dev` has run: there is no store in {settings.data_dir}."
        )
    return settings.store


def require_deployment(settings: Settings) -> tuple[str, str] | None:
    """Return the worker's deployment and build id, or None without worker versioning."""
    if not settings.deployment and not settings.build_id:
        return None
    if not settings.deployment or not settings.build_id:
        missing = "EVERLONG_BUILD_ID" if settings.deployment else "EVERLONG_DEPLOYMENT"
        raise ConfigError(
            f"{missing} is not set. Worker versioning needs a deployment name (EVERLONG_DEPLOYMENT) and "
            "a build id (EVERLONG_BUILD_ID); without versioning, set neither."
        )
    if "." in settings.deployment:
        raise ConfigError(
            f"EVERLONG_DEPLOYMENT is {settings.deployment[:60]!r}; a deployment name cannot have a dot"
        )
    return settings.deployment, settings.build_id


def require_metrics_host(settings: Settings) -> str:
    """Return the address of the metrics endpoint; raise `ConfigError` if it would be unprotected."""
    if settings.token or settings.metrics_anonymous or is_loopback(settings.metrics_host):
        return settings.metrics_host
    raise ConfigError(
        f"listening on {settings.metrics_host} would expose metrics to everyone on the network. Set "
        "EVERLONG_TOKEN, which Prometheus then sends as a bearer token, or "
        "EVERLONG_METRICS_ANONYMOUS=1 if a firewall or proxy protects the port."
    )


def is_loopback(host: str) -> bool:
    """Return whether a listening host is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def point_to_embedded(settings: Settings, address: str) -> Settings:
    """Return settings that point to the embedded server, whatever cluster the environment names."""
    return dataclasses.replace(
        settings,
        store=build_store_url(settings.data_dir),
        # Loopback, like the rest of the embedded stack: its processes get no token.
        metrics_host=LOOPBACK,
        temporal=ClientConnectConfig(target_host=address, namespace=EMBEDDED_NAMESPACE),
    )


def drop_temporal_variables() -> dict[str, str]:
    """Return the environment without the user's own Temporal profile, TLS settings and API key.

    They are for another server, and errors in them must not stop the embedded one.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TEMPORAL_")}
    return {**kept, "TEMPORAL_CONFIG_FILE": os.devnull}


def build_server_environment() -> dict[str, str]:
    """Return the environment for the embedded Temporal server.

    The user's OpenTelemetry settings are for workers. The server would export its own traces by them,
    and ends at an exporter that it does not know, such as `console`.
    """
    kept = drop_temporal_variables()
    return {key: value for key, value in kept.items() if not key.startswith("OTEL_")}


def build_embedded_environment(settings: Settings) -> dict[str, str]:
    """Return the environment for a child process that should load these settings."""
    return {
        **drop_temporal_variables(),
        "TEMPORAL_ADDRESS": settings.temporal["target_host"],
        "TEMPORAL_NAMESPACE": EMBEDDED_NAMESPACE,
        "EVERLONG_DATA_DIR": str(settings.data_dir),
        "EVERLONG_STORE": settings.store,
        "EVERLONG_TASK_QUEUE": settings.task_queue,
        # No worker versioning: no command sets a current version on the embedded server.
        "EVERLONG_DEPLOYMENT": "",
        "EVERLONG_BUILD_ID": "",
        "EVERLONG_INLINE_BYTES_MAX": str(settings.inline_bytes_max),
        "EVERLONG_ENCODER_BYTES_MAX": str(settings.encoder_bytes_max),
        _CAPTURE: "1" if settings.record_contents else "",
        "EVERLONG_CACHE_DIR": settings.cache_dir,
        "EVERLONG_RETENTION": settings.retention,
        "EVERLONG_KEYS": settings.keys,
        "EVERLONG_ACCEPT_UNSEALED": "1" if settings.accept_unsealed else "",
        "EVERLONG_OUTER_CODEC": settings.outer_codec,
        "EVERLONG_CODEC": settings.codec,
        "EVERLONG_TOKEN": "",
        "EVERLONG_TOKENS": "",
        "EVERLONG_HOSTS": "",
        "EVERLONG_TRUST_USER_HEADER": "",
        "EVERLONG_TRUST_ROLE_HEADER": "",
        "EVERLONG_TRUST_ROLE_DEFAULT": "",
        "EVERLONG_TRUSTED_PROXIES": "",
        "EVERLONG_NOTIFY": settings.notify,
        "EVERLONG_TEMPORAL_UI": settings.temporal_ui,
        "EVERLONG_LIVE_URL": settings.live_url,
        # The embedded admin server has no tokens: they are empty above.
        "EVERLONG_LIVE_TOKEN": "",
        "OTEL_SDK_DISABLED": "",
        "OTEL_TRACES_EXPORTER": settings.traces_exporter,
        "OTEL_METRICS_EXPORTER": settings.metrics_exporter,
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": settings.traces_protocol,
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": settings.metrics_protocol,
        "OTEL_EXPORTER_PROMETHEUS_HOST": settings.metrics_host,
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(settings.metrics_port),
        "EVERLONG_METRICS_ANONYMOUS": "1" if settings.metrics_anonymous else "",
    }


def copy_environment() -> dict[str, str]:
    """Return the environment, for files of settings that name variables with secrets."""
    return dict(os.environ)


def _read_bytes(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(
            f"{name} is {text!r}; give a number of bytes, such as {default}"
        ) from None
    if value < 0:
        raise ConfigError(f"{name} is {value}; give 0 or more, such as {default}")
    return value


def _read_host(env: Mapping[str, str], name: str) -> str:
    host = env.get(name) or "localhost"
    return LOOPBACK if host == "localhost" else host


def _read_port(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and int(text) <= _PORT_MAX):
        raise ConfigError(f"{name} is {text[:20]!r}; give a port, such as {default}, or 0 for any")
    return int(text)


def _read_flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").lower()
    if text not in ("", "0", "false", "1", "true"):
        raise ConfigError(f"{name} is {text[:20]!r}; give 1 or 0")
    return text in ("1", "true")
