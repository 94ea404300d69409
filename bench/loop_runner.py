"""Runner of one loop through a Temporal server, with its own store and worker process."""

import asyncio
import contextlib
import dataclasses
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from bench import worker_log
from bench.loop import LIST_LOOP, RUN_UNTIL
from bench.objects import Place
from everlong.config import drop_temporal_variables
from everlong.embedded import ManagedProcess
from everlong.errors import ProcessFailed

_ROOT: Final = Path(__file__).parents[1]
_READY_SECONDS_MAX: Final = 60.0
_ROUND_SECONDS_MAX: Final = 300.0
_RESUME_SECONDS_MAX: Final = 120.0


@dataclasses.dataclass(frozen=True)
class Resume:
    """One cold resume: from the signal to the end of the next step."""

    seconds: float | None
    """None if it did not finish in time."""
    replay_puts: int
    """PUTs before the first live command."""
    puts: int
    gets: int
    heads: int
    get_bytes: int


class LoopRunner:
    """One loop, its worker process and its store."""

    def __init__(
        self,
        name: str,
        client: Client,
        address: str,
        place: Place,
        folder: Path,
        loop: str = LIST_LOOP,
    ) -> None:
        self.name = name
        self._loop = loop
        self.place = place
        self.step = 0
        self.step_seconds: dict[int, float] = {}
        self._queue = f"bench-{uuid.uuid4().hex[:8]}"
        self._client = client
        self._address = address
        self._folder = folder
        self._workers: list[ManagedProcess] = []
        self._handle: WorkflowHandle[Any, Any] | None = None

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        """The workflow handle of the loop, once it has begun."""
        if self._handle is None:
            raise RuntimeError(f"the loop of {self.name} has not begun: call begin() first")
        return self._handle

    async def begin(self) -> None:
        """Start a worker and the loop."""
        await self._start_worker()
        self._handle = await self._client.start_workflow(
            self._loop, id=self._queue, task_queue=self._queue
        )

    async def advance(self, step: int) -> None:
        """Take steps up to `step`, and record the duration of each except the first."""
        await self.handle.signal(RUN_UNTIL, step)
        worker = self._workers[-1]
        try:
            await worker.wait_for_output(
                worker_log.format_line_end("done", step), _ROUND_SECONDS_MAX
            )
        except ProcessFailed as error:
            # The log file is deleted with its folder, so keep its end.
            error.add_note("\n".join(worker.output().splitlines()[-20:]))
            raise
        done = {event.size: event.at for event in self.events() if event.what == "done"}
        for number in range(self.step + 2, step + 1):
            self.step_seconds[number] = done[number] - done[number - 1]
        self.step = step

    async def resume(self) -> Resume:
        """Replace the worker by a new one, and take one more step."""
        self._workers[-1].stop()
        worker = await self._start_worker()
        step = self.step + 1
        started = time.time()
        await self.handle.signal(RUN_UNTIL, step)
        try:
            await worker.wait_for_output(
                worker_log.format_line_end("done", step), _RESUME_SECONDS_MAX
            )
            self.step = step
        except ProcessFailed:
            if worker.returncode is not None:
                raise
        return _resume(list(worker_log.parse_events(worker.output())), started, step)

    async def run_until_terminated(self) -> tuple[int, str]:
        """Run until the server terminates the loop; return its last step and the reason."""
        await self.handle.signal(RUN_UNTIL, 10 * self.step)
        deadline = time.monotonic() + _ROUND_SECONDS_MAX
        while (await self.handle.describe()).status == WorkflowExecutionStatus.RUNNING:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the loop of {self.name} should have been terminated, but runs")
            await asyncio.sleep(0.2)
        step = max(event.size for event in self.events() if event.what == "live")
        reason = ""
        async for event in self.handle.fetch_history_events():
            reason = event.workflow_execution_terminated_event_attributes.reason or reason
        return step, reason

    async def history_bytes(self) -> int:
        """Return the history size that the server reports."""
        described = await self.handle.describe()
        return described.raw_description.workflow_execution_info.history_size_bytes

    def events(self) -> list[worker_log.Event]:
        """Return the events in the logs of all workers so far."""
        return [
            event for worker in self._workers for event in worker_log.parse_events(worker.output())
        ]

    async def end(self) -> None:
        """Stop the worker and the loop."""
        for worker in self._workers:
            worker.stop()
        if self._handle is not None:
            with contextlib.suppress(RPCError):  # It has ended already.
                await self._handle.terminate()

    async def _start_worker(self) -> ManagedProcess:
        arguments = [sys.executable, "-m", "bench.worker", self.name]
        arguments += [self._address, self._queue, self.place.url]
        worker = ManagedProcess(
            f"worker of {self.name}",
            arguments,
            env={
                **drop_temporal_variables(),
                **self.place.environ,
                "PYTHONPATH": str(_ROOT),
            },
            log=self._folder / f"{self._queue}-{len(self._workers)}.log",
        )
        self._workers.append(worker)
        await worker.wait_for_output(worker_log.format_line_end("ready"), _READY_SECONDS_MAX)
        return worker


def _resume(events: Sequence[worker_log.Event], signalled: float, step: int) -> Resume:
    live = [event.at for event in events if event.what == "live"]
    done = [event.at for event in events if event.what == "done" and event.size == step]
    counted = [event for event in events if not done or event.at <= done[0]]
    puts = [event.at for event in counted if event.what == "put"]
    gets = [event.size for event in counted if event.what == "get"]
    return Resume(
        seconds=done[0] - signalled if done else None,
        replay_puts=sum(1 for at in puts if not live or at < live[0]),
        puts=len(puts),
        gets=len(gets),
        get_bytes=sum(gets),
        heads=sum(1 for event in counted if event.what == "head"),
    )
