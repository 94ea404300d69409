"""Sweeps: running one here, having them run by a schedule, and undoing what they did."""

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

from everlong.client.due import archive_before_sweep
from everlong.client.errors import translated_rpc
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
from everlong.storage.quarantine import Copy, bare
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
    """Sweep the client's namespace here and now, beside whatever else runs.

    Threads that a limit has ended to be archived are archived first.
    What `index_dir` holds makes the next sweep cheap. `allow_short_quarantine`
    accepts a quarantine that is too short to be safe, for tests.
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
    """Return the report of the newest sweep of the namespace that came to its end, if there is one."""
    namespace_id = await Histories(client).namespace_id()
    return await Records(bare(packs.store), namespace_id).last_report()


async def schedule_sweeps(
    client: Client, every_seconds: float, options: SweepOptions, *, task_queue: str
) -> None:
    """Have workers sweep the namespace again and again; one sweep at a time."""
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

    async def replaced(_: ScheduleUpdateInput) -> ScheduleUpdate:
        return ScheduleUpdate(schedule)

    try:
        try:
            await client.create_schedule(SWEEPER_SCHEDULE, schedule)
        except ScheduleAlreadyRunningError:
            await client.get_schedule_handle(SWEEPER_SCHEDULE).update(replaced)
    except RPCError as error:
        raise translated_rpc(error, SWEEPER_SCHEDULE) from error


async def unschedule_sweeps(client: Client) -> bool:
    """Have no more sweeps run by themselves; return whether there was a schedule."""
    try:
        await client.get_schedule_handle(SWEEPER_SCHEDULE).delete()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return False
        raise translated_rpc(error, SWEEPER_SCHEDULE) from error
    return True


async def read_sweep_interval(client: Client) -> float | None:
    """Return how often workers sweep the namespace; None if they do not."""
    try:
        found = await client.get_schedule_handle(SWEEPER_SCHEDULE).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise translated_rpc(error, SWEEPER_SCHEDULE) from error
    intervals = found.schedule.spec.intervals
    return intervals[0].every.total_seconds() if intervals else None


async def list_quarantined(packs: PackStore) -> AsyncIterator[Copy]:
    """Yield what lies in quarantine."""
    async for info in packs.store.list(quarantine.PREFIX):
        copy = quarantine.parse_copy(info)
        if copy is not None:
            yield copy


async def restore_quarantined(packs: PackStore, keys: Sequence[str]) -> list[Copy]:
    """Put objects back; a key is a copy's or its original's. The next sweep may take them again.

    What cannot be found is `BlobMissing`, before anything is changed.
    """
    store = bare(packs.store)
    found: list[Copy] = []
    for key in keys:
        original = _original(key)
        copies = await quarantine.copies_of(store, original)
        if not copies:
            raise _missing(original)
        found.append(copies[0])
    for copy in found:
        if not await quarantine.restore(store, copy):
            raise _missing(copy.original)  # It was deleted for good meanwhile.
    return found


def _missing(original: str) -> BlobMissing:
    return BlobMissing(
        f"{original!r} is not in quarantine. `everlong sweep --quarantine list` tells what is."
    )


def _original(key: str) -> str:
    copy = quarantine.parse_copy(BlobInfo(key, 0))
    return key if copy is None else copy.original
