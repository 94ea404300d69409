"""Thread: a thread's operational state inside a workflow, and the steps that change it.

It holds refs, never bodies. Between two steps `state` is complete: a run may end there, and the next run
begins with the same state. `everlong.Agent` is built on it. A team's own workflow can use it too, on a
worker that has the plugin and the agent.
"""

import contextlib
from typing import Any, Final, Literal

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from everlong import limits
from everlong.errors import LimitReached
from everlong.models import (
    APPEND_JOURNAL,
    CALL_MODEL,
    CHECK_DECISION,
    COMPACT,
    CONTEXT_TOO_LARGE,
    MESSAGE_LOST,
    POLICY_FUNCTION,
    SENT,
    STORE_GRANT,
    Append,
    AppendResult,
    Call,
    CallStatus,
    CheckDecision,
    Compact,
    CompactResult,
    Context,
    ControlNote,
    Decide,
    DecisionCheck,
    Grant,
    Kind,
    ModelCall,
    ModelTurn,
    Report,
    Resolve,
    RevokeGrant,
    SendMessage,
    Status,
    StoreGrant,
    ThreadStart,
    ThreadState,
    Turn,
    make_printable,
    seq_after,
    short_digest,
    thread_key,
)
from everlong.models.grants import for_display
from everlong.models.state import replace_values
from everlong.policy import LimitHit, Policy, RollReason, RunSize, find_limit_hit, find_roll_reason
from everlong.workflows import approvals, grants, outcomes, transitions, visibility
from everlong.workflows.activity_executor import (
    ActivityExecutor,
    StepAbandoned,
    build_retry_policy,
    describe_failure,
    get_failure_type,
)
from everlong.workflows.continue_as_new import carry_into_next_run, measure_run
from everlong.workflows.notices import NoticeOutbox, add_budget_notices
from everlong.workflows.tool_calls import ToolRunner

_MODEL: Final = build_retry_policy()
_STORE: Final = build_retry_policy(0)
_COMPACT: Final = build_retry_policy(3)


class DecisionNotApplied(Exception):
    """A decision was refused after it had been accepted: the update fails with this reason."""


class Thread:
    """One run of a thread. Create it from the workflow's argument; `next_start` returns the next one."""

    def __init__(self, start: ThreadStart) -> None:
        self.agent = start.agent
        self.parent = start.parent
        self.state = start.state
        self._policy = start.policy
        self._changes = start.changes
        self._executor = ActivityExecutor(self)
        self._tools = ToolRunner(self, self._executor)
        self._outbox = NoticeOutbox(self)
        # Only growth since the start counts: a start above the bound would end every run at once.
        self._first_bytes = workflow.info().get_current_history_size()

    @property
    def policy(self) -> Policy:
        """The thread's policy. Until the first reply reports the agent's own, the default is used."""
        return self._policy or Policy().with_changes(self._changes)

    def find_policy(self) -> tuple[Policy, Literal["thread", "agent", "default"]]:
        """Return the policy for people, and where it is from. Only a query may call this.

        Before the first reply it is that of the agent on the worker which answers: a query is not
        replayed, so it may depend on the worker.
        """
        if self._policy is not None:
            return self._policy, "thread"
        find = workflow.extern_functions().get(POLICY_FUNCTION)
        own: Policy | None = find(self.agent) if find is not None else None
        with contextlib.suppress(ValueError):  # As in `_adopt`.
            return (own or Policy()).with_changes(self._changes), "agent" if own else "default"
        return own or Policy(), "agent"

    @property
    def stopping(self) -> bool:
        """Whether the thread is about to end. A step in progress ends as soon as it can."""
        return self.state.stopping

    def stop(self, *, archiving: bool = False) -> None:
        """Make the thread end. With `archiving`, now or in an earlier call, it ends as `archived`."""
        archiving = archiving or self.state.archiving
        self.state = replace_values(self.state, stopping=True, archiving=archiving)

    @property
    def held_by(self) -> str:
        """Text of a hold; empty if the thread is not held."""
        return self._executor.held_by

    @property
    def retried(self) -> str:
        """Type of the activity that is tried again and again; empty if none is."""
        return self._executor.retried

    def take_call_status(self, signalled: CallStatus) -> None:
        """Take in what a running activity signals of itself, and publish the change."""
        if self._executor.take_call_status(signalled):
            visibility.publish_status(self)

    @property
    def end_status(self) -> Status:
        """Status of the thread after its end."""
        ended = self.state.ended
        by_limit = ended is not None and ended.action == "archive"
        return Status.ARCHIVED if by_limit or self.state.archiving else Status.DONE

    def take_report(self, report: Report) -> None:
        """Record the report of a sub-agent's thread."""
        self._tools.take_report(report)

    # Messages and turns.

    def explain_message_refusal(self, message: SendMessage) -> str:
        """Return why a message is refused; empty if it is accepted."""
        info = workflow.info()
        return transitions.explain_refusal(
            self.state, message, thread_key(info.namespace, info.workflow_id)
        )

    def queue(self, message: SendMessage) -> int:
        """Queue a message, unless it was queued before. Return its number."""
        if (number := transitions.find_number(self.state, message)) is not None:
            return number
        self.state = transitions.queue(self.state, message)
        self._executor.count_read(transitions.measure_message(message))
        return self.state.counters.messages

    @property
    def has_work(self) -> bool:
        """Whether a step can be taken. Otherwise the thread waits for a message or a decision."""
        if self.state.calls:
            return any(self._tools.is_runnable(call) for call in self.state.calls) or all(
                call.result for call in self.state.calls
            )
        return self.state.in_turn or bool(self.state.inbox)

    async def step(self) -> None:
        """Take one step: run the tool calls that can run, else call the model. Begin a turn if needed.

        If a step is held until the run should end, it is left as it is, and the next run continues it.
        So check `roll_reason` after each step.
        """
        self.send_notices()
        with contextlib.suppress(StepAbandoned):
            await self._step()
        if self.roll_reason() is None:  # Else the next run sends them.
            self.send_notices()

    async def _step(self) -> None:
        if not self.state.in_turn:
            self.state = transitions.begin_turn(self.state, self.now_ms())
        if self.state.calls:
            await self._tools.run()
            if all(call.result for call in self.state.calls):
                self.state = transitions.settle(self.state, self.now_ms())
            return
        if reason := self._explain_turn_end():
            await self.fail_turn(reason)
            return
        await self._call_model()

    async def fail_turn(self, reason: str, error_type: str = "LimitReached") -> None:
        """End the turn without an answer. The reason is journalled, and the thread stays usable."""
        self.state = transitions.fail_turn(self.state, reason, self.now_ms(), error_type)
        await self.flush()

    async def _call_model(self) -> None:
        self.state = transitions.take_notes(self.state)
        call = ModelCall(
            context=self.context(),
            tail=self.state.tail,
            acts_on=self.state.acts_on,
            state_bytes=transitions.measure_state(self.state),
            thread_bytes=self.state.counters.written_bytes,
            growth_bytes_per_hour=round(visibility.compute_growth(self.state, self.now_ms())),
            steps=self.state.counters.steps,
            grants=grants.list_active(self.state, self.now_ms()),
        )
        try:
            turn = await self._executor.execute(CALL_MODEL, call, ModelTurn, _MODEL)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self.state = replace_values(self.state, acts_on=())
            if get_failure_type(error) == MESSAGE_LOST:
                self.state = transitions.replace_lost_messages(self.state)
            # If the compaction is held, the step stays as it is, and the next run calls the model again.
            if not (
                get_failure_type(error) == CONTEXT_TOO_LARGE and await self._compact("provider")
            ):
                reason = describe_failure("the model call failed", error)
                await self.fail_turn(reason, get_failure_type(error) or type(error.cause).__name__)
            return
        if self._policy is None:
            self._adopt(Policy().with_changes(turn.policy or {}))
        self.state = transitions.apply_reply(self.state, turn)
        self.state = approvals.request(self.state, self.now_ms(), turn.tool_calls)
        if not turn.tool_calls:
            self.state = transitions.end_turn(self.state, seq_after(turn.head) - 1)

    def _adopt(self, own: Policy) -> None:
        """Use the agent's own policy, with the changes that were configured before it was known."""
        try:
            self._policy = own.with_changes(self._changes)
        except ValueError as error:  # The changes contradict the agent's policy.
            self._policy = own
            reason = make_printable(f"not configured: {error}", limits.REASON_CHARS_MAX)
            self.note(Kind.CONTROL, ControlNote(action="configure", by="policy", reason=reason))

    def _explain_turn_end(self) -> str:
        policy = self.policy
        if self.state.turn_steps >= policy.turn_steps_max:
            return f"the turn reached {policy.turn_steps_max} model calls"
        if self.state.streaks.refused_steps >= policy.refused_calls_max:
            return (
                f"the model called tools that do not exist, or with invalid arguments, in "
                f"{policy.refused_calls_max} steps in a row"
            )
        return ""

    # Approvals.

    def explain_decision_refusal(self, decide: Decide, key: str = "") -> str:
        """Return why a decision is refused; empty if it is accepted. `key` identifies the request."""
        return approvals.explain_refusal(self.state, decide, self.now_ms(), key)

    async def decide(self, decide: Decide, key: str = "") -> str:
        """Apply a decision on an approval. A request that is sent again changes nothing.

        A worker checks the arguments that it changes, and what it allows beyond the call. Raises
        `DecisionNotApplied` if the decision is refused then. Returns what is missing if the decision is
        applied, but its grant is perhaps not stored.
        """
        if approvals.is_applied(self.state, decide.id, key):
            return ""
        if decide.arguments is None and decide.always is None:
            self.state = approvals.decide(self.state, decide, self.now_ms(), key, SENT.get())
            return ""
        if reason := self.explain_decision_refusal(decide, key):
            raise DecisionNotApplied(reason)
        call = approvals.find_call(self.state, decide.id)
        check = await self._check_decision(decide, call)
        # The thread may have changed meanwhile.
        reason = check.refused or self.explain_decision_refusal(decide, key)
        grant = None if decide.always is None else self._build_grant(decide, call, check, key)
        if grant is not None and not grant.agent:
            reason = reason or grants.explain_refusal(self.state, grant, self.now_ms())
        if reason or self.stopping:
            raise DecisionNotApplied(reason or "this thread is stopping")
        self.state = approvals.decide(self.state, decide, self.now_ms(), key, SENT.get(), check)
        return "" if grant is None else await self._give_grant(grant, decide.reason)

    async def _check_decision(self, decide: Decide, call: Call) -> DecisionCheck:
        """Have a worker check a decision, and store the arguments that it changes."""
        always = decide.always
        argument = CheckDecision(
            context=self.context(),
            call_id=call.call_id,
            tool=call.tool,
            by=decide.by,
            arguments=decide.arguments,
            number=1 if call.edit is None else call.edit.number + 1,
            match="" if always is None else always.match,
            scope="thread" if always is None else always.scope,
        )
        try:
            return await self._executor.check(CHECK_DECISION, argument, DecisionCheck)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            reason = describe_failure("the check of the decision failed", error)
            return DecisionCheck(refused=f"{reason}. Nothing was decided; try again")

    def _build_grant(self, decide: Decide, call: Call, check: DecisionCheck, key: str) -> Grant:
        is_agents = decide.always is not None and decide.always.scope == "agent"
        return grants.build_grant(
            decide,
            call,
            check.arguments_digest,
            self.now_ms(),
            key,
            thread_id=workflow.info().workflow_id if is_agents else "",
            agent=self.agent if is_agents else "",
        )

    async def _give_grant(self, grant: Grant, reason: str) -> str:
        """Keep a grant, or store an agent's. Return why that failed, if it did.

        The call is approved already: it runs in any case. An agent's grant is stored once only: a second
        try could bring back a grant that was revoked meanwhile.
        """
        if grant.agent:
            try:
                stored = await self._executor.check(
                    STORE_GRANT, StoreGrant(grant=grant), DecisionCheck, attempts_max=1
                )
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                why = describe_failure("the store did not confirm it", error)
                stored = DecisionCheck(refused=f"{why}. See whether it is there: everlong grants")
            if stored.refused:
                return f"the call is approved, but perhaps not later ones: {stored.refused}"
        else:
            self.state = grants.add(self.state, grant, self.now_ms())
        self.state = grants.note_grant(self.state, grant, reason, self.now_ms())
        return ""

    # Unknown outcomes.

    def explain_resolve_refusal(self, resolve: Resolve, key: str = "") -> str:
        """Return why an answer about a call's outcome is refused; empty if it is accepted."""
        return outcomes.explain_refusal(self.state, resolve, self.now_ms(), key)

    def resolve(self, resolve: Resolve, key: str = "") -> None:
        """Apply an answer about a call's outcome. A request that is sent again changes nothing."""
        self.state = outcomes.resolve(self.state, resolve, self.now_ms(), key, SENT.get())

    # Grants.

    def list_grants(self) -> list[Grant]:
        """Return the grants of the thread that have not expired."""
        info = workflow.info()
        return [
            for_display(each, info.workflow_id)
            for each in grants.list_active(self.state, self.now_ms())
        ]

    def explain_revoke_refusal(self, revoke: RevokeGrant, key: str = "") -> str:
        """Return why a grant cannot be revoked; empty if it can."""
        return grants.explain_revoke_refusal(self.state, revoke, self.now_ms(), key)

    def revoke_grant(self, revoke: RevokeGrant, key: str = "") -> None:
        """Revoke a grant of the thread: calls that have not begun to run need an approval again."""
        self.state = grants.revoke(self.state, revoke, self.now_ms(), key)

    # Notifications.

    def note_budgets(self) -> None:
        """Note which limits are nearly reached, for the notifier."""
        usage = transitions.build_usage(self.state)
        self.state = add_budget_notices(self.state, self.policy, usage, self.now_ms())

    def send_notices(self) -> None:
        """Begin to hand waiting notices to the notifier. Costs nothing if there are none."""
        self._outbox.send()

    async def finish_notices(self) -> None:
        """Wait until the notifier has all notices, before the thread ends."""
        await self._outbox.finish()

    # Size.

    def note(self, kind: Kind, data: object) -> None:
        """Add an event that is not a message. The next append journals it."""
        self.state = transitions.add_note(self.state, kind, data, self.now_ms())

    @property
    def has_many_notes(self) -> bool:
        """Whether the notes have reached their bound in operational state."""
        return transitions.measure_entries(self.state.notes) > limits.TAIL_BYTES_MAX

    @property
    def should_flush(self) -> bool:
        """Whether to journal the tail and the notes now.

        A message or tool results alone are journalled by the next model call, without an append.
        """
        state = self.state
        if state.failed_turn is not None:  # A client may wait for the answer.
            return True
        if state.in_turn and not state.notes and not state.calls:
            return False
        return transitions.measure_entries((*state.tail, *state.notes)) > limits.TAIL_BYTES_MAX

    async def flush(self) -> bool:
        """Journal the tail and the notes. Return whether that was possible.

        If the store is down until the run should end, they stay in the state, and the next run has them.
        """
        try:
            await self._flush()
        except StepAbandoned:
            return False
        return True

    async def _flush(self) -> None:
        self.state = transitions.take_notes(self.state)
        if self.state.tail:
            append = Append(
                head=self.state.head,
                entries=self.state.tail,
                agent=self.agent,
                last_run=_get_last_run(),
                ended=_get_ended_turn(self.state),
                error_type=_get_error_type(self.state),
                turn=_get_turn(self.state),
            )
            appended = await self._executor.execute(APPEND_JOURNAL, append, AppendResult, _STORE)
            self.state = transitions.apply_append(self.state, appended)

    async def keep_small(self) -> None:
        """Journal a long tail, and compact if the policy or an operator asks for it."""
        self._note_due_compaction()
        if self.should_flush and not await self.flush():
            return  # The store is down. The next run carries the entries that are not journalled.
        if self.state.compact_asked or self.state.compaction_due_ms is not None:
            await self.compact("asked" if self.state.compact_asked else "policy")
        # Notices have a bound of their own.
        size_bytes = transitions.measure_state(replace_values(self.state, notices=()))
        # Entries that arrived meanwhile and wait for the journal are no reason to end the thread.
        if size_bytes > limits.STATE_BYTES_MAX and not self.should_flush:
            raise LimitReached(
                f"operational state has {size_bytes} bytes; the maximum is {limits.STATE_BYTES_MAX}"
            )

    async def compact(self, reason: str) -> bool:
        """Shorten the context, and return whether it is smaller now.

        Entries of a step in progress stay as they are.
        """
        try:
            return await self._compact(reason)
        except StepAbandoned:
            return False

    async def _compact(self, reason: str) -> bool:
        await self._flush()
        compact = Compact(
            context=self.context(),
            keep_from_seq=self._find_first_open_seq(),
            context_tokens=self.state.context_tokens,
            reason=reason,
            due_ms=self.state.compaction_due_ms,
        )
        try:
            done = await self._executor.execute(COMPACT, compact, CompactResult, _COMPACT)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            # A thread that cannot be compacted continues until its context reaches a limit.
            workflow.logger.warning("compaction failed: %s", describe_failure("it", error))
            size_bytes = self.state.context_bytes
            done = CompactResult(
                snapshot=None, before_bytes=size_bytes, after_bytes=size_bytes, written_bytes=0
            )
        self.state = transitions.apply_compaction(self.state, done, reason, self.now_ms())
        return done.after_bytes < done.before_bytes

    def _find_first_open_seq(self) -> int:
        """Return the seq of the first entry that a compaction must not change.

        In a turn, that is the newest reply: providers require it and its results unchanged, including
        the model's thinking.
        """
        if self.state.in_turn and self.state.turn_steps:
            return self.state.reply_seq
        return seq_after(self.state.head)

    def _note_due_compaction(self) -> None:
        due = transitions.is_compaction_due(self.state, self.policy)
        if due and self.state.compaction_due_ms is None:
            self.state = replace_values(self.state, compaction_due_ms=self.now_ms())

    # The run and the policy.

    def limit(self) -> LimitHit | None:
        """Return the limit that the thread has reached, or None."""
        return find_limit_hit(self.policy, transitions.build_usage(self.state))

    def has_configured(self, key: str) -> bool:
        """Whether a request was applied before: a client sends it again after a continue-as-new."""
        return bool(key) and short_digest(key, size_bytes=8) in self.state.configured

    def configure(self, changes: dict[str, Any], key: str = "") -> None:
        """Change fields of the policy; raise `ValueError` for invalid ones. `key` names the request."""
        changed = self.policy.with_changes(changes)
        if key:
            configured = (*self.state.configured, short_digest(key, size_bytes=8))
            self.state = replace_values(self.state, configured=configured[-limits.CONFIGURED_MAX :])
        if self._policy is None:  # The agent's own policy is not known yet.
            self._changes = {**self._changes, **changes}
        else:
            self._policy = changed

    def roll_reason(self) -> RollReason | None:
        """Return why the run should end before the next step, or None."""
        return find_roll_reason(self.policy, self.run_size())

    def run_size(self) -> RunSize:
        """Return the size of the current run."""
        return measure_run(
            first_bytes=self._first_bytes,
            offloaded_bytes=self._executor.offloaded_bytes,
            blobs=self._executor.blobs,
        )

    def next_start(self) -> ThreadStart:
        """Return the argument of the next run."""
        return ThreadStart(
            agent=self.agent,
            policy=self._policy,
            changes={} if self._policy else self._changes,
            state=carry_into_next_run(self.state, _get_turn(self.state)),
            parent=self.parent,
        )

    def context(self) -> Context:
        """Return the arguments that all activities of the thread need."""
        return Context(
            agent=self.agent,
            head=self.state.head,
            snapshot=self.state.snapshot,
            now_ms=self.now_ms(),
            policy=None if self._policy is None else self._policy.differences(),
            last_run=_get_last_run(),
            turn=_get_turn(self.state),
        )

    def now_ms(self) -> int:
        """Return the workflow's time."""
        return workflow.time_ns() // 1_000_000


def _get_turn(state: ThreadState) -> Turn | None:
    """Return the current turn; None between turns."""
    return _build_turn(state) if state.in_turn else None


def _get_ended_turn(state: ThreadState) -> Turn | None:
    """Return the turn that ends without an answer with the entries that are journalled now, or None."""
    ends = state.failed_turn is not None or (state.stopping and state.in_turn)
    return _build_turn(state) if ends else None


def _get_error_type(state: ThreadState) -> str:
    """Return the error type of the turn that ends now without an answer; empty if none does."""
    if state.failed_turn is not None:
        return state.failed_turn.error_type
    return "Stopped" if state.stopping and state.in_turn else ""


def _get_last_run() -> str:
    """Return the id of the run before this one; empty if this is the first."""
    return workflow.info().continued_run_id or ""


def _get_run_start_ms() -> int:
    """Return the start of this run, as Unix milliseconds."""
    return int(workflow.info().workflow_start_time.timestamp() * 1000)


def _build_turn(state: ThreadState) -> Turn:
    return Turn(
        number=state.counters.answered + 1, began_ms=max(state.turn_ms, _get_run_start_ms())
    )
