"""Compaction of a thread's context: how far, whether it is worth it, and the model's summary.

A compaction that frees less than a fifth is not used if only the policy wants it: each one invalidates
the provider's cached prompt, and the next would follow soon. So no context is compacted again and again.
"""

import dataclasses
from typing import Final

from temporalio.exceptions import ApplicationError

from everlong import compaction, limits
from everlong.activities.model_calls import build_messages, summarise
from everlong.agents import Agent, Reply
from everlong.models import Compact, Context, Message
from everlong.storage.context_store import LoadedContext
from everlong.telemetry.steps import CompactionOutcome, ContextSize, StepRecorder

_BYTES_PER_TOKEN: Final = 4
# Divisor of a context's size: the least that a compaction must free.
_FREED_LEAST: Final = 5
# Reasons other than a refusal by the provider, and a request by an operator.
_OPTIONAL: Final = ("policy", "idle")


@dataclasses.dataclass(frozen=True)
class CompactionPlan:
    """The result of a compaction, before it is stored."""

    past: LoadedContext
    """The context after it; the same as before if `is_used` is false."""
    outcome: CompactionOutcome
    before: ContextSize
    after: ContextSize
    next_expiry_ms: int | None
    expired: tuple[str, ...]
    """Keys of expired facts, at most `EXPIRED_KEYS_MAX`."""

    @property
    def is_used(self) -> bool:
        """Whether the context changes."""
        return self.outcome not in ("unchanged", "no_shrink")

    @property
    def strategy(self) -> str:
        """How the past was shortened."""
        return "notes" if self.past.base is None else self.past.base.strategy


def plan_compaction(
    past: LoadedContext, compact: Compact, agent: Agent, summary: str = ""
) -> CompactionPlan:
    """Compact a context, and decide whether the result is used."""
    before = _measure(past, agent)
    before = dataclasses.replace(before, size_bytes=before.size_bytes + past.folded_bytes)
    if past.base is None and not past.items:
        return _build_plan(past, "unchanged", before, before)
    to_bytes = choose_budget(past, compact, before.size_bytes)
    expired = find_expired(past)
    over = before.size_bytes >= past.policy.context_bytes_max
    optional = compact.reason in _OPTIONAL and not expired and not over
    # An idle thread has no bound to meet, so a context that would hardly shrink is no problem.
    small = before.size_bytes <= to_bytes or compact.reason == "idle"
    refused: CompactionOutcome = "unchanged" if small else "no_shrink"
    after = _compact(past, compact, to_bytes, summary)
    size = _measure(after, agent)
    strategy = after.base.strategy if after.base is not None else "notes"
    outcome: CompactionOutcome = "tail" if strategy == "tail" else "compacted"
    if optional and not _frees_enough(before, size):
        halved = max(to_bytes // 2, compaction.BUDGET_BYTES_MIN)
        if compact.reason == "policy" and refused == "no_shrink" and halved < to_bytes:
            after = _compact(past, compact, halved, summary)
            size, outcome = _measure(after, agent), "halved"
        if not _frees_enough(before, size):
            return _build_plan(past, refused, before, before)
    elif size.size_bytes >= before.size_bytes and not expired:
        return _build_plan(past, refused, before, before)
    return _build_plan(after, outcome, before, size, expired)


def choose_budget(past: LoadedContext, compact: Compact, size_bytes: int) -> int:
    """Return the size that a compaction leaves: the policy's, or less if tokens are the reason."""
    policy = past.policy
    to_bytes = policy.compact_to_bytes
    if compact.context_tokens >= policy.compact_at_tokens:
        # Leave the messages half of the tokens that instructions and tools do not take.
        fixed = max(0, compact.context_tokens - size_bytes // _BYTES_PER_TOKEN)
        wanted = (policy.compact_at_tokens - fixed) * _BYTES_PER_TOKEN // 2
        to_bytes = min(to_bytes, max(wanted, to_bytes // 4, compaction.BUDGET_BYTES_MIN))
    return to_bytes


def find_expired(past: LoadedContext) -> tuple[str, ...]:
    """Return the keys of facts that have expired since the snapshot or an entry added them."""
    added = compaction.list_facts(past.base, past.items, past.policy, now_ms=0)
    held = {
        fact.key for fact in compaction.list_facts(past.base, past.items, past.policy, past.now_ms)
    }
    gone = [fact.key for fact in added if fact.key not in held]
    return tuple(gone[: limits.EXPIRED_KEYS_MAX])


async def write_summary(
    recorder: StepRecorder, agent: Agent, context: Context, past: LoadedContext
) -> Reply:
    """Ask the model for a summary of a compaction. If the call fails, return an empty reply."""
    request = compaction.build_summary_prompt(past.base, past.items, past.policy, past.now_ms)
    asked = [Message(role="user", text=request)]
    try:
        return await summarise(recorder, agent, context, asked)
    except ApplicationError:  # Logged by `bound_call`.
        return Reply()


def _frees_enough(before: ContextSize, after: ContextSize) -> bool:
    return (before.size_bytes - after.size_bytes) * _FREED_LEAST >= before.size_bytes


def _compact(past: LoadedContext, compact: Compact, to_bytes: int, summary: str) -> LoadedContext:
    snapshot = compaction.compact(
        past.base,
        past.items,
        past.policy,
        past.now_ms,
        keep_from_seq=compact.keep_from_seq,
        to_bytes=to_bytes,
        summary=summary,
    )
    left = tuple(item for item in past.items if item.entry.seq > snapshot.upto_seq)
    return dataclasses.replace(past, base=snapshot, items=left)


def _measure(past: LoadedContext, agent: Agent) -> ContextSize:
    messages = build_messages(past, agent)
    return ContextSize(compaction.measure_messages(messages), len(messages))


def _build_plan(
    past: LoadedContext,
    outcome: CompactionOutcome,
    before: ContextSize,
    after: ContextSize,
    expired: tuple[str, ...] = (),
) -> CompactionPlan:
    next_expiry_ms = compaction.find_next_expiry_ms(past.base, past.items, past.policy, past.now_ms)
    return CompactionPlan(past, outcome, before, after, next_expiry_ms, expired)
