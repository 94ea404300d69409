"""Detection of a workflow instance that a query has run ahead of its history.

On SDK 1.33 to 1.35, a query that a cold worker answers while a workflow task is scheduled but not yet
started makes Core hand the events of that task to the workflow. What comes later, an update say,
is then applied after them; every replay applies it before them, so the history could not be replayed
(the SDK's issue 1591 is a case of it). Such an instance answers its query and has to leave the cache:
the task is then carried out by another, from the beginning.

Core sends an instance that is ahead these activations: a replay up to the last task, the events of the
task that has not been started, and then the query.
"""

from typing import Final

from everlong.interceptors.sdk_internals import WorkflowActivation

# The id that Core gives to a query that is not part of a workflow task: only such a query runs ahead.
LEGACY_QUERY_ID: Final = "legacy_query"
_ASIDE: Final = frozenset({"query_workflow", "remove_from_cache"})


class RunAhead:
    """Watches the activations of one workflow instance."""

    def __init__(self) -> None:
        self._last: tuple[int, int, int] | None = None
        self._is_ahead = False

    def noticed(self, activation: WorkflowActivation) -> bool:
        """Whether this activation brings events of a task that has not been started.

        The event that starts a task gives it a time and the size of the history. Events without that
        one come with the time and the size of the task before. The time alone shows nothing: after the
        server's clock has stepped back, Core repeats the last time for each task until the clock has
        caught up. The size grows with each task. A server that does not send it (0) is too old for
        updates, which are what an instance that is ahead gets wrong.
        """
        if {job.WhichOneof("variant") for job in activation.jobs} <= _ASIDE:
            return False
        length, size_bytes = activation.history_length, activation.history_size_bytes
        last = self._last
        self._last = (length, size_bytes, activation.timestamp.ToNanoseconds())
        if last is None or activation.is_replaying or not size_bytes or self._last[1:] != last[1:]:
            self._is_ahead = False
        else:
            # One that is ahead stays so in further activations of the same events.
            self._is_ahead = self._is_ahead or length > last[0]
        return self._is_ahead

    def must_leave(self, activation: WorkflowActivation) -> bool:
        """Whether this activation is the query that has run the instance ahead of its history."""
        return self._is_ahead and any(
            job.query_workflow.query_id == LEGACY_QUERY_ID for job in activation.jobs
        )
