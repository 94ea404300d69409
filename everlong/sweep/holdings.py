"""Holdings: whether a run, or a schedule, holds payloads that only Everlong's codec can read."""

from enum import IntEnum
from typing import Final

from google.protobuf.message import Message

from everlong.codecs.codec import INLINE_ENCODING
from everlong.codecs.refs import is_ref
from everlong.sweep.histories import Histories, Run
from everlong.sweep.searching import payloads_in

# All of our encodings hold it. A search in bytes takes microseconds, and most messages end there.
_MARK: Final = b"/everlong"
# A run that rolls while it is looked at is followed so far.
_ROLLS_MAX: Final = 8


class Holding(IntEnum):
    """What is held; refs need the store, and both need the codec."""

    NOTHING = 0
    INLINE = 1
    """Compressed or sealed payloads, and no refs."""
    REFS = 2


def holding_of(message: Message) -> Holding:
    """Return what a message holds, however deep."""
    found = Holding.NOTHING
    if _MARK not in message.SerializeToString():
        return found
    for payload, _ in payloads_in(message):
        if is_ref(payload):
            return Holding.REFS
        if payload.metadata.get("encoding") == INLINE_ENCODING:
            found = Holding.INLINE
    return found


async def read_holding(histories: Histories, run: Run) -> Holding:
    """Return what a run holds: its history, and for an open run its memo and activities too."""
    run_id, found = run.run_id, Holding.NOTHING
    for _ in range(_ROLLS_MAX):
        held, next_run_id = await _read_history(histories, run.workflow_id, run_id)
        found = max(found, held)
        if run.is_open and found is not Holding.REFS:
            described = await histories.describe(run.workflow_id, run_id)
            for message in described.holds if described is not None else ():
                found = max(found, holding_of(message))
        if found is Holding.REFS or not (run.is_open and next_run_id):
            break
        # It was open when it was listed; the next run is in no page of the listing.
        run_id = next_run_id
    return found


async def read_schedule_holding(histories: Histories, schedule_id: str) -> Holding:
    """Return what a schedule holds: the runs that it starts begin with it."""
    schedule = await histories.schedule(schedule_id)
    return Holding.NOTHING if schedule is None else holding_of(schedule)


async def _read_history(histories: Histories, workflow_id: str, run_id: str) -> tuple[Holding, str]:
    """Return what a history holds, up to its newest ref, and the run that continues it."""
    found, next_run_id = Holding.NOTHING, ""
    async for page in histories.events(workflow_id, run_id, 0):
        for event in page:
            rolled = event.workflow_execution_continued_as_new_event_attributes
            next_run_id = next_run_id or rolled.new_execution_run_id
            found = max(found, holding_of(event))
            if found is Holding.REFS:
                return found, next_run_id
    return found, next_run_id
