"""Compactor: turns a snapshot and the entries after it into a smaller snapshot.

`compact` is a pure function: the same input gives the same bytes on every machine, and the context built
from its result never exceeds the budget. A summary by a model is optional: the caller sends the text of
`build_summary_prompt` to a model, and passes the reply to `compact`.
"""

import collections
from collections.abc import Container, Iterator, Sequence
from typing import Final

from everlong import limits
from everlong.compaction.agent_memory import list_facts
from everlong.compaction.collector import pause_collector
from everlong.compaction.context import (
    Group,
    build_context,
    filter_live_terms,
    find_newest_message_seq,
    get_cut,
    group_messages,
    is_live,
    list_kept,
)
from everlong.compaction.notes import (
    APPROVAL,
    Ledger,
    Selection,
    build_entry_note,
    build_group_lines,
    build_group_pieces,
    format_approval_prefix,
    select,
)
from everlong.compaction.renderer import (
    FRAME_BYTES_MAX,
    SUMMARY_FRAME_BYTES_MAX,
    list_texts,
    measure_facts,
    measure_notes,
    measure_summary,
)
from everlong.compaction.snapshot import Item, Note, NoteKind, Snapshot, Strategy
from everlong.compaction.terms import Term, TermIndex, sort_by_worth, weigh_term
from everlong.compaction.text import clip, replace_surrogates, take_head, utf8_bytes
from everlong.compaction.window import Window, build_window, is_over, measure_group
from everlong.models import Entry, Kind, Message
from everlong.models.tools import remove_edit
from everlong.policy import Policy

# Smallest budget: it leaves room for notes, however large the facts are.
BUDGET_BYTES_MIN: Final = 2 * limits.KIB
# Divisors of the bytes that facts and frame leave: the smallest window, and a model's summary.
_WINDOW_LEAST: Final = 5
_SUMMARY_SHARE: Final = 4
# Divisor of the same bytes: the commands and numbers that are looked for.
_PIECES_SHARE: Final = 3
# Divisor of the same bytes: the rest that is worth a larger window.
_WINDOW_GROWTH: Final = 16
# Terms that a snapshot remembers without showing them, for their statistics: some 100 KB.
_UNLISTED_MAX: Final = 1024
# Notes that a fallback to the tail keeps.
_BINDING: Final[tuple[NoteKind, ...]] = ("open", "decision")
# Overhead of the summary message.
_MESSAGE_BYTES: Final = 16
_PROMPT: Final = (
    "Summarise this work of an agent for the agent itself, which goes on with it and will not see most "
    "of it again. Say what was wanted, what was found out and how, what was decided and why, what was "
    "tried in vain, and what is left to do. Keep names, paths, numbers and ids as they are written. "
    "Leave out what can be looked up again. At most {words} words, plain text.\n\n"
)
_RESULT_BYTES_MAX: Final = 2000
_BYTES_PER_WORD: Final = 7


def compact(
    base: Snapshot | None,
    items: Sequence[Item],
    policy: Policy,
    now_ms: int,
    *,
    keep_from_seq: int,
    to_bytes: int | None = None,
    summary: str = "",
) -> Snapshot:
    """Return a snapshot of all entries before `keep_from_seq`, of at most `to_bytes`."""
    budget = policy.compact_to_bytes if to_bytes is None else to_bytes
    if budget < BUDGET_BYTES_MIN:
        raise ValueError(f"to_bytes is {budget}; a context needs at least {BUDGET_BYTES_MIN} bytes")
    taken = _find_entries(base, items, keep_from_seq)
    if base is not None and not taken and _is_unchanged(base, policy, now_ms, budget, summary):
        return base
    upto_seq = taken[-1].entry.seq if taken else (base.upto_seq if base else 0)
    facts = list_facts(base, taken, policy, now_ms)
    room = budget - FRAME_BYTES_MAX - _MESSAGE_BYTES - measure_facts(facts, budget)
    written = _clip_summary(summary or (base.summary if base else ""), room // _SUMMARY_SHARE)
    room -= measure_summary(written)
    with pause_collector():
        past = _Past(base, taken, policy, now_ms)
        window, selection, strategy = past.divide(room)
    return Snapshot(
        upto_seq=upto_seq,
        time_ms=now_ms,
        budget_bytes=budget,
        facts=facts,
        strategy=strategy,
        notes=tuple(selection.notes),
        terms=past.list_terms(selection.terms),
        kept=tuple(each for group in window.kept for each in group.members),
        dropped=_merge_newest_seqs(base.dropped if base else {}, selection.dropped),
        summary=written,
        summary_seq=upto_seq if summary else (base.summary_seq if base else 0),
    )


def build_summary_prompt(
    base: Snapshot | None,
    items: Sequence[Item],
    policy: Policy,
    now_ms: int,
    *,
    bytes_max: int | None = None,
) -> str:
    """Return the prompt for a summary of a snapshot and the entries after it.

    It has at most `bytes_max` bytes, by default the size at which a context is compacted. If not all
    messages fit, the newest stay.
    """
    asked = _PROMPT.format(words=policy.compact_to_bytes // _SUMMARY_SHARE // _BYTES_PER_WORD)
    room = (policy.compact_at_bytes if bytes_max is None else bytes_max) - len(asked)
    messages = build_context(base, items, policy, now_ms, lambda _: _RESULT_BYTES_MAX)
    known = "".join(message.text for message in messages if message.role == "summary")
    known = take_head(known, room // 2)
    room -= utf8_bytes(known)
    lines: list[str] = []
    for message in reversed(messages):
        line = "" if message.role == "summary" else _format_message(message)
        room -= utf8_bytes(line)
        if room < 0:
            break
        lines.append(line)
    return "".join([asked, known, *reversed(lines)])


class _Past:
    """The messages, notes and terms that a compaction chooses from."""

    def __init__(
        self, base: Snapshot | None, taken: Sequence[Item], policy: Policy, now_ms: int
    ) -> None:
        self._base = base.notes if base else ()
        self._policy, self._now_ms = policy, now_ms
        self._groups = group_messages(list_kept(base, taken))
        self._spared = find_newest_message_seq(base, taken)
        self._entries = [item.entry for item in taken if item.message is None]
        self._known: dict[int, list[Note]] = {}
        last_seq = self._groups[-1].members[-1].seq if self._groups else 0
        self._upto_seq = max(base.upto_seq if base else 0, last_seq)
        self._terms = self._rank_terms(base)
        self.size_bytes = sum(map(measure_group, self._groups))
        listed = [term for term in base.terms if term.listed] if base else []
        self._base_bytes = measure_notes(self._base, listed)

    def divide(self, room: int) -> tuple[Window, Selection, Strategy]:
        """Return the messages to keep, and the notes and terms of everything else, within `room`.

        The window gets at least the part of the room that all messages would need, so a context that
        hardly exceeds its budget is hardly changed. If the tail of the same size would show terms of
        more worth, the window gets all room but that of open requests and decisions.
        """
        left = max(0, room - self._base_bytes)
        fits = min(left, self.size_bytes)
        least = max(room // _WINDOW_LEAST, left * fits // max(1, self.size_bytes) * 9 // 10)
        window = self.choose_window(least)
        selection = self._select(window, room - window.size_bytes)
        left = room - window.size_bytes - measure_notes(selection.notes, selection.terms)
        if not selection.dropped and left > room // _WINDOW_GROWTH:
            # Everything fits, so the rest is for messages. More of them need fewer notes.
            window = self.choose_window(window.size_bytes + left)
            selection = self._select(window, room - window.size_bytes)
        if not self._is_below_tail(selection.shown, room):
            return window, selection, "notes"
        binding = [note for note in self.list_outside(window, 0) if note.kind in _BINDING]
        window = self.choose_window(room - min(room // _WINDOW_LEAST, measure_notes(binding)))
        return window, self._select(window, room - window.size_bytes), "tail"

    def _is_below_tail(self, shown: Container[str], room: int) -> bool:
        """Return whether terms that are shown are worth less than those of the last messages.

        Rare terms do not count: most of them are noise, and a tail of noise would win.
        """
        tail_seq = self._upto_seq + 1
        for group in reversed(self._groups):
            room -= measure_group(group)
            if room < 0:
                break
            tail_seq = group.head.seq
        kept = tail = 0
        for term in self._terms:
            if not term.is_rare:
                worth = weigh_term(term, self._upto_seq)
                kept += worth if term.text in shown else 0
                tail += worth if term.seq >= tail_seq else 0
        return kept < tail

    def _select(self, window: Window, room: int) -> Selection:
        shown = list(self._list_window_texts(window))
        return select(self.list_outside(window, room), self._terms, shown, room, self.is_live)

    def _list_window_texts(self, window: Window) -> Iterator[str]:
        for group in window.kept:
            for each in group.members:
                yield get_cut(each).render(each.seq)
                for call in each.message.tool_calls:
                    yield from list_texts(call.arguments)

    def _rank_terms(self, base: Snapshot | None) -> list[Term]:
        """Return the terms of all messages that have not expired, by their worth."""
        index = TermIndex(base.terms if base else ())
        for group in self._groups:
            for each in group.members:
                if each.noted:
                    continue  # Its terms were counted when it was cut.
                asked = each.kind == Kind.MESSAGE
                index.add_text(each.message.text, each.seq, each.kind, each.time_ms, asked=asked)
                texts = [
                    text for call in each.message.tool_calls for text in list_texts(call.arguments)
                ]
                index.add_calls(texts, each.seq, each.kind, each.time_ms)
        found = filter_live_terms(index.list_terms(), self._policy, self._now_ms)
        return sort_by_worth(found, self._upto_seq)

    def list_terms(self, listed: Sequence[Term]) -> tuple[Term, ...]:
        """Return the terms for the snapshot: those that it lists, and the best of the others."""
        texts = {term.text for term in listed}
        others = [term._replace(listed=False) for term in self._terms if term.text not in texts]
        found = (*listed, *others[:_UNLISTED_MAX])
        return tuple(sorted(found, key=lambda term: (term.seq, term.text)))

    def choose_window(self, window_bytes: int) -> Window:
        """Return the messages to keep, in about that many bytes."""
        return build_window(self._groups, self._spared, window_bytes, self._policy, self._now_ms)

    def list_outside(self, window: Window, room: int) -> list[Note]:
        """Return the notes, by seq, of everything that a window does not show in full."""
        whole = {each.seq for group in window.kept for each in group.members if not each.noted}
        shown = {group.head.seq for group in window.kept}
        ledger = Ledger(self._base)
        waiting = collections.deque(self._entries)
        for group in self._groups:
            while waiting and waiting[0].seq < group.head.seq:
                _add_entry(ledger, waiting.popleft())
            # A new step has begun, so approvals of earlier calls are no longer pending.
            ledger.close_stale(APPROVAL, group.head.seq)
            if group.head.seq in shown and whole.issuperset(each.seq for each in group.members):
                ledger.close_done(group.head.message.text, group.head.seq)
                continue
            for note in self._get_lines(group):
                # A call that the window shows with its result needs no line.
                if note.seq not in whole and not (note.kind == "pair" and group.head.seq in shown):
                    ledger.add(note)
        for entry in waiting:
            _add_entry(ledger, entry)
        for note in self._list_pieces(whole, room // _PIECES_SHARE):
            ledger.add(note)
        return list(filter(self.is_live, ledger.notes()))

    def is_live(self, note: Note) -> bool:
        """Return whether a note has not expired."""
        return is_live(note, self._policy, self._now_ms)

    def _get_lines(self, group: Group) -> list[Note]:
        if group.head.seq not in self._known:
            self._known[group.head.seq] = list(build_group_lines(group))
        return self._known[group.head.seq]

    def _list_pieces(self, whole: Container[int], bytes_max: int) -> list[Note]:
        """Return the newest commands and numbers outside a window, by seq.

        Those beyond `bytes_max` would not be chosen, so nothing older is searched for them.
        """
        found: list[list[Note]] = []
        for group in reversed(self._groups):
            if bytes_max < 0:
                break
            pieces = [note for note in build_group_pieces(group) if note.seq not in whole]
            bytes_max -= sum(utf8_bytes(note.text) for note in pieces)
            found.append(pieces)
        return [note for pieces in reversed(found) for note in pieces]


def _add_entry(ledger: Ledger, entry: Entry) -> None:
    asked = ""
    if entry.kind == Kind.DECIDED and not (entry.data or {}).get("escalated"):
        asked_id = remove_edit((entry.data or {}).get("id", ""))
        asked = ledger.settle(format_approval_prefix(asked_id))
    note = build_entry_note(entry, asked)
    if note is not None:
        ledger.add(note)


def _find_entries(base: Snapshot | None, items: Sequence[Item], keep_from_seq: int) -> list[Item]:
    """Return the entries to compact. A last step that lacks results is left out."""
    after = base.upto_seq if base else 0
    taken = [item for item in items if after < item.entry.seq < keep_from_seq]
    found = group_messages(list_kept(None, taken))
    if found and None in found[-1].results:
        return [item for item in taken if item.entry.seq < found[-1].head.seq]
    return taken


def _is_unchanged(base: Snapshot, policy: Policy, now_ms: int, budget: int, summary: str) -> bool:
    """Return whether a snapshot stays the same if no entries are added to it."""
    if budget < base.budget_bytes or summary not in ("", base.summary):
        return False
    if base.facts != list_facts(base, (), policy, now_ms):
        return False
    if not all(is_live(note, policy, now_ms) for note in base.notes):
        return False
    if len(filter_live_terms(base.terms, policy, now_ms)) < len(base.terms):
        return False
    spared = find_newest_message_seq(base, ())
    found = group_messages(base.kept)
    return not any(is_over(each, policy, now_ms) for each in found if each.head.seq != spared)


def _merge_newest_seqs(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Return, for each kind of dropped notes, the newest seq."""
    kinds = sorted({*one, *other})
    return {kind: max(one.get(kind, 0), other.get(kind, 0)) for kind in kinds}


def _clip_summary(summary: str, bytes_max: int) -> str:
    return take_head(
        replace_surrogates(summary).strip(), bytes_max - SUMMARY_FRAME_BYTES_MAX
    ).rstrip()


def _format_message(message: Message) -> str:
    calls = "".join(f"\ncalls {call.tool} {call.arguments}" for call in message.tool_calls)
    who = f"{message.role} {message.tool}".strip()
    return f"{who}: {clip(message.text + calls, 2 * _RESULT_BYTES_MAX)}\n"
