"""Names that reach the wire or a history. They never come from `__name__`."""

from typing import Final

AGENT_WORKFLOW: Final = "everlong.Agent"
DOCTOR_WORKFLOW: Final = "everlong.Doctor"
SWEEPER_WORKFLOW: Final = "everlong.Sweeper"
SWEEPER_SCHEDULE: Final = "everlong-sweeper"
"""Id of the schedule, and the beginning of the ids of the workflows that it starts."""

CALL_MODEL: Final = "everlong.call_model"
RUN_TOOL: Final = "everlong.run_tool"
APPEND_JOURNAL: Final = "everlong.append_journal"
COMPACT: Final = "everlong.compact"
BRIEF: Final = "everlong.brief"
COLLECT: Final = "everlong.collect"
CHECK: Final = "everlong.check"
SWEEP: Final = "everlong.sweep"

HELD: Final = "everlong.Held"
"""Type of the failure of an activity that could not begin, and should be tried again."""

CONTEXT_TOO_LARGE: Final = "everlong.ContextTooLarge"
"""Type of the failure of a model call whose provider would take a smaller context."""

MESSAGE_LOST: Final = "everlong.MessageLost"
"""Type of the failure of a model call whose message is not where its sender says it is."""

SEND_UPDATE: Final = "send"
DECIDE_UPDATE: Final = "decide"
CONFIGURE_UPDATE: Final = "configure"
COMPACT_SIGNAL: Final = "compact"
PAUSE_SIGNAL: Final = "pause"
UNPAUSE_SIGNAL: Final = "unpause"
STOP_SIGNAL: Final = "stop"
NOTE_SIGNAL: Final = "note"
"""Somebody did something about the thread that does not change it: for its journal."""
REPORT_SIGNAL: Final = "everlong.report"
"""From a sub-agent's thread to its parent's: the turn has ended."""
REPORT_AGAIN_SIGNAL: Final = "everlong.report_again"
"""From a parent's thread to a sub-agent's: whether it can be delivered tells if that is still there."""
STATUS_QUERY: Final = "status"
PENDING_QUERY: Final = "pending"

DRAIN_HEADER: Final = "everlong-drain"
"""Header of activities and children whose result goes into the history of a draining run."""
CONSUMED_FUNCTION: Final = "__everlong_consumed_bytes"
"""Extern function of workflow instances: payload bytes that the run has consumed."""

CONTEXT_TOOLS: Final = frozenset({"remember", "forget"})
"""Built-in tools that read the thread's context, and so need its snapshot."""

CARD_MEMO: Final = "everlong"
"""Key of the memo that holds a thread's `ThreadCard`."""
