"""Measures how much evidence survives compaction, and fails if a bound does not hold."""

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import track

from bench.evidence_corpus import DOMAINS, Transcript, corpus
from bench.evidence_held_out import UNSEEN
from bench.evidence_measure import KINDS, ROUNDS, Count, Survival, measure_survival

TRANSCRIPTS: Final = 40
_DOCUMENT: Final = Path(__file__).parents[1] / "docs/how-to/compaction.md"
_BEGIN: Final = "<!-- made by: make bench-compaction EVIDENCE=--write -->"
_END: Final = "<!-- end -->"
# Minimum share of each kind that must be kept, over all transcripts; the three kinds of refs together.
BOUNDS: Final = {"asks": 1.0, "decisions": 1.0, "pairs": 1.0, "refs": 0.8, "numbers": 0.5}
_REFS: Final = ("paths", "commands", "ids")
_TOKENS_MAX: Final = 0.1
# Tighter budgets, relative to the transcript: a long thread with a constant budget gets there.
SHARES: Final = (0.075, 0.04, 0.025)
_out = Console(highlight=False, emoji=False, width=128)


@dataclasses.dataclass
class Row:
    """Counts over some transcripts."""

    counts: dict[str, Count] = dataclasses.field(
        default_factory=lambda: {kind: Count() for kind in KINDS}
    )
    listed_asks: Count = dataclasses.field(default_factory=Count)
    listed_decisions: Count = dataclasses.field(default_factory=Count)
    by_users: Count = dataclasses.field(default_factory=Count)

    def add(self, counts: dict[str, Count]) -> None:
        """Add the counts of a transcript."""
        for kind, count in counts.items():
            self.counts[kind].add(count)

    def add_left(self, left: Survival) -> None:
        """Add what is left of a transcript, and what of it stands where it should."""
        self.add(left.counts)
        self.listed_asks.add(left.listed_asks)
        self.listed_decisions.add(left.listed_decisions)
        self.by_users.add(left.by_users)

    @property
    def refs(self) -> Count:
        """Paths, commands and ids together."""
        total = Count()
        for kind in _REFS:
            total.add(self.counts[kind])
        return total


@dataclasses.dataclass
class Evidence:
    """The figures of one run."""

    rows: dict[str, Row] = dataclasses.field(default_factory=dict)
    cut: Row = dataclasses.field(default_factory=Row)
    """The same counts if only the end of the transcript is kept."""
    tight: dict[tuple[str, float], Row] = dataclasses.field(default_factory=dict)
    """Counts by the source of the phrases, and by the share of the original that is left."""
    stale_asks: Count = dataclasses.field(default_factory=Count)
    tokens: list[float] = dataclasses.field(default_factory=list)
    pieces: list[float] = dataclasses.field(default_factory=list)
    digests: list[str] = dataclasses.field(default_factory=list)

    def add(self, domain: str, left: Survival, cut: dict[str, Count]) -> None:
        """Add what is left of a transcript."""
        for name in (domain, "all"):
            self.rows.setdefault(name, Row()).add(left.counts)
        self.cut.add(cut)
        self.stale_asks.add(left.stale_asks)
        self.tokens.append(left.tokens)
        self.pieces.append(left.pieces)
        self.digests.append(left.digest)

    @property
    def failures(self) -> list[str]:
        """Which bounds do not hold."""
        everything = self.rows["all"]
        shares = {kind: everything.counts[kind].share for kind in BOUNDS if kind != "refs"}
        shares["refs"] = everything.refs.share
        found = [f"{kind}: {shares[kind]:.1%}" for kind in BOUNDS if shares[kind] < BOUNDS[kind]]
        for name, count in everything.counts.items():
            if count.kept + count.recalled < count.there:
                lost = count.there - count.kept - count.recalled
                found.append(f"{name}: {lost} not recalled")
        if max(*self.tokens, *self.pieces) > _TOKENS_MAX:
            found.append(f"tokens: {max(*self.tokens, *self.pieces):.1%}")
        return found


def measure(
    transcripts: Iterable[Transcript], tight: Iterable[tuple[str, Transcript]] = ()
) -> Evidence:
    """Compact transcripts and count their remaining evidence, for some at tighter budgets too."""
    evidence = Evidence()
    for transcript in transcripts:
        evidence.add(transcript.domain, *measure_survival(transcript))
    for words, transcript in tight:
        for share in SHARES:
            left, _ = measure_survival(transcript, share, recall=False)
            evidence.tight.setdefault((words, share), Row()).add_left(left)
    return evidence


def table(evidence: Evidence) -> str:
    """Return the figures as a table in Markdown, with an explanation."""
    lines = [
        "| transcripts | open asks | decisions | tool-call pairs | paths | commands | ids "
        "| paths, commands, ids | numbers | all else through recall |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_format_line(name, evidence.rows[name]) for name in DOMAINS if name in evidence.rows),
        _format_line("**all**", evidence.rows["all"]),
        _format_line("*truncation: the last 10% of tokens*", evidence.cut, recalled=False),
        "",
        f"Context after {ROUNDS} compactions: {_format_range(evidence.tokens)} of the original's tokens "
        f"at four bytes a token, {_format_range(evidence.pieces)} by a stricter count.",
    ]
    stale = evidence.stale_asks
    lines.append(
        f"Of {stale.there} asks that were open for a while and then closed, {stale.kept} are still "
        "listed as open."
    )
    if evidence.tight:
        lines += [
            "",
            "| what is left | words | open asks | listed as open | decisions | listed as decided "
            "| both, of users | tool-call pairs | paths, commands, ids | numbers |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *(_format_tight_line(*key, row) for key, row in evidence.tight.items()),
        ]
    return "\n".join(lines)


def write(evidence: Evidence, document: Path = _DOCUMENT) -> None:
    """Put the table into the document."""
    before, rest = document.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    document.write_text(f"{before}{_BEGIN}\n\n{table(evidence)}\n\n{_END}{after}")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.evidence", description=__doc__)
    parser.add_argument("--count", type=int, default=TRANSCRIPTS, help="transcripts")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/how-to/compaction.md"
    )
    asked = parser.parse_args(arguments)
    known = track(corpus(asked.count), "transcripts", total=asked.count, console=_out)
    some = asked.count // 2
    tight = itertools.chain(
        (("of the corpus", each) for each in corpus(some)),
        (("others", each) for each in corpus(some, seed=5, forms=UNSEEN)),
    )
    evidence = measure(known, track(tight, "tighter", total=2 * some, console=_out))
    _out.print(table(evidence), markup=False)
    if asked.write:
        write(evidence)
    for failure in evidence.failures:
        _out.print(f"FAIL {failure}")
    return 1 if evidence.failures else 0


def _format_line(name: str, row: Row, *, recalled: bool = True) -> str:
    columns = [*KINDS[:6], "refs", "numbers"]
    shares = [_format_share(row.refs if each == "refs" else row.counts[each]) for each in columns]
    lost = sum(count.there - count.kept for count in row.counts.values())
    found = sum(count.recalled for count in row.counts.values())
    rest = f"{found:,} of {lost:,}" if recalled else "-"
    return f"| {' | '.join([name, *shares, rest])} |"


def _format_tight_line(words: str, share: float, row: Row) -> str:
    counts = row.counts
    shares = [
        counts["asks"],
        row.listed_asks,
        counts["decisions"],
        row.listed_decisions,
        row.by_users,
        counts["pairs"],
        row.refs,
        counts["numbers"],
    ]
    return f"| {' | '.join([f'{share:.1%}', words, *map(_format_share, shares)])} |"


def _format_share(count: Count) -> str:
    # Rounded down: 100% is all of them.
    return f"{int(1000 * count.share) / 10:g}%"


def _format_range(shares: Sequence[float]) -> str:
    return f"{min(shares):.1%} to {max(shares):.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
