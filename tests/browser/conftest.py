"""Fixtures of the browser tests: one dashboard and event loop for all tests of a process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.support.dashboard import CHROMIUM, WAIT_MS, Stage, open_page, open_stage

HERE = Path(__file__).parent
expect.set_options(timeout=WAIT_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skipif(
        not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}: apt-get install chromium"
    )
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(missing)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with open_stage(tmp_path_factory.mktemp("stage")) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def page(stage: Stage) -> AsyncIterator[Page]:
    async with open_page(stage) as found:
        yield found
