"""Messages that were sent as refs: whether what their senders stored is here."""

from collections.abc import Sequence

from temporalio.exceptions import ApplicationError

from everlong.errors import BlobMissing
from everlong.models import MESSAGE_LOST, Entry, Kind, lost_entry
from everlong.storage.history import Reader


async def check_arrived(reader: Reader, tail: Sequence[Entry]) -> None:
    """Fail the turn of a message that its sender did not store, or not here.

    It is in no journal yet. In one, a part that is missing was there, and can be restored.
    """
    try:
        await reader.journal.messages([entry for entry in tail if _is_sent_as_ref(entry)])
    except BlobMissing as error:
        raise ApplicationError(
            f"the message is not in this store; its sender may use another. {error}",
            type=MESSAGE_LOST,
            non_retryable=True,
        ) from None


async def arrived(reader: Reader, entries: Sequence[Entry]) -> list[Entry]:
    """Return entries that can be read again: of a message that is not here, that it is not."""
    found: list[Entry] = []
    for entry in entries:
        try:
            if _is_sent_as_ref(entry):
                await reader.journal.messages([entry])
        except BlobMissing:
            entry = lost_entry(entry)
        found.append(entry)
    return found


def _is_sent_as_ref(entry: Entry) -> bool:
    return entry.kind == Kind.MESSAGE and entry.ref is not None
