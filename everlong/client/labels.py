"""Labels of a thread, read from the server without a worker."""

from temporalio.client import Client

from everlong.client.errors import translate_errors
from everlong.models.search_attributes import LABELS


async def read_labels(client: Client, thread_id: str) -> tuple[str, ...]:
    """Return the labels of a thread. Raises `ThreadNotFound` if the server has none with this id."""
    with translate_errors(thread_id):
        described = await client.get_workflow_handle(thread_id).describe()
    return tuple(described.typed_search_attributes.get(LABELS) or ())
