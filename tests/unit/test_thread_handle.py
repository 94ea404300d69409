"""`everlong.thread` and `everlong.threads`: handles that make no request until they are asked."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import Client

import everlong
from everlong import EverlongPlugin
from everlong.errors import DecisionRefused, PluginNotOnClient
from everlong.models import Control
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore
from tests.support.fake_visibility import FakeVisibility, Thread

# Modules that a program needs only once it asks a thread.
HEAVY = ("everlong.client.wait", "everlong.client.thread", "everlong.admin", "everlong.cli")


class SignalledClient:
    """Stands for a `Client`, and keeps the signals that it is given."""

    namespace = "default"

    def __init__(self) -> None:
        self.signals: list[tuple[str, str, Any]] = []

    def get_workflow_handle(self, thread_id: str) -> Any:
        async def signal(name: str, argument: object) -> None:
            self.signals.append((thread_id, name, argument))

        return SimpleNamespace(signal=signal)


async def test_a_handle_takes_the_store_of_its_clients_plugin() -> None:
    plugin = EverlongPlugin(store="memory:")
    client = await Client.connect("localhost:1", plugins=[plugin], lazy=True)
    thread = everlong.thread(client, "ops-7")
    assert thread.packs is plugin.packs
    assert (thread.id, repr(thread)) == ("ops-7", "ThreadHandle('ops-7')")


async def test_a_handle_without_a_store_says_how_to_give_one() -> None:
    client = await Client.connect("localhost:1", lazy=True)
    thread = everlong.thread(client, "ops-7")
    with pytest.raises(PluginNotOnClient, match=r"plugins=\[EverlongPlugin"):
        await thread.ask("hello")
    packs = PackStore(MemoryBlobStore())
    assert everlong.thread(client, "ops-7", packs=packs).packs is packs


async def test_controls_are_signals_with_a_name_and_a_reason() -> None:
    client = SignalledClient()
    thread = everlong.thread(cast("Client", client), "ops-7")
    for control in (thread.pause, thread.unpause, thread.compact, thread.stop):
        await control(by="ann", reason="drill")
    expected = Control(by="ann", reason="drill")
    names = ("pause", "unpause", "compact", "stop")
    assert client.signals == [("ops-7", name, expected) for name in names]


async def test_an_invalid_decision_is_refused_before_it_is_sent() -> None:
    thread = everlong.thread(cast("Client", SignalledClient()), "ops-7")
    with pytest.raises(DecisionRefused):
        await thread.decide("2-1-5f0c", approve=True, by="ann", reason="x" * 100_000)


async def test_threads_are_listed_found_and_counted_without_queries() -> None:
    many = [Thread(thread_id=f"ops-{number}", started_ms=number) for number in range(450)]
    server = FakeVisibility([*many, Thread(thread_id="ops", status="paused", agent="night")])
    threads = everlong.threads(cast("Client", server))
    assert len([row async for row in threads.list()]) == await threads.count() == 451
    assert [row.thread_id async for row in threads.list(status="paused")] == ["ops"]
    assert [row.thread_id async for row in threads.list(agent="night")] == ["ops"]
    begins = {row.thread_id async for row in threads.list(prefix="ops-44")}
    assert begins == {"ops-44", *(f"ops-44{digit}" for digit in range(10))}
    assert await threads.count(prefix="ops-44") == 11
    found = await threads.find("ops-7")
    assert found is not None
    assert found.thread_id == "ops-7"
    assert await threads.find("ops-x") is None
    assert set(server.calls) <= {"list", "count", "describe", "attributes"}


def test_importing_the_package_imports_no_client_code() -> None:
    code = "import sys; from everlong import Agent, EverlongPlugin, Policy, tool\n"
    code += f"print([each for each in {HEAVY!r} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
