"""Histories of released workflow code replay on the code of today."""

from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from everlong import EverlongPlugin
from everlong.storage.memory import MemoryBlobStore
from everlong.workflows import AgentWorkflow
from tests.replay.generate import SCENES

HERE = Path(__file__).parent
STORED = sorted(HERE.glob("v*/*.json"))


@pytest.mark.guarantee(77)
@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_stored_history_replays(path: Path) -> None:
    store = MemoryBlobStore()
    replayer = Replayer(workflows=[AgentWorkflow], plugins=[EverlongPlugin(store=store)])
    history = WorkflowHistory.from_json(f"stored-{path.stem.rsplit('-', 1)[0]}", path.read_text())
    assert len(history.events) > 4
    await replayer.replay_workflow(history)
    assert [info async for info in store.list("")] == [], "a replay writes nothing"


def test_every_scene_is_stored() -> None:
    assert {path.stem.rsplit("-", 1)[0] for path in STORED} == set(SCENES)


@pytest.mark.guarantee(77)
async def test_a_changed_workflow_fails_to_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a thread that calls the model twice a step is another workflow."""
    from everlong.workflows.thread import Thread

    real = Thread._call_model

    async def twice(thread: Thread) -> None:
        await real(thread)
        await real(thread)

    monkeypatch.setattr(Thread, "_call_model", twice)
    replayer = Replayer(
        workflows=[AgentWorkflow], plugins=[EverlongPlugin(store=MemoryBlobStore())]
    )
    path = HERE / "v1" / "rolls-1.json"
    with pytest.raises(Exception, match=r"[Nn]ondeterminis"):
        await replayer.replay_workflow(WorkflowHistory.from_json("rolls", path.read_text()))
