"""A thread inside a workflow: its operational state, and the steps that can be taken on it.

It holds refs, never bodies. Between steps all that matters is in `state`. A run may end at any of
those points, and the next one begins with the same state. `everlong.Agent` is made of it; a team's own
workflow can be too, on a worker that has the plugin and an agent.
"""

import dataclasses
from typing import Any, Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from everlong import limits
from everlong.errors import LimitReached
from everlong.models import (
    APPEND_JOURNAL,
    CALL_MODEL,
    COMPACT,
    CONTEXT_TOO_LARGE,
    Append,
    Appended,
    Compact,
    CompactDone,
    Context,
    Decide,
    Kind,
    Message,
    ModelCall,
    ModelTurn,
    Report,
    SendMessage,
    ThreadStart,
    seq_after,
    thread_key,
)
from everlong.policy import LimitHit, Policy, RollReason, RunSize, limit_hit, roll_reason
from everlong.workflows import approvals, transitions
from everlong.workflows.calls import ToolRunner
from everlong.workflows.executing import Executor, attempts, reason_of, type_of

_MODEL: Final = attempts()
_STORE: Final = attempts(0)
_COMPACT: Final = attempts(3)


class Thread:
    """One run of a thread. Make it from the workflow's argument, which `next_start` carries over."""

    def __init__(self, start: ThreadStart) -> None:
        self.agent = start.agent
        self.parent = start.parent
        self.state = start.state
        self.stopping = False
        """Set it to have the steps under way end as soon as they can."""
        self._policy = start.policy
        self._changes = start.changes
        self._executor = Executor(self)
        self._tools = ToolRunner(self, self._executor)

    @property
    def policy(self) -> Policy:
        """The thread's policy: its own, else the agent's, once a worker has said it."""
        return self._policy or Policy().changed(self._changes)

    @property
    def held_by(self) -> str:
        """What the thread waits for, if it is held."""
        return self._executor.held_by

    def end_status(self) -> str:
        """Return what the thread is once it has ended."""
        ended = self.state.ended
        return "archived" if ended is not None and ended.action == "archive" else "stopped"

    def reported(self, report: Report) -> None:
        """Take in what a sub-agent's thread says."""
        self._tools.reported(report)

    # Messages and turns.

    def why_refused(self, message: SendMessage) -> str:
        """Return why a message cannot be queued, or an empty string."""
        info = workflow.info()
        return transitions.why_refused(
            self.state, message, thread_key(info.namespace, info.workflow_id)
        )

    def queue(self, message: SendMessage) -> int:
        """Queue a message, unless it has been; return its number."""
        if (number := transitions.number_of(self.state, message)) is not None:
            return number
        self.state = transitions.queue(self.state, message)
        return self.state.counters.messages

    @property
    def has_work(self) -> bool:
        """Whether a step can be taken. Otherwise a message or a person's decision is waited for."""
        if self.state.calls:
            return any(self._tools.is_runnable(call) for call in self.state.calls) or all(
                call.result for call in self.state.calls
            )
        return self.state.in_turn or bool(self.state.inbox)

    async def step(self) -> None:
        """Take one step: run what tools can be run, else call the model. Begin a turn if need be."""
        if not self.state.in_turn:
            self.state = transitions.begin_turn(self.state, self.now_ms())
        if self.state.calls:
            await self._tools.run()
            if all(call.result for call in self.state.calls):
                self.state = transitions.settle(self.state, self.now_ms())
            return
        if reason := self._why_turn_ends():
            await self.fail_turn(reason)
            return
        await self._call_model()

    async def fail_turn(self, reason: str) -> None:
        """End a turn that has no answer. The reason is journalled, and the thread stays usable."""
        state = transitions.take_notes(self.state)
        seq = seq_after(state.head, state.tail)
        message = Message(role="failure", text=reason)
        self.state = transitions.add_message(state, Kind.FAILURE, message, self.now_ms())
        await self.flush()
        self.state = transitions.end_turn(self.state, seq, failure=reason)

    async def _call_model(self) -> None:
        self.state = transitions.take_notes(self.state)
        call = ModelCall(context=self.context(), tail=self.state.tail)
        try:
            turn = await self._executor.execute(CALL_MODEL, call, ModelTurn, _MODEL)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            if not (type_of(error) == CONTEXT_TOO_LARGE and await self.compact("provider")):
                await self.fail_turn(reason_of("the model call failed", error))
            return
        if self._policy is None:
            self._policy = Policy().changed({**(turn.policy or {}), **self._changes})
        self.state = transitions.after_model(self.state, turn)
        self.state = approvals.ask(self.state, self.now_ms())
        self._note_due_compaction()
        if not turn.tool_calls:
            self.state = transitions.end_turn(self.state, seq_after(turn.head) - 1)

    def _why_turn_ends(self) -> str:
        policy = self.policy
        if self.state.turn_steps >= policy.turn_steps_max:
            return f"the turn reached {policy.turn_steps_max} model calls"
        if self.state.streaks.refused_steps >= policy.refused_calls_max:
            return (
                f"the model called tools that do not exist, or with arguments that do not fit, in "
                f"{policy.refused_calls_max} steps in a row"
            )
        return ""

    # Approvals.

    def why_undecided(self, decide: Decide, key: str = "") -> str:
        """Return why a decision does not count, or an empty string. `key` names the request."""
        return approvals.why_refused(self.state, decide, key)

    def decide(self, decide: Decide, key: str = "") -> None:
        """Take in a person's decision about a call; once, if a request is sent again."""
        self.state = approvals.decide(self.state, decide, self.now_ms(), key)

    # Size.

    def note(self, kind: Kind, data: object) -> None:
        """Add something that is no message to the journal, at the next chance."""
        self.state = transitions.add_note(self.state, kind, data, self.now_ms())

    @property
    def should_flush(self) -> bool:
        """Whether it is time to journal what has not been.

        A message or results alone are journalled by the model call that comes next.
        """
        state = self.state
        if state.in_turn and not state.notes and not state.calls:
            return False
        return transitions.unjournalled_bytes(state) > limits.TAIL_BYTES_MAX

    async def flush(self) -> None:
        """Journal what no model call will, so that nothing is left in memory."""
        self.state = transitions.take_notes(self.state)
        if self.state.tail:
            append = Append(head=self.state.head, entries=self.state.tail)
            appended = await self._executor.execute(APPEND_JOURNAL, append, Appended, _STORE)
            self.state = transitions.after_append(self.state, appended)

    async def keep_small(self) -> None:
        """Journal a long tail, and compact if the policy wants it."""
        if self.should_flush:
            await self.flush()
        if self.state.compaction_due_ms is not None:
            await self.compact("policy")
        size_bytes = transitions.state_bytes(self.state)
        if size_bytes > limits.STATE_BYTES_MAX:
            raise LimitReached(
                f"operational state has {size_bytes} bytes; {limits.STATE_BYTES_MAX} is the most"
            )

    async def compact(self, reason: str) -> bool:
        """Shorten the context, and return whether that was possible.

        What belongs to a step under way stays as it is.
        """
        await self.flush()
        if self.state.head is None:
            return False
        keep_from_seq = seq_after(self.state.head)
        if self.state.calls:
            keep_from_seq = int(self.state.calls[0].id.split("-")[0])
        compact = Compact(context=self.context(), keep_from_seq=keep_from_seq)
        try:
            done = await self._executor.execute(COMPACT, compact, CompactDone, _COMPACT)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            # A thread that cannot be compacted goes on until its context reaches a limit.
            workflow.logger.warning("compaction failed: %s", reason_of("it", error))
            self.state = dataclasses.replace(self.state, compaction_due_ms=None)
            return False
        self.state = transitions.after_compaction(self.state, done, reason, self.now_ms())
        return done.after_bytes < done.before_bytes

    def _note_due_compaction(self) -> None:
        state, policy = self.state, self.policy
        due = (
            state.context_bytes >= min(policy.compact_at_bytes, policy.context_bytes_max)
            or state.context_tokens >= policy.compact_at_tokens
        )
        if due and state.compaction_due_ms is None:
            self.state = dataclasses.replace(state, compaction_due_ms=self.now_ms())

    # The run and the policy.

    def limit(self) -> LimitHit | None:
        """Return the limit that the thread has reached, if it has."""
        return limit_hit(self.policy, transitions.usage(self.state))

    def configure(self, changes: dict[str, Any]) -> None:
        """Change fields of the policy; raise `ValueError` for what is wrong."""
        changed = self.policy.changed(changes)
        if self._policy is None:  # The agent's own is not known yet.
            self._changes = {**self._changes, **changes}
        else:
            self._policy = changed

    def roll_reason(self) -> RollReason | None:
        """Return why the run should end at the next safe point: between two steps."""
        return roll_reason(self.policy, self.run_size())

    def run_size(self) -> RunSize:
        """Return how large the run has become."""
        info = workflow.info()
        return RunSize(
            events=info.get_current_history_length(),
            history_bytes=info.get_current_history_size(),
            server_suggests=info.is_continue_as_new_suggested(),
            offloaded_bytes=self._executor.offloaded_bytes,
            blobs=self._executor.blobs,
        )

    def next_start(self) -> ThreadStart:
        """Return the argument of the next run."""
        return ThreadStart(
            agent=self.agent,
            policy=self._policy,
            changes={} if self._policy else self._changes,
            state=transitions.counted(self.state, runs=1),
            parent=self.parent,
        )

    def context(self) -> Context:
        """Return what an activity has to know of the thread."""
        return Context(
            agent=self.agent,
            head=self.state.head,
            snapshot=self.state.snapshot,
            now_ms=self.now_ms(),
            policy=None if self._policy is None else self._policy.differences(),
        )

    def now_ms(self) -> int:
        """Return the workflow's time."""
        return int(workflow.now().timestamp() * 1000)
