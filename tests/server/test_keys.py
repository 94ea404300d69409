"""Agents with keys: a worker that lacks one says so, and a thread goes on once it is back."""

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from everlong import EverlongPlugin
from everlong.client.status import read_status
from everlong.client.time_travel import read_messages
from everlong.client.updates import send
from everlong.client.wait import wait_for_status
from everlong.embedded import TemporalServer
from everlong.errors import NoWorker
from everlong.storage.encryption_keys import Keyring
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from tests.support.sample_payloads import KEY_1, KEY_2
from tests.support.scripted_agents import reading_agent


async def test_a_thread_reports_a_missing_key_and_continues_with_it(
    server: TemporalServer, thread_id: str
) -> None:
    store, agent = MemoryBlobStore(), reading_agent(2)

    async def connect(keys: dict[str, bytes]) -> Client:
        plugin = EverlongPlugin(store=store, agents=[agent], keys=keys)
        return await Client.connect(server.address, plugins=[plugin])

    async def answered(client: Client, number: int) -> None:
        await wait_for_status(
            client, thread_id, lambda status: status.counters.answered >= number, seconds_max=60
        )

    client = await connect({"old": KEY_1})
    async with Worker(client, task_queue=thread_id):
        await send(client, thread_id, "read", task_queue=thread_id, agent="ops")
        await answered(client, 1)
    without = await connect({"new": KEY_2})
    async with Worker(without, task_queue=thread_id):
        with pytest.raises(NoWorker, match="sealed with key 'old', which this process does not"):
            await ask_until_failure(without, thread_id)
    rotated = await connect({"new": KEY_2, "old": KEY_1})
    async with Worker(rotated, task_queue=thread_id):
        await send(rotated, thread_id, "again", task_queue=thread_id, agent="ops")
        await answered(rotated, 2)
        packs = PackStore(store, make_rotated_keyring())
        conversation = await read_messages(rotated, packs, thread_id)
    assert [message.text for message in conversation].count("again") == 1


async def ask_until_failure(client: Client, thread_id: str) -> None:
    """Ask until the worker has failed a task."""
    for _ in range(20):
        await read_status(client, thread_id)


def make_rotated_keyring() -> Keyring:
    return Keyring({"new": KEY_2, "old": KEY_1})
