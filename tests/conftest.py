"""Fixtures of all tests, and the order and distribution of tests over the test processes."""

import gc
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from temporalio.worker.workflow_sandbox import SandboxRestrictions
from xdist.remote import Producer  # type: ignore[import-untyped] # it has no stubs

from everlong.embedded import TemporalServer
from everlong.interceptors import sdk_internals
from everlong.storage import BlobStore, open_store
from tests.support.scale import IS_FULL
from tests.support.scheduler import Scheduler, spread
from tests.support.temporal_server import run_test_server, save_go_cpu

if TYPE_CHECKING:
    from tests.support.s3_server import S3Server

pytest_plugins = ["everlong.testing.pytest_plugin"]

# How fast examples are generated depends on what else this machine does, and says nothing of the code.
settings.register_profile("everlong", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("everlong")

HERE = Path(__file__).parent
save_go_cpu()
# The sandbox imports the module of a workflow again for each run and each replay. A test module
# would bring 85 modules of pytest with it, which takes 0.2 s of CPU each time, and 50 of OpenTelemetry.
SandboxRestrictions.default.passthrough_modules.add("opentelemetry")
SandboxRestrictions.default.passthrough_modules.update(
    ("pytest", "_pytest", "pytest_asyncio", "pluggy", "pygments", "iniconfig", "py", "hypothesis")
)
# Folders whose tests need a server, in their order.
SERVER = ("browser", "server", "faults")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need a server, leave out the full ones, and order the rest.

    `make check` leaves out what is marked `server`; only `make test-full` runs what is marked `full`.
    """
    for item in items:
        if folder_of(item) in SERVER:
            item.add_marker("server")
    if not IS_FULL:
        config.hook.pytest_deselected(items=[item for item in items if is_full(item)])
        items[:] = [item for item in items if not is_full(item)]
    items.sort(key=rank)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Fault tests mostly wait for timeouts, which leaves the CPU to the server tests between them.
        faults = [item for item in items if folder_of(item) == "faults"]
        server = [item for item in items if folder_of(item) == "server"]
        first = sum(folder_of(item) == "browser" for item in items)
        items[first : first + len(faults) + len(server)] = spread(faults, server)


def rank(item: pytest.Item) -> int:
    """Return the place of a test's folder. Browser tests are the longest lists; unit tests fill gaps."""
    folder = folder_of(item)
    return SERVER.index(folder) if folder in SERVER else len(SERVER)


def is_full(item: pytest.Item) -> bool:
    return item.get_closest_marker("full") is not None


def folder_of(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).parts[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler | None:
    """Give each free process the next test, or the next file where tests share a fixture."""
    return Scheduler(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_collection() -> None:
    """Import all tests without garbage collection, which would scan the modules again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Freeze the modules and items of all tests: the garbage collector need not scan them again."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Unfreeze them: extensions check at exit whether their objects were freed."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def features_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which a private API of the SDK was found missing, unless the test resets `_off`."""
    monkeypatch.setattr(sdk_internals, "_off", set())
    yield
    assert sdk_internals._off == set()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    with run_test_server(tmp_path_factory.mktemp("temporal")) as running:
        yield running


@pytest.fixture(scope="session")
def everlong_address(server: TemporalServer) -> str:
    return server.address


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return open_store((tmp_path / "blobs").as_uri())


@pytest.fixture
def thread_id() -> str:
    return f"thread-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator["S3Server"]:
    """Start a real S3 server for this process, with its keys in the environment."""
    from tests.support.s3_server import start_s3_server  # Here: its import takes a second.

    with (
        start_s3_server(tmp_path_factory.mktemp("weed")) as weed,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN"):
            environment.delenv(name, raising=False)
        for name, value in weed.environ.items():
            environment.setenv(name, value)
        yield weed
