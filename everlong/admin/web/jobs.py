"""Jobs: archives, revivals, sweeps and bulk actions, which may take longer than a request.

A job continues when its client disconnects, and is cancelled when the server stops. A cancelled job can
be repeated: an archive exists only after it was read back, a revival starts its thread last, and a sweep
continues where an earlier one stopped.
"""

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Literal, TypeAlias

from starlette.exceptions import HTTPException

from everlong.admin.bulk import BulkResult
from everlong.client.archives import ArchiveResult
from everlong.errors import EverlongError
from everlong.models import SweepReport, make_printable

_LOG: Final = logging.getLogger(__name__)
RUNNING_MAX: Final = 4
"""An archive takes tens of MB of memory while it is written; a sweep, the names of all objects."""
KEPT_MAX: Final = 100
"""Ended jobs that are kept in memory. 200 results of a bulk action have 40 KB: 4 MB."""
WAIT_SECONDS: Final = 8.0
"""Time that a request waits for its job. Most jobs end sooner, and no proxy times out earlier."""

LongAction: TypeAlias = Literal["archive", "revive", "sweep", "bulk"]
JOB_SECONDS_MAX: Final = 6 * 3600.0
"""The first sweep of a namespace reads all histories. `everlong.Sweeper` runs longer ones."""

State: TypeAlias = Literal["running", "done", "failed"]
OnProgress: TypeAlias = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a job."""

    text: str
    """Summary for people."""
    archived: ArchiveResult | None = None
    swept: SweepReport | None = None
    bulk: tuple[BulkResult, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobError:
    """Type and message of a job's error."""

    type: str
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A job and its state."""

    id: str
    action: LongAction
    thread_id: str
    """Empty for a sweep and a bulk action."""
    by: str
    state: State
    text: str
    """Progress of a running job, or the result of an ended one."""
    started_ms: int
    ended_ms: int | None = None
    archived: ArchiveResult | None = None
    swept: SweepReport | None = None
    bulk: tuple[BulkResult, ...] | None = None
    """Result of a bulk action on each thread."""
    error: JobError | None = None


class Jobs:
    """Running jobs of one server, and the newest ended ones."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[Exception | None]] = {}

    def start(
        self,
        action: LongAction,
        thread_id: str,
        by: str,
        work: Callable[[OnProgress], Awaitable[Outcome]],
    ) -> Job:
        """Start a job. Answers 409 if the same action of the same thread runs already."""
        for other in self.list_running():
            # Two bulk actions may be about different threads.
            if action != "bulk" and (other.action, other.thread_id) == (action, thread_id):
                raise HTTPException(
                    409, f"This {action} is running already as job {other.id}. Wait until it ends."
                )
        if len(self._tasks) >= RUNNING_MAX:
            raise HTTPException(
                429,
                f"{RUNNING_MAX} archives, revivals, sweeps or bulk actions run. Try again later.",
            )
        job = Job(
            id=secrets.token_hex(8),
            action=action,
            thread_id=thread_id,
            by=by,
            state="running",
            text="starting",
            started_ms=_now_ms(),
        )
        self._jobs[job.id] = job
        _LOG.info("job %s: %s, requested by %s", job.id, action, make_printable(by, 64) or "-")
        self._tasks[job.id] = asyncio.create_task(self._run(job.id, work))
        for old in [each for each in self._jobs if each not in self._tasks][:-KEPT_MAX]:
            del self._jobs[old]
        return job

    async def wait(self, job_id: str, seconds: float = WAIT_SECONDS) -> Job:
        """Wait up to `seconds` for a job, and return it. Raises the error of a job that failed."""
        task = self._tasks.get(job_id)
        if task is not None:
            await asyncio.wait([task], timeout=seconds)
            if task.done() and not task.cancelled() and (error := task.result()) is not None:
                raise error
        return self._jobs[job_id]

    def find(self, job_id: str) -> Job | None:
        """Return a job, or None if it is not in memory."""
        return self._jobs.get(job_id)

    def list_all(self) -> tuple[Job, ...]:
        """Return all jobs in memory, newest first."""
        return tuple(reversed(self._jobs.values()))

    def list_running(self) -> tuple[Job, ...]:
        """Return the running jobs."""
        return tuple(self._jobs[job_id] for job_id in self._tasks)

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Cancel the running jobs when the server stops."""
        try:
            yield
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for job_id in list(self._tasks):  # Cancelled before they started.
                del self._tasks[job_id]
                self._fail_as_stopped(job_id)

    async def _run(
        self, job_id: str, work: Callable[[OnProgress], Awaitable[Outcome]]
    ) -> Exception | None:
        """Run a job. Returns its error instead of raising it, since no request may be waiting."""
        try:
            async with asyncio.timeout(JOB_SECONDS_MAX):
                outcome = await work(lambda text: self._change(job_id, text=text))
        except EverlongError as error:
            self._fail(job_id, type(error).__name__, str(error))
            return error
        except asyncio.CancelledError:
            self._fail_as_stopped(job_id)
            raise
        except Exception as error:  # noqa: BLE001 - its message may hold content, so it is not logged.
            _LOG.error("a job failed: %s", type(error).__name__)
            self._fail(
                job_id,
                "InternalError",
                "An unexpected error occurred. The server's log has its type.",
            )
            return error
        finally:
            del self._tasks[job_id]
        self._change(
            job_id,
            state="done",
            text=outcome.text,
            ended_ms=_now_ms(),
            archived=outcome.archived,
            swept=outcome.swept,
            bulk=outcome.bulk,
        )
        return None

    def _fail_as_stopped(self, job_id: str) -> None:
        self._fail(job_id, "GivenUp", "The server was stopped. Start the job again.")

    def _fail(self, job_id: str, kind: str, message: str) -> None:
        error = JobError(type=kind, message=message)
        self._change(job_id, state="failed", text=message, ended_ms=_now_ms(), error=error)

    def _change(self, job_id: str, **changes: Any) -> None:
        job = self._jobs[job_id] = dataclasses.replace(self._jobs[job_id], **changes)
        if "state" in changes:
            _LOG.info("job %s: %s %s", job.id, job.action, job.state)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
