"""Survival: the share of the literals of later tool calls that a context still holds.

A session is cut. The literals are collected from the arguments of the tool calls after the cut, if they
also stand before it. A context that holds more of them spares the agent more reads and wrong guesses.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from everlong.compaction.compactor import BUDGET_BYTES_MIN, compact
from everlong.compaction.context import build_context, measure_message, measure_messages
from everlong.compaction.renderer import list_texts
from everlong.compaction.snapshot import Item, Snapshot
from everlong.compaction.text import grep, utf8_bytes
from everlong.compaction.text import take_tail as take_text_tail
from everlong.models import Message
from everlong.policy import Policy

LITERAL_KINDS: Final = ("path", "id", "name", "number")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_~@+./\-\x80-\U0010ffff]{3,300}")
_EXTENSION: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,5}")
_HEX: Final = re.compile(
    r"(?:0x)?[0-9a-f]{7,64}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE
)
_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_NUMBER: Final = re.compile(r"\d{3,}")
_FILE: Final = re.compile(r"[\w@+~-][\w@+~.-]*\.([A-Za-z][A-Za-z0-9]{0,5})")
# Endings that are names of files, and not of attributes.
_FILE_ENDINGS: Final = frozenset(
    [
        "c",
        "cc",
        "cfg",
        "conf",
        "cpp",
        "cs",
        "css",
        "csv",
        "db",
        "env",
        "go",
        "h",
        "hpp",
        "html",
        "ini",
        "ipynb",
        "java",
        "js",
        "json",
        "jsonl",
        "jsx",
        "kt",
        "lock",
        "log",
        "md",
        "mjs",
        "pdf",
        "php",
        "png",
        "jpg",
        "py",
        "rb",
        "rs",
        "scss",
        "sh",
        "sql",
        "svg",
        "tar",
        "toml",
        "ts",
        "tsx",
        "txt",
        "wav",
        "xml",
        "yaml",
        "yml",
        "zip",
    ]
)


def find_literals(text: str) -> dict[str, str]:
    """Return the paths, ids, names and numbers of a text, with their kinds."""
    found: dict[str, str] = {}
    for token in _TOKEN.findall(text):
        token = token.strip("-+@").rstrip("./")
        if len(token) >= 3 and not token.isalpha() and (kind := _classify(token)):
            found.setdefault(token, kind)
    return found


def _classify(token: str) -> str:
    if "/" in token:
        return "path" if any(map(str.isalpha, token)) else ""
    if _NUMBER.fullmatch(token):
        return "number"
    if _HEX.fullmatch(token) and any(map(str.isdigit, token)):
        return "id"
    if (match := _FILE.fullmatch(token)) and match[1].lower() in _FILE_ENDINGS:
        return "path"
    if _NAME.fullmatch(token) and ("_" in token.strip("_") or "." in token):
        return "name"
    return ""


def find_later_literals(before: str, later: Iterable[Message]) -> dict[str, str]:
    """Return the literals in the calls of later messages that stand in the text before them."""
    found: dict[str, str] = {}
    for message in later:
        for call in message.tool_calls:
            for text in list_texts(call.arguments):
                found.update(find_literals(text))
    return {literal: kind for literal, kind in found.items() if holds(before, literal)}


def holds(text: str, literal: str) -> bool:
    """Return whether a text holds a literal, not as a part of a longer word or number."""
    at = text.find(literal)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(literal) : at + len(literal) + 1]
        if not _joins(before, literal[0]) and not _joins(literal[-1], after):
            return True
        at = text.find(literal, at + 1)
    return False


def _joins(one: str, other: str) -> bool:
    return (one.isalnum() or one == "_") and (other.isalnum() or other == "_")


def join_texts(messages: Iterable[Message]) -> str:
    """Return all text that a model reads in messages."""
    found: list[str] = []
    for message in messages:
        found.append(message.text)
        for call in message.tool_calls:
            found += (call.tool, *list_texts(call.arguments))
    return "\n".join(found)


# Places of the cuts, as shares of the messages.
CUTS: Final = (0.25, 0.5, 0.75, 0.9)
# Cuts with fewer literals say little: one of them would count for more than 5%.
LITERALS_MIN: Final = 20
# A thread compacts when its context has this many times the size that a compaction leaves.
_GROWTH: Final = 4
_RECALL_BYTES: Final = 16 * 1024
_NO_CUT: Final = 1 << 40


@dataclasses.dataclass
class Score:
    """What one context holds of the literals of later calls."""

    at: int
    """Number of messages before the cut."""
    budget_bytes: int
    strategy: str
    """`compact`, `chain`, `tail`, `head and tail` or `summary`."""
    size_bytes: int = 0
    there: dict[str, int] = dataclasses.field(default_factory=dict)
    """Number of literals by kind."""
    kept: dict[str, int] = dataclasses.field(default_factory=dict)
    """Number of those that the context holds, by kind."""
    recalled: int = 0
    """Number of the others that `recall` finds; counted for `compact` and `chain`."""

    @property
    def share(self) -> float:
        """Share of the literals that the context holds."""
        return sum(self.kept.values()) / max(1, sum(self.there.values()))

    @property
    def share_with_recall(self) -> float:
        """Share of the literals that the context holds or `recall` finds."""
        return (sum(self.kept.values()) + self.recalled) / max(1, sum(self.there.values()))


class Evaluation:
    """Compares compactions of a session with the literals that its later calls use."""

    def __init__(self, items: Sequence[Item], policy: Policy) -> None:
        self._items = [item for item in items if item.message is not None]
        self._messages = [item.message for item in items if item.message is not None]
        self._policy = policy

    def list_cuts(self, shares: Iterable[float] = CUTS) -> list[int]:
        """Return the numbers of messages before each cut. No cut parts a reply from its results."""
        found: dict[int, None] = {}
        for share in shares:
            at = int(len(self._messages) * share)
            while at < len(self._messages) and self._messages[at].role == "tool":
                at += 1
            if 0 < at < len(self._messages):
                found[at] = None
        return list(found)

    def measure(self, at: int, budgets: Iterable[int]) -> Iterator[Score]:
        """Yield the scores of each way to shorten the messages before a cut; none if few literals."""
        before = self._messages[:at]
        literals = find_later_literals(join_texts(before), self._messages[at:])
        if len(literals) < LITERALS_MIN:
            return
        for budget in budgets:
            contexts = {
                "compact": self._compact(at, budget),
                "chain": self._compact_in_chain(at, budget),
                "tail": take_tail(before, budget),
                "head and tail": take_head_and_tail(before, budget),
            }
            for strategy, messages in contexts.items():
                score = score_context(literals, messages, at, budget, strategy)
                if strategy in ("compact", "chain"):
                    score.recalled = self._count_recalled(literals, messages, at)
                yield score

    def measure_summary(self, at: int, kept_from: int, summary: str) -> Iterator[Score]:
        """Yield the scores of a recorded summary with the messages kept after it, and of ours."""
        literals = find_later_literals(join_texts(self._messages[:at]), self._messages[at:])
        if len(literals) < LITERALS_MIN:
            return
        brief = Message(role="user", text=summary)
        contexts = [[brief]]
        if kept_from < at:
            contexts.append([brief, *self._messages[kept_from:at]])
        for messages in contexts:
            score = score_context(literals, messages, at, 0, "summary")
            score.budget_bytes = score.size_bytes
            yield score
            if score.size_bytes >= BUDGET_BYTES_MIN:
                ours = self._compact(at, score.size_bytes)
                yield score_context(literals, ours, at, score.size_bytes, "compact")

    def _compact(self, at: int, budget: int) -> list[Message]:
        return self._shorten(None, self._items[:at], budget)[1]

    def _compact_in_chain(self, at: int, budget: int) -> list[Message]:
        """Compact as a thread does: each time its context has grown to four times the budget."""
        base: Snapshot | None = None
        first = size_bytes = 0
        for number in range(at):
            size_bytes += measure_message(self._messages[number])
            # A reply stays with its results.
            ends_step = number + 1 == at or self._messages[number + 1].role != "tool"
            if size_bytes >= _GROWTH * budget and ends_step:
                base, shown = self._shorten(base, self._items[first : number + 1], budget)
                first, size_bytes = number + 1, measure_messages(shown)
        return self._shorten(base, self._items[first:at], budget)[1]

    def _shorten(
        self, base: Snapshot | None, items: Sequence[Item], budget: int
    ) -> tuple[Snapshot, list[Message]]:
        time_ms = items[-1].entry.time_ms if items else 0 if base is None else base.time_ms
        found = compact(base, items, self._policy, time_ms, keep_from_seq=_NO_CUT, to_bytes=budget)
        left = [item for item in items if item.entry.seq > found.upto_seq]
        return found, build_context(found, left, self._policy, time_ms, lambda _: _NO_CUT)

    def _count_recalled(self, literals: Iterable[str], messages: Sequence[Message], at: int) -> int:
        shown = join_texts(messages)
        texts = [join_texts([message]) for message in self._messages[:at]]
        return sum(
            any(
                holds(text, literal)
                and bool(grep(text, literal.replace("*", "\\*"), bytes_max=_RECALL_BYTES))
                for text in texts
                if literal in text
            )
            for literal in literals
            if not holds(shown, literal)
        )


def score_context(
    literals: dict[str, str], messages: Sequence[Message], at: int, budget: int, strategy: str
) -> Score:
    """Count the literals that messages hold."""
    text = join_texts(messages)
    score = Score(at, budget, strategy, measure_messages(messages))
    for literal, kind in literals.items():
        score.there[kind] = score.there.get(kind, 0) + 1
        score.kept[kind] = score.kept.get(kind, 0) + holds(text, literal)
    return score


def take_tail(messages: Sequence[Message], bytes_max: int) -> list[Message]:
    """Return the last messages that fit, the first of them cut to the rest: plain truncation."""
    found: list[Message] = []
    for message in reversed(messages):
        size_bytes = measure_message(message)
        if size_bytes > bytes_max:
            rest = bytes_max - (size_bytes - utf8_bytes(message.text))
            if rest > 0:
                text = take_text_tail(message.text, rest)
                found.append(dataclasses.replace(message, text=text, native=None))
            break
        bytes_max -= size_bytes
        found.append(message)
    return found[::-1]


def take_head_and_tail(messages: Sequence[Message], bytes_max: int) -> list[Message]:
    """Return the first messages, in a quarter of the bytes, and the last ones that fit."""
    head: list[Message] = []
    left = bytes_max // 4
    for message in messages:
        left -= measure_message(message)
        if left < 0:
            break
        head.append(message)
    return [*head, *take_tail(messages[len(head) :], bytes_max - measure_messages(head))]
