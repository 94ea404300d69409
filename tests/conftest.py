"""One real Temporal server for each test process, and a worker around an agent."""

import asyncio
import gc
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from temporalio.worker.workflow_sandbox import SandboxRestrictions

from everlong.embedded import TemporalServer, start_server
from everlong.interceptors import sdk_internals
from everlong.storage import BlobStore, open_store
from tests.support.namespaces import QUICK_DELETES

if TYPE_CHECKING:
    from tests.support.s3_server import Weed

HERE = Path(__file__).parent
# The sandbox imports the module of a workflow again for each run and each replay. A test module
# would bring 85 modules of pytest with it, which takes 0.2 s of CPU each time.
SandboxRestrictions.default.passthrough_modules.update(
    ("pytest", "_pytest", "pytest_asyncio", "pluggy", "pygments", "iniconfig", "py", "hypothesis")
)
# Files that take half a minute and more, the slowest first.
SLOW = (
    "test_openai_agents",
    "test_interleavings",
    "test_thread_growth",
    "test_stack",
    "test_bench",
    "test_codec_kills",
    "test_thread_kills",
    "test_kills",
    "test_edges",
    "test_growth",
    "test_seeing",
    "test_prometheus",
    "test_doctor",
    "test_bench_telemetry",
    "test_told",
    "test_s3_faults",
    "test_sweep_soak",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the server, so that `make check` can leave it out. What is slow comes first."""
    for item in items:
        if item.path.relative_to(HERE).parts[0] in {"server", "faults", "browser"}:
            item.add_marker("server")
    # A file goes to one test process: a slow one at the end would leave the others idle.
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays to the end: the modules and items of 3,700 tests."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Have all of it be freed in the end: extensions look whether it was."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def features_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which a private API of the SDK was found missing. One that wants that resets it."""
    monkeypatch.setattr(sdk_internals, "_off", set())
    yield
    assert sdk_internals._off == set()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    folder = tmp_path_factory.mktemp("temporal")
    running = asyncio.run(start_server(folder, dynamic_config=QUICK_DELETES, durable=False))
    with running.process:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return open_store((tmp_path / "blobs").as_uri())


@pytest.fixture
def thread_id() -> str:
    return f"thread-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Weed"]:
    """One real S3 server for each test process. Its keys are in the environment meanwhile."""
    from tests.support.s3_server import (
        start_weed,  # Here, so that only those who use it pay for it.
    )

    with (
        start_weed(tmp_path_factory.mktemp("weed")) as weed,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN"):
            environment.delenv(name, raising=False)
        for name, value in weed.environ.items():
            environment.setenv(name, value)
        yield weed
