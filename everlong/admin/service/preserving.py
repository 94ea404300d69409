"""What is archived before a sweep: threads that a limit has ended for that."""

from typing import Final

from temporalio.client import Client

from everlong.admin.service.due import archive_due
from everlong.errors import EverlongError
from everlong.models import SWEEP_REASONS_MAX, printable
from everlong.storage.packstore import PackStore
from everlong.sweep import Preserved
from everlong.telemetry import Spans

# In one sweep. The next one takes the rest, long before Temporal deletes the histories.
_ARCHIVES_MAX: Final = 1000
_REASON_CHARS_MAX: Final = 400


async def preserve(client: Client, packs: PackStore, spans: Spans | None = None) -> Preserved:
    """Archive what is due. What fails is told, and due again in the next sweep: nothing of it goes."""
    try:
        found = await archive_due(client, packs, count_max=_ARCHIVES_MAX, spans=spans)
    except EverlongError as error:
        return Preserved(failed=(printable(str(error), _REASON_CHARS_MAX),))
    more = () if found.is_complete else ("there are more that are due: the next sweep goes on",)
    reasons = [
        printable(each, _REASON_CHARS_MAX)
        for each in (*more, *found.failed, *found.unreadable)[:SWEEP_REASONS_MAX]
    ]
    return Preserved(len(found.archived), tuple(reasons))
