"""Jobs: bounded, one of a kind, and never lost from sight."""

import asyncio
import logging

import pytest
from starlette.exceptions import HTTPException

from everlong.admin.web.auth import Role
from everlong.admin.web.jobs import KEPT_MAX, RUNNING_MAX, Jobs, OnProgress, Outcome
from everlong.errors import ControlRefused
from everlong.models import SweepReport
from tests.support.admin_client import ROLES, bearer, make_context, open_http_client

pytestmark = pytest.mark.guarantee(112)


async def quick(on_progress: OnProgress) -> Outcome:
    on_progress("at work")
    return Outcome(text="done")


async def test_a_request_waits_for_a_quick_job() -> None:
    jobs = Jobs()
    job = await jobs.wait(jobs.start("archive", "a", "ann", quick).id)
    assert (job.state, job.text, job.by) == ("done", "done", "ann")
    assert job.ended_ms is not None
    assert jobs.list_running() == ()


async def test_a_slow_job_outlives_its_request() -> None:
    jobs, go = Jobs(), asyncio.Event()

    async def slow(on_progress: OnProgress) -> Outcome:
        on_progress("half of it")
        await go.wait()
        return Outcome(text="all of it")

    job = await jobs.wait(jobs.start("sweep", "", "ann", slow).id, 0.01)
    assert (job.state, job.text) == ("running", "half of it")
    with pytest.raises(HTTPException) as refused:
        jobs.start("sweep", "", "bob", quick)
    assert refused.value.status_code == 409
    go.set()
    assert (await jobs.wait(job.id)).text == "all of it"


async def test_running_and_remembered_jobs_are_bounded() -> None:
    jobs = Jobs()

    async def endless(_: OnProgress) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError

    async with jobs.lifespan():
        started = [jobs.start("archive", str(each), "", endless) for each in range(RUNNING_MAX)]
        with pytest.raises(HTTPException) as refused:
            jobs.start("archive", "one more", "", quick)
        assert refused.value.status_code == 429
    ended = [jobs.find(job.id) for job in started]
    assert [job.error.type for job in ended if job and job.error] == RUNNING_MAX * ["GivenUp"]
    for each in range(KEPT_MAX + 5):
        await jobs.wait(jobs.start("archive", str(each), "", quick).id)
    assert len(jobs.list_all()) <= KEPT_MAX + 1


async def test_the_error_of_a_job_is_raised_to_its_waiter_and_reported_to_others() -> None:
    jobs = Jobs()

    async def refuses(_: OnProgress) -> Outcome:
        raise ControlRefused("not that")

    async def breaks(_: OnProgress) -> Outcome:
        raise RuntimeError("what a thread holds")

    job = jobs.start("archive", "a", "", refuses)
    with pytest.raises(ControlRefused):
        await jobs.wait(job.id)
    found = jobs.find(job.id)
    assert found is not None
    assert (found.state, found.text) == ("failed", "not that")
    job = jobs.start("archive", "a", "", breaks)
    with pytest.raises(RuntimeError):
        await jobs.wait(job.id)
    found = jobs.find(job.id)
    assert found is not None
    # The text of an unexpected error may hold a thread's content.
    assert "holds" not in found.text


async def test_the_log_names_the_user_action_and_outcome_of_a_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "everlong")
    jobs = Jobs()
    job = await jobs.wait(jobs.start("sweep", "", "ann\nbob", quick).id)
    await jobs.wait(jobs.start("archive", "secret-id", "ann", quick).id)
    assert caplog.messages[:2] == [
        f"job {job.id}: sweep, requested by ann bob",
        f"job {job.id}: sweep done",
    ]
    assert "secret" not in caplog.text


async def test_a_sweep_names_who_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sweep(*_: object, **__: object) -> SweepReport:
        return SweepReport(id="s", started_ms=1, dry_run=True)

    async def client_of() -> None:
        return None

    context = make_context()
    context.client = client_of  # type: ignore[assignment,method-assign]
    monkeypatch.setattr("everlong.admin.web.routes.fleet.sweep_namespace", sweep)
    async with open_http_client(context, access=ROLES) as client:
        job = await client.post("/api/v1/sweep", json={"by": "x"}, headers=bearer(Role.ADMIN))
    assert (job.json()["by"], job.json()["state"]) == ("Admin", "done")
    assert job.json()["text"].endswith("Requested by Admin.")
