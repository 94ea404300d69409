"""A thread on the server that all tests share."""

import functools

import pytest

from everlong.embedded import TemporalServer
from everlong.storage import BlobStore
from tests.support.thread_driver import Drive, driven


@pytest.fixture
def drive(server: TemporalServer, store: BlobStore, thread_id: str) -> Drive:
    return functools.partial(driven, server, store, thread_id)
