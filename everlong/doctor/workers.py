"""Check of the workers on a task queue: a workflow whose activities the workers answer.

Arguments and answers bypass the codec, so they arrive even if keys or stores differ. A worker that does
not know the workflow fails its task; the failure is read from the history and reported.
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
from everlong.doctor.findings import Finding, Problem, combine_problems
from everlong.models import (
    CHECKS_MAX,
    DOCTOR_WORKFLOW,
    Check,
    CheckResult,
    Checkup,
    make_printable,
    thread_key,
)
from everlong.storage import BlobStore
from everlong.storage.cache import CachedBlobStore
from everlong.storage.pack_store import PackStore, thread_prefix
from everlong.versions import SDK_TESTED, Versions, get_versions

ID_PREFIX: Final = "everlong-doctor-"
_WORKFLOW: Final = timedelta(seconds=30)
# A new worker is listed once its first poll has arrived.
_POLLERS_SECONDS_MAX: Final = 2.0
# A poll takes at most a minute, but the server lists workers that polled within five.
_POLLER_AGE_SECONDS_MAX: Final = 70.0
# The activities have 10 s. A failed task gets a little time to reach another worker.
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
# Bound on the quoted text of a worker or the server.
_REASON_CHARS_MAX: Final = 300
# Silent workers are asked again: other workers may have taken their tasks.
_ROUNDS_MAX: Final = 4
_ROUNDS_SECONDS_MAX: Final = 4.0
SKEW_SECONDS_MAX: Final = 1.0
"""Larger differences are reported: spans and deadlines are off by as much."""
_SET_CLOCK: Final = "Synchronise that machine's clock with NTP."
_AGENTS_SHOWN: Final = 5


@dataclasses.dataclass(frozen=True)
class Clock:
    """Difference between this machine's clock and the server's."""

    ahead_seconds: float
    error_seconds: float
    """Error of the difference: half a round trip."""


@dataclasses.dataclass(frozen=True)
class Poller:
    """A worker that polls a task queue."""

    identity: str
    version: WorkerDeploymentVersion | None = None
    """None without worker versioning."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """A worker's answer to one activity or one workflow task."""

    worker: str
    """Identity of the worker; empty if no worker took the task."""
    checked: CheckResult | None = None
    error: str = ""
    started_ms: int = 0
    """Time at which the worker took the task, by the server's clock."""
    ended_ms: int = 0


def create_id() -> str:
    """Return a new workflow id for a check-up."""
    return f"{ID_PREFIX}{uuid.uuid4().hex[:16]}"


async def read_clock(client: Client, task_queue: str) -> Clock:
    """Compare clocks by the start time that the server records for a workflow. No worker is needed."""
    nothing = Checkup(check=Check(probe_key="", payload=""), times=0)
    before = time.time()
    async with _start_checkup(client, create_id(), task_queue, nothing) as handle:
        after = time.time()
        started = (await handle.describe()).start_time.timestamp()
    return Clock((before + after) / 2 - started, (after - before) / 2)


async def list_pollers(client: Client, task_queue: str, clock: Clock) -> list[Poller]:
    """Return the workers that poll a task queue, waiting briefly for the first."""
    deadline = time.monotonic() + _POLLERS_SECONDS_MAX
    while True:
        oldest = time.time() - clock.ahead_seconds - _POLLER_AGE_SECONDS_MAX
        found = {
            each.identity: Poller(each.identity, _parse_version(each.deployment_options))
            for kind in (
                TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
                TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            )
            for each in (await _describe_queue(client, task_queue, kind)).pollers
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
    """Run a check-up on the workers of a task queue; return their answers and failures.

    With worker versioning, the server sends tasks to one version: `version`, if given.
    """
    times = min(CHECKS_MAX, 2 * max(1, workers))
    checkup = Checkup(check=check, times=times)
    try:
        async with _start_checkup(client, workflow_id, task_queue, checkup, version) as handle:
            return parse_answers(await _wait_for_history(handle))
    except RPCError as error:
        if version is None or error.status not in _UNKNOWN_VERSION:
            raise
        return []  # Workers of this version have only just started, or stopped.


def parse_answers(events: Iterable[HistoryEvent]) -> list[Answer]:
    """Parse the workers' answers from the history of a check-up."""
    started: dict[int, tuple[str, int]] = {}
    answers: list[Answer] = []
    for event in events:
        if event.HasField("activity_task_started_event_attributes"):
            taken = event.activity_task_started_event_attributes
            started[taken.scheduled_event_id] = (taken.identity, event.event_time.ToMilliseconds())
        elif event.HasField("activity_task_completed_event_attributes"):
            done = event.activity_task_completed_event_attributes
            worker, started_ms = started[done.scheduled_event_id]
            checked, error = _parse_answer(done.result.payloads)
            answers.append(
                Answer(worker, checked, error, started_ms, event.event_time.ToMilliseconds())
            )
        elif event.HasField("activity_task_failed_event_attributes"):
            failed = event.activity_task_failed_event_attributes
            answers.append(
                Answer(
                    started[failed.scheduled_event_id][0], error=_shorten(failed.failure.message)
                )
            )
        elif event.HasField("activity_task_timed_out_event_attributes"):
            late = event.activity_task_timed_out_event_attributes
            worker, _ = started.get(late.scheduled_event_id, ("", 0))
            answers.append(Answer(worker, error="it did not answer within 10 s"))
        elif event.HasField("workflow_task_failed_event_attributes"):
            refused = event.workflow_task_failed_event_attributes
            answers.append(Answer(refused.identity, error=_shorten(refused.failure.message)))
    return answers


@contextlib.asynccontextmanager
async def _start_checkup(
    client: Client,
    workflow_id: str,
    task_queue: str,
    checkup: Checkup,
    version: WorkerDeploymentVersion | None = None,
) -> AsyncIterator[WorkflowHandle[Any, Any]]:
    """Start a check-up without any codec, and terminate it when the context ends."""
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
        with contextlib.suppress(RPCError):  # It has already ended.
            await handle.terminate("the check-up is over")


async def _wait_for_history(handle: WorkflowHandle[Any, Any]) -> list[HistoryEvent]:
    """Return the history of a check-up once it has ended, or at the time limit."""
    begun = time.monotonic()
    while True:
        description = await handle.describe()
        events = list((await handle.fetch_history()).events)
        elapsed = time.monotonic() - begun
        if description.status != WorkflowExecutionStatus.RUNNING or elapsed > _get_wait_seconds_max(
            events
        ):
            return events
        await asyncio.sleep(_POLL_SECONDS)


def _get_wait_seconds_max(events: Sequence[HistoryEvent]) -> float:
    """Return the time limit of a check-up, given its history so far."""
    failed = any(each.HasField("workflow_task_failed_event_attributes") for each in events)
    begun = any(each.HasField("activity_task_scheduled_event_attributes") for each in events)
    return _FAILED_SECONDS_MAX if failed and not begun else _ANSWERS_SECONDS_MAX


async def _describe_queue(client: Client, task_queue: str, kind: TaskQueueType.ValueType) -> Any:
    return await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=kind,
        )
    )


def _parse_version(options: Any) -> WorkerDeploymentVersion | None:
    if options.worker_versioning_mode != WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED:
        return None
    return WorkerDeploymentVersion(options.deployment_name, options.build_id)


def _parse_answer(payloads: Sequence[Any]) -> tuple[CheckResult | None, str]:
    try:
        [checked] = DataConverter.default.payload_converter.from_payloads(payloads, [CheckResult])
    except Exception as error:  # noqa: BLE001 - another codec may wrap ours
        return None, f"its answer cannot be read ({type(error).__name__})"
    return checked, ""


def _shorten(text: str) -> str:
    return make_printable(text, _REASON_CHARS_MAX)


@dataclasses.dataclass(frozen=True)
class Asker:
    """The side that runs the check: the configuration that workers must match."""

    versions: Versions
    store: str
    key_ids: tuple[str, ...]
    payload_digest: str
    has_attributes: bool | None
    """Whether the server has our search attributes; None if unknown."""


@dataclasses.dataclass(frozen=True)
class Read:
    """A worker's answer, and the digest or error of its payload as read here."""

    answer: Answer
    digest: str = ""
    error: str = ""


def judge_workers(asker: Asker, listed: Sequence[str], reads: Iterable[Read]) -> list[Finding]:
    """Return one finding about all workers, and one for each that answered."""
    by_worker: dict[str, list[Read]] = {}
    for read in reads:
        by_worker.setdefault(read.answer.worker, []).append(read)
    unanswered = by_worker.pop("", [])
    findings = [judge_worker(asker, worker, by_worker[worker]) for worker in sorted(by_worker)]
    silent = [worker for worker in listed if worker not in by_worker]
    everyone = len(set(listed) | set(by_worker))
    text = f"{len(by_worker)} of {everyone} answered"
    problems = []
    if silent or (unanswered and not by_worker):
        names = ", ".join(silent) or "the task queue"
        problems.append(
            Problem(
                "warning",
                f"no answer from {names}",
                "A stopped worker stays listed for a minute. If it runs, see its log; it may be "
                "busy.",
            )
        )
    return [combine_problems("workers", text, problems), *findings]


def judge_worker(asker: Asker, worker: str, reads: Sequence[Read]) -> Finding:
    """Return the finding about one worker, from its newest answer and all its failures."""
    check = f"worker {worker}"
    answers = [read for read in reads if read.answer.checked is not None]
    problems = [
        _judge_failure(error) for error in dict.fromkeys(read.answer.error for read in reads)
    ]
    problems = [each for each in problems if each.text]
    if not answers:
        return combine_problems(check, "it does not answer the check", problems)
    newest = answers[-1]
    checked = newest.answer.checked
    assert checked is not None  # noqa: S101 - `answers` holds only such
    apart = _judge_store(asker, checked) or _judge_keys(asker, newest, checked)
    problems += apart
    text = _describe_worker(checked) + ("" if apart else "; each side reads what the other writes")
    problems += _judge_versions(asker, checked)
    if checked.codec_warning:
        problems.append(Problem("warning", checked.codec_warning, INSPECTION_REMEDY))
    if asker.has_attributes and not checked.attributes:
        problems.append(
            Problem(
                "warning",
                "it writes no search attributes yet: they did not exist when it last checked",
                "It checks again within a minute or, after failed calls, within five. Its log says "
                "why.",
            )
        )
    skew = min((_measure_skew_seconds(read.answer) for read in answers), key=abs)
    if abs(skew) > SKEW_SECONDS_MAX:
        problems.append(
            Problem("warning", f"its clock is {format_skew(skew)} the server's", _SET_CLOCK)
        )
    return combine_problems(check, text, problems)


def format_skew(ahead_seconds: float) -> str:
    """Return a clock difference in words: `0.800 s ahead of`."""
    return f"{abs(ahead_seconds):.3f} s {'ahead of' if ahead_seconds >= 0 else 'behind'}"


def format_keys(key_ids: Sequence[str]) -> str:
    """Return the key ids in words: `no keys`, `keys b (writes), a`."""
    return f"keys {', '.join([f'{key_ids[0]} (writes)', *key_ids[1:]])}" if key_ids else "no keys"


def _describe_worker(checked: CheckResult) -> str:
    names = ", ".join(checked.agents[:_AGENTS_SHOWN])
    more = len(checked.agents) - _AGENTS_SHOWN
    return (
        f"agents {names}{f' and {more} more' if more > 0 else ''}; everlong {checked.everlong}, "
        f"temporalio {checked.sdk}, Python {checked.python}; {format_keys(checked.key_ids)}"
    )


def _judge_failure(error: str) -> Problem:
    if "is not registered" in error:
        return Problem(
            "failed",
            f"it does not know the check ({error})",
            "Start it with this version of Everlong, and with agents in its EverlongPlugin.",
        )
    return Problem("failed", error, "See its log.")


def _judge_store(asker: Asker, checked: CheckResult) -> list[Problem]:
    """Return the problems with the worker's store. With any, keys are not compared."""
    if not checked.probe.error:
        return []
    if checked.store != asker.store:
        return [
            Problem(
                "failed",
                f"it uses another store, {checked.store}; the store here is {asker.store}",
                "Set EVERLONG_STORE to the same URL on both sides.",
            )
        ]
    why = _cut_remedy(checked.probe.error)
    return [
        Problem(
            "failed",
            f"it cannot read from {checked.store} what was just written here ({why})",
            "Check that it may read there, and that both use the same place: a directory is local to "
            "one machine, and memory: to one process.",
        )
    ]


def _judge_keys(asker: Asker, read: Read, checked: CheckResult) -> list[Problem]:
    """Return the problems of either side with payloads that the other wrote."""
    problems = []
    both = (
        f"Give both sides the same EVERLONG_KEYS. It has {format_keys(checked.key_ids)}; here there are "
        f"{format_keys(asker.key_ids)}."
    )
    if checked.payload.digest != asker.payload_digest:
        error = _cut_remedy(checked.payload.error)
        why = f"it says: {error}" if error else "it reads different bytes"
        problems.append(Problem("failed", f"it cannot read what is written here ({why})", both))
    if checked.answer.error:
        problems.append(
            Problem(
                "failed",
                f"it cannot write to the store ({_cut_remedy(checked.answer.error)})",
                "Check the permissions of its credentials.",
            )
        )
    elif read.digest != checked.answer.digest:
        why = _cut_remedy(read.error) or "different bytes arrive"
        problems.append(Problem("failed", f"what it writes cannot be read here ({why})", both))
    return problems


def _cut_remedy(error: str) -> str:
    """Return an error's first sentence, without its remedy: the check has a better one."""
    return error.partition(". ")[0].rstrip(".")


def _judge_versions(asker: Asker, checked: CheckResult) -> list[Problem]:
    problems = []
    if checked.everlong != asker.versions.everlong:
        problems.append(
            Problem(
                "warning",
                f"everlong is {asker.versions.everlong} here",
                "Use one version on both sides: upgrade workers first if the newer writes a new format.",
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


def _measure_skew_seconds(answer: Answer) -> float:
    """Return the least error of a worker's clock: it was read between two known times."""
    checked = answer.checked
    if checked is None:
        return 0.0
    if checked.time_ms < answer.started_ms:
        return (checked.time_ms - answer.started_ms) / 1000
    return max(0, checked.time_ms - answer.ended_ms) / 1000


async def check_workers(
    client: Client,
    packs: PackStore,
    task_queue: str,
    inline_bytes_max: int,
    *,
    clock: Clock,
    has_attributes: bool,
) -> list[Finding]:
    """Check that the workers of a task queue and this side can read each other's payloads."""
    listed = await list_pollers(client, task_queue, clock)
    if not listed:
        return [
            Finding(
                "workers",
                "warning",
                f"no worker polls task queue {task_queue}",
                "Start one with: everlong worker MODULE:AGENT. Or set EVERLONG_TASK_QUEUE to its queue.",
            )
        ]
    store = packs.store.inner if isinstance(packs.store, CachedBlobStore) else packs.store
    keys = await packs.keys()
    workflow_id, probe_key = create_id(), probes.create_key()
    converter = probes.bind_converter(client.data_converter, client.namespace, workflow_id)
    data = os.urandom(inline_bytes_max + limits.KIB)
    async with (
        probes.delete_after(store, probe_key),
        _delete_thread_after(client, store, workflow_id),
    ):
        await store.put(probe_key, os.urandom(limits.KIB))
        check = Check(probe_key=probe_key, payload=await probes.encode(converter, data))
        reads: list[Read] = []
        silent = listed
        deadline = time.monotonic() + _ROUNDS_SECONDS_MAX
        for _ in range(_ROUNDS_MAX):
            for version in dict.fromkeys(each.version for each in silent):
                answers = await ask_workers(
                    client, workflow_id, task_queue, check, len(listed), version
                )
                reads += [await _read_answer(converter, answer) for answer in answers]
            answered = {read.answer.worker for read in reads}
            silent = [each for each in listed if each.identity not in answered]
            if not silent or time.monotonic() > deadline:
                break
    asker = Asker(
        versions=get_versions(),
        store=repr(store),
        key_ids=() if keys is None else keys.ids,
        payload_digest=probes.digest(data),
        has_attributes=has_attributes,
    )
    return judge_workers(asker, [each.identity for each in listed], reads)


async def _read_answer(converter: DataConverter, answer: Answer) -> Read:
    text = "" if answer.checked is None else answer.checked.answer_payload
    if not text:
        return Read(answer)
    found = await probes.try_read(lambda: probes.decode(converter, text))
    return Read(answer, found.digest, found.error)


@contextlib.asynccontextmanager
async def _delete_thread_after(
    client: Client, store: BlobStore, workflow_id: str
) -> AsyncIterator[None]:
    """Delete the check-up's objects from the store when the context ends."""
    try:
        yield
    finally:
        prefix = thread_prefix(thread_key(client.namespace, workflow_id))
        with contextlib.suppress(Exception):
            async with asyncio.timeout(probes.SECONDS_MAX):
                await store.delete([info.key async for info in store.list(prefix)])
