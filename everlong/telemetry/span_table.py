"""Table of all spans: what each measures, and its attributes.

The reference of the site is generated from it, and a test compares it with the code that emits spans.
Nothing at run time reads it, so it is apart from `spans`.
"""

import dataclasses
from typing import Final

from everlong.telemetry.spans import (
    ACT,
    AGENT,
    APPROVAL,
    ARCHIVE,
    CHAT,
    COMPACT,
    CONTINUE_AS_NEW,
    DECISION,
    ERROR,
    EXECUTE_TOOL,
    INVOKE_AGENT,
    NOTIFY,
    OFFLOAD,
    PROVIDER,
    RESUME,
    RUN,
    SWEEP,
    THREAD,
)

_OPERATION: Final = "gen_ai.operation.name"
_WORKFLOW: Final = "everlong.workflow.type"


@dataclasses.dataclass(frozen=True)
class SpanDescription:
    """A span by its name."""

    name: str
    measures: str
    attributes: tuple[str, ...] = ()
    """Beyond `IDENTITY`."""


IDENTITY: Final = (THREAD, RUN, AGENT)
"""Attributes of every span of a thread, where there is a run and an agent. A sweep is of no thread."""

CONTENTS: Final = (
    *("gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.output.messages"),
    *("gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
)
"""Attributes with contents of a conversation. Only with `record_contents` or its variable."""

SPANS: Final = (
    SpanDescription(
        RESUME,
        "A resume of any workflow: from the start of the task on the server to the first activation "
        "that was not replayed.",
        (
            _WORKFLOW,
            *(
                f"{RESUME}.{name}"
                for name in (
                    *("cause", "end", "attempt", "events", "activations", "history_bytes", "blobs"),
                    *("bytes", "cache.hits", "cache.misses", "prefetch.blobs", "prefetch.bytes"),
                    *("queue_seconds", "history_seconds", "scan_seconds", "read_seconds"),
                    *("replay_seconds", "command_seconds"),
                )
            ),
        ),
    ),
    *(
        SpanDescription(f"{RESUME}.{part}", text, (_WORKFLOW,))
        for part, text in (
            ("queue", "Before a resume: the task was in the queue."),
            ("history", "Part of a resume: until the worker had the history."),
            ("scan", "Part of a resume: until Everlong had read the history itself."),
            ("read", "Part of a resume: payloads from the store."),
            ("replay", "Part of a resume: workflow code, and the rest of the replay."),
            ("command", "Part of a resume: the activation that ended it."),
        )
    ),
    SpanDescription(
        ACT,
        "From when a message or a decision was sent to when the thread acted on it; in the sender's "
        "trace, if it has one.",
        ("everlong.act.kind",),
    ),
    SpanDescription(
        f"{INVOKE_AGENT} AGENT",
        "A turn, or the part of it that is in this run.",
        (_OPERATION, PROVIDER, "everlong.turn.number", "everlong.turn.outcome", ERROR),
    ),
    SpanDescription(
        f"{CHAT} MODEL",
        "An attempt of a model call; child of its turn, or of your own span around the activity.",
        (
            *(_OPERATION, PROVIDER, "gen_ai.request.model", "gen_ai.output.type"),
            *("gen_ai.response.model", "gen_ai.response.id", "gen_ai.response.finish_reasons"),
            *("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "everlong.cost_usd"),
            *("everlong.tool_calls", "gen_ai.conversation.compacted", ERROR),
        ),
    ),
    SpanDescription(
        f"{EXECUTE_TOOL} TOOL",
        "An attempt of a tool call; parent as above. For a sub-agent, the request only.",
        (
            *(_OPERATION, "gen_ai.tool.name", "gen_ai.tool.description", "gen_ai.tool.type"),
            *("gen_ai.tool.call.id", "everlong.child.id", "everlong.attempt"),
            *("everlong.tool.outcome", ERROR),
        ),
    ),
    SpanDescription(
        COMPACT,
        "A compaction.",
        tuple(
            f"{COMPACT}.{name}"
            for name in (
                *("reason", "before_bytes", "after_bytes", "written_bytes", "lag_seconds"),
                *("summarised", "outcome", "strategy", "before_messages", "after_messages"),
                *("before_tokens", "after_tokens"),
            )
        ),
    ),
    SpanDescription(
        OFFLOAD,
        "A payload that goes to the store, or a tool's result by which the store grew.",
        (f"{OFFLOAD}.payload_bytes", f"{OFFLOAD}.written_bytes"),
    ),
    SpanDescription(
        CONTINUE_AS_NEW,
        "From the end of a run to the first task of the next.",
        (_WORKFLOW, "everlong.next_run.id", f"{CONTINUE_AS_NEW}.bytes"),
    ),
    SpanDescription(
        APPROVAL,
        "From when a person was asked to the decision, in the trace of the run that asked.",
        (f"{APPROVAL}.id", f"{APPROVAL}.decision", "gen_ai.tool.name"),
    ),
    SpanDescription(
        NOTIFY,
        "An event of a thread at its first delivery; of an approval, a child of its span.",
        (f"{NOTIFY}.event",),
    ),
    SpanDescription(
        DECISION,
        "A decision from Slack, until the thread has it: a child of the approval's span, and the "
        "parent of the act that follows.",
        (f"{APPROVAL}.id",),
    ),
    SpanDescription(
        ARCHIVE,
        "A thread is archived, by `everlong serve` or by a sweep of a worker; a trace of its own.",
        tuple(f"{ARCHIVE}.{name}" for name in ("then", "entries", "bytes")),
    ),
    SpanDescription(
        SWEEP,
        "A sweep of the namespace.",
        tuple(
            f"{SWEEP}.{name}"
            for name in (
                *("outcome", "dry_run", "runs", "runs_read", "packs_read", "quarantined_bytes"),
                *("restored_bytes", "purged_bytes"),
            )
        ),
    ),
)
