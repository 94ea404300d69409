"""Continue-as-new: measures a run, and prepares a thread's state for the next run.

`policy.continue_as_new` decides by the size whether the run should end. `AgentWorkflow` ends it between
two steps.
"""

from temporalio import workflow

from everlong.models import CONSUMED_FUNCTION, Entry, Kind, ThreadState, Turn, add_data
from everlong.models.state import replace_values
from everlong.policy import Policy, RunSize, find_roll_reason
from everlong.workflows import transitions


def should_continue_as_new(policy: Policy | None = None) -> bool:
    """Return whether the current run should continue as new at its next safe point.

    If payloads are offloaded, the history stays small, and the server does not suggest it in time. But
    every resume reads all results from the store again. This function checks the events and bytes of the
    history, the payload bytes that the run has consumed since its start (results, signals, updates), the
    expected time of a resume, and the server's suggestion. Call it in workflow code, at the end of a
    step.

    The answer is the same in a replay. A change of the policy is a change of workflow code: patch it
    like any other. On a worker without the plugin, or without its activation hooks (a warning in its log
    reports that), only the history and the server's suggestion count. So a run whose payloads are
    offloaded must not move from such a worker to one with hooks: the replay there would end the run
    earlier than it did.

    Args:
        policy: Bounds `run_*_max` and `resume_seconds_max`; the defaults if not given.

    """
    history_bytes = workflow.info().get_current_history_size()
    consumed = workflow.extern_functions().get(CONSUMED_FUNCTION)
    consumed_bytes = int(consumed()) if consumed is not None else 0
    # Plain payloads are part of the history, so a run from before the plugin gets the same answer.
    size = measure_run(offloaded_bytes=max(0, consumed_bytes - history_bytes))
    return find_roll_reason(policy or Policy(), size) is not None


def measure_run(*, offloaded_bytes: int, blobs: int = 0, first_bytes: int = 0) -> RunSize:
    """Return the size of the current run. The first `first_bytes` of its history do not count."""
    info = workflow.info()
    return RunSize(
        events=info.get_current_history_length(),
        history_bytes=max(0, info.get_current_history_size() - first_bytes),
        server_suggests=info.is_continue_as_new_suggested(),
        offloaded_bytes=offloaded_bytes,
        blobs=blobs,
    )


def carry_into_next_run(state: ThreadState, turn: Turn | None) -> ThreadState:
    """Return the state that the next run begins with. `turn` is the current turn; None between turns.

    It has the start of the turn's part in this run, which the next run records in its span.
    """
    info = workflow.info()
    state = transitions.add_to_counters(state, runs=1)
    if turn is not None:
        last_run = info.continued_run_id or ""
        state = replace_values(state, turn_ms=turn.began_ms, carried_after=last_run)
    return carry_approvals(state, info.run_id)


def carry_approvals(state: ThreadState, run_id: str) -> ThreadState:
    """Return the state for the next run: each pending approval names the run that asked.

    So do the decisions that are not journalled yet. A run id from an earlier continue-as-new stays.
    """
    calls = tuple(
        replace_values(call, waits=replace_values(call.waits, asked_run=run_id))
        if call.waits is not None and call.waits.asked_run is None
        else call
        for call in state.calls
    )

    def add_run(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        return tuple(
            add_data(each, asked_run=run_id) if each.kind == Kind.DECIDED else each
            for each in entries
        )

    return replace_values(state, calls=calls, tail=add_run(state.tail), notes=add_run(state.notes))
