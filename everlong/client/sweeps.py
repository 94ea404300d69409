"""Sweeps of a namespace: run one here, schedule them on workers, restore from quarantine."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from everlong.client.archives import archive_before_sweep
from everlong.client.errors import translate_rpc_error
from everlong.errors import BlobMissing, ConfigError
from everlong.models import (
    SWEEPER_SCHEDULE,
    SWEEPER_WORKFLOW,
    SweepOptions,
    SweepReport,
)
from everlong.storage import quarantine
from everlong.storage.base import BlobInfo
from everlong.storage.pack_store import PackStore
from everlong.storage.quarantine import Copy, unwrap_store
from everlong.sweep import Histories, Progress, Records, Sweep
from everlong.sweep.sweep import run_with_telemetry
from everlong.telemetry import Telemetry


async def sweep(
    client: Client,
    packs: PackStore,
    options: SweepOptions | None = None,
    *,
    index_dir: Path | None = None,
    on_progress: Progress = lambda _: None,
    telemetry: Telemetry | None = None,
    allow_short_quarantine: bool = False,
) -> SweepReport:
    """Sweep the client's namespace in this process. Workers and other sweeps may run meanwhile.

    Due threads are archived first (`client.archives.archive_due`). The index in `index_dir` makes the
    next sweep cheap. `allow_short_quarantine` accepts a quarantine that is too short to be safe: for
    tests.
    """
    work = Sweep(
        Histories(client),
        client.data_converter.payload_codec,
        packs,
        options or SweepOptions(),
        index_dir=index_dir,
        on_progress=on_progress,
        archive_due=partial(archive_before_sweep, client, packs),
        allow_short_quarantine=allow_short_quarantine,
    )
    return await run_with_telemetry(work, telemetry or Telemetry())


async def read_last_sweep(client: Client, packs: PackStore) -> SweepReport | None:
    """Return the report of the namespace's newest completed sweep, or None."""
    namespace_id = await Histories(client).fetch_namespace_id()
    return await Records(unwrap_store(packs.store), namespace_id).read_last_report()


async def schedule_sweeps(
    client: Client, every_seconds: float, options: SweepOptions, *, task_queue: str
) -> None:
    """Schedule sweeps of the namespace on workers, one sweep at a time."""
    if why := options.retention.find_problem():
        raise ConfigError(why)
    if every_seconds < 60:
        raise ConfigError(f"a sweep every {every_seconds:g} s is too often; give 1m or more")
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(
            SWEEPER_WORKFLOW, options, id=SWEEPER_SCHEDULE, task_queue=task_queue
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=every_seconds))]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP),
    )

    async def replace_schedule(_: ScheduleUpdateInput) -> ScheduleUpdate:
        return ScheduleUpdate(schedule)

    try:
        try:
            await client.create_schedule(SWEEPER_SCHEDULE, schedule)
        except ScheduleAlreadyRunningError:
            await client.get_schedule_handle(SWEEPER_SCHEDULE).update(replace_schedule)
    except RPCError as error:
        raise translate_rpc_error(error, SWEEPER_SCHEDULE) from error


async def unschedule_sweeps(client: Client) -> bool:
    """Delete the schedule of sweeps; return whether there was one."""
    try:
        await client.get_schedule_handle(SWEEPER_SCHEDULE).delete()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return False
        raise translate_rpc_error(error, SWEEPER_SCHEDULE) from error
    return True


async def read_sweep_interval(client: Client) -> float | None:
    """Return the interval of scheduled sweeps in seconds; None without a schedule."""
    try:
        found = await client.get_schedule_handle(SWEEPER_SCHEDULE).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise translate_rpc_error(error, SWEEPER_SCHEDULE) from error
    intervals = found.schedule.spec.intervals
    return intervals[0].every.total_seconds() if intervals else None


async def list_quarantined(packs: PackStore) -> AsyncIterator[Copy]:
    """Yield the objects in quarantine."""
    async for info in packs.store.list(quarantine.PREFIX):
        copy = quarantine.parse_copy(info)
        if copy is not None:
            yield copy


async def restore_quarantined(packs: PackStore, keys: Sequence[str]) -> list[Copy]:
    """Restore objects from quarantine. A key names the copy or its original.

    Raises BlobMissing before any change if one is not in quarantine. The next sweep may quarantine the
    objects again.
    """
    store = unwrap_store(packs.store)
    found: list[Copy] = []
    for key in keys:
        original = _find_original(key)
        copies = await quarantine.list_copies(store, original)
        if not copies:
            raise _make_missing_error(original)
        found.append(copies[0])
    for copy in found:
        if not await quarantine.restore(store, copy):
            raise _make_missing_error(copy.original)  # A sweep has deleted it since.
    return found


def _make_missing_error(original: str) -> BlobMissing:
    return BlobMissing(
        f"{original!r} is not in quarantine. `everlong sweep --quarantine list` lists what is."
    )


def _find_original(key: str) -> str:
    copy = quarantine.parse_copy(BlobInfo(key, 0))
    return key if copy is None else copy.original
