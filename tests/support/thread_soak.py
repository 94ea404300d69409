"""Soak test of threads under random messages, worker kills and rolls: `make soak`.

A life is one thread and a random script from a seed. Many threads run at once, on a few worker processes
that are killed or frozen at random moments. At the end each journal must hold exactly what was done.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from temporalio.client import Client

from everlong import EverlongPlugin
from everlong.config import Settings, load_settings, point_to_embedded
from everlong.embedded import start_server
from everlong.models import COMPACT_SIGNAL, PAUSE_SIGNAL, UNPAUSE_SIGNAL, ThreadStatus
from everlong.storage import open_store
from everlong.storage.pack_store import PackStore
from tests.support.retrying_client import Refusal, RetryingClient, Unreachable
from tests.support.thread_soak_oracle import Attempt, SentInput, find_faults, list_failed_tasks
from tests.support.worker_killer import PAUSE_SECONDS, WorkerKiller

ACTIONS = 15
LIFE_SECONDS_MAX = 300.0
# Steps that a message asks for: `w` is a tool, `a` a tool that needs approval; adjacent letters are
# calls of one reply.
PLANS = ["", "", "w", "w", "a", "a", "wa", "aa", "a w", "w w", "w wa"]
CONFIGURATIONS: list[dict[str, Any]] = [
    {"run_events_max": 50},
    {"run_events_max": 90},
    {"run_history_bytes_max": 16 * 1024},
    {"idle_seconds": 0.3},
    {"idle_seconds": 2.0},
    {"compact_at_bytes": 16 * 1024, "compact_to_bytes": 8 * 1024},
    {"compact_at_bytes": 64 * 1024, "compact_to_bytes": 16 * 1024},
    {"run_blobs_max": 1},
]


class Script:
    """Random script of one thread: messages, decisions and signals, with pauses."""

    def __init__(self, thread_client: RetryingClient, seed: str) -> None:
        self.life = SentInput(thread_client.thread_id, seed)
        self._client = thread_client
        self._source = random.Random(seed)
        self._people = 0

    async def live(self) -> ThreadStatus:
        """Run the script, wait until every turn has ended, and stop the thread."""
        actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (3, self._send),
            (4, self._decide),
            (2, self._compact),
            (1, self._pause),
            (2, self._unpause),
            (2, self._configure),
        ]
        weights = [weight for weight, _ in actions]
        await self._send()
        for _ in range(ACTIONS - 1):
            [(_, action)] = self._source.choices(actions, weights)
            await action()
            await asyncio.sleep(self._source.choice([0.0, 0.0, 0.1, 0.3, 0.8]))
        await self._finish()
        return await self._client.stop()

    async def _send(self) -> None:
        """Send one message, or a few at the same moment."""
        texts: list[str] = []
        for _ in range(self._source.choice([1, 1, 1, 1, 3])):
            texts.append(f"m{len(self.life.sent) + len(texts)} {self._source.choice(PLANS)}")
        numbers = await asyncio.gather(*(self._client.send(text.strip()) for text in texts))
        for number, text in zip(numbers, texts, strict=True):
            self.life.sent.append((number, text.strip()))

    async def _decide(self) -> None:
        """Decide a pending approval; sometimes twice, or one that is not pending."""
        waiting = await self._client.pending()
        known = [attempt.approval for attempt in self.life.attempts]
        if not waiting:
            await self._attempt(self._source.choice(["1-1", "nothing", *known[-3:]]))
            return
        approval = self._source.choice(waiting).id
        await asyncio.gather(
            *(self._attempt(approval) for _ in range(self._source.choice([1, 1, 2])))
        )

    async def _attempt(self, approval: str) -> None:
        self._people += 1
        attempt = Attempt(approval, by=f"p{self._people}", approve=self._source.random() < 0.7)
        self.life.attempts.append(attempt)
        try:
            tries = await self._client.decide(approval, attempt.approve, attempt.by)
        except Refusal as refused:
            # After a lost answer, "decided already" may mean by this very attempt.
            attempt.outcome = "unknown" if refused.tries > 1 else "refused"
        else:
            attempt.outcome = "accepted"
            self.life.retries += tries - 1

    async def _compact(self) -> None:
        await self._client.signal(COMPACT_SIGNAL)

    async def _pause(self) -> None:
        await self._client.signal(PAUSE_SIGNAL)

    async def _unpause(self) -> None:
        await self._client.signal(UNPAUSE_SIGNAL)

    async def _configure(self) -> None:
        try:
            await self._client.configure(self._source.choice(CONFIGURATIONS))
        except Refusal:
            self.life.configures_refused += 1
        else:
            self.life.configures += 1

    async def _finish(self) -> None:
        """Unpause, decide what is pending, and wait until the thread is idle."""
        await self._client.signal(UNPAUSE_SIGNAL)
        while True:  # The script as a whole has a time limit.
            with contextlib.suppress(Unreachable):
                status = await self._client.status()
                if status.pause is not None and status.pause.limit is not None:
                    raise RuntimeError(f"it paused by itself: {status.pause}")
                if status.counters.answered >= len(self.life.sent):
                    return
                for approval in await self._client.pending() if status.pending else ():
                    await self._attempt(approval.id)
            await asyncio.sleep(0.7)


@dataclasses.dataclass
class Campaign:
    """Many scripted threads at once."""

    address: str
    settings: Settings
    seed: int
    count: int
    at_once: int = 16
    deaths_max: int | None = None
    """Bound on the kills of workers, so that a short campaign ends."""
    pause_seconds: tuple[float, float] = PAUSE_SECONDS
    """Seconds between two kills: at least, and at most."""
    keep: Path | None = None
    """Folder for the histories in which a workflow task failed."""
    say: Callable[[str], object] = lambda _: None
    """Called with each fault when it is found, and with the progress."""
    faults: list[str] = dataclasses.field(default_factory=list)
    totals: Counter[str] = dataclasses.field(default_factory=Counter)

    async def run(self) -> None:
        """Run all scripts while workers are killed. Faults are collected in `faults`."""
        store = open_store(self.settings.store)
        client = await Client.connect(self.address, plugins=[EverlongPlugin(store=store)])
        limit = asyncio.Semaphore(self.at_once)

        async def one(number: int) -> None:
            async with limit:
                seed = f"{self.seed}-{number}"
                await self._live(client, PackStore(store), seed, reaper.frozen)

        source = random.Random(f"{self.seed} kills")
        async with WorkerKiller(
            self.settings, source, self.deaths_max, self.pause_seconds
        ) as reaper:
            await asyncio.gather(*(one(number) for number in range(self.count)))
        self.totals.update(kills=reaper.kills, freezes=len(reaper.frozen))

    async def _live(
        self, client: Client, packs: PackStore, seed: str, frozen: Collection[int]
    ) -> None:
        thread_client = RetryingClient(client, f"life-{seed}", self.settings.task_queue)
        script = Script(thread_client, seed)
        started = time.monotonic()
        status: ThreadStatus | None = None
        try:
            async with asyncio.timeout(LIFE_SECONDS_MAX):
                status = await script.live()
            found = await find_faults(script.life, status, packs, client.namespace)
        except Exception as error:  # noqa: BLE001 - any error is reported with its seed
            found = [f"{type(error).__name__}: {error}"]
        found += await list_failed_tasks(client, thread_client.thread_id, frozen, self.keep)
        for fault in found:
            self.faults.append(f"seed {seed}: {fault}")
            self.say(self.faults[-1])
        self.totals.update(
            lives=1,
            messages=len(script.life.sent),
            decisions=sum(each.outcome == "accepted" for each in script.life.attempts),
            refusals=sum(each.outcome == "refused" for each in script.life.attempts),
            configures=script.life.configures,
            seconds=round(time.monotonic() - started),
        )
        if not self.totals["lives"] % 50:
            self.say(f"{self.totals['lives']} of {self.count} lives")
        if status is not None:
            counters = status.counters
            self.totals.update(
                runs=counters.runs,
                compactions=counters.compactions,
                steps=counters.steps,
                tools=counters.tool_calls,
            )


def worker_settings(address: str, data_dir: Path, task_queue: str) -> Settings:
    """Return settings for worker processes, which import `tests` from the current directory."""
    base = load_settings({"EVERLONG_DATA_DIR": str(data_dir), "EVERLONG_TASK_QUEUE": task_queue})
    return point_to_embedded(base, address)


async def _soak(asked: argparse.Namespace) -> Campaign:
    with tempfile.TemporaryDirectory(prefix="everlong-soak-") as folder:
        server = await start_server(Path(folder))
        with server.process:
            settings = worker_settings(server.address, Path(folder), "soak")
            campaign = Campaign(
                server.address,
                settings,
                asked.seed,
                asked.count,
                at_once=asked.at_once,
                keep=asked.keep,
                say=_print,
            )
            await campaign.run()
    return campaign


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run a soak; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.thread_soak", description=__doc__
    )
    parser.add_argument("--count", type=int, default=1000, help="how many lives")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--at-once", type=int, default=16, help="how many live at the same time")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="for histories of failed tasks")
    asked = parser.parse_args(arguments)
    started = time.monotonic()
    campaign = asyncio.run(_soak(asked))
    totals = ", ".join(f"{name} {count:,}" for name, count in campaign.totals.items())
    _print(f"{totals}, in {time.monotonic() - started:.0f} s")
    _print(f"{len(campaign.faults)} faults; the seed was {asked.seed}")
    return 1 if campaign.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
