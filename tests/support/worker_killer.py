"""Killer of worker processes: kills or freezes them at random moments."""

import asyncio
import contextlib
import os
import random
import signal
from typing import Self

from everlong.config import Settings
from everlong.embedded import ManagedProcess, start_worker
from everlong.worker_options import READY

WORKERS = 2
PAUSE_SECONDS = (3.0, 7.0)
# Longer than heartbeat and sticky timeouts: what the worker does afterwards comes too late.
FROZEN_SECONDS = 7.0


class WorkerKiller:
    """Keeps a few workers running, and kills or freezes one every few seconds."""

    def __init__(
        self,
        settings: Settings,
        source: random.Random,
        deaths_max: int | None = None,
        pause_seconds: tuple[float, float] = PAUSE_SECONDS,
    ) -> None:
        self.kills = 0
        self.frozen: list[int] = []
        """Process ids of those that stood still."""
        self._settings = settings
        self._source = source
        self._deaths_max = deaths_max
        self._pause_seconds = pause_seconds
        self._started = 0
        self._workers: list[ManagedProcess] = []
        self._reaping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            for _ in range(WORKERS):
                self._start()
            for worker in self._workers:
                await worker.wait_for_output(READY, 60)
        except BaseException:
            self._stop()
            raise
        self._reaping = asyncio.create_task(self._reap())
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._reaping is not None:
                self._reaping.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._reaping
        finally:
            self._stop()

    async def _reap(self) -> None:
        while self._deaths_max is None or self.kills + len(self.frozen) < self._deaths_max:
            await asyncio.sleep(self._source.uniform(*self._pause_seconds))
            how = self._source.choices(["one", "all", "freeze"], [7, 2, 1])[0]
            if how == "freeze":
                await self._freeze(self._source.choice(self._workers))
            else:
                count = len(self._workers) if how == "all" else 1
                for worker in self._source.sample(self._workers, count):
                    self._kill(worker)
                    self._start()
            await self._workers[-1].wait_for_output(READY, 60)

    def _kill(self, worker: ManagedProcess) -> None:
        worker.kill()
        self.kills += 1
        self._workers.remove(worker)

    async def _freeze(self, worker: ManagedProcess) -> None:
        os.kill(worker.pid, signal.SIGSTOP)
        self.frozen.append(worker.pid)
        try:
            await asyncio.sleep(FROZEN_SECONDS)
        finally:
            os.kill(worker.pid, signal.SIGCONT)

    def _start(self) -> None:
        self._started += 1
        name = f"worker-{self._started}"
        self._workers.append(
            start_worker(self._settings, ["tests.support.soak_agent:soak"], name=name)
        )

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop()
