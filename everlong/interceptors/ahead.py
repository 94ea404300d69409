"""Noticing a workflow that a query has run ahead of its history.

On SDK 1.35, a query that a cold worker answers while a workflow task is scheduled and not started
makes Core hand the events of that task to the workflow. What comes later in the task, an update say,
is then applied after them; every replay applies it before them, so the history could not be replayed
(the SDK's issue 1591 is a case of it). Such an instance answers its query and has to leave the cache:
the task is then carried out by another, from the beginning.
"""

from everlong.interceptors.sdk_internals import WorkflowActivation

_ASIDE = frozenset({"query_workflow", "remove_from_cache"})


class RunAhead:
    """Watches the activations of one workflow instance."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def noticed(self, activation: WorkflowActivation) -> bool:
        """Whether this activation brings events of a task that has not been started.

        A task that has been has a time of its own; this one has more events and the time of the last.
        """
        if {job.WhichOneof("variant") for job in activation.jobs} <= _ASIDE:
            return False
        last, self._last = (
            self._last,
            (activation.history_length, activation.timestamp.ToNanoseconds()),
        )
        if last is None or activation.is_replaying:
            return False
        return activation.history_length > last[0] and self._last[1] == last[1]
