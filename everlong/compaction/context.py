"""Context: what a model call reads of a thread, and for how long.

The context is the summary of compacted entries, then messages. Calls and results always match, since
providers reject a conversation in which either is missing. Entries expire from the context by kind; the
journal keeps them.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from everlong.compaction.agent_memory import list_facts
from everlong.compaction.renderer import render_summary
from everlong.compaction.snapshot import Item, KeptMessage, Note, Snapshot
from everlong.compaction.terms import Term
from everlong.compaction.text import Cut, utf8_bytes
from everlong.models import Kind, Message
from everlong.policy import Policy

NOT_RUN: Final = "[not run: the turn was broken off]"
# Overhead of a message besides its texts: role, part kinds and braces.
_MESSAGE_BYTES: Final = 16


def build_context(
    base: Snapshot | None,
    items: Sequence[Item],
    policy: Policy,
    now_ms: int,
    result_bytes_max: Callable[[str], int],
) -> list[Message]:
    """Return the messages that the model reads, in order."""
    found = []
    facts = list_facts(base, items, policy, now_ms)
    notes = filter_live_notes(base.notes, policy, now_ms) if base else []
    terms = filter_live_terms(base.terms, policy, now_ms) if base else []
    if text := render_summary(base, facts, notes, [term for term in terms if term.listed]):
        found.append(Message(role="summary", text=text))
    shown = list_kept(base, items)
    spared = find_newest_message_seq(base, items)
    for group in group_messages(shown):
        found.extend(_render_group(group, policy, now_ms, spared, result_bytes_max))
    return found


def measure_messages(messages: Sequence[Message]) -> int:
    """Return the size of messages: texts, names, ids and arguments, as UTF-8."""
    return sum(map(measure_message, messages))


def estimate_tokens(text: str) -> int:
    """Return an estimate of a text's tokens: one for each four bytes, rounded up."""
    return -(-utf8_bytes(text) // 4)


def measure_message(message: Message) -> int:
    """Return the size of one message, as UTF-8."""
    if message.native is not None:
        return _MESSAGE_BYTES + utf8_bytes(json.dumps(message.native, ensure_ascii=False))
    texts = [message.text, message.call_id, message.tool]
    for call in message.tool_calls:
        texts += [call.id, call.tool, call.arguments]
    return _MESSAGE_BYTES + sum(map(utf8_bytes, texts))


def list_kept(base: Snapshot | None, items: Sequence[Item]) -> list[KeptMessage]:
    """Return the messages of a snapshot and of the entries after it."""
    after = base.upto_seq if base else 0
    return [
        *(base.kept if base else ()),
        *(
            KeptMessage(
                seq=item.entry.seq,
                kind=item.entry.kind,
                time_ms=item.entry.time_ms,
                message=item.message,
            )
            for item in items
            if item.message is not None and item.entry.seq > after
        ),
    ]


@dataclasses.dataclass
class Group:
    """A message without calls, or a reply with the results of its calls."""

    head: KeptMessage
    results: list[KeptMessage | None] = dataclasses.field(default_factory=list)
    """Results in the order of the calls; None where the journal has none."""

    @property
    def members(self) -> list[KeptMessage]:
        """The messages of the group that are in the journal."""
        return [self.head, *(each for each in self.results if each is not None)]


def group_messages(kept: Sequence[KeptMessage]) -> list[Group]:
    """Group messages. A result whose call is missing is left out."""
    found: list[Group] = []
    open_calls: dict[str, list[int]] = {}
    reply: Group | None = None
    for each in kept:
        if each.kind != Kind.TOOL_RESULT:
            group = Group(each, [None] * len(each.message.tool_calls))
            found.append(group)
            if each.kind == Kind.REPLY:
                reply, open_calls = group, {}
                for number, call in enumerate(each.message.tool_calls):
                    open_calls.setdefault(call.id, []).append(number)
        elif reply is not None and (numbers := open_calls.get(each.message.call_id)):
            reply.results[numbers.pop(0)] = each
    return found


def get_cut(kept: KeptMessage) -> Cut:
    """Return the kept part of a message's text."""
    if kept.left_out:
        return Cut(kept.message.text, kept.left_out, kept.tail)
    return Cut.of(kept.message.text, kept.seq)


def format_expired(seq: int) -> str:
    """Return the line that replaces an expired message."""
    return f"[expired; recall(seq={seq}) shows it]"


def _render_group(
    group: Group,
    policy: Policy,
    now_ms: int,
    spared: int,
    result_bytes_max: Callable[[str], int],
) -> Iterator[Message]:
    head = group.head
    gone = {
        each.seq
        for each in group.members
        if each.seq != spared and has_expired(each.kind, each.time_ms, policy, now_ms)
    }
    if head.seq not in gone:
        text = get_cut(head).render(head.seq)
        same = text == head.message.text
        yield head.message if same else dataclasses.replace(head.message, text=text)
    elif head.kind == Kind.FAILURE:
        return
    elif all(each.seq in gone for each in group.members):
        # If a whole step has expired, one line replaces its calls and results.
        yield Message(role=head.message.role, text=format_expired(head.seq))
        return
    else:
        yield dataclasses.replace(head.message, text=format_expired(head.seq), native=None)
    for call, result in zip(head.message.tool_calls, group.results, strict=True):
        text = NOT_RUN
        if result is not None and result.seq in gone:
            text = format_expired(result.seq)
        elif result is not None:
            text = get_cut(result).fit(result_bytes_max(call.tool)).render(result.seq)
        yield Message(role="tool", text=text, call_id=call.id, tool=call.tool)


def get_expiry_ms(kind: Kind, time_ms: int, policy: Policy) -> int | None:
    """Return when an entry's message expires, or None for never."""
    seconds = None
    if kind == Kind.TOOL_RESULT:
        seconds = policy.tool_result_ttl_seconds
    elif kind == Kind.REPLY:
        seconds = policy.reply_ttl_seconds
    elif kind == Kind.MESSAGE:
        seconds = policy.message_ttl_seconds
    elif kind == Kind.FAILURE:
        seconds = policy.failure_ttl_seconds
    return None if seconds is None else time_ms + int(seconds * 1000)


def has_expired(kind: Kind, time_ms: int, policy: Policy, now_ms: int) -> bool:
    """Return whether an entry's message has expired."""
    until_ms = get_expiry_ms(kind, time_ms, policy)
    return until_ms is not None and until_ms <= now_ms


def get_note_expiry_ms(note: Note, policy: Policy) -> int | None:
    """Return when a note expires, or None for never.

    Open requests and decisions stay. So does the line of a tool call, which names the entry with the
    expired result.
    """
    if note.kind in ("open", "decision", "pair"):
        return None
    return get_expiry_ms(note.source, note.time_ms, policy)


def is_live(note: Note, policy: Policy, now_ms: int) -> bool:
    """Return whether a note has not expired."""
    until_ms = get_note_expiry_ms(note, policy)
    return until_ms is None or until_ms > now_ms


def filter_live_notes(notes: Iterable[Note], policy: Policy, now_ms: int) -> list[Note]:
    """Return the notes that have not expired."""
    return [note for note in notes if is_live(note, policy, now_ms)]


def filter_live_terms(terms: Iterable[Term], policy: Policy, now_ms: int) -> list[Term]:
    """Return the terms that have not expired."""
    return [term for term in terms if not has_expired(term.source, term.time_ms, policy, now_ms)]


def find_next_expiry_ms(
    base: Snapshot | None, items: Sequence[Item], policy: Policy, now_ms: int
) -> int | None:
    """Return when the next part of the context expires, after now; None for never."""
    times = _list_expiries(base, items, policy, now_ms)
    return min((each for each in times if each is not None and each > now_ms), default=None)


def find_newest_message_seq(base: Snapshot | None, items: Sequence[Item]) -> int:
    """Return the seq of the current turn's message; 0 without one."""
    for item in reversed(items):
        if item.entry.kind == Kind.MESSAGE:
            return item.entry.seq
    seqs = [kept.seq for kept in base.kept if kept.kind == Kind.MESSAGE] if base else []
    return max(seqs, default=0)


def _list_expiries(
    base: Snapshot | None, items: Sequence[Item], policy: Policy, now_ms: int
) -> Iterator[int | None]:
    for fact in list_facts(base, items, policy, now_ms):
        yield fact.expires_ms
    # The current turn's message does not expire while the turn lasts.
    spared = find_newest_message_seq(base, items)
    if base is not None:
        for note in base.notes:
            yield get_note_expiry_ms(note, policy)
        for term in base.terms:
            if term.listed:
                yield get_expiry_ms(term.source, term.time_ms, policy)
        for kept in base.kept:
            if kept.seq != spared:
                yield get_expiry_ms(kept.kind, kept.time_ms, policy)
    for item in items:
        if item.entry.seq != spared:
            yield get_expiry_ms(item.entry.kind, item.entry.time_ms, policy)
