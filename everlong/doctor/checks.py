"""Checks that `everlong doctor` runs: versions, store, server, codec, clock, archives, workers.

Every check has a time limit and, where possible, depends on no other.
"""

import asyncio
import dataclasses
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everlong import limits
from everlong.client.archives import ARCHIVES_PAGE, list_archives
from everlong.client.search_attributes import find_clashes, list_attributes
from everlong.codecs.composition import (
    INSPECTION_REMEDY,
    OuterCodec,
    check_order,
    find_everlong_codec,
    inspect_codec,
)
from everlong.doctor import probes
from everlong.doctor.findings import Finding, Problem, combine_problems
from everlong.doctor.remaining_payloads import count_holdings
from everlong.doctor.workers import (
    SKEW_SECONDS_MAX,
    Clock,
    check_workers,
    format_skew,
    read_clock,
)
from everlong.errors import (
    ConfigError,
    EverlongError,
    ServerUnreachable,
    SetupRefused,
    StoreUnavailable,
)
from everlong.models import make_printable
from everlong.models.search_attributes import OPTIONAL_ATTRIBUTES, SEARCH_ATTRIBUTES
from everlong.storage import BlobStore
from everlong.storage.cache import CachedBlobStore
from everlong.storage.pack_store import PackStore
from everlong.versions import SDK, SDK_TESTED, Versions, get_versions

_LATENCY_CALLS: Final = 5
# The check of the workers takes longest: 12 s for workers that hang, and a few more rounds.
_CHECK_SECONDS_MAX: Final = 30.0
# Runs inspected for Everlong payloads, two calls each; `everlong drain` inspects all.
_DRAIN_RUNS_MAX: Final = 100
_DRAIN_SECONDS_MAX: Final = 3.0
# A call lists 1,000 names of archives: this is enough for some 50,000.
_ARCHIVES_SECONDS_MAX: Final = 5.0
_UNREADABLE_MAX: Final = 5
_PROBE_BYTES: Final = 4 * limits.KIB
_RANGE: Final = (1000, 500)
_ALLOW: Final = "Allow this user or these credentials to list, read, write and delete there."
_ARCHIVE_FIX: Final = (
    "Restore it from a backup of the store, or delete the object if an older archive will do."
)


async def run_checks(
    client: Client | EverlongError,
    packs: PackStore | EverlongError,
    *,
    task_queue: str,
    inline_bytes_max: int,
) -> AsyncIterator[Finding]:
    """Run all checks and yield findings as they come.

    A client or store that could not be opened is passed as its error, and reported as a finding.
    """
    yield check_versions()
    if isinstance(packs, EverlongError):
        yield _report_error("store", packs)
    else:
        yield await _run_check("store", check_store(packs.store))
    if isinstance(client, EverlongError):
        server = _report_error("server", client)
    else:
        server = await _run_check("server", check_server(client))
    yield server
    if isinstance(client, EverlongError) or server.status == "failed":
        for check in ("search attributes", "clock", "runs", "workers"):
            yield Finding(check, "skipped", "not checked, since the server does not answer")
        return
    codec = await check_codec(client)
    if codec is not None:
        yield codec
    attributes = await _run_check("search attributes", check_attributes(client))
    yield attributes
    clock, judged = await _check_clock(client, task_queue)
    yield judged
    yield await _run_check("runs", check_runs(client))
    if not isinstance(packs, EverlongError):
        yield await _run_check("archives", check_archives(client, packs))
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
        findings = [_report_error("workers", error)]
    for each in findings:
        yield each


async def _check_clock(client: Client, task_queue: str) -> tuple[Clock, Finding]:
    """Compare the clocks. On failure, assume that the local clock is right."""
    try:
        async with asyncio.timeout(_CHECK_SECONDS_MAX):
            clock = await read_clock(client, task_queue)
    except (EverlongError, RPCError, TimeoutError) as error:
        return Clock(0.0, 0.0), _report_error("clock", error)
    return clock, judge_clock(clock)


def check_versions() -> Finding:
    """Check that the installed SDK is supported, and was tested."""
    return judge_versions(get_versions())


async def check_server(client: Client) -> Finding:
    """Check that the server answers and has the namespace; measure the latency."""
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
    """Check the team's own codec on this client; None without one."""
    codec = client.data_converter.payload_codec
    if codec is None:
        return None
    try:
        check_order(codec)
    except EverlongError as error:
        return _report_error("codec", error)
    ours = find_everlong_codec(codec)
    texts, problems = [], []
    if isinstance(codec, OuterCodec):
        texts.append(f"{type(codec.outer).__name__} is around Everlong's, and configured as such")
    if ours is not None and ours.inner is not None:
        inspection = await inspect_codec(ours.inner, client.namespace)
        unknown = ", and could not be tested" if inspection.repeats is None else ""
        texts.append(f"{inspection.codec} is inside Everlong's{unknown}")
        if inspection.warning:
            problems.append(Problem("warning", inspection.warning, INSPECTION_REMEDY))
    return combine_problems("codec", "; ".join(texts), problems) if texts else None


async def check_attributes(client: Client) -> Finding:
    """Check that the namespace has our search attributes, with their types."""
    check, wanted = "search attributes", len(SEARCH_ATTRIBUTES)
    try:
        listed = await list_attributes(client)
    except SetupRefused as error:
        # Only a warning: workers cannot list them either, and run without them.
        return dataclasses.replace(_report_error(check, error), status="warning")
    missing = [
        name for name in SEARCH_ATTRIBUTES if name not in listed and name not in OPTIONAL_ATTRIBUTES
    ]
    if clashes := find_clashes(listed):
        return Finding(
            check,
            "failed",
            f"the namespace has {clashes}: threads that write it cannot continue",
            "Remove it if no other application uses it, and run: everlong setup. Or use another "
            "namespace.",
        )
    if missing:
        return Finding(
            check,
            "warning",
            f"{len(missing)} of {wanted} are missing ({', '.join(missing)}): threads run without them, "
            "and cannot be found by status or agent",
            "Run: everlong setup. Workers notice within a minute.",
        )
    lost = [
        f"without {name} of type {SEARCH_ATTRIBUTES[name]}, {what}"
        for name, what in OPTIONAL_ATTRIBUTES.items()
        if listed.get(name) != SEARCH_ATTRIBUTES[name]
    ]
    if lost:
        text = f"{wanted - len(lost)} of {wanted} are there; {'; '.join(lost)} (everlong setup adds it)"
        return Finding(check, "ok", text)
    return Finding(check, "ok", f"all {wanted} are there")


async def check_runs(client: Client) -> Finding:
    """Count the newest open runs whose payloads need the plugin."""
    try:
        report = await count_holdings(
            client, only_open=True, runs_max=_DRAIN_RUNS_MAX, seconds_max=_DRAIN_SECONDS_MAX
        )
    except (ConfigError, ServerUnreachable) as error:
        # Only a warning: threads run without it, and the caller may lack a key or a permission.
        return dataclasses.replace(_report_error("runs", error), status="warning")
    count = report.open_runs
    which = "open runs" if report.is_complete else "newest open runs"
    text = (
        f"{which} read: {count.looked_at}; {count.refs} with refs to the store, {count.inline} with "
        "compressed or sealed payloads only"
    )
    if count.holding:
        text += ": the plugin must stay while there are any (everlong drain counts them all)"
    return Finding("runs", "ok", text)


async def check_archives(client: Client, packs: PackStore) -> Finding:
    """Check that the manifests of the namespace's newest archives can be read."""
    try:
        async with asyncio.timeout(_ARCHIVES_SECONDS_MAX):
            page = await list_archives(client, packs, count_max=ARCHIVES_PAGE)
    except TimeoutError:
        return Finding(
            "archives",
            "skipped",
            f"not checked: listing them takes more than {_ARCHIVES_SECONDS_MAX:.0f} s",
        )
    except StoreUnavailable as error:
        # Only a warning: the store's own check reports the cause, and threads run without a listing.
        return dataclasses.replace(_report_error("archives", error), status="warning")
    text = f"{len(page.archives)} of the newest archives in the store are this namespace's"
    problems = [
        Problem("warning", f"one cannot be read and is skipped: {each}", _ARCHIVE_FIX)
        for each in page.unreadable[:_UNREADABLE_MAX]
    ]
    if left := len(page.unreadable) - len(problems):
        problems.append(Problem("warning", f"{left} more cannot be read", _ARCHIVE_FIX))
    return combine_problems("archives", text, problems)


async def _run_check(check: str, work: Awaitable[Finding]) -> Finding:
    try:
        async with asyncio.timeout(_CHECK_SECONDS_MAX):
            return await work
    except (EverlongError, RPCError, TimeoutError) as error:
        return _report_error(check, error)


def _report_error(check: str, error: EverlongError | RPCError | TimeoutError) -> Finding:
    """Turn an error into a finding. After the first sentence, an Everlong error has its remedy."""
    if isinstance(error, EverlongError):
        text, _, fix = str(error).partition(". ")
        return Finding(check, "failed", text, fix)
    if isinstance(error, RPCError):
        message = make_printable(error.message, 200)
        return Finding(
            check,
            "failed",
            f"the server refuses ({error.status.name}): {message}",
            "Check the credentials and the namespace.",
        )
    return Finding(
        check,
        "failed",
        f"no answer within {_CHECK_SECONDS_MAX:.0f} s",
        "Check the network, and run this again.",
    )


class _Tries:
    """Store operations: durations and problems so far."""

    def __init__(self) -> None:
        self.times: list[str] = []
        self.problems: list[Problem] = []

    async def run(self, name: str, work: Awaitable[bool], denied: Problem) -> bool:
        """Try one operation; return whether it worked."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(probes.SECONDS_MAX):
                right = await work
        except Exception as error:  # noqa: BLE001 - a team's own store may raise anything
            self._add(denied, probes.describe_error(error))
            return False
        seconds = time.monotonic() - began
        self.times.append(f"{name} {1000 * seconds:.1f} ms")
        if not right:
            self._add(denied, "the bytes read differ from those written")
        elif seconds > limits.STORE_TRY_SECONDS:
            fix = "Find the cause: payloads stay in history while the store is slow."
            self.problems.append(Problem("warning", f"{name} took {seconds:.1f} s", fix))
        return right

    def _add(self, denied: Problem, why: str) -> None:
        self.problems.append(Problem(denied.status, f"{denied.text} ({why})", denied.fix))


async def check_store(store: BlobStore) -> Finding:
    """Write, read, list and delete one small object in the store itself, not in its cache."""
    store = store.inner if isinstance(store, CachedBlobStore) else store
    key, data = probes.create_key(), os.urandom(_PROBE_BYTES)
    start, length = _RANGE
    tries = _Tries()

    async def write() -> bool:
        await store.put(key, data)
        return True

    async def read() -> bool:
        return await store.get(key) == data

    async def read_range() -> bool:
        return await store.get_range(key, start, length) == data[start : start + length]

    async def find() -> bool:
        return [info.key async for info in store.list(key)] == [key]

    async def delete() -> bool:
        await store.delete([key])
        return True

    steps: list[tuple[str, Callable[[], Awaitable[bool]], Problem]] = [
        ("read", read, Problem("failed", "a written object cannot be read", _ALLOW)),
        ("range", read_range, Problem("failed", "a range of an object cannot be read", _ALLOW)),
        (
            "list",
            find,
            Problem("warning", "it cannot be listed, which `everlong show` needs", _ALLOW),
        ),
        (
            "delete",
            delete,
            Problem("warning", "objects cannot be deleted, so retention has no effect", _ALLOW),
        ),
    ]
    async with probes.delete_after(store, key):
        cannot = Problem("failed", "it cannot be written to", _ALLOW)
        if await tries.run("write", write(), cannot):
            for name, step, denied in steps:
                await tries.run(name, step(), denied)
    figures = f": {', '.join(tries.times)} for 4 KiB" if tries.times else ""
    return combine_problems("store", f"{store!r}{figures}", tries.problems)


def judge_versions(here: Versions) -> Finding:
    """Return the finding about the installed versions."""
    text = f"everlong {here.everlong}, {SDK} {here.sdk} (tested with {SDK_TESTED}), Python {here.python}"
    if not here.sdk_fits:
        return Finding(
            "versions",
            "failed",
            f"{text}: this everlong does not work with this {SDK}",
            f"Run: pip install '{SDK}{here.sdk_wanted}'",
        )
    if not here.sdk_tested:
        return Finding(
            "versions",
            "warning",
            f"{text}: this everlong was not tested with this {SDK}",
            "The log names features that are switched off. For a tested version, run: pip install "
            f"'{SDK}{SDK_TESTED}'",
        )
    return Finding("versions", "ok", text)


def judge_clock(clock: Clock) -> Finding:
    """Return the finding about this machine's clock."""
    text = (
        f"this machine's is {format_skew(clock.ahead_seconds)} the server's, give or take "
        f"{clock.error_seconds:.3f} s"
    )
    if abs(clock.ahead_seconds) - clock.error_seconds <= SKEW_SECONDS_MAX:
        return Finding("clock", "ok", text)
    return Finding(
        "clock",
        "warning",
        f"{text}: deadlines and resume spans are off by as much",
        "Synchronise both clocks with NTP.",
    )
