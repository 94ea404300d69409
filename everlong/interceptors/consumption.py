"""Consumption: payload bytes that workflow code has been handed, which a replay has to read again.

The count decides when a workflow continues as new (`everlong.workflows.should_continue_as_new`), so it
is the same in every replay. It counts decoded bytes of the jobs of activations. It leaves out what no
history holds, queries and updates that were not accepted; and what the run was started with, since the
next run would be started with it too.
"""

from typing import Final

from everlong.interceptors.payloads import payloads_of
from everlong.interceptors.sdk_internals import WorkflowActivation, WorkflowActivationCompletion

_NOT_CONSUMED: Final = frozenset({"initialize_workflow", "query_workflow"})


class Consumption:
    """Counts the payload bytes of one workflow instance, activation by activation."""

    def __init__(self) -> None:
        self._bytes = 0
        self._offered: dict[str, int] = {}

    def consumed_bytes(self) -> int:
        """Return the bytes up to and including the activation that is being carried out."""
        return self._bytes

    def activating(self, activation: WorkflowActivation) -> None:
        """Count what an activation is about to hand over."""
        self._offered = {}
        for job in activation.jobs:
            kind = job.WhichOneof("variant")
            if kind is None or kind in _NOT_CONSUMED:
                continue
            size_bytes = sum(len(each.data) for each in payloads_of(getattr(job, kind)))
            if kind == "do_update":
                # A rejected update leaves no event: a replay would not count it.
                self._offered[job.do_update.protocol_instance_id] = size_bytes
            else:
                self._bytes += size_bytes

    def activated(self, completion: WorkflowActivationCompletion) -> None:
        """Count the updates that were accepted."""
        for command in completion.successful.commands:
            if command.HasField("update_response") and command.update_response.HasField("accepted"):
                instance_id = command.update_response.protocol_instance_id
                self._bytes += self._offered.pop(instance_id, 0)
