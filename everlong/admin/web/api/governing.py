"""Routes for archives, revivals and sweeps. What takes long goes on as a job, which has a route too."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Path, Query, Response
from pydantic import Field

from everlong.admin import service
from everlong.admin.web.api.bodies import Ask, By, Reason, Text
from everlong.admin.web.api.parameters import ARCHIVE_ID, SEQ_MAX
from everlong.admin.web.desk import Desk
from everlong.admin.web.ids import NewId, ThreadId
from everlong.admin.web.jobs import Job, LongAction, Outcome, Tell
from everlong.admin.web.needs import CurrentUser, check_may, needs
from everlong.admin.web.permissions import ARCHIVE_THEN
from everlong.admin.wording import bytes_text, counted
from everlong.models import SweepReport

_LONG: Final[dict[int | str, dict[str, Any]]] = {
    202: {"model": Job, "description": "It is under way; ask for the job again"}
}
_ARCHIVES_PAGE: Final = 100
ArchiveId = Annotated[str, Field(pattern=ARCHIVE_ID)]
Before = Annotated[str, Query(pattern=ARCHIVE_ID, description="Only those before this one.")]
Limit = Annotated[int, Query(ge=1, le=_ARCHIVES_PAGE)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchiveAsk(Ask):
    """What becomes of the thread that is archived."""

    then: service.Then = "keep"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReviveAsk(Ask):
    """The new thread, and what it begins with: the newest archive, all of it."""

    new_id: NewId
    archive_id: ArchiveId = ""
    seq: Annotated[int, Field(ge=1, le=SEQ_MAX)] | None = None
    agent: Annotated[Text, Field(max_length=64)] = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepAsk:
    """How to sweep, and who asks. Nothing is changed, unless somebody says so."""

    by: By = ""
    reason: Reason = ""
    dry_run: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepState:
    """Sweeps of the namespace."""

    last: SweepReport | None
    """Of the newest that came to its end."""
    job: Job | None
    """What this server sweeps now."""
    every_seconds: float | None
    """How often workers sweep by themselves; None if they do not."""


def governing_router(desk: Desk) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    _archives(router, desk)
    _archiving(router, desk)
    _sweeping(router, desk)
    _jobs(router, desk)
    return router


async def _long(
    desk: Desk,
    response: Response,
    action: LongAction,
    thread_id: str,
    by: str,
    work: Callable[[Tell], Awaitable[Outcome]],
) -> Job:
    """Begin something, and answer with what came of it, or with the job if that takes long."""
    job = await desk.jobs.wait(desk.jobs.start(action, thread_id, by, work).id)
    response.status_code = 202 if job.state == "running" else 200
    return job


def _archives(router: APIRouter, desk: Desk) -> None:
    @router.get(
        "/archives",
        tags=["archives"],
        summary="Archives of all threads, the newest first",
        **needs("read"),
    )
    async def archives(before: Before = "", limit: Limit = 50) -> service.ArchivePage:
        return await service.archives(
            await desk.client(), desk.packs, before=before, count_max=limit
        )

    @router.get(
        "/threads/{thread_id}/archives",
        tags=["archives"],
        summary="Archives of one thread, the newest first",
        **needs("read"),
    )
    async def archives_of(
        thread_id: ThreadId, before: Before = "", limit: Limit = 50
    ) -> service.ArchivePage:
        return await service.archives(
            await desk.client(), desk.packs, thread_id=thread_id, before=before, count_max=limit
        )


def _archiving(router: APIRouter, desk: Desk) -> None:
    permission = needs("archive")
    permission["openapi_extra"]["x-permission-then"] = dict(ARCHIVE_THEN)

    @router.post(
        "/threads/{thread_id}/archive",
        tags=["archives"],
        summary="Write the journal as one Parquet file; then keep the thread, close it, or free it",
        responses=_LONG,
        **permission,
    )
    async def archive(
        thread_id: ThreadId, ask: ArchiveAsk, user: CurrentUser, response: Response
    ) -> Job:
        check_may(user, ARCHIVE_THEN[ask.then])
        by = user.acts_as(ask.by)

        async def work(tell: Tell) -> Outcome:
            done = await service.archive(
                await desk.client(),
                desk.packs,
                thread_id,
                then=ask.then,
                by=by,
                reason=ask.reason,
                on_progress=_entries(tell),
            )
            return Outcome(text=archived_text(done), archived=done)

        return await _long(desk, response, "archive", thread_id, by, work)

    @router.post(
        "/threads/{thread_id}/revive",
        tags=["archives"],
        summary="Begin a new thread as an archive has it",
        responses=_LONG,
        **needs("revive"),
    )
    async def revive(
        thread_id: ThreadId, ask: ReviveAsk, user: CurrentUser, response: Response
    ) -> Job:
        by = user.acts_as(ask.by)
        return await _long(
            desk, response, "revive", thread_id, by, _revival(desk, thread_id, ask, by)
        )


def _revival(
    desk: Desk, thread_id: str, ask: ReviveAsk, by: str
) -> Callable[[Tell], Awaitable[Outcome]]:
    async def work(tell: Tell) -> Outcome:
        warnings: list[str] = []
        await service.revive(
            await desk.client(),
            desk.packs,
            thread_id,
            ask.new_id,
            task_queue=desk.task_queue,
            archive_id=ask.archive_id or None,
            seq=ask.seq,
            agent=ask.agent or None,
            by=by,
            reason=ask.reason,
            on_progress=_entries(tell),
            on_warning=warnings.append,
        )
        begins = f"Thread {ask.new_id} begins as the archive has it."
        return Outcome(text=" ".join([begins, *(f"Warning: {each}" for each in warnings)]))

    return work


def _sweeping(router: APIRouter, desk: Desk) -> None:
    @router.get(
        "/sweep",
        tags=["fleet"],
        summary="The last sweep, and the one that is under way",
        **needs("read"),
    )
    async def last() -> SweepState:
        return await sweep_state(desk)

    @router.post(
        "/sweep",
        tags=["fleet"],
        summary="Free what nothing reaches, by way of the quarantine; or say what that would be",
        responses=_LONG,
        **needs("sweep"),
    )
    async def sweep(ask: SweepAsk, user: CurrentUser, response: Response) -> Job:
        by = user.acts_as(ask.by)
        return await _long(desk, response, "sweep", "", by, _sweep(desk, ask, by))


def _sweep(desk: Desk, ask: SweepAsk, by: str) -> Callable[[Tell], Awaitable[Outcome]]:
    async def work(tell: Tell) -> Outcome:
        try:
            report = await service.sweep(
                await desk.client(),
                desk.packs,
                dataclasses.replace(desk.sweeps, dry_run=ask.dry_run, by=by, reason=ask.reason),
                index_dir=desk.index_dir,
                tell=tell,
            )
        finally:
            desk.forget_sweep()
        return Outcome(text=f"{swept_text(report)} Asked for by {by}.", swept=report)

    return work


async def sweep_state(desk: Desk) -> SweepState:
    """Return what is known of sweeps."""
    under_way = [each for each in desk.jobs.running() if each.action == "sweep"]
    return SweepState(
        last=await desk.last_sweep(),
        job=under_way[0] if under_way else None,
        every_seconds=await service.sweep_interval_seconds(await desk.client()),
    )


def _jobs(router: APIRouter, desk: Desk) -> None:
    @router.get(
        "/jobs",
        tags=["jobs"],
        summary="What was asked of this server and takes long, the newest first",
        **needs("read"),
    )
    async def jobs() -> tuple[Job, ...]:
        return desk.jobs.all()

    @router.get(
        "/jobs/{job_id}", tags=["jobs"], summary="How a job goes, or ended", **needs("read")
    )
    async def job(job_id: Annotated[str, Path(pattern="^[0-9a-f]{16}$")]) -> Job:
        found = desk.jobs.find(job_id)
        if found is None:
            raise HTTPException(404, "This server knows no such job: it may have been restarted.")
        return found


def _entries(tell: Tell) -> Callable[[str, int, int], None]:
    return lambda what, done, total: tell(f"{done:,} of {total:,} entries are {what}")


def archived_text(done: service.Archived) -> str:
    """Return what was archived, in words."""
    manifest = done.manifest
    how = "written and read back" if done.is_new else "there already, and was read back"
    text = f"Archived: {manifest.entries:,} entries in {bytes_text(manifest.size_bytes)}, {how}."
    if done.left_out:
        text += f" {done.left_out} entries and messages were never journalled, and are not in it."
    if done.runs_deleted:
        text += f" Deleted: {counted(done.runs_deleted, 'run')}."
    for each in done.passed_over:
        text += f" An archive cannot be read, and is passed over: {each}"
    return text


def swept_text(report: SweepReport) -> str:
    """Return what a sweep did, in words."""
    if report.incomplete:
        return f"Incomplete, so nothing was deleted for good: {report.incomplete[0]}"
    size = bytes_text(report.quarantined.bytes)
    did = "A sweep would set aside" if report.dry_run else "Set aside"
    return f"{did} {size} in {counted(report.quarantined.objects, 'object')}."
