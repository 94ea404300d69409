"""Compacts transcripts ten times, and counts the evidence that a model can still read.

Evidence counts as kept if it is in the context verbatim. Otherwise `excerpt` and `grep`, the parts of
`recall`, have to find it in the journalled entries.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final

from bench.evidence_corpus import Pair, Planted, Transcript, format_item
from everlong import compaction
from everlong.compaction import Item, Snapshot
from everlong.models import Kind, Message
from everlong.policy import Policy

ROUNDS: Final = 10
# Share of the bytes. It is below a tenth to leave room for other ways to count tokens: see `pieces`.
SHARE: Final = 0.075
# Share that truncation may keep, which is more.
TRUNCATED_SHARE: Final = 0.1
KINDS: Final = ("asks", "decisions", "pairs", "paths", "commands", "ids", "numbers")
RECALL_BYTES: Final = 16 * 1024
_PAGES_MAX: Final = 1000
_WHOLE: Final = 1 << 40
_POLICY: Final = Policy()
_SEQS: Final = re.compile(r"^\d+(?:,\+?\d+)* ", re.MULTILINE)
_PIECE: Final = re.compile(r" ?[A-Za-z]{1,8}|\d{1,3}|\s+| ?[^\sA-Za-z\d]+")


@dataclasses.dataclass
class Count:
    """Pieces of evidence of a kind: all, kept, and recalled among the others."""

    there: int = 0
    kept: int = 0
    recalled: int = 0

    def add(self, other: "Count") -> None:
        """Add another count."""
        self.there += other.there
        self.kept += other.kept
        self.recalled += other.recalled

    @property
    def share(self) -> float:
        """Which part is kept."""
        return self.kept / self.there if self.there else 1.0


@dataclasses.dataclass(frozen=True)
class Survival:
    """The remains of a transcript after compaction."""

    counts: dict[str, Count]
    missing: dict[str, list[str]]
    tokens: float
    """Share of the original's tokens, at four bytes each."""
    pieces: float
    """The same, by a stricter count."""
    stale_asks: Count
    """Asks that were closed: `kept` is how many are still listed as open."""
    listed_asks: Count
    """Open asks: `kept` is how many are listed as such, not just mentioned."""
    listed_decisions: Count
    by_users: Count
    """Asks and decisions in the words of users."""
    digest: str
    """Digest of the bytes of all ten snapshots."""


def pieces(messages: Sequence[Message]) -> int:
    """Count words of up to 8 letters, groups of 3 digits, and runs of other characters.

    This is an upper bound for tokenizers, which know many longer words. It charges more than bytes for
    ids and paths, which are frequent in summaries.
    """
    return sum(len(_PIECE.findall(text)) for text in _texts(messages))


def build_whole_context(transcript: Transcript) -> list[Message]:
    """Return the context as if nothing were ever compacted."""
    return compaction.build_context(None, transcript.items, _POLICY, 0, lambda _: _WHOLE)


def compact_in_rounds(transcript: Transcript, budget: int) -> tuple[list[Message], str]:
    """Add a transcript in ten chunks, compacting after each; return the model's context."""
    base: Snapshot | None = None
    digest = hashlib.blake2b(digest_size=16)
    step = -(-len(transcript.items) // ROUNDS)
    for end in range(step, len(transcript.items) + step, step):
        items = transcript.items[base.upto_seq if base else 0 : end]
        last = items[-1].entry
        base = compaction.compact(
            base, items, _POLICY, last.time_ms, keep_from_seq=last.seq + 1, to_bytes=budget
        )
        digest.update(compaction.dump(base))
        shown = compaction.build_context(base, (), _POLICY, last.time_ms, lambda _: _WHOLE)
        if compaction.measure_messages(shown) > budget:
            raise AssertionError(f"{transcript.name}: a context over its budget of {budget}")
    return shown, digest.hexdigest()


def truncate(whole: Sequence[Message], budget: int) -> list[Message]:
    """Return the last messages that fit: the usual alternative to compaction."""
    found: list[Message] = []
    for message in reversed(whole):
        budget -= compaction.measure_messages([message])
        if budget < 0:
            break
        found.append(message)
    return found[::-1]


def measure_survival(
    transcript: Transcript, share: float = SHARE, *, recall: bool = True
) -> tuple[Survival, dict[str, Count]]:
    """Return the remains of a transcript after compaction, and after truncation of its beginning."""
    whole = build_whole_context(transcript)
    budget = int(compaction.measure_messages(whole) * share)
    shown, digest = compact_in_rounds(transcript, budget)
    counts, missing = measure_context(transcript, shown, recall=recall)
    truth = transcript.truth
    left = Survival(
        counts=counts,
        missing=missing,
        tokens=compaction.measure_messages(shown) / compaction.measure_messages(whole),
        pieces=pieces(shown) / pieces(whole),
        stale_asks=_listed(truth.closed, _section(shown, "Open:")),
        listed_asks=_listed(truth.asks, _section(shown, "Open:")),
        listed_decisions=_listed(truth.decisions, _section(shown, "Decided:")),
        by_users=_by_users(transcript, {*missing["asks"], *missing["decisions"]}),
        digest=digest,
    )
    cut = truncate(whole, int(compaction.measure_messages(whole) * TRUNCATED_SHARE))
    return left, measure_context(transcript, cut, recall=False)[0]


def measure_context(
    transcript: Transcript, messages: Sequence[Message], *, recall: bool = True
) -> tuple[dict[str, Count], dict[str, list[str]]]:
    """Count a transcript's evidence in a context, and look for the rest through recall."""
    truth, reader = transcript.truth, _Reader(messages)
    counts: dict[str, Count] = {}
    missing: dict[str, list[str]] = {}

    def count(kind: str, there: Iterable[Planted], is_kept: Callable[[Planted], bool]) -> None:
        wanted = list(there)
        lost = [each for each in wanted if not is_kept(each)]
        found = sum(can_recall(transcript.items, each) for each in lost) if recall else 0
        counts[kind] = Count(len(wanted), len(wanted) - len(lost), found)
        missing[kind] = [each.text for each in lost]

    count("asks", truth.asks, lambda each: each.text in reader.text)
    count("decisions", truth.decisions, lambda each: each.text in reader.text)
    pairs = {pair.seq: pair for pair in truth.pairs}
    count(
        "pairs",
        (Planted(pair.argument, pair.reply_seq, pair.seq) for pair in truth.pairs),
        lambda each: reader.has_pair(pairs[each.key]),
    )
    for kind in ("paths", "commands", "ids", "numbers"):
        planted = [Planted(text, seq) for text, seq in getattr(truth, kind).items()]
        count(kind, planted, lambda each: reader.has(each.text))
    return counts, missing


def can_recall(items: Sequence[Item], wanted: Planted) -> bool:
    """Return whether recall finds a text, both by its seq page after page and by search."""
    text = format_item(items[wanted.seq - 1])
    pattern = wanted.text[: compaction.PATTERN_CHARS_MAX].replace("*", "\\*")
    if not compaction.grep(text, pattern, bytes_max=RECALL_BYTES):
        return False
    offset = 0
    for _ in range(_PAGES_MAX):
        page = compaction.excerpt(text, offset=offset, bytes_max=RECALL_BYTES)
        if wanted.text in page:
            return True
        if (more := re.search(r"offset=(\d+) shows more\]$", page)) is None:
            return False
        # Pages overlap by half, so that no match is missed between two.
        offset = int(more[1]) - RECALL_BYTES // 2
    return False


class _Reader:
    """Searches the model's context."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.text = "\n".join(_texts(messages))
        self._lines: dict[int, list[str]] = {}
        for message in messages:
            if message.role == "summary":
                self._index(message.text)
        self._asked = {call.id for message in messages for call in message.tool_calls}
        self._answered = {message.call_id for message in messages if message.role == "tool"}

    def has(self, text: str) -> bool:
        """Return whether a text occurs, not as a part of a longer word or number."""
        at = self.text.find(text)
        while at >= 0:
            before, after = self.text[at - 1 : at], self.text[at + len(text) : at + len(text) + 1]
            joined = before.isalnum() and text[0].isalnum()
            if not joined and not (after.isalnum() and text[-1].isalnum()):
                return True
            at = self.text.find(text, at + 1)
        return False

    def has_pair(self, pair: Pair) -> bool:
        """Return whether a call occurs with its outcome, as messages or in a line."""
        if pair.call_id in self._asked and pair.call_id in self._answered:
            return True
        for line in self._lines.get(pair.seq, ()):
            call, _, outcome = line.partition(" -> ")
            if pair.tool in call and pair.argument in call and pair.outcome in outcome:
                return True
        return False

    def _index(self, summary: str) -> None:
        for line in summary.splitlines():
            for seq in line.split(" ", 1)[0].split(","):
                if seq.isdigit() and " -> " in line:
                    self._lines.setdefault(int(seq), []).append(line)


def _texts(messages: Sequence[Message]) -> list[str]:
    """Return the text of all messages, without seqs, which are not numbers of the conversation."""
    found = []
    for message in messages:
        found.append(_SEQS.sub("", message.text) if message.role == "summary" else message.text)
        for call in message.tool_calls:
            found.append(call.tool)
            found += (str(value) for value in json.loads(call.arguments).values())
    return found


def _by_users(transcript: Transcript, missing: Container[str]) -> Count:
    truth, items = transcript.truth, transcript.items
    lines = [
        each.text
        for each in (*truth.asks, *truth.decisions)
        if items[each.seq - 1].entry.kind == Kind.MESSAGE
    ]
    return Count(len(lines), sum(text not in missing for text in lines))


def _listed(planted: Sequence[Planted], section: str) -> Count:
    return Count(len(planted), sum(each.text in section for each in planted))


def _section(messages: Sequence[Message], title: str) -> str:
    """Return one section of the summary."""
    lines = messages[0].text.splitlines() if messages else []
    if title not in lines:
        return ""
    rest = lines[lines.index(title) + 1 :]
    ends = [at for at, line in enumerate(rest) if not line[:1].isdigit()]
    return "\n".join(rest[: ends[0]] if ends else rest)
