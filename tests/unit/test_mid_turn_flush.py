"""Entries that are journalled in the middle of a turn keep their place in its trace."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio import workflow
from temporalio.testing import ActivityEnvironment

from everlong import Agent, Reply
from everlong.activities import AgentActivities
from everlong.models import (
    Append,
    Appended,
    Decided,
    Kind,
    Ref,
    SegmentRef,
    ThreadStart,
    ThreadState,
    Turn,
    build_note,
)
from everlong.storage.urls import open_packs
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import APPROVAL, TurnSpan
from everlong.testing import ScriptedModel
from everlong.workflows.thread import Thread

BEGAN_MS = 1_000
DECIDED = Decided(id="4-1", tool="pay", asked_ms=2_000, approve=True, by="alice", asked_run="run-1")


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends"])
async def test_an_approval_that_is_flushed_in_mid_turn_has_its_parent_and_its_link(
    *, ends: bool
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(provider)
    agent = Agent(name="ops", model=ScriptedModel(lambda _: Reply(text="done")))
    activities = AgentActivities(open_packs("memory:"), [agent], telemetry=telemetry)
    env, turn = ActivityEnvironment(), Turn(number=3, began_ms=BEGAN_MS)
    append = Append(
        head=None,
        entries=(build_note(1, Kind.DECIDED, DECIDED, 5_000),),
        agent="ops",
        ended=turn if ends else None,
        turn=None if ends else turn,
    )
    await env.run(activities.append_journal, append)

    def place(run_id: str) -> int:
        part = TurnSpan(thread_id=env.info.workflow_id or "", run_id=run_id, agent="ops", number=3)
        return part.context(telemetry.spans).span_id

    names = [span.name.split()[0] for span in exporter.get_finished_spans()]
    assert names == ([APPROVAL, "invoke_agent"] if ends else [APPROVAL])
    approval = exporter.get_finished_spans()[0]
    assert approval.parent is not None
    assert approval.parent.span_id == place("run-1")
    links = [link.context.span_id for link in approval.links]
    assert links == [place(env.info.workflow_run_id or "")]


@pytest.mark.parametrize("in_turn", [True, False])
async def test_a_flush_names_the_turn_under_way(
    monkeypatch: pytest.MonkeyPatch, *, in_turn: bool
) -> None:
    info = SimpleNamespace(
        continued_run_id=None,
        workflow_start_time=datetime.fromtimestamp(BEGAN_MS / 1000, UTC),
        get_current_history_size=lambda: 0,
    )
    monkeypatch.setattr(workflow, "info", lambda: info)
    decided = build_note(1, Kind.DECIDED, DECIDED, 5_000)
    state = ThreadState(in_turn=in_turn, notes=(decided,))
    thread = Thread(ThreadStart(agent="ops", state=state))
    appends: list[Append] = []

    async def execute(name: str, argument: Append, *_: Any) -> Appended:
        appends.append(argument)
        ref = Ref(thread="0" * 32, digest="0" * 64, size_bytes=1, kind=Kind.SEGMENT)
        head = SegmentRef(ref=ref, first_seq=1, count=1)
        return Appended(head=head, written_bytes=1)

    monkeypatch.setattr(thread._executor, "execute", execute)
    assert await thread.flush()
    [append] = appends
    assert append.ended is None
    assert append.turn == (Turn(number=1, began_ms=BEGAN_MS) if in_turn else None)
