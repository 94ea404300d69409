"""A thread on the server that all tests share."""

import functools
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from everlong import Agent, Policy
from everlong.embedded import TemporalServer
from everlong.storage import BlobStore
from tests.driving import Driven, driven


class Drive(Protocol):
    """Runs a worker with these agents, for one thread of `ops`."""

    def __call__(
        self,
        agents: list[Agent],
        policy: Policy | None = None,
        *,
        task_queue: str = "",
        **worker: object,
    ) -> AbstractAsyncContextManager[Driven]: ...


@pytest.fixture
def drive(server: TemporalServer, store: BlobStore, thread_id: str) -> Drive:
    return functools.partial(driven, server, store, thread_id)
