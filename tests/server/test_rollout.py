"""Bringing the plugin in, and taking it out again, under workflows that run meanwhile.

First every process gets `mode="read"`, which writes plain payloads; then `mode="write"`. A rollback
goes the same way: to `read`, in which runs that hold refs go on offloading (`test_drain.py`), and to no
plugin once those runs are over.
"""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Literal

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, Worker

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from everlong.errors import ConfigError
from tests.support.fake_stores import CountingStore
from tests.support.payload_workflows import (
    Notebook,
    Xor,
    annotate,
    find_payloads,
    letters,
    list_encodings,
)

Phase = Literal["plain", "read", "write"]
NOTE_BYTES = 30_000
RUN_SECONDS_MAX = timedelta(seconds=120)


class Rollout:
    """One notebook, on a server where the processes are replaced one after another."""

    def __init__(
        self, server: TemporalServer, thread_id: str, converter: DataConverter | None = None
    ) -> None:
        self.store = CountingStore()
        self.expected: list[str] = []
        self._address = server.address
        self._id = thread_id
        self._converter = converter or DataConverter.default

    async def client(self, phase: Phase) -> Client:
        """Connect as a process of a phase would: with a plugin of its own, if any."""
        plugins = [] if phase == "plain" else [EverlongPlugin(store=self.store, mode=phase)]
        return await Client.connect(self._address, data_converter=self._converter, plugins=plugins)

    async def handle(self, phase: Phase) -> WorkflowHandle[Any, Any]:
        return (await self.client(phase)).get_workflow_handle(self._id)

    @contextlib.asynccontextmanager
    async def worker(self, phase: Phase) -> AsyncIterator[None]:
        """Run a worker of a phase. It keeps no workflows, so each task replays all of history."""
        async with Worker(
            await self.client(phase),
            task_queue=self._id,
            workflows=[Notebook],
            activities=[annotate],
            max_cached_workflows=0,
        ):
            yield

    async def start(self, phase: Phase) -> None:
        self.expected = [letters("title", NOTE_BYTES)]
        await (await self.client(phase)).start_workflow(
            Notebook.run,
            self.expected[0],
            id=self._id,
            task_queue=self._id,
            memo={"title": self.expected[0]},
            execution_timeout=RUN_SECONDS_MAX,
        )

    async def step(self, phase: Phase) -> None:
        """Have one step taken, asked for by a client of a phase."""
        self.expected.append(letters(f"note {len(self.expected)}", NOTE_BYTES))
        self.expected.append(await annotate(self.expected))
        handle = await self.handle(phase)
        added = await handle.execute_update(Notebook.step, self.expected[-2])
        assert added == self.expected[-1]

    async def finish(self, phase: Phase) -> None:
        handle = await self.handle(phase)
        await handle.signal(Notebook.close)
        assert await handle.result() == self.expected

    async def events(self) -> Sequence[HistoryEvent]:
        return (await (await self.handle("plain")).fetch_history()).events

    async def check_plain(self, events: Sequence[HistoryEvent]) -> None:
        """Check that a reader without the plugin can read all that is in some events."""
        assert not any(b"everlong" in encoding for encoding in list_encodings(events))
        payloads = [payload for event in events for payload in find_payloads(event)]
        assert len(await self._converter.decode(payloads)) == len(payloads) > 0


@pytest.fixture
def rollout(server: TemporalServer, thread_id: str) -> Rollout:
    return Rollout(server, thread_id)


@pytest.mark.guarantee(33)
async def test_a_run_survives_the_rollout_and_the_rollback(rollout: Rollout) -> None:
    await rollout.start("plain")
    phases: list[Phase] = ["plain", "read", "write", "read"]
    for number, phase in enumerate(phases):
        puts, gets, before = rollout.store.puts, rollout.store.gets, len(await rollout.events())
        async with rollout.worker(phase):
            await rollout.step(phase)
            if phase == "write":
                # The second one is stored as what it adds to the first.
                await rollout.step(phase)
            assert await (await rollout.handle(phase)).query(Notebook.notes) == rollout.expected
            if number == len(phases) - 1:
                await rollout.finish(phase)
        added = (await rollout.events())[before:]
        if phase == "write" or number == len(phases) - 1:
            assert rollout.store.puts > puts
            assert any(b"everlong" in encoding for encoding in list_encodings(added))
        else:
            assert rollout.store.puts == puts
            await rollout.check_plain(added)
    # The last phase has read what the third one had offloaded.
    assert rollout.store.gets > gets
    assert await (await rollout.handle("read")).result() == rollout.expected


@pytest.mark.full
@pytest.mark.guarantee(33)
async def test_plain_and_reading_workers_take_turns(rollout: Rollout) -> None:
    await rollout.start("read")
    turns: list[Phase] = ["plain", "read", "plain", "read"]
    for number, phase in enumerate(turns):
        # Who asks is of the other kind than who answers.
        async with rollout.worker(phase):
            await rollout.step(turns[number - 1])
    async with rollout.worker("plain"), rollout.worker("read"):
        await rollout.step("read")
        await rollout.step("plain")
        await rollout.finish("plain")
    assert rollout.store.puts == 0
    await rollout.check_plain(await rollout.events())


@pytest.mark.guarantee(33)
async def test_reading_and_writing_workers_run_together(rollout: Rollout) -> None:
    """As while the second phase is rolled out: some processes write, all can read."""
    await rollout.start("read")
    async with rollout.worker("read"), rollout.worker("write"):
        for phase in ("write", "read", "write"):
            await rollout.step(phase)
        await rollout.finish("read")
    assert rollout.store.puts > 0


@pytest.mark.parametrize("phase", ["read", "write"])
async def test_a_reading_worker_reads_earlier_values(
    rollout: Rollout, phase: Literal["read", "write"]
) -> None:
    await rollout.start("plain")
    async with rollout.worker("plain"):
        await rollout.step("plain")
        await rollout.finish("plain")
    handle = await rollout.handle(phase)
    assert await handle.result() == rollout.expected
    assert await (await handle.describe()).memo_value("title") == rollout.expected[0]
    replayer = Replayer(
        workflows=[Notebook], plugins=[EverlongPlugin(store=rollout.store, mode=phase)]
    )
    await replayer.replay_workflow(await handle.fetch_history())
    assert rollout.store.puts == 0


async def test_mode_read_applies_only_the_teams_own_codec(
    server: TemporalServer, thread_id: str
) -> None:
    converter = dataclasses.replace(DataConverter.default, payload_codec=Xor())
    rollout = Rollout(server, thread_id, converter)
    await rollout.start("read")
    async with rollout.worker("read"):
        await rollout.step("read")
        await rollout.finish("plain")
    assert rollout.store.puts == 0
    events = await rollout.events()
    assert list_encodings(events) == {b"test/xor"}
    await rollout.check_plain(events)


def test_other_modes_are_refused() -> None:
    with pytest.raises(ConfigError, match="mode"):
        EverlongPlugin(store="memory:", mode="append")  # type: ignore[arg-type]  # a user's mistake
