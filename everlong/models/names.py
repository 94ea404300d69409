"""Names on the wire or in a history. They never come from `__name__`, and must never change."""

from typing import Final

AGENT_WORKFLOW: Final = "everlong.Agent"
DOCTOR_WORKFLOW: Final = "everlong.Doctor"
SWEEPER_WORKFLOW: Final = "everlong.Sweeper"
SWEEPER_SCHEDULE: Final = "everlong-sweeper"
"""Id of the sweep schedule, and prefix of the ids of its workflows."""

CALL_MODEL: Final = "everlong.call_model"
RUN_TOOL: Final = "everlong.run_tool"
APPEND_JOURNAL: Final = "everlong.append_journal"
COMPACT: Final = "everlong.compact"
BRIEF: Final = "everlong.brief"
COLLECT: Final = "everlong.collect"
CHECK_DECISION: Final = "everlong.check_decision"
STORE_GRANT: Final = "everlong.store_grant"
CHECK: Final = "everlong.check"
SWEEP: Final = "everlong.sweep"

HELD: Final = "everlong.Held"
"""Failure type of an activity that had no effect yet and cannot continue now; it is scheduled again."""

CONTEXT_TOO_LARGE: Final = "everlong.ContextTooLarge"
"""Failure type of a model call whose provider would accept a smaller context."""

CALL_NOT_FOUND: Final = "CallNotFound"
"""Failure type of a call that the newest reply does not have: nothing was run."""

CALL_TIMED_OUT: Final = "everlong.CallTimedOut"
OUTCOME_UNCLEAR: Final = "everlong.OutcomeUnclear"
"""Failure types of a call whose effect must not happen twice, and of which it is not known whether it
took effect: it did not end in time, or its tool raised `OutcomeUnknown`."""

WORKER_SHUTDOWN: Final = "WorkerShutdown"
"""Failure type, given by the SDK, of an activity that did not end before its worker."""

DECISION_REFUSED: Final = "everlong.DecisionRefused"
"""Failure type of an update that was accepted, and then refused by the check of the worker."""

MESSAGE_LOST: Final = "everlong.MessageLost"
"""Failure type of a model call whose message is not in the store."""

SEND_UPDATE: Final = "send"
DECIDE_UPDATE: Final = "decide"
RESOLVE_UPDATE: Final = "resolve"
REVOKE_GRANT_UPDATE: Final = "revoke_grant"
CONFIGURE_UPDATE: Final = "configure"
LABEL_UPDATE: Final = "label"
COMPACT_SIGNAL: Final = "compact"
PAUSE_SIGNAL: Final = "pause"
UNPAUSE_SIGNAL: Final = "unpause"
STOP_SIGNAL: Final = "stop"
NOTE_SIGNAL: Final = "note"
"""Records an action on the thread in its journal, and changes nothing else."""
REPORT_SIGNAL: Final = "everlong.report"
"""From a sub-agent's thread to its parent's: the turn has ended."""
REPORT_AGAIN_SIGNAL: Final = "everlong.report_again"
"""From a parent's thread to a sub-agent's: the delivery shows whether that thread still runs."""
CALL_STATUS_SIGNAL: Final = "everlong.call_status"
"""From an activity to its thread: the call is tried again, is held, or is held no more."""
STATUS_QUERY: Final = "status"
PENDING_QUERY: Final = "pending"
UNJOURNALLED_QUERY: Final = "unjournalled"
OUTCOMES_QUERY: Final = "outcomes"
GRANTS_QUERY: Final = "grants"

DRAIN_HEADER: Final = "everlong-drain"
"""Header of activities and children that a draining run starts: their results are offloaded."""
CONSUMED_FUNCTION: Final = "__everlong_consumed_bytes"
"""Extern function of workflow instances, which returns the payload bytes that the run has consumed."""

POLICY_FUNCTION: Final = "__everlong_policy"
"""Extern function of workflow instances, which returns the policy of an agent that their worker runs."""

CONTEXT_TOOLS: Final = frozenset({"remember", "forget"})
"""Built-in tools that read the thread's context, so they need its snapshot."""

CARD_MEMO: Final = "everlong"
"""Key of the memo that holds a thread's `ThreadCard`."""

FORK_MEMO: Final = "everlong.fork"
"""Key of the memo that holds where a fork began: a `ForkNote` without author and reason."""

NOTIFIER_WORKFLOW: Final = "everlong.Notifier"
NOTIFIER_ID: Final = "everlong-notifier-"
"""Prefix of the notifier's workflow id, before the name of its task queue."""
NOTIFY_SIGNAL: Final = "everlong.notify"
"""From a thread to the notifier: events to deliver."""
NOTIFY: Final = "everlong.notify"
"""Activity of the notifier: delivers events to sinks."""
START_NOTIFIER: Final = "everlong.start_notifier"
"""Activity of a thread whose signal found no notifier: starts one, with the signal."""
