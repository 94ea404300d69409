"""Size policy for any workflow: whether the run has become so large that it should continue as new."""

from temporalio import workflow

from everlong.models import CONSUMED_FUNCTION
from everlong.policy import Policy, RunSize, roll_reason


def should_continue_as_new(policy: Policy | None = None) -> bool:
    """Return whether the current run should continue as new at its next safe point.

    Where payloads are offloaded the history stays small, so the server does not suggest it in time,
    though every resume reads all results from the store again. This looks at the events and bytes of
    the history, at the payload bytes that the run has consumed since it started (results, signals,
    updates), at how long a resume is expected to take, and at the server's suggestion. Call it in
    workflow code, at the end of a step.

    The answer is the same in a replay. A change of the policy is a change of workflow code: patch it
    as any other. On a worker without the plugin, or without its activation hooks (its log says so), only
    the history and the server's suggestion count. So a run whose payloads are offloaded must not move
    from such a worker to one with hooks: a replay there would end the run earlier than it did.

    Args:
        policy: Bounds `run_*_max` and `resume_seconds_max`; the defaults if not given.

    """
    info = workflow.info()
    history_bytes = info.get_current_history_size()
    consumed = workflow.extern_functions().get(CONSUMED_FUNCTION)
    consumed_bytes = int(consumed()) if consumed is not None else 0
    size = RunSize(
        events=info.get_current_history_length(),
        history_bytes=history_bytes,
        server_suggests=info.is_continue_as_new_suggested(),
        # Plain payloads are part of the history. So a run from before the plugin answers as it did.
        offloaded_bytes=max(0, consumed_bytes - history_bytes),
    )
    return roll_reason(policy or Policy(), size) is not None
