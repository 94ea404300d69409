"""Temporal's database is restored from a backup; the store has all that was written since."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everlong import Agent, Reply
from everlong.embedded import start_server
from everlong.storage.file import FileBlobStore
from everlong.testing import ScriptedModel
from tests.support.threads import Threads, open_threads

ECHO = Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text=f"heard {turn[-1].text}")))


@contextlib.asynccontextmanager
async def run_stack(folder: Path) -> AsyncIterator[Threads]:
    server = await start_server(folder)
    try:
        store = FileBlobStore(folder / "blobs")
        async with open_threads(server.address, store, ECHO, inline_bytes_max=0) as threads:
            threads.task_queue = "ops"
            async with threads.worker():
                yield threads
    finally:
        server.process.stop()


async def say(threads: Threads, *texts: str) -> list[str]:
    """Send messages, one after the other; the thread's whole conversation afterwards."""
    for text in texts:
        number = await threads.send("ops-7", text)
        await threads.wait_for_answers("ops-7", number)
    return [message.text for message in await threads.conversation("ops-7")]


@pytest.mark.full
async def test_threads_go_on_from_the_backup_and_keep_what_they_wrote_since(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    database, backup = tmp_path / "temporal.db", tmp_path / "backup.db"
    async with run_stack(tmp_path) as threads:
        assert await say(threads, "one") == ["one", "heard one"]
    shutil.copy(database, backup)
    async with run_stack(tmp_path) as threads:
        assert await say(threads, "two", "three") == [
            *("one", "heard one", "two", "heard two", "three", "heard three")
        ]
    newer = {path.name for path in (tmp_path / "blobs/v1").rglob("*") if path.is_file()}
    shutil.copy(backup, database)
    async with run_stack(tmp_path) as threads:
        assert await say(threads) == ["one", "heard one"]
        assert await say(threads, "four") == ["one", "heard one", "four", "heard four"]
    kept = {path.name for path in (tmp_path / "blobs/v1").rglob("*") if path.is_file()}
    assert newer < kept, "objects of both lives are in the store until a sweep"
