import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry import trace
from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.worker import Worker

from everlong import Agent, EverlongPlugin, Reply
from everlong import plugin as plugin_module
from everlong.activities import AgentActivities
from everlong.codecs import EverlongCodec
from everlong.errors import ConfigError, PluginNotOnClient
from everlong.testing import ScriptedModel

AGENT = Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text="hi")))


async def lazy_client(*plugins: EverlongPlugin, converter: DataConverter) -> Client:
    """A client that has not connected: what is checked here needs no server."""
    return await Client.connect(
        "127.0.0.1:1", plugins=list(plugins), lazy=True, data_converter=converter
    )


@workflow.defn
class Nothing:
    @workflow.run
    async def run(self) -> None:
        pass


@pytest.mark.guarantee(24)
@pytest.mark.parametrize("converter", [DataConverter.default, pydantic_data_converter])
async def test_the_plugin_wraps_the_converter_that_it_finds(converter: DataConverter) -> None:
    client = await lazy_client(EverlongPlugin(store="memory:"), converter=converter)
    found = client.config(active_config=True)["data_converter"]
    assert isinstance(found.payload_codec, EverlongCodec)
    assert found.payload_converter_class is converter.payload_converter_class


@pytest.mark.guarantee(36)
async def test_a_plugin_on_the_worker_alone_is_refused() -> None:
    client = await Client.connect("127.0.0.1:1", lazy=True)
    with pytest.raises(PluginNotOnClient, match=r"Pass it to Client\.connect"):
        Worker(
            client, task_queue="q", workflows=[Nothing], plugins=[EverlongPlugin(store="memory:")]
        )


def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="same name"):
        EverlongPlugin(store="memory:", agents=[AGENT, AGENT])


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ConfigError, match="inline_bytes_max is -1"):
        EverlongPlugin(store="memory:", inline_bytes_max=-1)


def test_no_global_tracer_provider_is_installed() -> None:
    before = trace.get_tracer_provider()
    EverlongPlugin(store="memory:")
    assert trace.get_tracer_provider() is before


@pytest.mark.parametrize("name", ["pyarrow", "something_of_a_team"])
async def test_a_sweep_without_pyarrow_reports_that_it_does_not_archive(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def preserve(*_: object) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("everlong.client.archives.archive_before_sweep", preserve)
    plugin = EverlongPlugin(store="memory:")
    client = await Client.connect("127.0.0.1:1", lazy=True)
    assert plugin.sweeps.archive_due is not None
    archiving = plugin.sweeps.archive_due(client, plugin.packs)
    if name != "pyarrow":
        with pytest.raises(ModuleNotFoundError, match=name):
            await archiving
        return
    found = await archiving
    assert found.archived == 0
    [reason] = found.failed
    assert "it lacks 'pyarrow'" in reason


@pytest.mark.parametrize(
    ("sdk_awaits", "cancellations", "ended"),
    [
        # An SDK before 1.35: `async with worker` cancels once, as soon as the worker has shut down.
        (False, 1, "closed"),
        (False, 2, "cancelled"),
        # A newer SDK cancels only a clean-up that takes too long.
        (True, 1, "cancelled"),
    ],
)
async def test_a_cleanup_survives_the_cancellation_of_an_older_sdk(
    monkeypatch: pytest.MonkeyPatch, sdk_awaits: bool, cancellations: int, ended: str
) -> None:
    closing, may_close = asyncio.Event(), asyncio.Event()
    closed: list[str] = []

    async def close(self: AgentActivities) -> None:
        closing.set()
        try:
            await may_close.wait()
        except asyncio.CancelledError:
            closed.append("cancelled")
            raise
        closed.append("closed")

    async def shut_down(_: Worker) -> None:
        pass

    monkeypatch.setattr(plugin_module, "_SDK_AWAITS_CLEAN_UP", sdk_awaits)
    monkeypatch.setattr(AgentActivities, "close", close)
    plugin = EverlongPlugin(store="memory:")
    client = await lazy_client(plugin, converter=DataConverter.default)
    worker = cast("Any", SimpleNamespace(client=client, config=lambda **_: {}, _bridge_worker=None))
    running = asyncio.create_task(plugin.run_worker(worker, shut_down))
    async with asyncio.timeout(30):
        await closing.wait()
        for _ in range(cancellations):
            running.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        may_close.set()
        await asyncio.wait([running])
    assert closed == [ended]
    assert running.cancelled() == (ended == "cancelled")
    assert running.cancelling() == cancellations - (not sdk_awaits)


async def test_a_hanging_cleanup_times_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closing = asyncio.Event()

    async def hang() -> None:
        closing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(plugin_module, "_SDK_AWAITS_CLEAN_UP", False)
    monkeypatch.setattr(plugin_module, "_CLEAN_UP_SECONDS_MAX", 0.01)
    completing = asyncio.create_task(plugin_module._await_clean_up(hang()))
    async with asyncio.timeout(30):
        await closing.wait()
        completing.cancel()
        await completing
    assert "did not finish" in caplog.text


def test_live_is_a_live_server() -> None:
    with pytest.raises(ConfigError, match=r"live is a str. Give LiveServer"):
        EverlongPlugin(store="memory:", live="http://127.0.0.1:8234")  # type: ignore[arg-type]
