"""SIGKILL in the middle of decisions: each is applied once, and no effect happens twice unseen."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everlong import Always
from everlong.client.thread import ThreadHandle
from everlong.config import Settings, load_settings, point_to_embedded
from everlong.embedded import TemporalServer, start_worker
from everlong.errors import DecisionRefused
from everlong.models import Kind
from everlong.storage import open_store
from tests.support.threads import open_threads

ROOT = Path(__file__).parents[2]


@contextlib.asynccontextmanager
async def open_handle(
    settings: Settings, thread_id: str, agent: str
) -> AsyncIterator[ThreadHandle]:
    """Run two workers of the agent, one of which may die, and send a first message."""
    module = f"tests.support.deciding_agent:{agent}"
    async with open_threads(
        settings.temporal["target_host"], open_store(settings.store)
    ) as threads:
        thread = ThreadHandle(threads.client, thread_id, task_queue=settings.task_queue)
        with (
            start_worker(settings, [module], name="first"),
            start_worker(settings, [module], name="second"),
        ):
            await thread.send("go", agent=agent)
            yield thread


@pytest.fixture
def settings(
    tmp_path: Path, server: TemporalServer, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TEST_GATE", str(tmp_path))
    base = load_settings({"EVERLONG_DATA_DIR": str(tmp_path), "EVERLONG_TASK_QUEUE": thread_id})
    return point_to_embedded(base, server.address)


async def wait_for_pending(thread: ThreadHandle) -> None:
    async with asyncio.timeout(60):
        await thread.wait_until(lambda progress: progress.pending == 1)


async def read_data(thread: ThreadHandle, kind: Kind) -> list[dict[str, object]]:
    return [entry.data or {} async for entry in thread.journal() if entry.kind == kind]


@pytest.mark.guarantee(116)
async def test_a_lost_call_is_not_repeated_until_a_person_says_so(
    settings: Settings, thread_id: str, tmp_path: Path
) -> None:
    (tmp_path / "transfer").touch()
    async with open_handle(settings, thread_id, "sending") as thread:
        await wait_for_pending(thread)
        [unknown] = await thread.outcomes()
        assert unknown.cause == "lost"
        [line] = (tmp_path / "transfers").read_text().splitlines()
        assert line == f"7 {unknown.idempotency_key}"
        await thread.resolve_outcome(unknown.id, outcome="retry", by="ann")
        assert await thread.wait(seconds_max=60) == "transferred 7"
        assert (tmp_path / "transfers").read_text().splitlines() == [line] * 2
        with pytest.raises(DecisionRefused, match="resolved already"):
            await thread.resolve_outcome(unknown.id, outcome="done", by="ben")


@pytest.mark.full
async def test_changed_arguments_are_applied_once_though_their_check_is_killed(
    settings: Settings, thread_id: str, tmp_path: Path
) -> None:
    (tmp_path / "check-9").touch()
    async with open_handle(settings, thread_id, "deciding") as thread:
        await wait_for_pending(thread)
        [approval] = await thread.approvals()
        await thread.decide(approval.id, approve=True, by="ann", arguments={"euros": 9})
        assert not (tmp_path / "check-9").exists()
        assert (await thread.wait(seconds_max=60)).endswith("paid 9")
        assert len(await read_data(thread, Kind.DECIDED)) == 1


@pytest.mark.full
@pytest.mark.parametrize("place", ["before-grant", "after-grant"])
async def test_a_kill_while_a_grant_is_stored_is_reported_and_the_call_runs(
    settings: Settings, thread_id: str, tmp_path: Path, place: str
) -> None:
    (tmp_path / place).touch()
    async with open_handle(settings, thread_id, "deciding") as thread:
        await wait_for_pending(thread)
        [approval] = await thread.approvals()
        always = Always(match="tool", scope="agent")
        with pytest.raises(DecisionRefused, match="the call is approved, but perhaps not later"):
            await thread.decide(approval.id, approve=True, by="ann", always=always)
        assert await thread.wait(seconds_max=60) == "paid 5"
        assert len(await thread.grants()) == (place == "after-grant")
        for grant in await thread.grants():
            await thread.revoke_grant(grant.id, by="ann")
