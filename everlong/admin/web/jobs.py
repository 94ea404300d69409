"""What takes longer than a request: archives, revivals, sweeps. It goes on when nobody waits for it.

A job lives in this process and ends with it. Each of them can be asked for again then: an archive exists
once it was read back, a revived thread starts last, and a sweep takes up what another has left.
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

from everlong.client.archives import ArchiveResult
from everlong.errors import EverlongError
from everlong.models import SweepReport, printable

_LOG: Final = logging.getLogger(__name__)
RUNNING_MAX: Final = 4
"""An archive holds some tens of MB while it is written; a sweep, the names of all that is stored."""
KEPT_MAX: Final = 100
"""Of those that have ended. A report has 10 KB, so that is 1 MB."""
WAIT_SECONDS: Final = 8.0
"""A request waits so long for its job. Most are done by then, and no proxy gives up before."""

LongAction: TypeAlias = Literal["archive", "revive", "sweep"]
JOB_SECONDS_MAX: Final = 6 * 3600.0
"""The first sweep of a namespace reads all of its histories. Longer ones are for `everlong.Sweeper`."""

State: TypeAlias = Literal["running", "done", "failed"]
Tell: TypeAlias = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a job."""

    text: str
    """In words."""
    archived: ArchiveResult | None = None
    swept: SweepReport | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobError:
    """Why a job failed."""

    type: str
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Something that was asked for, and how it goes."""

    id: str
    action: LongAction
    thread_id: str
    """Empty of a sweep."""
    by: str
    state: State
    text: str
    """What it does now, or what came of it."""
    started_ms: int
    ended_ms: int | None = None
    archived: ArchiveResult | None = None
    swept: SweepReport | None = None
    error: JobError | None = None


class Jobs:
    """The jobs of one server."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[Exception | None]] = {}

    def start(
        self,
        action: LongAction,
        thread_id: str,
        by: str,
        work: Callable[[Tell], Awaitable[Outcome]],
    ) -> Job:
        """Begin something; refuse what is under way already: a sweep, or the same of a thread."""
        for other in self.running():
            if (other.action, other.thread_id) == (action, thread_id):
                raise HTTPException(
                    409, f"This {action} is under way already, as job {other.id}. Wait for its end."
                )
        if len(self._tasks) >= RUNNING_MAX:
            raise HTTPException(
                429, f"{RUNNING_MAX} archives, revivals and sweeps are under way. Try again later."
            )
        job = Job(
            id=secrets.token_hex(8),
            action=action,
            thread_id=thread_id,
            by=by,
            state="running",
            text="begins",
            started_ms=_now_ms(),
        )
        self._jobs[job.id] = job
        _LOG.info("job %s: %s, asked for by %s", job.id, action, printable(by, 64) or "-")
        self._tasks[job.id] = asyncio.create_task(self._run(job.id, work))
        for old in [each for each in self._jobs if each not in self._tasks][:-KEPT_MAX]:
            del self._jobs[old]
        return job

    async def wait(self, job_id: str, seconds: float = WAIT_SECONDS) -> Job:
        """Wait some time for a job; return how it is then. What it failed with is raised."""
        task = self._tasks.get(job_id)
        if task is not None:
            await asyncio.wait([task], timeout=seconds)
            if task.done() and not task.cancelled() and (error := task.result()) is not None:
                raise error
        return self._jobs[job_id]

    def find(self, job_id: str) -> Job | None:
        """Return a job, as long as it is remembered."""
        return self._jobs.get(job_id)

    def all(self) -> tuple[Job, ...]:
        """Return all that are remembered, the newest first."""
        return tuple(reversed(self._jobs.values()))

    def running(self) -> tuple[Job, ...]:
        """Return those that are under way."""
        return tuple(self._jobs[job_id] for job_id in self._tasks)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Give up at the end what is still under way."""
        try:
            yield
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for job_id in list(self._tasks):  # Given up before they began.
                del self._tasks[job_id]
                self._give_up(job_id)

    async def _run(
        self, job_id: str, work: Callable[[Tell], Awaitable[Outcome]]
    ) -> Exception | None:
        """Work, and return what it failed with: nobody may be there to take it."""
        try:
            async with asyncio.timeout(JOB_SECONDS_MAX):
                outcome = await work(lambda text: self._change(job_id, text=text))
        except EverlongError as error:
            self._fail(job_id, type(error).__name__, str(error))
            return error
        except asyncio.CancelledError:
            self._give_up(job_id)
            raise
        except Exception as error:  # noqa: BLE001 - its words may hold content, so they go nowhere.
            _LOG.error("a job failed: %s", type(error).__name__)
            self._fail(job_id, "InternalError", "It failed unexpectedly. The log names the error.")
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
        )
        return None

    def _give_up(self, job_id: str) -> None:
        self._fail(job_id, "GivenUp", "The server was stopped. Ask again.")

    def _fail(self, job_id: str, kind: str, message: str) -> None:
        error = JobError(type=kind, message=message)
        self._change(job_id, state="failed", text=message, ended_ms=_now_ms(), error=error)

    def _change(self, job_id: str, **changes: Any) -> None:
        job = self._jobs[job_id] = dataclasses.replace(self._jobs[job_id], **changes)
        if "state" in changes:
            _LOG.info("job %s: %s %s", job.id, job.action, job.state)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
