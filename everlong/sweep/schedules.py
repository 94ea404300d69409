"""What the schedules of a namespace lead to: what they give to the workflows that they start."""

from collections.abc import Callable

from everlong.codecs.payloads import walk_payloads
from everlong.models import thread_key
from everlong.sweep.histories import Kept
from everlong.sweep.index import SweepIndex
from everlong.sweep.reading import Reader, Unreadable
from everlong.sweep.waiting import alive


class Schedules:
    """Reads schedules: those that are listed, and those that were, until Temporal says they are gone."""

    def __init__(
        self,
        index: SweepIndex,
        histories: Kept,
        reader: Reader,
        tell: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self._index = index
        self._histories = histories
        self._reader = reader
        self._tell = tell
        self._note = note

    async def read(self) -> None:
        """Note what each leads to, and make it a root."""
        async for page in self._histories.schedules():
            self._index.run_many(
                "INSERT OR IGNORE INTO schedules VALUES (?, '', '')", [(each,) for each in page]
            )
        for (schedule_id,) in self._index.run("SELECT schedule_id FROM schedules"):
            work = self._read(schedule_id)
            await alive(work, self._tell, "reading schedules")

    async def _read(self, schedule_id: str) -> None:
        holder = f"schedule/{schedule_id}"
        described = await self._histories.schedule(schedule_id)
        if described is None:
            with self._index.together():
                self._index.run("DELETE FROM schedules WHERE schedule_id = ?", schedule_id)
                self._index.forget(holder)
            return
        # What it holds lies in the place of the workflow that it names, which never runs by that id.
        workflow_id = described.schedule.action.start_workflow.workflow_id
        try:
            links = await self._reader.links_of(walk_payloads(described), workflow_id)
        except Unreadable as error:
            self._note(f"schedule {schedule_id!r}: {error}")
            return
        with self._index.together():
            self._index.forget(holder)
            self._index.add_links(holder, links)
            self._index.run("INSERT OR IGNORE INTO roots VALUES (?)", holder)
            self._index.run(
                "UPDATE schedules SET workflow_id = ?, thread = ? WHERE schedule_id = ?",
                workflow_id,
                thread_key(self._histories.namespace, workflow_id) if workflow_id else "",
                schedule_id,
            )
