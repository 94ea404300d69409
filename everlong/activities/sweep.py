"""The `everlong.sweep` activity."""

import shutil
import tempfile
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from temporalio import activity
from temporalio.client import Client

from everlong import limits
from everlong.models import SWEEP, SweepOptions, SweepReport
from everlong.storage.pack_store import PackStore
from everlong.sweep import ArchivedThreads, Histories, Sweep
from everlong.sweep.sweep import run_with_telemetry
from everlong.telemetry import Telemetry

ArchiveDue: TypeAlias = Callable[[Client, PackStore], Awaitable[ArchivedThreads]]


class SweepActivities:
    """Sweeps inside a worker, which has the keys and the codecs of its team.

    `archive_due` is awaited before each sweep. Without `index_dir` the index is in a temporary
    directory; a new process reads it from the store.
    """

    def __init__(
        self,
        packs: PackStore,
        telemetry: Telemetry,
        index_dir: Path | None = None,
        archive_due: ArchiveDue | None = None,
    ) -> None:
        self._packs = packs
        self._telemetry = telemetry
        self._index_dir = index_dir
        self.archive_due = archive_due

    @activity.defn(name=SWEEP)
    async def sweep(self, options: SweepOptions) -> SweepReport:
        """Sweep the namespace of this worker."""
        client, run_id = activity.client(), activity.info().workflow_run_id or ""
        sweep = Sweep(
            Histories(client),
            client.data_converter.payload_codec,
            self._packs,
            options,
            index_dir=self._get_directory(),
            on_progress=activity.heartbeat,
            archive_due=(
                None if self.archive_due is None else partial(self.archive_due, client, self._packs)
            ),
            attempt_of=run_id,
            seconds_max=limits.SWEEP_ACTIVITY_SECONDS_MAX,
        )
        return await run_with_telemetry(sweep, self._telemetry, run_id)

    def _get_directory(self) -> Path:
        if self._index_dir is None:
            self._index_dir = Path(tempfile.mkdtemp(prefix="everlong-sweep-"))
            weakref.finalize(self, shutil.rmtree, self._index_dir, ignore_errors=True)
        return self._index_dir
