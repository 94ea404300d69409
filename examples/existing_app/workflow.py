"""A team's own workflow: each step passes the whole list. Nothing in this file knows Everlong."""

import uuid
from datetime import timedelta

from temporalio import activity, workflow


@activity.defn
async def research(notes: list[str]) -> str:
    """Stand in for a model that reads all notes and returns 20 KB."""
    return "".join(f"{uuid.uuid4()} " for _ in range(550))


@workflow.defn
class Report:
    """Researches a draft, waits for its editor, and researches the rest."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._is_read = False

    @workflow.run
    async def run(self, steps: int) -> int:
        """Return the number of characters in all notes."""
        await self._research(steps // 2)
        await workflow.wait_condition(lambda: self._is_read)
        await self._research(steps)
        return sum(map(len, self._notes))

    @workflow.update
    async def wait_for_draft(self, steps: int) -> None:
        """Return once the draft is complete."""
        await workflow.wait_condition(lambda: len(self._notes) >= steps // 2)

    @workflow.signal
    def go_on(self) -> None:
        """Continue: the editor has read the draft."""
        self._is_read = True

    async def _research(self, steps: int) -> None:
        while len(self._notes) < steps:
            note = await workflow.execute_activity(
                research, self._notes, start_to_close_timeout=timedelta(seconds=30)
            )
            self._notes.append(note)
