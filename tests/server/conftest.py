"""Fixtures of the server tests."""

import functools

import pytest

from everlong.embedded import TemporalServer
from everlong.storage import BlobStore
from tests.support.thread_driver import Drive, drive_thread


@pytest.fixture
def drive(server: TemporalServer, store: BlobStore, thread_id: str) -> Drive:
    return functools.partial(drive_thread, server, store, thread_id)
