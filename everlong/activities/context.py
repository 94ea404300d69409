"""What a model is shown of a thread, and how a compaction shortens it."""

import dataclasses
from collections.abc import Sequence

from temporalio.exceptions import ApplicationError

from everlong import compaction, limits
from everlong.activities.builtin_tools import builtin
from everlong.activities.model_calls import summarise
from everlong.agents import Agent, Reply
from everlong.errors import BlobMissing
from everlong.models import MESSAGE_LOST, Compact, Context, Entry, Kind, Message, lost_entry
from everlong.storage.history import Past, Reader
from everlong.telemetry.steps import StepRecorder

_BYTES_PER_TOKEN = 4


def shown(past: Past, agent: Agent) -> list[Message]:
    """Return what the model reads."""

    def result_bytes_max(name: str) -> int:
        tool = builtin(name) or agent.tool(name)
        return limits.SHOWN_BYTES_MAX if tool is None else tool.max_result_bytes

    return compaction.build_context(
        past.base, past.items, past.policy, past.now_ms, result_bytes_max
    )


def expired(past: Past) -> tuple[str, ...]:
    """Return the keys of facts that the snapshot or an entry still has, and whose time is over."""
    told = compaction.facts_at(past.base, past.items, past.policy, now_ms=0)
    held = {
        fact.key for fact in compaction.facts_at(past.base, past.items, past.policy, past.now_ms)
    }
    gone = [fact.key for fact in told if fact.key not in held]
    return tuple(gone[: limits.EXPIRED_KEYS_MAX])


def compacted(past: Past, compact: Compact, size_bytes: int, summary: str = "") -> Past:
    """Return a past with a smaller snapshot."""
    policy = past.policy
    to_bytes = policy.compact_to_bytes
    if compact.context_tokens >= policy.compact_at_tokens:
        # Half of the tokens that messages may have beside instructions and tools, which take the rest.
        fixed = max(0, compact.context_tokens - size_bytes // _BYTES_PER_TOKEN)
        wanted = (policy.compact_at_tokens - fixed) * _BYTES_PER_TOKEN // 2
        to_bytes = min(to_bytes, max(wanted, to_bytes // 4, compaction.BUDGET_BYTES_MIN))
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


def evicted(past: Past) -> tuple[str, ...]:
    """Return the keys of facts that the caps leave out, and that no entry says have gone.

    Calls of one reply do not see what each other remembers.
    """
    no_caps = past.policy.with_changes(
        {"memory_facts_max": 1000, "memory_bytes_max": 64 * limits.KIB}
    )
    told = compaction.facts_at(past.base, past.items, no_caps, past.now_ms)
    held = {
        fact.key for fact in compaction.facts_at(past.base, past.items, past.policy, past.now_ms)
    }
    gone = [fact.key for fact in told if fact.key not in held]
    return tuple(gone[: limits.EXPIRED_KEYS_MAX])


async def summary(recorder: StepRecorder, agent: Agent, context: Context, past: Past) -> Reply:
    """Have the model sum up what is about to be shortened. Without it, compaction does as well."""
    request = compaction.summary_prompt(past.base, past.items, past.policy, past.now_ms)
    asked = [Message(role="user", text=request)]
    try:
        return await summarise(recorder, agent, context, asked)
    except ApplicationError:  # It has been logged.
        return Reply()


# Messages that were sent as refs: whether what their senders stored is here.


async def check_arrived(reader: Reader, tail: Sequence[Entry]) -> None:
    """Fail the turn of a message that its sender did not store, or not here.

    It is in no journal yet. In one, a part that is missing was there, and can be restored.
    """
    try:
        await reader.journal.messages([entry for entry in tail if _is_sent_as_ref(entry)])
    except BlobMissing as error:
        raise ApplicationError(
            f"the message is not in this store; its sender may use another. {error}",
            type=MESSAGE_LOST,
            non_retryable=True,
        ) from None


async def arrived(reader: Reader, entries: Sequence[Entry]) -> list[Entry]:
    """Return entries that can be read again: of a message that is not here, that it is not."""
    found: list[Entry] = []
    for entry in entries:
        try:
            if _is_sent_as_ref(entry):
                await reader.journal.messages([entry])
        except BlobMissing:
            entry = lost_entry(entry)
        found.append(entry)
    return found


def _is_sent_as_ref(entry: Entry) -> bool:
    return entry.kind == Kind.MESSAGE and entry.ref is not None
