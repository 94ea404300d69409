"""How much evidence survives compaction. Fails if a bound does not hold."""

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import track

from bench.evidence_corpus import DOMAINS, Transcript, corpus
from bench.evidence_measure import KINDS, ROUNDS, Count, Survival, survival
from bench.evidence_unseen import UNSEEN

TRANSCRIPTS: Final = 40
_DOCUMENT: Final = Path(__file__).parents[1] / "docs/compaction.md"
_BEGIN: Final = "<!-- made by: make bench-compaction EVIDENCE=--write -->"
_END: Final = "<!-- end -->"
# What has to be kept of each kind, over all transcripts; the three of refs together.
BOUNDS: Final = {"asks": 1.0, "decisions": 1.0, "pairs": 1.0, "refs": 0.8, "numbers": 0.5}
_REFS: Final = ("paths", "commands", "ids")
_TOKENS_MAX: Final = 0.1
_out = Console(highlight=False, emoji=False, width=128)


@dataclasses.dataclass
class Row:
    """What was counted over some transcripts."""

    counts: dict[str, Count] = dataclasses.field(
        default_factory=lambda: {kind: Count() for kind in KINDS}
    )

    def add(self, counts: dict[str, Count]) -> None:
        """Add the counts of a transcript."""
        for kind, count in counts.items():
            self.counts[kind].add(count)

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
    """The same, if only the end of the transcript is kept."""
    unseen: Row = dataclasses.field(default_factory=Row)
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
        for row in (everything, self.unseen):
            for name, count in row.counts.items():
                if count.kept + count.recalled < count.there:
                    lost = count.there - count.kept - count.recalled
                    found.append(f"{name}: {lost} not recalled")
        if max(*self.tokens, *self.pieces) > _TOKENS_MAX:
            found.append(f"tokens: {max(*self.tokens, *self.pieces):.1%}")
        return found


def measure(transcripts: Iterable[Transcript], unseen: Iterable[Transcript] = ()) -> Evidence:
    """Compact transcripts, and count what is left of them."""
    evidence = Evidence()
    for transcript in transcripts:
        evidence.add(transcript.domain, *survival(transcript))
    for transcript in unseen:
        evidence.unseen.add(survival(transcript)[0].counts)
    return evidence


def table(evidence: Evidence) -> str:
    """Return the figures as a table in Markdown, with what they mean."""
    lines = [
        "| transcripts | open asks | decisions | tool-call pairs | paths | commands | ids "
        "| paths, commands, ids | numbers | all else through recall |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_line(name, evidence.rows[name]) for name in DOMAINS if name in evidence.rows),
        _line("**all**", evidence.rows["all"]),
        _line("*truncation: the last 10% of tokens*", evidence.cut, recalled=False),
        "",
        f"Context after {ROUNDS} compactions: {_range(evidence.tokens)} of the original's tokens at "
        f"four bytes a token, {_range(evidence.pieces)} by a stricter count.",
    ]
    stale = evidence.stale_asks
    lines.append(
        f"Of {stale.there} asks that were open for a while and then closed, {stale.kept} are still "
        "listed as open."
    )
    if evidence.unseen.refs.there:
        counts = evidence.unseen.counts
        lines.append(
            f"Said in words that the cues had not been made for: {_share(counts['asks'])} of open asks "
            f"and {_share(counts['decisions'])} of decisions are kept."
        )
    return "\n".join(lines)


def write(evidence: Evidence, document: Path = _DOCUMENT) -> None:
    """Put the table into the document."""
    before, rest = document.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    document.write_text(f"{before}{_BEGIN}\n\n{table(evidence)}\n\n{_END}{after}")


def main(arguments: Sequence[str]) -> int:
    """Measure what is asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.evidence", description=__doc__)
    parser.add_argument("--count", type=int, default=TRANSCRIPTS, help="transcripts")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/compaction.md"
    )
    asked = parser.parse_args(arguments)
    known = track(corpus(asked.count), "transcripts", total=asked.count, console=_out)
    unseen = track(
        corpus(asked.count // 2, seed=5, forms=UNSEEN),
        "other words",
        total=asked.count // 2,
        console=_out,
    )
    evidence = measure(known, unseen)
    _out.print(table(evidence), markup=False)
    if asked.write:
        write(evidence)
    for failure in evidence.failures:
        _out.print(f"FAIL {failure}")
    return 1 if evidence.failures else 0


def _line(name: str, row: Row, *, recalled: bool = True) -> str:
    columns = [*KINDS[:6], "refs", "numbers"]
    shares = [_share(row.refs if each == "refs" else row.counts[each]) for each in columns]
    lost = sum(count.there - count.kept for count in row.counts.values())
    found = sum(count.recalled for count in row.counts.values())
    rest = f"{found:,} of {lost:,}" if recalled else "-"
    return f"| {' | '.join([name, *shares, rest])} |"


def _share(count: Count) -> str:
    # Rounded down: 100% is all of them.
    return f"{int(1000 * count.share) / 10:g}%"


def _range(shares: Sequence[float]) -> str:
    return f"{min(shares):.1%} to {max(shares):.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
