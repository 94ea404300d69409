"""SIGKILL of the worker that has a thread in memory: the time until another worker continues it."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Final

from bench import worker_log
from bench.report import Report
from bench.thread_harness import ThreadHarness
from everlong import limits
from everlong.embedded import ManagedProcess
from everlong.models import Kind, thread_key
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore

BETWEEN_SECONDS_MAX: Final = limits.STICKY_SECONDS + 0.5
WITHIN_SECONDS_MAX: Final = 8.0
# The SDK's own default.
SDK_STICKY: Final = "10"
_CALL_SECONDS_MAX: Final = 40.0
# The SDK sends heartbeats at most this often.
_HEARTBEATS_SECONDS: Final = 0.8 * limits.HEARTBEAT_SECONDS


async def kill_between_steps(
    harness: ThreadHarness, thread_id: str, turns: int, sticky_seconds: str = ""
) -> list[float]:
    """Kill the worker with the thread, send a message at once, and time the model call."""
    seconds = []
    keeper = await harness.start_worker(sticky_seconds)
    await harness.ask(thread_id, "say 1")
    for turn in range(turns):
        await harness.ask(thread_id, "say 2")  # Now the keeper has the thread.
        other = await harness.start_worker(sticky_seconds)
        number = 100 + turn
        keeper.kill()
        killed = time.time()
        sent = await harness.send(thread_id, f"say {number}")
        seconds.append(await _find_model_call(other, number) - killed)
        await harness.wait_for_answer(thread_id, sent)
        keeper = other
    keeper.stop()
    return seconds


async def kill_within_call(harness: ThreadHarness, thread_id: str, turns: int) -> list[float]:
    """Kill the worker during a model call, and time the next attempt on another worker.

    The age of the call relative to the heartbeat interval determines most of the wait.
    """
    seconds = []
    workers = [await harness.start_worker()]
    for turn in range(turns):
        harness.gate.unlink(missing_ok=True)
        workers.append(await harness.start_worker())
        number = 200 + turn
        sent = await harness.send(thread_id, f"wait {number}")
        caller = await _find_first_caller(workers, worker_log.format_line_end("model", number))
        workers.remove(caller)
        await asyncio.sleep(_HEARTBEATS_SECONDS * turn / turns)
        caller.kill()
        killed = time.time()
        seconds.append(await _find_model_call(workers[0], number) - killed)
        harness.gate.touch()
        await harness.wait_for_answer(thread_id, sent)
    harness.stop_workers()
    return seconds


async def read_messages(harness: ThreadHarness, thread_id: str) -> list[tuple[Kind, str]]:
    """Return the messages of a thread's journal, in order. It needs a worker."""
    status = await harness.wait_until(thread_id, lambda _: True)
    journal = Journal(PackStore(harness.store), thread_key(harness.client.namespace, thread_id))
    entries = await journal.read(status.head)
    if [entry.seq for entry in entries] != list(range(1, len(entries) + 1)):
        raise RuntimeError("the journal has a gap or a duplicate")
    stored = [entry for entry in entries if entry.body or entry.ref]
    messages = await journal.messages(stored)
    return [(entry.kind, message.text) for entry, message in zip(stored, messages, strict=True)]


async def _find_first_caller(workers: Sequence[ManagedProcess], line: str) -> ManagedProcess:
    async with asyncio.timeout(_CALL_SECONDS_MAX):
        while True:
            for worker in workers:
                if line in worker.output():
                    return worker
            await asyncio.sleep(0.02)


async def _find_model_call(worker: ManagedProcess, number: int) -> float:
    await worker.wait_for_output(worker_log.format_line_end("model", number), _CALL_SECONDS_MAX)
    events = worker_log.parse_events(worker.output())
    return next(event.at for event in events if event.what == "model" and event.size == number)


async def measure_kills(harness: ThreadHarness, *, turns: int) -> Report:
    """Measure both kinds of kills, and the first kind once with the SDK's default."""
    report = Report(f"SIGKILL of the worker, another one up; median of {turns}")
    between = await kill_between_steps(harness, "killed-between", turns)
    report.add(
        "between steps: from the kill to the model call of a message sent at once",
        statistics.median(between),
        "s",
        most=BETWEEN_SECONDS_MAX,
    )
    report.add("... slowest", max(between), "s")
    [default] = await kill_between_steps(harness, "killed-default", 1, SDK_STICKY)
    report.add("... by the SDK's sticky timeout of 10 s, once", default, "s")
    within = await kill_within_call(harness, "killed-within", turns)
    report.add(
        "in a model call: from the kill to the next try",
        statistics.median(within),
        "s",
        most=WITHIN_SECONDS_MAX,
    )
    report.add("... slowest", max(within), "s", most=WITHIN_SECONDS_MAX)
    await harness.start_worker()
    messages = await read_messages(harness, "killed-within")
    replies = [text for kind, text in messages if kind == Kind.REPLY]
    report.add("replies in the journal, each once", len(set(replies)), least=turns, most=turns)
    report.add("... of which repeated", len(replies) - len(set(replies)), most=0)
    return report
