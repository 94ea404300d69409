"""The `everlong.Agent` workflow: a thread that takes messages until it is stopped.

`Thread` takes the steps. This module decides what happens between steps: it handles updates, signals and
queries, waits, enforces limits, and ends a run or the thread. A run ends only between steps, when no
activity is in flight and all handlers have finished.
"""

import asyncio
import contextlib
from datetime import timedelta

from pydantic_core import to_json
from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ApplicationError, FailureError, is_cancelled_exception

from everlong import limits
from everlong.models import (
    AGENT_WORKFLOW,
    CALL_STATUS_SIGNAL,
    COMPACT_SIGNAL,
    CONFIGURE_UPDATE,
    DECIDE_UPDATE,
    DECISION_REFUSED,
    GRANTS_QUERY,
    NOTE_SIGNAL,
    OUTCOMES_QUERY,
    PAUSE_SIGNAL,
    PENDING_QUERY,
    REPORT_AGAIN_SIGNAL,
    REPORT_SIGNAL,
    RESOLVE_UPDATE,
    REVOKE_GRANT_UPDATE,
    SEND_UPDATE,
    SENT,
    STATUS_QUERY,
    STOP_SIGNAL,
    UNPAUSE_SIGNAL,
    Approval,
    CallStatus,
    Configure,
    Control,
    ControlNote,
    Decide,
    Entry,
    Grant,
    Kind,
    Pause,
    Report,
    Resolve,
    RevokeGrant,
    SendMessage,
    ThreadStart,
    ThreadStatus,
    TurnEnd,
    UnknownOutcome,
    make_printable,
    short_digest,
)
from everlong.models.json_payloads import to_raw
from everlong.models.labels import ChangeLabels, change_labels
from everlong.models.names import LABEL_UPDATE, UNJOURNALLED_QUERY
from everlong.models.state import Unjournalled, replace_values
from everlong.policy import LimitHit
from everlong.workflows import approvals, deadlines, outcomes, transitions
from everlong.workflows.notices import add_limit_notice
from everlong.workflows.thread import DecisionNotApplied, Thread
from everlong.workflows.visibility import (
    adopt_start_attributes,
    build_next_memo,
    build_status,
    get_labels,
    publish,
    publish_labels,
)


@workflow.defn(name=AGENT_WORKFLOW, sandboxed=False)
class AgentWorkflow:
    """One run of a thread. The workflow id is the thread's id."""

    @workflow.init
    def __init__(self, start: ThreadStart) -> None:
        self._thread = Thread(start)
        adopt_start_attributes(self._thread)
        self._stopped = False
        self._waiting_since_ms = self._thread.now_ms()
        self._is_idle = False
        """Whether no step is in progress: the thread waits for a message, a decision or a deadline."""
        self._is_leaving = False
        """Whether the run is about to close, so updates must complete now."""
        self._updates_waiting = 0

    @workflow.run
    async def run(self, start: ThreadStart) -> ThreadStatus:
        """Take steps until the thread is stopped or cancelled; either way, complete the journal."""
        try:
            await self._take_steps()
            await self._end()
        except BaseException as error:
            if is_cancelled_exception(error):
                self._thread.stop()
                await self._end()
                self._stopped = True
            if isinstance(error, (Exception, asyncio.CancelledError)):
                await self._release_updates()
            raise
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._stopped = True
        return self.status()

    async def _take_steps(self) -> None:
        """Take steps until the thread is stopped. Continue as new when the policy requires it."""
        thread = self._thread
        while not thread.stopping:
            await self._keep_in_bounds()
            if self._has_answered_parent():
                thread.stop()
            if thread.roll_reason() is not None and not thread.stopping:
                await self._roll()
            elif self._can_step():
                await thread.step()
                thread.state = replace_values(thread.state, rested=False)
                self._waiting_since_ms = thread.now_ms()
            else:
                await self._wait()

    async def _keep_in_bounds(self) -> None:
        """Apply deadlines, journal, compact, check the limits and publish: between two steps."""
        thread = self._thread
        thread.state = deadlines.apply_deadlines(thread.state, thread.now_ms())
        await thread.keep_small()
        if thread.has_work and thread.state.pause is None and (hit := thread.limit()):
            self._apply_limit(hit)
        thread.note_budgets()
        publish(thread)

    def _can_step(self) -> bool:
        thread = self._thread
        return thread.has_work and thread.state.pause is None and not thread.stopping

    def _apply_limit(self, hit: LimitHit) -> None:
        """Pause or end the thread, as the policy demands for this limit."""
        thread = self._thread
        thread.note(Kind.LIMIT, hit)
        thread.state = add_limit_notice(thread.state, hit, thread.now_ms())
        if hit.action == "pause":
            pause = Pause(by="policy", reason=hit.reason, limit=hit)
            thread.state = replace_values(thread.state, pause=pause)
            return
        thread.state = replace_values(thread.state, ended=hit)
        thread.stop()

    # Waiting.

    async def _wait(self) -> None:
        """Wait for work, a control request or a timer."""
        thread = self._thread
        thread.send_notices()
        was_paused, policy = thread.state.pause is not None, thread.policy

        def should_wake() -> bool:
            paused = thread.state.pause is not None
            return (
                thread.stopping
                or thread.state.compact_asked
                or paused != was_paused
                or (thread.has_work and not paused)
                or thread.policy != policy
                or thread.should_flush
                or thread.roll_reason() is not None
            )

        timeout = self._get_seconds_to_wait()
        is_time = False
        self._is_idle = True
        try:
            await workflow.wait_condition(
                should_wake, timeout=None if timeout is None else timedelta(seconds=timeout)
            )
        except TimeoutError:
            is_time = True
        finally:
            self._is_idle = False
        if is_time:
            await self._handle_timeout()

    def _get_seconds_to_wait(self) -> float | None:
        """Return the time until the next timer of the thread is due; None if no timer is set."""
        thread = self._thread
        state, now_ms = thread.state, thread.now_ms()
        waits: list[float] = []
        if (deadline := deadlines.get_time_to_deadline(state, now_ms)) is not None:
            waits.append(deadline.total_seconds())
        if not state.rested and self._should_rest():
            waits.append(thread.policy.idle_seconds - (now_ms - self._waiting_since_ms) / 1000)
        elif state.next_expiry_ms is not None:
            # At most once in `idle_seconds`, even if facts expire one shortly after another.
            waits.append(max(thread.policy.idle_seconds, (state.next_expiry_ms - now_ms) / 1000))
        if any(call.child_id and not call.report for call in state.calls):
            seconds = limits.CHILD_CHECK_SECONDS * 2.0**state.child_checks
            waits.append(min(seconds, limits.CHILD_CHECK_SECONDS_MAX))
        return max(0.0, min(waits)) if waits else None

    async def _handle_timeout(self) -> None:
        """Do the work of timers that are due: apply deadlines, rest, check sub-agents."""
        thread = self._thread
        state, now_ms = thread.state, thread.now_ms()
        thread.state = deadlines.apply_deadlines(state, now_ms)
        if thread.has_work and state.pause is None:
            return
        idle_seconds = (now_ms - self._waiting_since_ms) / 1000
        expired = state.next_expiry_ms is not None and state.next_expiry_ms <= now_ms
        if idle_seconds >= thread.policy.idle_seconds and (not state.rested or expired):
            await self._rest()
        children = [call.child_id for call in state.calls if call.child_id and not call.report]
        for child_id in children:
            await self._check_child(child_id)
        if children:
            checks = min(thread.state.child_checks + 1, 16)
            thread.state = replace_values(thread.state, child_checks=checks)

    def _should_rest(self) -> bool:
        """Whether a rest would make the next resume shorter."""
        state = self._thread.state
        unsaved = bool(state.tail or state.notes)
        return unsaved or self._thread.run_size().events > limits.IDLE_EVENTS_MAX

    async def _rest(self) -> None:
        """Compact and continue as new, so that an answer days later replays a handful of events."""
        thread = self._thread
        await thread.compact("idle")
        if not thread.has_work or thread.state.pause is not None:
            thread.state = replace_values(thread.state, rested=True)
            await self._roll()

    async def _roll(self) -> None:
        """Continue as new. Safe here: no step is in flight, and the state holds all that waits."""
        self._is_leaving = True
        await workflow.wait_condition(workflow.all_handlers_finished)
        start = to_raw(self._thread.next_start(), workflow.payload_converter())
        workflow.continue_as_new(start, memo=build_next_memo(self._thread))

    async def _end(self) -> None:
        """Journal the rest, unread messages included; publish the end, and report it to the parent."""
        thread = self._thread
        for call in thread.state.calls:
            if call.child_id and not call.report:
                await _signal(call.child_id, STOP_SIGNAL, Control(by=workflow.info().workflow_id))
        thread.state = transitions.break_off(thread.state, thread.now_ms())
        if thread.state.ended is not None and thread.state.in_turn:
            reason = f"the thread was ended by {thread.state.ended.reason}"
            thread.state = transitions.fail_turn(thread.state, reason, thread.now_ms())
        thread.state = transitions.empty_inbox(thread.state, thread.now_ms())
        await thread.flush()
        # A decision from before the stop may still store its grant, and notes that afterwards.
        await workflow.wait_condition(workflow.all_handlers_finished)
        if thread.state.notes:
            await thread.flush()  # Notes arrived during the first flush.
        if thread.state.tail:
            await self._roll()  # The store was down for long. The next run ends the thread.
        publish(thread, ended=True)
        await self._report()
        await thread.finish_notices()

    # Sub-agents.

    def _has_answered_parent(self) -> bool:
        """Whether this is a sub-agent's thread whose only turn has ended."""
        return self._thread.parent is not None and self._thread.state.counters.answered > 0

    async def _report(self) -> None:
        parent, state = self._thread.parent, self._thread.state
        if parent is not None:
            report = Report(
                child_id=workflow.info().workflow_id,
                head=state.head,
                tokens=state.counters.tokens,
                cost_usd=state.counters.cost_usd,
            )
            await _signal(parent.thread_id, REPORT_SIGNAL, report)

    async def _check_child(self, child_id: str) -> None:
        """Check that a sub-agent's thread still runs; then it will report. Else record its end."""
        if not await _signal(child_id, REPORT_AGAIN_SIGNAL):
            self._thread.take_report(Report(child_id=child_id))

    @workflow.signal(name=REPORT_SIGNAL)
    def report(self, report: Report) -> None:
        """Record a sub-agent's report."""
        self._thread.take_report(report)

    @workflow.signal(name=REPORT_AGAIN_SIGNAL)
    def report_again(self) -> None:
        """Do nothing: the delivery is the answer. A thread that has ended has reported already."""

    @workflow.signal(name=CALL_STATUS_SIGNAL)
    def take_call_status(self, signalled: CallStatus) -> None:
        """Record that a running call is tried again, is held, or is held no more."""
        self._thread.take_call_status(signalled)

    # Updates, signals and queries.

    @workflow.update(name=SEND_UPDATE)
    async def send(self, message: SendMessage) -> int | TurnEnd:
        """Queue a message, and return its number once it is durable.

        With `until_answered`, return when the turn has ended, the thread is paused or stopping, or the
        run closes. At most `UPDATES_WAITING_MAX` updates wait; further ones return at once.
        """
        number = self._thread.queue(replace_values(_add_id(message), sent=SENT.get()))
        if not message.until_answered:
            return number
        if self._updates_waiting < limits.UPDATES_WAITING_MAX:
            await self._wait_for_turn(number)
        return transitions.find_turn_end(self._thread.state, number)

    async def _wait_for_turn(self, number: int) -> None:
        thread = self._thread

        def is_over() -> bool:
            return (
                thread.state.counters.answered >= number
                or (self._is_idle and thread.state.pause is not None)
                or thread.stopping
                or self._is_leaving
            )

        self._updates_waiting += 1
        try:
            # A cancellation of the workflow also ends this wait. The message stays queued.
            with contextlib.suppress(asyncio.CancelledError):
                await workflow.wait_condition(is_over)
        finally:
            self._updates_waiting -= 1

    async def _release_updates(self) -> None:
        """Complete the updates that wait for an answer, before the run fails or is cancelled."""
        self._is_leaving = True
        if self._updates_waiting:
            await workflow.wait_condition(workflow.all_handlers_finished)

    @send.validator
    def _validate_send(self, message: SendMessage) -> None:
        self._refuse_if_stopping()
        if self._thread.parent is not None:
            raise ValueError(
                "this is a sub-agent's thread: it takes messages only from "
                f"{self._thread.parent.thread_id!r}"
            )
        if message.agent and message.agent != self._thread.agent:
            raise ValueError(
                f"this thread runs agent {self._thread.agent!r}, not {message.agent!r}. Name that "
                "agent or none, or choose another id for a new thread"
            )
        if reason := self._thread.explain_message_refusal(_add_id(message)):
            raise ValueError(reason)

    @workflow.update(name=DECIDE_UPDATE)
    async def decide(self, decide: Decide) -> str:
        """Approve or deny a call that waits for approval. Return what is missing of the decision."""
        try:
            missing = await self._thread.decide(decide, _get_update_id())
        except DecisionNotApplied as error:
            raise ApplicationError(str(error), type=DECISION_REFUSED, non_retryable=True) from None
        if not self._is_leaving:  # Else the next run sends them.
            self._thread.send_notices()
        return missing

    @decide.validator
    def _validate_decide(self, decide: Decide) -> None:
        self._refuse_if_stopping()
        if reason := self._thread.explain_decision_refusal(decide, _get_update_id()):
            raise ValueError(reason)

    @workflow.update(name=RESOLVE_UPDATE)
    def resolve(self, resolve: Resolve) -> None:
        """Say what became of a call whose outcome is unknown."""
        self._thread.resolve(resolve, _get_update_id())
        if not self._is_leaving:
            self._thread.send_notices()

    @resolve.validator
    def _validate_resolve(self, resolve: Resolve) -> None:
        self._refuse_if_stopping()
        if reason := self._thread.explain_resolve_refusal(resolve, _get_update_id()):
            raise ValueError(reason)

    @workflow.update(name=REVOKE_GRANT_UPDATE)
    def revoke_grant(self, revoke: RevokeGrant) -> None:
        """Revoke a grant of the thread."""
        self._thread.revoke_grant(revoke, _get_update_id())

    @revoke_grant.validator
    def _validate_revoke_grant(self, revoke: RevokeGrant) -> None:
        self._refuse_if_stopping()
        if reason := self._thread.explain_revoke_refusal(revoke, _get_update_id()):
            raise ValueError(reason)

    @workflow.update(name=CONFIGURE_UPDATE)
    def configure(self, configure: Configure) -> None:
        """Change the thread's policy. A request that is sent again changes nothing."""
        if self._thread.has_configured(_get_update_id()):
            return
        self._thread.configure(configure.changes, _get_update_id())
        self._note(
            ControlNote(
                action="configure",
                by=configure.by,
                reason=configure.reason,
                changes=configure.changes,
            )
        )

    @configure.validator
    def _validate_configure(self, configure: Configure) -> None:
        self._refuse_if_stopping()
        if self._thread.has_configured(_get_update_id()):
            return
        if not configure.changes:
            raise ValueError("`changes` is empty: name at least one field of the policy")
        if self._thread.has_many_notes:
            raise ValueError("this thread gets too many requests at once; try again later")
        if len(to_json(configure.changes)) > limits.CHANGES_BYTES_MAX:
            raise ValueError(f"`changes` may have at most {limits.CHANGES_BYTES_MAX} bytes")
        self._thread.policy.with_changes(configure.changes)

    @workflow.update(name=LABEL_UPDATE)
    def label(self, change: ChangeLabels) -> list[str]:
        """Change the thread's labels, and return them. Labels that it has already change nothing."""
        before = get_labels()
        labels = change_labels(before, change.add, change.remove)
        if labels != before:
            publish_labels(labels)
            self._note(
                ControlNote(
                    action="label",
                    by=change.by,
                    reason=change.reason,
                    changes={"labels": list(labels)},
                )
            )
        return list(labels)

    @label.validator
    def _validate_label(self, change: ChangeLabels) -> None:
        self._refuse_if_stopping()
        if self._thread.has_many_notes:
            raise ValueError("this thread gets too many requests at once; try again later")
        change_labels(get_labels(), change.add, change.remove)

    @workflow.signal(name=PAUSE_SIGNAL)
    def pause(self, control: Control | None = None) -> None:
        """Take no more steps until `unpause`. Activities in flight end; messages are still queued."""
        if self._thread.state.pause is None:
            request = _build_note("pause", control)
            pause = Pause(by=request.by, reason=request.reason)
            self._thread.state = replace_values(self._thread.state, pause=pause)
            self._note(request)

    @workflow.signal(name=UNPAUSE_SIGNAL)
    def unpause(self, control: Control | None = None) -> None:
        """Take steps again. Raise a limit first: one that is still reached pauses the thread again."""
        state = self._thread.state
        if state.pause is not None:
            state = transitions.forgive(state, state.pause.limit)
            self._thread.state = replace_values(state, pause=None)
            self._note(_build_note("unpause", control))

    @workflow.signal(name=COMPACT_SIGNAL)
    def compact(self, control: Control | None = None) -> None:
        """Compact at the next safe point."""
        state = self._thread.state
        if not state.compact_asked:
            self._thread.state = replace_values(state, compact_asked=True)
            self._note(_build_note("compact", control))

    @workflow.signal(name=STOP_SIGNAL)
    def stop(self, control: Control | None = None) -> None:
        """End the thread at the next safe point."""
        archiving = control is not None and control.archive
        if not self._thread.stopping:
            self._note(_build_note("stop", control))
        elif not archiving:
            return
        self._thread.stop(archiving=archiving)

    @workflow.signal(name=NOTE_SIGNAL)
    def note(self, note: ControlNote) -> None:
        """Journal an action on the thread, such as a fork or an archive. Changes nothing else."""
        action = make_printable(note.action, limits.CALL_NAME_CHARS_MAX)
        self._note(_build_note(action, Control(by=note.by, reason=note.reason)))

    @workflow.query(name=STATUS_QUERY)
    def status(self) -> ThreadStatus:
        """Return the thread's status."""
        return build_status(self._thread, ended=self._stopped)

    @workflow.query(name=PENDING_QUERY)
    def pending(self) -> list[Approval]:
        """Return the calls that wait for approval."""
        return approvals.list_pending(self._thread.state)

    @workflow.query(name=UNJOURNALLED_QUERY)
    def list_unjournalled(self) -> Unjournalled:
        """Return what the thread holds that its journal does not have yet."""
        state = self._thread.state
        return Unjournalled(
            head=state.head,
            entries=transitions.take_notes(state).tail,
            calls=state.calls,
            inbox=state.inbox,
            messages=state.counters.messages,
        )

    @workflow.query(name=OUTCOMES_QUERY)
    def outcomes(self) -> list[UnknownOutcome]:
        """Return the calls whose outcome is unknown."""
        return outcomes.list_unknown(self._thread.state)

    @workflow.query(name=GRANTS_QUERY)
    def grants(self) -> list[Grant]:
        """Return the grants of the thread."""
        return self._thread.list_grants()

    def _refuse_if_stopping(self) -> None:
        if self._thread.stopping:
            raise ValueError("this thread is stopping; start a new one")

    def _note(self, control: ControlNote) -> None:
        """Note a control action. Beyond a bound, it replaces the last note if that had no changes."""
        notes = self._thread.state.notes
        if self._thread.has_many_notes and _is_replaceable(notes[-1]):
            self._thread.state = replace_values(self._thread.state, notes=notes[:-1])
        self._thread.note(Kind.CONTROL, control)


@workflow.defn(
    name=AGENT_WORKFLOW, sandboxed=False, versioning_behavior=VersioningBehavior.AUTO_UPGRADE
)
class VersionedAgentWorkflow(AgentWorkflow):
    """A thread on workers with worker versioning. Its next task goes to the current version."""

    @workflow.init
    def __init__(self, start: ThreadStart) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: ThreadStart) -> ThreadStatus:
        """See `AgentWorkflow`."""
        return await super().run(start)


def _get_update_id() -> str:
    """Return the id of the current update; empty outside one.

    The client sends an update again, with the same id, if it met a continue-as-new.
    """
    update = workflow.current_update_info()
    return "" if update is None else update.id


def _add_id(message: SendMessage) -> SendMessage:
    """Return the message with an id: its own, or one derived from the update's id."""
    update_id = _get_update_id()
    if message.id or not update_id:
        return message
    return replace_values(message, id=short_digest(update_id, size_bytes=8))


async def _signal(thread_id: str, name: str, *arguments: object) -> bool:
    """Signal another thread, and return whether it was delivered."""
    try:
        await workflow.get_external_workflow_handle(thread_id).signal(name, args=list(arguments))
    except FailureError as error:
        if is_cancelled_exception(error):
            raise
        workflow.logger.warning(
            "signal %s was not delivered to thread %s: %s", name, thread_id, error
        )
        return False
    return True


def _build_note(action: str, control: Control | None) -> ControlNote:
    """Return a control action as the journal records it. A signal cannot be refused, so it is cut."""
    given = control or Control()
    return ControlNote(
        action=action,
        by=make_printable(given.by, limits.CALL_NAME_CHARS_MAX),
        reason=make_printable(given.reason, limits.REASON_CHARS_MAX),
    )


def _is_replaceable(note: Entry) -> bool:
    """Whether a later control note may replace this one. Changes of the policy must stay."""
    return note.kind == Kind.CONTROL and not (note.data or {}).get("changes")
