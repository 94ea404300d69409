"""What may be wrong between here, the server, the store and the workers: `everlong doctor`.

Each check is bounded in time, needs no other where that is possible, and says what it found.
"""

import asyncio
import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Final

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from everlong import limits, probes
from everlong.admin.service.archiving import ARCHIVES_PAGE, archives
from everlong.admin.service.drain import count_holdings
from everlong.admin.service.findings import Finding, Problem, finding
from everlong.admin.service.judging import Asker, Read, judge_clock, judge_versions, judge_workers
from everlong.admin.service.probing import Answer, Clock, ask_workers, new_id, pollers, read_clock
from everlong.admin.service.trying import check_store, new_key, removed
from everlong.client.search_attributes import clashing, listed_attributes
from everlong.codecs.composition import (
    INSPECTION_REMEDY,
    OuterCodec,
    check_order,
    inspect_codec,
    own_codec,
)
from everlong.errors import (
    ConfigError,
    EverlongError,
    ServerUnreachable,
    SetupRefused,
    StoreUnavailable,
)
from everlong.models import Check, printable, thread_key
from everlong.models.search_attributes import SEARCH_ATTRIBUTES
from everlong.storage import BlobStore
from everlong.storage.cache import CachedBlobStore
from everlong.storage.objects import thread_prefix
from everlong.storage.packstore import PackStore
from everlong.versions import versions

_LATENCY_CALLS: Final = 5
# The longest one is that of the workers: 12 s for those that hang, and a few more rounds.
_CHECK_SECONDS_MAX: Final = 30.0
# Who has not answered is asked again: other workers may have been faster.
_ROUNDS_MAX: Final = 4
_ROUNDS_SECONDS_MAX: Final = 4.0
# Runs that are looked at for Everlong payloads, two calls each; `everlong drain` looks at all.
_DRAIN_RUNS_MAX: Final = 100
_DRAIN_SECONDS_MAX: Final = 3.0
# Names of archives are listed 1,000 a call: so many seconds are enough for some 50,000.
_ARCHIVES_SECONDS_MAX: Final = 5.0
_UNREADABLE_MAX: Final = 5
_ARCHIVE_FIX: Final = (
    "Restore it from a backup of the store, or delete the object if an older archive will do."
)


async def examine(
    client: Client | EverlongError,
    packs: PackStore | EverlongError,
    *,
    task_queue: str,
    inline_bytes_max: int,
) -> AsyncIterator[Finding]:
    """Check all, and yield findings as they come. What could not be opened is given as its error."""
    yield check_versions()
    if isinstance(packs, EverlongError):
        yield _failed("store", packs)
    else:
        yield await _bounded("store", check_store(packs.store))
    if isinstance(client, EverlongError):
        server = _failed("server", client)
    else:
        server = await _bounded("server", check_server(client))
    yield server
    if isinstance(client, EverlongError) or server.status == "failed":
        for check in ("search attributes", "clock", "runs", "workers"):
            yield Finding(check, "skipped", "not checked, since the server cannot be asked")
        return
    codec = await check_codec(client)
    if codec is not None:
        yield codec
    attributes = await _bounded("search attributes", check_attributes(client))
    yield attributes
    clock, judged = await _check_clock(client, task_queue)
    yield judged
    yield await _bounded("runs", check_runs(client))
    if not isinstance(packs, EverlongError):
        yield await _bounded("archives", check_archives(client, packs))
    if isinstance(packs, EverlongError):
        yield Finding("workers", "skipped", "not checked, since the store cannot be opened")
        return
    try:
        async with asyncio.timeout(_CHECK_SECONDS_MAX):
            findings = await check_workers(
                client,
                packs,
                task_queue,
                inline_bytes_max,
                clock=clock,
                has_attributes=attributes.status == "ok",
            )
    except (EverlongError, RPCError, TimeoutError) as error:
        findings = [_failed("workers", error)]
    for each in findings:
        yield each


async def _check_clock(client: Client, task_queue: str) -> tuple[Clock, Finding]:
    """Compare clocks. If that fails, the machine's own is taken for right."""
    try:
        async with asyncio.timeout(_CHECK_SECONDS_MAX):
            clock = await read_clock(client, task_queue)
    except (EverlongError, RPCError, TimeoutError) as error:
        return Clock(0.0, 0.0), _failed("clock", error)
    return clock, judge_clock(clock)


def check_versions() -> Finding:
    """Check that Everlong can use the SDK that is installed, and that it was tested with it."""
    return judge_versions(versions())


async def check_server(client: Client) -> Finding:
    """Check that the server answers, that the namespace is there, and how long both take."""
    address = client.service_client.config.target_host
    system = await client.workflow_service.get_system_info(GetSystemInfoRequest())
    latencies = []
    request = DescribeNamespaceRequest(namespace=client.namespace)
    for _ in range(_LATENCY_CALLS):
        began = time.monotonic()
        try:
            found = await client.workflow_service.describe_namespace(request)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return Finding(
                "server",
                "failed",
                f"there is no namespace {client.namespace!r} at {address}",
                "Create it, or set TEMPORAL_NAMESPACE.",
            )
        latencies.append(1000 * (time.monotonic() - began))
    retention = found.config.workflow_execution_retention_ttl.ToSeconds() / 3600
    return Finding(
        "server",
        "ok",
        f"Temporal {system.server_version or 'of unknown version'} at {address}, namespace "
        f"{client.namespace}: {statistics.median(latencies):.1f} ms in the median of "
        f"{_LATENCY_CALLS} calls; closed workflows are kept for {retention:g} h",
    )


async def check_codec(client: Client) -> Finding | None:
    """Check a codec of the team's on this client; None if there is Everlong's alone, or none."""
    codec = client.data_converter.payload_codec
    if codec is None:
        return None
    try:
        check_order(codec)
    except EverlongError as error:
        return _failed("codec", error)
    ours = own_codec(codec)
    texts, problems = [], []
    if isinstance(codec, OuterCodec):
        texts.append(f"{type(codec.outer).__name__} is around Everlong's, and known to it")
    if ours is not None and ours.inner is not None:
        inspection = await inspect_codec(ours.inner, client.namespace)
        unknown = ", and could not be tried" if inspection.repeats is None else ""
        texts.append(f"{inspection.codec} is inside Everlong's{unknown}")
        if inspection.warning:
            problems.append(Problem("warning", inspection.warning, INSPECTION_REMEDY))
    return finding("codec", "; ".join(texts), problems) if texts else None


async def check_attributes(client: Client) -> Finding:
    """Check that our search attributes are there, with their types."""
    check, wanted = "search attributes", len(SEARCH_ATTRIBUTES)
    try:
        listed = await listed_attributes(client)
    except SetupRefused as error:
        # Workers cannot list them either, and run without.
        return dataclasses.replace(_failed(check, error), status="warning")
    missing = [name for name in SEARCH_ATTRIBUTES if name not in listed]
    if clashes := clashing(listed):
        return Finding(
            check,
            "failed",
            f"the namespace has {clashes}: threads that write it do not go on",
            "Remove it, if nobody else uses it, and run: everlong setup. Or use another namespace.",
        )
    if missing:
        return Finding(
            check,
            "warning",
            f"{len(missing)} of {wanted} are missing ({', '.join(missing)}): threads run without, and "
            "cannot be found by status or agent",
            "Run: everlong setup. Workers notice within a minute.",
        )
    return Finding(check, "ok", f"all {wanted} are there")


async def check_runs(client: Client) -> Finding:
    """Say how many of the newest open runs hold payloads that need the plugin."""
    try:
        report = await count_holdings(
            client, only_open=True, runs_max=_DRAIN_RUNS_MAX, seconds_max=_DRAIN_SECONDS_MAX
        )
    except (ConfigError, ServerUnreachable) as error:
        # Threads run without it: the caller may lack the permission to list workflows, or a key.
        return dataclasses.replace(_failed("runs", error), status="warning")
    count = report.open_runs
    which = "open runs" if report.is_complete else "newest open runs that were looked at"
    text = (
        f"of {count.looked_at} {which}, {count.refs} hold refs to the store and {count.inline} only "
        "compressed or sealed payloads"
    )
    if count.holding:
        text += ": the plugin has to stay as long as there are any (everlong drain counts them all)"
    return Finding("runs", "ok", text)


async def check_archives(client: Client, packs: PackStore) -> Finding:
    """Check that the newest archives of the namespace can be read, by their manifests."""
    try:
        async with asyncio.timeout(_ARCHIVES_SECONDS_MAX):
            page = await archives(client, packs, count_max=ARCHIVES_PAGE)
    except TimeoutError:
        return Finding(
            "archives",
            "skipped",
            f"not checked: to list them takes more than {_ARCHIVES_SECONDS_MAX:.0f} s",
        )
    except StoreUnavailable as error:
        # What is wrong with the store is said by its own check. Threads run without a listing.
        return dataclasses.replace(_failed("archives", error), status="warning")
    text = f"{len(page.archives)} of the newest archives in the store are this namespace's"
    problems = [
        Problem("warning", f"one cannot be read, and is passed over: {each}", _ARCHIVE_FIX)
        for each in page.unreadable[:_UNREADABLE_MAX]
    ]
    if left := len(page.unreadable) - len(problems):
        problems.append(Problem("warning", f"{left} more cannot be read", _ARCHIVE_FIX))
    return finding("archives", text, problems)


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
    workflow_id, probe_key = new_id(), new_key()
    converter = probes.converter_for(client.data_converter, client.namespace, workflow_id)
    data = os.urandom(inline_bytes_max + limits.KIB)
    async with removed(store, probe_key), _removed_thread(client, store, workflow_id):
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


async def _bounded(check: str, work: Awaitable[Finding]) -> Finding:
    try:
        async with asyncio.timeout(_CHECK_SECONDS_MAX):
            return await work
    except (EverlongError, RPCError, TimeoutError) as error:
        return _failed(check, error)


def _failed(check: str, error: EverlongError | RPCError | TimeoutError) -> Finding:
    """Return a finding of an error. Ours say first what happened, and then what to do."""
    if isinstance(error, EverlongError):
        text, _, fix = str(error).partition(". ")
        return Finding(check, "failed", text, fix)
    if isinstance(error, RPCError):
        said = printable(error.message, 200)
        return Finding(
            check,
            "failed",
            f"the server refuses ({error.status.name}): {said}",
            "Check the credentials and the namespace.",
        )
    return Finding(
        check,
        "failed",
        f"no answer within {_CHECK_SECONDS_MAX:.0f} s",
        "Check the network between here and there, and run this again.",
    )
