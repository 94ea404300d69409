"""Which turn a step is a part of, for those who trace it. A turn may go on over several runs."""

from temporalio import workflow

from everlong.models import ThreadState, Turn
from everlong.models.state import with_values


def under_way(state: ThreadState) -> Turn | None:
    """Return the turn that is under way, if one is."""
    return _turn(state) if state.in_turn else None


def ended(state: ThreadState) -> Turn | None:
    """Return the turn that ends with what is journalled now, if it ends without an answer."""
    ends = state.failed_turn is not None or (state.stopping and state.in_turn)
    return _turn(state) if ends else None


def error_type(state: ThreadState) -> str:
    """Return why the turn that ends now has no answer: its failure, or that the thread was stopped."""
    if state.failed_turn is not None:
        return state.failed_turn.error_type
    return "Stopped" if state.stopping and state.in_turn else ""


def last_run() -> str:
    """Return the id of the run before this one; empty if this is the first."""
    return workflow.info().continued_run_id or ""


def run_began_ms() -> int:
    """Return when this run began."""
    return int(workflow.info().workflow_start_time.timestamp() * 1000)


def carried(state: ThreadState) -> ThreadState:
    """Return the state as the next run gets it: with what that has to tell of the turn's part here."""
    if not state.in_turn:
        return state
    turn = _turn(state)
    return with_values(state, turn_ms=turn.began_ms, carried_after=last_run())


def _turn(state: ThreadState) -> Turn:
    return Turn(number=state.counters.answered + 1, began_ms=max(state.turn_ms, run_began_ms()))
