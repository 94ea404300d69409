"""A team's own workflow around a thread: it asks an agent the same question every night.

The loop is the team's; journal, context, compaction, limits and continue-as-new are Everlong's.
"""

from datetime import timedelta

from temporalio import workflow

from everlong import ThreadStart
from everlong.models import SendMessage
from everlong.workflows import Thread

NIGHTS = 5


@workflow.defn
class Nightly:
    """One run of the thread. Continue-as-new carries its state over, so it can run for years."""

    @workflow.run
    async def run(self, start: ThreadStart) -> str:
        """Ask every night; return why the thread ended."""
        thread = Thread(start)
        while thread.has_work or thread.state.counters.messages < NIGHTS:
            if not thread.has_work:
                thread.queue(SendMessage(text="Are the backups of tonight complete?"))
            while thread.has_work:
                if hit := thread.limit():
                    return hit.reason
                await thread.step()
                await thread.keep_small()
                if thread.roll_reason() is not None:
                    workflow.continue_as_new(thread.next_start())
            await workflow.sleep(timedelta(milliseconds=10))  # A night.
        await thread.flush()
        counters = thread.state.counters
        return f"{counters.answered} nights in {counters.runs} runs"
