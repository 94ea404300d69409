"""Asking the workers of a task queue what they are, by a workflow of our own.

Its arguments and answers are plain, so that they get through where keys or stores do not agree. A
worker that does not know the workflow fails its task: that is read from the history, and told.
"""

import asyncio
import contextlib
import dataclasses
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from temporalio.api.enums.v1 import TaskQueueType, WorkerVersioningMode
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import PinnedVersioningOverride, WorkerDeploymentVersion
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from everlong import limits
from everlong.codecs.composition import INSPECTION_REMEDY
from everlong.doctor import probes
from everlong.doctor.findings import Finding, Problem, finding
from everlong.models import (
    CHECKS_MAX,
    DOCTOR_WORKFLOW,
    Check,
    Checked,
    Checkup,
    printable,
    thread_key,
)
from everlong.storage import BlobStore
from everlong.storage.cache import CachedBlobStore
from everlong.storage.objects import thread_prefix
from everlong.storage.pack_store import PackStore
from everlong.versions import SDK_TESTED, Versions, versions

ID_PREFIX: Final = "everlong-doctor-"
_WORKFLOW: Final = timedelta(seconds=30)
# A worker that has just started is listed once its first poll has arrived.
_POLLERS_SECONDS_MAX: Final = 2.0
# A poll takes a minute at most. The server lists all who have polled within five.
_POLLER_AGE_SECONDS_MAX: Final = 70.0
# The activities have 10 s. A task that has failed gets a little time to reach another worker.
_ANSWERS_SECONDS_MAX: Final = 12.0
_FAILED_SECONDS_MAX: Final = 2.0
_POLL_SECONDS: Final = 0.1
# The server's answer if it does not know a version, or does not know it on this task queue.
_UNKNOWN_VERSION: Final = frozenset(
    {
        RPCStatusCode.FAILED_PRECONDITION,
        RPCStatusCode.INVALID_ARGUMENT,
        RPCStatusCode.NOT_FOUND,
    }
)
# Of what a worker or the server said, what is told.
_REASON_CHARS_MAX: Final = 300


@dataclasses.dataclass(frozen=True)
class Clock:
    """How this machine's clock differs from the server's."""

    ahead_seconds: float
    error_seconds: float
    """By how much that may be wrong: half of a round trip."""


@dataclasses.dataclass(frozen=True)
class Poller:
    """A worker that polls a task queue."""

    identity: str
    version: WorkerDeploymentVersion | None = None
    """None without worker versioning."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one activity, or one task of the workflow, got out of a worker."""

    worker: str
    """Its identity; empty if none has taken it."""
    checked: Checked | None = None
    error: str = ""
    started_ms: int = 0
    """When the worker took it, by the server's clock."""
    ended_ms: int = 0


def new_id() -> str:
    """Return an id for a check-up."""
    return f"{ID_PREFIX}{uuid.uuid4().hex[:16]}"


async def read_clock(client: Client, task_queue: str) -> Clock:
    """Compare clocks: the server notes when a workflow starts. It asks nothing of workers."""
    nothing = Checkup(check=Check(probe_key="", payload=""), times=0)
    before = time.time()
    async with _started(client, new_id(), task_queue, nothing) as handle:
        after = time.time()
        started = (await handle.describe()).start_time.timestamp()
    return Clock((before + after) / 2 - started, (after - before) / 2)


async def pollers(client: Client, task_queue: str, clock: Clock) -> list[Poller]:
    """Return the workers that poll a task queue, waiting a moment for the first."""
    deadline = time.monotonic() + _POLLERS_SECONDS_MAX
    while True:
        oldest = time.time() - clock.ahead_seconds - _POLLER_AGE_SECONDS_MAX
        found = {
            each.identity: Poller(each.identity, _version(each.deployment_options))
            for kind in (
                TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
                TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            )
            for each in (await _described(client, task_queue, kind)).pollers
            if each.last_access_time.ToMilliseconds() > 1000 * oldest
        }
        if found or time.monotonic() > deadline:
            return [found[identity] for identity in sorted(found)]
        await asyncio.sleep(_POLL_SECONDS)


async def ask_workers(
    client: Client,
    workflow_id: str,
    task_queue: str,
    check: Check,
    workers: int,
    version: WorkerDeploymentVersion | None = None,
) -> list[Answer]:
    """Have the workers of a task queue answer; return what they said, also where they failed.

    With worker versioning, the server sends tasks to one version: that which is named, if any.
    """
    times = min(CHECKS_MAX, 2 * max(1, workers))
    checkup = Checkup(check=check, times=times)
    try:
        async with _started(client, workflow_id, task_queue, checkup, version) as handle:
            return answers_in(await _followed(handle))
    except RPCError as error:
        if version is None or error.status not in _UNKNOWN_VERSION:
            raise
        return []  # Its workers have just come, or just gone.


def answers_in(events: Iterable[HistoryEvent]) -> list[Answer]:
    """Return what workers have answered, by the history of a check-up."""
    started: dict[int, tuple[str, int]] = {}
    answers: list[Answer] = []
    for event in events:
        if event.HasField("activity_task_started_event_attributes"):
            taken = event.activity_task_started_event_attributes
            started[taken.scheduled_event_id] = (taken.identity, event.event_time.ToMilliseconds())
        elif event.HasField("activity_task_completed_event_attributes"):
            done = event.activity_task_completed_event_attributes
            worker, started_ms = started[done.scheduled_event_id]
            checked, error = _parsed(done.result.payloads)
            answers.append(
                Answer(worker, checked, error, started_ms, event.event_time.ToMilliseconds())
            )
        elif event.HasField("activity_task_failed_event_attributes"):
            failed = event.activity_task_failed_event_attributes
            answers.append(
                Answer(started[failed.scheduled_event_id][0], error=_said(failed.failure.message))
            )
        elif event.HasField("activity_task_timed_out_event_attributes"):
            late = event.activity_task_timed_out_event_attributes
            worker, _ = started.get(late.scheduled_event_id, ("", 0))
            answers.append(Answer(worker, error="it did not answer within 10 s"))
        elif event.HasField("workflow_task_failed_event_attributes"):
            refused = event.workflow_task_failed_event_attributes
            answers.append(Answer(refused.identity, error=_said(refused.failure.message)))
    return answers


@contextlib.asynccontextmanager
async def _started(
    client: Client,
    workflow_id: str,
    task_queue: str,
    checkup: Checkup,
    version: WorkerDeploymentVersion | None = None,
) -> AsyncIterator[WorkflowHandle[Any, Any]]:
    """Start a check-up, without our codec and any other; see to it that it ends."""
    plain = Client(client.service_client, namespace=client.namespace)
    handle = await plain.start_workflow(
        DOCTOR_WORKFLOW,
        checkup,
        id=workflow_id,
        task_queue=task_queue,
        execution_timeout=_WORKFLOW,
        versioning_override=None if version is None else PinnedVersioningOverride(version),
    )
    try:
        yield handle
    finally:
        with contextlib.suppress(RPCError):  # It has ended by itself.
            await handle.terminate("the check-up is over")


async def _followed(handle: WorkflowHandle[Any, Any]) -> list[HistoryEvent]:
    """Return the history of a check-up once it has ended, or once it is waited for no more."""
    begun = time.monotonic()
    while True:
        description = await handle.describe()
        events = list((await handle.fetch_history()).events)
        elapsed = time.monotonic() - begun
        if description.status != WorkflowExecutionStatus.RUNNING or elapsed > _patience(events):
            return events
        await asyncio.sleep(_POLL_SECONDS)


def _patience(events: Sequence[HistoryEvent]) -> float:
    """Return for how many seconds a check-up is waited for that has come so far."""
    failed = any(each.HasField("workflow_task_failed_event_attributes") for each in events)
    begun = any(each.HasField("activity_task_scheduled_event_attributes") for each in events)
    return _FAILED_SECONDS_MAX if failed and not begun else _ANSWERS_SECONDS_MAX


async def _described(client: Client, task_queue: str, kind: TaskQueueType.ValueType) -> Any:
    return await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=kind,
        )
    )


def _version(options: Any) -> WorkerDeploymentVersion | None:
    if options.worker_versioning_mode != WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED:
        return None
    return WorkerDeploymentVersion(options.deployment_name, options.build_id)


def _parsed(payloads: Sequence[Any]) -> tuple[Checked | None, str]:
    try:
        [checked] = DataConverter.default.payload_converter.from_payloads(payloads, [Checked])
    except Exception as error:  # noqa: BLE001 - another codec may lie around ours
        return None, f"its answer cannot be read ({type(error).__name__})"
    return checked, ""


def _said(text: str) -> str:
    return printable(text, _REASON_CHARS_MAX)


SKEW_SECONDS_MAX: Final = 1.0
"""Clocks that differ by more are told of: spans and deadlines are off by as much."""
_SET_CLOCK: Final = "Have NTP set the clock of that machine."
_AGENTS_SHOWN: Final = 5


@dataclasses.dataclass(frozen=True)
class Asker:
    """Who asked: what workers have to agree with."""

    versions: Versions
    store: str
    key_ids: tuple[str, ...]
    payload_digest: str
    has_attributes: bool | None
    """Whether the server has our search attributes now; None if that is not known."""


@dataclasses.dataclass(frozen=True)
class Read:
    """A worker's answer, and what the asker could read of the bytes that came with it."""

    answer: Answer
    digest: str = ""
    error: str = ""


def judge_workers(asker: Asker, listed: Sequence[str], reads: Iterable[Read]) -> list[Finding]:
    """Return a finding for each worker that answered, and one about all of them."""
    by_worker: dict[str, list[Read]] = {}
    for read in reads:
        by_worker.setdefault(read.answer.worker, []).append(read)
    nobody = by_worker.pop("", [])
    told = [judge_worker(asker, worker, by_worker[worker]) for worker in sorted(by_worker)]
    silent = [worker for worker in listed if worker not in by_worker]
    everyone = len(set(listed) | set(by_worker))
    text = f"{len(by_worker)} of {everyone} answered"
    problems = []
    if silent or (nobody and not by_worker):
        names = ", ".join(silent) or "the task queue"
        problems.append(
            Problem(
                "warning",
                f"no answer from {names}",
                "A worker that has just stopped is listed for a minute. If it runs, look into its log; "
                "it may be busy.",
            )
        )
    return [finding("workers", text, problems), *told]


def judge_worker(asker: Asker, worker: str, reads: Sequence[Read]) -> Finding:
    """Return what is to be said of one worker. The newest answer counts; a failure always does."""
    check = f"worker {worker}"
    answers = [read for read in reads if read.answer.checked is not None]
    problems = [_failure(error) for error in dict.fromkeys(read.answer.error for read in reads)]
    problems = [each for each in problems if each.text]
    if not answers:
        return finding(check, "it cannot be asked", problems)
    newest = answers[-1]
    checked = newest.answer.checked
    assert checked is not None  # noqa: S101 - it was looked for above
    apart = _store(asker, checked) or _keys(asker, newest, checked)
    problems += apart
    text = _worker_text(checked) + ("" if apart else "; each side reads what the other writes")
    problems += _version_problems(asker, checked)
    if checked.codec_warning:
        problems.append(Problem("warning", checked.codec_warning, INSPECTION_REMEDY))
    if asker.has_attributes and not checked.attributes:
        problems.append(
            Problem(
                "warning",
                "it writes no search attributes yet: they were not there when it last asked",
                "It asks again by itself, within a minute or, after failed calls, within five. Its log "
                "says why.",
            )
        )
    skew = min((_skew_seconds(read.answer) for read in answers), key=abs)
    if abs(skew) > SKEW_SECONDS_MAX:
        problems.append(
            Problem("warning", f"its clock is {skew_text(skew)} the server's", _SET_CLOCK)
        )
    return finding(check, text, problems)


def skew_text(ahead_seconds: float) -> str:
    """Return a difference of clocks in words: `0.800 s ahead of`."""
    return f"{abs(ahead_seconds):.3f} s {'ahead of' if ahead_seconds >= 0 else 'behind'}"


def keys_text(key_ids: Sequence[str]) -> str:
    """Return which keys there are: `no keys`, `keys b (writes), a`."""
    return f"keys {', '.join([f'{key_ids[0]} (writes)', *key_ids[1:]])}" if key_ids else "no keys"


def _worker_text(checked: Checked) -> str:
    names = ", ".join(checked.agents[:_AGENTS_SHOWN])
    more = len(checked.agents) - _AGENTS_SHOWN
    return (
        f"agents {names}{f' and {more} more' if more > 0 else ''}; everlong {checked.everlong}, "
        f"temporalio {checked.sdk}, Python {checked.python}; {keys_text(checked.key_ids)}"
    )


def _failure(error: str) -> Problem:
    if "is not registered" in error:
        return Problem(
            "failed",
            f"it does not know what to answer ({error})",
            "Start it with this version of Everlong, and with agents in its EverlongPlugin.",
        )
    return Problem("failed", error, "Its log tells more.")


def _store(asker: Asker, checked: Checked) -> list[Problem]:
    """Return what is wrong with the worker's store. Keys are not looked at then."""
    if not checked.probe.error:
        return []
    if checked.store != asker.store:
        return [
            Problem(
                "failed",
                f"it uses another store, {checked.store}; here it is {asker.store}",
                "Set EVERLONG_STORE to the same URL on both sides.",
            )
        ]
    why = _short(checked.probe.error)
    return [
        Problem(
            "failed",
            f"it cannot read from {checked.store} what was just written here ({why})",
            "Check that it may read there, and that both mean the same place: a directory of one "
            "machine is not that of another, and memory: is each process's own.",
        )
    ]


def _keys(asker: Asker, read: Read, checked: Checked) -> list[Problem]:
    """Return what one side cannot read of what the other wrote."""
    problems = []
    both = (
        f"Give both sides the same EVERLONG_KEYS. It has {keys_text(checked.key_ids)}; here there are "
        f"{keys_text(asker.key_ids)}."
    )
    if checked.payload.digest != asker.payload_digest:
        said = _short(checked.payload.error)
        why = f"it says: {said}" if said else "it reads other bytes"
        problems.append(Problem("failed", f"it cannot read what is written here ({why})", both))
    if checked.answer.error:
        problems.append(
            Problem(
                "failed",
                f"it cannot write to the store ({_short(checked.answer.error)})",
                "Check what its credentials allow.",
            )
        )
    elif read.digest != checked.answer.digest:
        why = _short(read.error) or "other bytes arrive"
        problems.append(Problem("failed", f"what it writes cannot be read here ({why})", both))
    return problems


def _short(error: str) -> str:
    """Return what happened, without the remedy: from here there is a better one."""
    return error.partition(". ")[0].rstrip(".")


def _version_problems(asker: Asker, checked: Checked) -> list[Problem]:
    problems = []
    if checked.everlong != asker.versions.everlong:
        problems.append(
            Problem(
                "warning",
                f"here it is everlong {asker.versions.everlong}",
                "Bring both to one version: workers first, if the newer one writes a new format.",
            )
        )
    if not checked.sdk_tested:
        problems.append(
            Problem(
                "warning",
                f"its everlong was not tested with temporalio {checked.sdk}",
                f"Its log says what is switched off. Here, temporalio{SDK_TESTED} was tested.",
            )
        )
    return problems


def _skew_seconds(answer: Answer) -> float:
    """Return by how much a worker's clock is wrong at least: it was read between two known times."""
    checked = answer.checked
    if checked is None:
        return 0.0
    if checked.time_ms < answer.started_ms:
        return (checked.time_ms - answer.started_ms) / 1000
    return max(0, checked.time_ms - answer.ended_ms) / 1000


# Who has not answered is asked again: other workers may have been faster.
_ROUNDS_MAX: Final = 4


_ROUNDS_SECONDS_MAX: Final = 4.0


async def check_workers(
    client: Client,
    packs: PackStore,
    task_queue: str,
    inline_bytes_max: int,
    *,
    clock: Clock,
    has_attributes: bool,
) -> list[Finding]:
    """Check that the workers of a task queue can read what is written here, and the other way."""
    listed = await pollers(client, task_queue, clock)
    if not listed:
        return [
            Finding(
                "workers",
                "warning",
                f"no worker polls task queue {task_queue}",
                "Start one with: everlong worker MODULE:AGENT. Or set EVERLONG_TASK_QUEUE to theirs.",
            )
        ]
    store = packs.store.behind if isinstance(packs.store, CachedBlobStore) else packs.store
    keys = await packs.keys()
    workflow_id, probe_key = new_id(), probes.new_key()
    converter = probes.converter_for(client.data_converter, client.namespace, workflow_id)
    data = os.urandom(inline_bytes_max + limits.KIB)
    async with probes.removed(store, probe_key), _removed_thread(client, store, workflow_id):
        await store.put(probe_key, os.urandom(limits.KIB))
        check = Check(probe_key=probe_key, payload=await probes.encoded(converter, data))
        reads: list[Read] = []
        silent = listed
        deadline = time.monotonic() + _ROUNDS_SECONDS_MAX
        for _ in range(_ROUNDS_MAX):
            for version in dict.fromkeys(each.version for each in silent):
                answers = await ask_workers(
                    client, workflow_id, task_queue, check, len(listed), version
                )
                reads += [await _read(converter, answer) for answer in answers]
            answered = {read.answer.worker for read in reads}
            silent = [each for each in listed if each.identity not in answered]
            if not silent or time.monotonic() > deadline:
                break
    asker = Asker(
        versions=versions(),
        store=repr(store),
        key_ids=() if keys is None else keys.ids,
        payload_digest=probes.digest(data),
        has_attributes=has_attributes,
    )
    return judge_workers(asker, [each.identity for each in listed], reads)


async def _read(converter: DataConverter, answer: Answer) -> Read:
    text = "" if answer.checked is None else answer.checked.answer_payload
    if not text:
        return Read(answer)
    found = await probes.seen(lambda: probes.decoded(converter, text))
    return Read(answer, found.digest, found.error)


@contextlib.asynccontextmanager
async def _removed_thread(
    client: Client, store: BlobStore, workflow_id: str
) -> AsyncIterator[None]:
    """Delete at the end what payloads of a check-up have left in the store."""
    try:
        yield
    finally:
        prefix = thread_prefix(thread_key(client.namespace, workflow_id))
        with contextlib.suppress(Exception):
            async with asyncio.timeout(probes.SECONDS_MAX):
                await store.delete([info.key async for info in store.list(prefix)])
