"""Labels of threads on a real server: set, kept across runs, copied; refused without the attribute."""

import asyncio

import pytest

from everlong import Agent, Reply, thread
from everlong.client.fork import revive
from everlong.client.labels import read_labels
from everlong.client.search_attributes import _Known, _known
from everlong.embedded import TemporalServer
from everlong.errors import ControlRefused, SetupRefused
from everlong.storage import BlobStore
from everlong.storage.pack_store import PackStore
from everlong.testing import ScriptedModel
from tests.support.threads import open_threads

ECHO = Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text="heard")))


async def test_labels_outlive_runs_and_are_copied_to_forks_and_archives(
    server: TemporalServer, store: BlobStore, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_threads(server.address, store, ECHO) as threads:
        client, queue, packs = threads.client, threads.task_queue, PackStore(store)
        handle = thread(client, thread_id, task_queue=queue)
        async with threads.worker():
            number = await handle.send("hi", agent="ops", labels=["urgent", "team=payments"])
            await handle.wait(number)
            assert await read_labels(client, thread_id) == ("team=payments", "urgent")
            changed = await handle.label(["team=search"], remove=["urgent"], by="ann")
            assert changed == ("team=search",)
            with pytest.raises(ControlRefused, match="is no label"):
                await handle.label(["a b"])
            assert await handle.label(["team=search"]) == changed, "it has the label already"
            await handle.configure({"run_events_max": 50, "idle_seconds": 0.1})
            await handle.ask("again")
            async with asyncio.timeout(60):
                while (await handle.status()).counters.runs == 1:
                    await asyncio.sleep(0.05)
            assert await read_labels(client, thread_id) == ("team=search",)
            assert await handle.label(["eu"]) == ("eu", "team=search"), "the next run has them"
            notes = [
                each.data async for each in handle.journal() if each.data and "action" in each.data
            ]
            assert [each["changes"] for each in notes if each["action"] == "label"][:1] == [
                {"labels": ["team=search"]}
            ]
            await handle.fork(2, f"{thread_id}-fork")
            await handle.archive()
            await revive(client, packs, thread_id, f"{thread_id}-2", task_queue=queue)
            for copy in (f"{thread_id}-fork", f"{thread_id}-2"):
                assert await read_labels(client, copy) == ("eu", "team=search")
            assert await handle.label(remove=["eu", "team"]) == ()
            plain = thread(client, f"{thread_id}-plain", task_queue=queue)
            await plain.ask("hi", agent="ops")
            assert await read_labels(client, plain.id) == ()
            history = await client.get_workflow_handle(plain.id).fetch_history()
            assert "EverlongLabels" not in str(history.events)

            # A namespace without the attribute: refused before anything is started or written.
            async def none(*_: object) -> dict[str, str]:
                return {}

            monkeypatch.setattr("everlong.client.search_attributes._read_attributes", none)
            _known[client] = _Known(found=True)
            with pytest.raises(SetupRefused, match="everlong setup"):
                await plain.label(["eu"])
            with pytest.raises(SetupRefused, match="everlong setup"):
                await thread(client, f"{thread_id}-new", task_queue=queue).send(
                    "hi", agent="ops", labels=["eu"]
                )
            assert await plain.ask("goes on") == "heard"
