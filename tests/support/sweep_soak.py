"""Soak test of sweeps: threads write, compact, fork, roll and are archived during sweeps.

`make soak-sweep` runs it. One sweeper survives; others are processes that are killed at calls of each
phase of a sweep, always in the phase with the fewest kills so far. At the end every payload, journal and
archive must be readable; once histories are deleted and archives too old, the store must be empty.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import multiprocessing
import multiprocessing.connection
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from everlong import EverlongPlugin, limits
from everlong.archive import Manifest, writer
from everlong.archive import manifest as manifests
from everlong.client.archives import Then, archive
from everlong.client.fork import fork
from everlong.client.thread import ThreadHandle
from everlong.client.time_travel import read_messages
from everlong.client.updates import send
from everlong.client.wait import wait_for_status
from everlong.codecs import EverlongCodec
from everlong.codecs.payloads import walk_payloads
from everlong.embedded import start_server
from everlong.errors import EverlongError, NotAnswered, NoWorker, ServerUnreachable
from everlong.models import SweepReport
from everlong.policy import Retention
from everlong.storage import open_store
from everlong.storage.pack_store import PackStore, open_packs
from tests.support.namespaces import AT_ONCE, delete, list_sizes, sweep
from tests.support.self_killing_sweeper import CUT_OFF, PHASES, SHORT, sweep_once
from tests.support.soak_agent import soak
from tests.support.temporal_server import QUICK_DELETES

QUEUE = "soak"
INLINE_BYTES_MAX = 512
ENCODER_SECONDS, ENCODER_PACK_SECONDS = 1.5, 3.0
NOTHING = dataclasses.replace(AT_ONCE, archive_seconds=0)
PAUSE_SECONDS_MAX = 3.0
# More than run at once: with runs waiting for a cache slot, Core 1.35 once kept its worker alive.
CACHED = 200
"""Pause between sweeps of the surviving sweeper, so that the others find something to delete."""
KILLERS = 2
# Fork server with all imports done; each self-killing sweeper is a fork of it.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.support.self_killing_sweeper"])
THENS: tuple[Then, ...] = ("keep", "close", "free")
FIRST_KILL_SECONDS_MAX = 30.0
GONE_SECONDS_MAX = 120.0
READ_SECONDS_MAX = 120.0


@dataclasses.dataclass
class Outcome:
    """Counts and faults of a soak."""

    threads: int = 0
    messages: int = 0
    rolls: int = 0
    """Rolls whose histories still exist at the end."""
    forks: int = 0
    archives: int = 0
    deleted: int = 0
    slow: Counter[str] = dataclasses.field(default_factory=Counter)
    """Lives that were abandoned because a call timed out, by the type of the error."""
    incomplete: int = 0
    """Sweeps that met a history while it was being deleted, and took nothing."""
    cut_off: int = 0
    """Sweeps that the server did not answer in time: the machine is slow."""
    sweeps: int = 0
    whole: int = 0
    """Sweeps that ended before their process could be killed."""
    kills: Counter[str] = dataclasses.field(default_factory=Counter)
    """Killed sweeps, by phase."""
    quarantined: int = 0
    restored: int = 0
    purged: int = 0
    purged_bytes: int = 0
    runs: int = 0
    payloads: int = 0
    entries: int = 0
    archived_entries: int = 0
    bytes_before: int = 0
    bytes_left: int = -1
    faults: list[str] = dataclasses.field(default_factory=list)

    def add(self, report: SweepReport) -> None:
        self.sweeps += 1
        self.quarantined += report.quarantined.objects
        self.restored += report.restored.objects
        self.purged += report.purged.objects
        self.purged_bytes += report.purged.bytes
        self.incomplete += bool(report.incomplete)


class Soak:
    """Threads, a worker and sweepers on one server."""

    def __init__(self, client: Client, address: str, root: Path, threads: int) -> None:
        self.outcome = Outcome()
        self.client = client
        self._address = address
        self._root = root
        self._url = (root / "blobs").as_uri()
        self._count = threads
        self._source = random.Random(1)
        self._polling = asyncio.Lock()
        self._numbers = 0
        self._ended: set[str] = set()
        self._archives: list[Manifest] = []
        self._calls: Counter[str] = Counter()

    async def live(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        lives = [self._life(ends) for _ in range(self._count)]
        killers = [self._kill(ends, number) for number in range(KILLERS)]
        await asyncio.gather(*lives, *killers, self._sweep(ends))

    async def _life(self, ends: float) -> None:
        packs = PackStore(open_store(self._url))
        while time.monotonic() < ends:
            self._numbers += 1
            self.outcome.threads += 1
            thread_id = f"thread-{self._numbers}"
            for message in range(self._source.randrange(2, 7)):
                await asyncio.sleep(self._source.uniform(0, 0.04 * self._count))
                if time.monotonic() > ends:
                    return
                try:
                    await self._say(packs, thread_id, message)
                    if self._source.random() < 0.3:
                        await ThreadHandle(self.client, thread_id).compact()
                    if self._source.random() < 0.25:
                        thread_id = await self._fork(packs, thread_id, message)
                        break
                    if self._source.random() < 0.08 and not await self._archive(thread_id):
                        break
                except (NoWorker, NotAnswered, ServerUnreachable, RPCError) as error:
                    # The machine is slow; the final check finds what is missing.
                    self.outcome.slow[type(error).__name__] += 1
                    break
            if thread_id not in self._ended and self._source.random() < 0.3:
                with contextlib.suppress(RPCError):
                    await self._end(thread_id)

    async def _say(self, packs: PackStore, thread_id: str, number: int) -> None:
        plan = self._source.choice(["", "w", "w w", "ww w"])
        text = f"{thread_id}-m{number} {plan}"
        count = await send(
            self.client, thread_id, text, task_queue=QUEUE, agent="soak", packs=packs
        )
        await wait_for_status(
            self.client,
            thread_id,
            lambda status: status.counters.answered >= count,
            seconds_max=120,
        )
        self.outcome.messages += 1

    async def _fork(self, packs: PackStore, thread_id: str, message: int) -> str:
        new_id = f"{thread_id}-fork"
        await fork(
            self.client, open_packs(self._url), thread_id, 1 + message, new_id, task_queue=QUEUE
        )
        self.outcome.forks += 1
        await self._say(packs, new_id, 99)
        return new_id

    async def _archive(self, thread_id: str) -> bool:
        """Archive a thread; return whether it continues."""
        then: Then = self._source.choice(THENS)
        if then == "free":
            self._ended.add(thread_id)
        packs = open_packs(self._url)
        done = await archive(self.client, packs, thread_id, then=then, by="soak")
        self._archives.append(done.manifest)
        self.outcome.archives += 1
        return then == "keep"

    async def _end(self, thread_id: str) -> None:
        """Delete a thread from Temporal, with all of its runs."""
        self._ended.add(thread_id)
        with contextlib.suppress(RPCError):  # It ended with its archive.
            await self.client.get_workflow_handle(thread_id).terminate()
        await delete(self.client, thread_id)
        self.outcome.deleted += 1

    async def _sweep(self, ends: float) -> None:
        while time.monotonic() < ends:
            try:
                self.outcome.add(await self._swept(SHORT))
            except ServerUnreachable:
                self.outcome.cut_off += 1
            await asyncio.sleep(self._source.uniform(0, PAUSE_SECONDS_MAX))

    async def _swept(self, retention: Retention) -> SweepReport:
        """Sweep the whole store: no other namespace uses it, so leftovers of deleted threads go too."""
        store = open_store(self._url)
        index_dir = self._root / "index"
        return await sweep(self.client, store, retention, index_dir=index_dir, whole_store=True)

    async def _kill(self, ends: float, number: int) -> None:
        record = self._root / f"record-{number}"
        while self._goes_on(ends):
            phase, at = self._next_end()
            after = self._source.random() < 0.5
            place = (self._address, self._root, self._root / f"mortal-{number}", record)
            process = FORKS.Process(target=sweep_once, args=(*place, phase, at, after), daemon=True)
            # Starting a process polls all others. Two polls of one process at the same time
            # read its exit code once, and report 255 for the other: hence the lock.
            async with self._polling:
                await asyncio.to_thread(process.start)
            try:
                await asyncio.to_thread(multiprocessing.connection.wait, [process.sentinel])
            except BaseException:
                process.kill()
                raise
            async with self._polling:
                process.join()
            if process.exitcode == -signal.SIGKILL:
                self.outcome.kills[json.loads(record.read_bytes())["died"]] += 1
            elif process.exitcode == 0:
                self._calls.update(json.loads(record.read_bytes())["calls"])
                self.outcome.whole += 1
            elif process.exitcode == CUT_OFF:
                self.outcome.cut_off += 1
            else:
                self.outcome.faults.append(f"a sweeper ended with {process.exitcode}")

    def _goes_on(self, ends: float) -> bool:
        """Return whether to kill another sweeper: until the end, and until the first kill."""
        left_seconds = ends - time.monotonic()
        # On a slow machine, none may have died by the end of a short soak.
        return left_seconds > (0 if self.outcome.kills.total() else -FIRST_KILL_SECONDS_MAX)

    def _next_end(self) -> tuple[str, int]:
        """Choose a call of a phase, mostly of the phase with the fewest kills.

        Its number is within the calls that whole sweeps made. A sweep without such a call survives.
        """
        fewest = min(self.outcome.kills[each] for each in PHASES)
        rare = [each for each in PHASES if self.outcome.kills[each] == fewest]
        phase = self._source.choice(rare if self._source.random() < 0.5 else PHASES)
        often = self._calls[phase] // max(1, self.outcome.whole)
        return phase, self._source.randrange(1, max(1, often) + 1)

    async def check(self) -> None:
        """Read everything that Temporal's histories name, from the bare store without a cache."""
        last = await self._swept(SHORT)
        self.outcome.add(last)
        self.outcome.faults += [f"incomplete: {reason}" for reason in last.incomplete]
        packs = PackStore(open_store(self._url))
        codec = EverlongCodec(packs)
        threads: set[str] = set()
        async for run in self.client.list_workflows():
            if run.id in self._ended:  # The server may not have deleted it yet.
                continue
            self.outcome.runs += 1
            if "thread-" in run.id:
                threads.add(run.id)
            history = await self.client.get_workflow_handle(
                run.id, run_id=run.run_id
            ).fetch_history()
            self.outcome.rolls += sum(
                event.HasField("workflow_execution_continued_as_new_event_attributes")
                for event in history.events
            )
            held = [each for event in history.events for each in walk_payloads(event)]
            for payload in [payload for payload, has_passed in held if has_passed]:
                await self._read(f"{run.id} {run.run_id}", codec.decode([payload]))
                self.outcome.payloads += 1
        for thread_id in threads:
            read = self._messages(packs, thread_id)
            await self._read(thread_id, read)
        await self._check_archives(packs)

    async def _check_archives(self, packs: PackStore) -> None:
        for manifest in self._archives:
            found = manifests.read(packs, manifest.thread, manifest.archive_id)
            await self._read(manifest.archive_id, found)
            await self._read(manifest.archive_id, writer.verify(packs, None, None, manifest))
            self.outcome.archived_entries += manifest.entries

    async def _messages(self, packs: PackStore, thread_id: str) -> None:
        self.outcome.entries += len(await read_messages(self.client, packs, thread_id))

    async def _read(self, what: str, work: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                await work
        except (EverlongError, TimeoutError) as error:
            self.outcome.faults.append(f"{what}: {type(error).__name__}: {error}")

    async def forget(self) -> None:
        """Delete all histories, and sweep until nothing is left."""
        store = open_store(self._url)
        self.outcome.bytes_before = sum((await list_sizes(store)).values())
        threads = {run.id async for run in self.client.list_workflows()}
        for thread_id in threads:
            with contextlib.suppress(Exception):
                await self.client.get_workflow_handle(thread_id).terminate()
        for thread_id in threads:
            await delete(self.client, thread_id)
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while await list_sizes(store) and time.monotonic() < deadline:
            self.outcome.add(await self._swept(AT_ONCE))
            await asyncio.sleep(0.5)
        await self._check_archives(PackStore(store))
        for _ in range(2):
            self.outcome.add(await self._swept(NOTHING))
        left = [await list_sizes(store, each) for each in ("v1/", "archive/", "quarantine/")]
        self.outcome.bytes_left = sum(sum(each.values()) for each in left)


async def _connect(address: str, root: Path) -> Client:
    plugin = EverlongPlugin(
        store=(root / "blobs").as_uri(), agents=[soak], inline_bytes_max=INLINE_BYTES_MAX
    )
    return await Client.connect(address, plugins=[plugin])


async def run(threads: int, seconds: float, log: Callable[[str], None]) -> Outcome:
    """Run one soak on its own server."""
    with tempfile.TemporaryDirectory(prefix="everlong-soak-") as folder:
        root = Path(folder)
        server = await start_server(root, dynamic_config=QUICK_DELETES)
        with server.process:
            client = await _connect(server.address, root)
            living = Soak(client, server.address, root, threads)
            async with Worker(client, task_queue=QUEUE, max_cached_workflows=CACHED):
                await living.live(seconds)
            log("reading everything")
            # With a fresh client, worker and store.
            living.client = await _connect(server.address, root)
            async with Worker(living.client, task_queue=QUEUE, max_cached_workflows=CACHED):
                await living.check()
            log("deleting the histories")
            await living.forget()
            return living.outcome


def lower_limits() -> dict[str, float]:
    """Return limits for a short soak: encoders must forget before the quarantine ends."""
    return {
        "ENCODER_SECONDS_MAX": ENCODER_SECONDS,
        "ENCODER_PACK_SECONDS_MAX": ENCODER_PACK_SECONDS,
    }


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    for name, value in lower_limits().items():
        setattr(limits, name, value)
    outcome = asyncio.run(run(arguments.threads, 60 * arguments.minutes, say))
    say(str(outcome))
    is_well = not outcome.faults and outcome.bytes_left == 0 and outcome.kills.total() > 0
    say("nothing reachable was lost" if is_well else "FAILED")
    return 0 if is_well else 1


if __name__ == "__main__":
    raise SystemExit(main())
