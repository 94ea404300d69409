"""The pytest plugin: fixtures for tests of agents.

Load it in the conftest.py at the root of your tests:

    pytest_plugins = ["everlong.testing.pytest_plugin"]

The fixtures are synchronous, and need no plugin for async tests themselves: a test uses them under
pytest-asyncio, in either mode, under anyio on asyncio, or within `asyncio.run`. The server is started
when the first test asks for it, and stopped at the end of the session, also after a failure or Ctrl-C.
With pytest-xdist, each process has its own.

A fixture of the same name in your conftest.py replaces one of these: `everlong_address` to use a server
that runs already, `everlong_store` to keep objects elsewhere than in memory.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everlong.storage import BlobStore
    from everlong.testing import EverlongEnv, RecordedModel, RunAgent

_RECORD = "--everlong-record"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that lets `recorded_model` call a provider."""
    parser.getgroup("everlong").addoption(
        _RECORD,
        action="store_true",
        help="call the providers of recorded models whose recording does not exist yet",
    )


@pytest.fixture(scope="session")
def everlong_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Temporal dev server; its address. Needs `everlong[embedded]`."""
    # Imported here: a test run that needs no server does not pay for it.
    from everlong.embedded import start_server
    from everlong.testing.time_skip import SERVER_SETTINGS

    folder = tmp_path_factory.mktemp("everlong-temporal")
    # A runner with its own loop leaves the current event loop of the thread as it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        server = runner.run(start_server(folder, dynamic_config=SERVER_SETTINGS, durable=False))
    try:
        yield server.address
    finally:
        server.process.kill()  # Its data is not needed; an orderly stop takes over a second.


@pytest.fixture(scope="session")
def everlong_store() -> "str | BlobStore":
    """Return the store of all tests: in memory. Yours may return a URL, as in `tmp.as_uri()`."""
    from everlong.storage.memory import MemoryBlobStore

    return MemoryBlobStore()


@pytest.fixture(scope="session")
def everlong_env(everlong_address: str, everlong_store: "str | BlobStore") -> "EverlongEnv":
    """Return the environment: server and store, for the whole session."""
    from everlong.testing.environment import EverlongEnv

    return EverlongEnv(address=everlong_address, store=everlong_store)


@pytest.fixture
def run_agent(everlong_env: "EverlongEnv") -> "RunAgent":
    """Return what runs an agent for a test: see `EverlongEnv.run_agent`."""
    return everlong_env.run_agent


@pytest.fixture
def recorded_model(request: pytest.FixtureRequest) -> "Callable[..., RecordedModel]":
    """Open a recording by its path, relative to the test's file: `recorded_model("refund.json")`.

    It is recorded if it does not exist and pytest runs with `--everlong-record`; replayed otherwise.
    """
    from everlong.testing.recorded_model import RecordedModel

    record = bool(request.config.getoption(_RECORD, default=False))
    folder = request.path.parent

    def open_recording(path: str | Path, **options: Any) -> RecordedModel:
        return RecordedModel(folder / path, **{"record": record, **options})

    return open_recording
