"""Measures which literals of later tool calls a compacted context holds, on recorded sessions.

Each session is cut at several places and compacted to several budgets, at once and in the chain of
compactions that a thread makes. The same budgets are filled with the plain tail, and with head and tail.
A bound fails if the tail holds more, or if the means are below what docs/how-to/compaction.md states.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from everlong import limits
from everlong.compaction import Item
from everlong.compaction.survival import CUTS, LITERAL_KINDS, LITERALS_MIN, Evaluation, Score
from everlong.errors import ConfigError
from everlong.importers import Transcript, find_transcripts, read_transcripts
from everlong.models import Kind, Message, build_entry
from everlong.policy import Policy

BUDGETS: Final = tuple(size * limits.KIB for size in (4, 16, 64, 128))
OURS: Final = ("compact", "chain")
STRATEGIES: Final = (*OURS, "tail", "head and tail")
_LABELS: Final = {"compact": "at once", "chain": "in a chain"}
# Least share of the tail's gap to 100% that the means have to close; least mean at the smallest budget.
GAP_CLOSED_MIN: Final = {16 * limits.KIB: 1 / 3, 64 * limits.KIB: 1 / 2}
SHARE_MIN: Final = {4 * limits.KIB: 0.18}
_STEP_MS: Final = 1000
_KINDS: Final = {"user": Kind.MESSAGE, "assistant": Kind.REPLY, "tool": Kind.TOOL_RESULT}
_DOCUMENT: Final = Path(__file__).parents[1] / "docs/how-to/compaction.md"
_CHART: Final = Path(__file__).parents[1] / "docs/images/compaction-survival.svg"
_BEGIN: Final = "<!-- made by: make bench-compaction TRANSCRIPTS=dir EVIDENCE=--write -->"
_END: Final = "<!-- end of survival -->"
_out = Console(highlight=False, emoji=False, width=128)


@dataclasses.dataclass
class Result:
    """The scores of one session."""

    name: str
    calls: int
    scores: list[Score] = dataclasses.field(default_factory=list)
    summaries: list[Score] = dataclasses.field(default_factory=list)


def build_items(messages: Sequence[Message]) -> list[Item]:
    """Return messages as journal entries."""
    return [
        Item(build_entry(seq, _KINDS[message.role], message, seq * _STEP_MS), message)
        for seq, message in enumerate(messages, 1)
    ]


def measure_transcript(transcript: Transcript, budgets: Sequence[int] = BUDGETS) -> Result:
    """Return the scores of a session."""
    result = Result(transcript.name, transcript.calls)
    evaluation = Evaluation(build_items(transcript.messages), Policy())
    for at in evaluation.list_cuts(CUTS):
        result.scores += evaluation.measure(at, budgets)
    for each in transcript.summaries:
        result.summaries += evaluation.measure_summary(each.at, each.kept_from, each.text)
    return result


def read_folder(folder: Path) -> Iterator[Transcript]:
    """Yield the sessions below a directory. Files of other formats are named and left out."""
    for path in find_transcripts(folder):
        try:
            yield from read_transcripts(path)
        except ConfigError as error:
            _out.print(f"left out: {error}", markup=False)


def group_scores(results: Sequence[Result], strategy: str, budget: int) -> list[Score]:
    """Return the scores of a strategy at a budget, cut by cut."""
    return [
        score
        for result in results
        for score in result.scores
        if (score.strategy, score.budget_bytes) == (strategy, budget)
    ]


def find_failures(results: Sequence[Result], budgets: Sequence[int] = BUDGETS) -> list[str]:
    """Return which bounds do not hold."""
    failures = []
    for budget in budgets:
        tails = group_scores(results, "tail", budget)
        if not tails:
            continue
        tail = statistics.mean(score.share for score in tails)
        for strategy in OURS:
            scores = group_scores(results, strategy, budget)
            size = f"{budget // limits.KIB} KiB {_LABELS[strategy]}"
            failures += [
                f"{size}: {ours.share:.0%} at message {ours.at}, and the tail {other.share:.0%}"
                for ours, other in zip(scores, tails, strict=True)
                if ours.share < other.share
            ]
            failures += [
                f"{size}: recall does not find all at message {ours.at}"
                for ours in scores
                if ours.share_with_recall < 1
            ]
            mean = statistics.mean(score.share for score in scores)
            closed = 1.0 if tail == 1 else (mean - tail) / (1 - tail)
            if closed < GAP_CLOSED_MIN.get(budget, 0):
                failures.append(f"{size}: {closed:.0%} of the tail's gap to 100% is closed")
            if mean <= SHARE_MIN.get(budget, -1):
                failures.append(f"{size}: {mean:.0%} in the mean")
    return failures


def format_results(results: Sequence[Result], budgets: Sequence[int] = BUDGETS) -> str:
    """Return the tables in Markdown."""
    sizes = [f"{budget // limits.KIB} KiB" for budget in budgets]
    lines = [
        f"| session | cut | literals | {' | '.join(sizes)} | through recall |",
        f"|---|---|---|{'---|' * (len(budgets) + 1)}",
    ]
    for result in results:
        for at in dict.fromkeys(score.at for score in result.scores):
            cut = {
                (score.strategy, score.budget_bytes): score
                for score in result.scores
                if score.at == at
            }
            cells = [
                " / ".join(f"{cut[each, budget].share:.0%}" for each in STRATEGIES)
                for budget in budgets
            ]
            any_score = cut["compact", budgets[0]]
            recall = min(cut[each, size].share_with_recall for each in OURS for size in budgets)
            lines.append(
                f"| {result.name}, {result.calls} calls | message {at} "
                f"| {sum(any_score.there.values())} | {' | '.join(cells)} | {recall:.0%} |"
            )
    means = []
    for budget in budgets:
        shares = []
        for strategy in STRATEGIES:
            scores = group_scores(results, strategy, budget)
            shares.append(f"{statistics.mean(score.share for score in scores):.0%}")
        means.append(f"**{' / '.join(shares)}**")
    lines.append(f"| **mean** | | | {' | '.join(means)} | |")
    lines += ["", *_format_kinds(results, budgets)]
    summaries = [(result.name, score) for result in results for score in result.summaries]
    if summaries:
        lines += ["", "| session | recorded summary at | size | holds |", "|---|---|---|---|"]
        lines += [
            f"| {name} | message {score.at}, {score.strategy} | {score.budget_bytes:,} bytes "
            f"| {score.share:.0%} |"
            for name, score in summaries
        ]
    return "\n".join(lines)


def _format_kinds(results: Sequence[Result], budgets: Sequence[int]) -> Iterator[str]:
    yield (
        "| kind | literals | " + " | ".join(f"{size // limits.KIB} KiB" for size in budgets) + " |"
    )
    yield "|---|---|" + "---|" * len(budgets)
    for kind in LITERAL_KINDS:
        cells, there = [], 0
        for budget in budgets:
            shares = []
            for strategy in STRATEGIES:
                scores = group_scores(results, strategy, budget)
                there = sum(score.there.get(kind, 0) for score in scores)
                kept = sum(score.kept.get(kind, 0) for score in scores)
                shares.append(f"{kept / max(1, there):.0%}")
            cells.append(" / ".join(shares))
        yield f"| {kind} | {there} | {' | '.join(cells)} |"


_COLORS: Final = {
    "compact": "#2563eb",
    "chain": "#60a5fa",
    "tail": "#a8a29e",
    "head and tail": "#d6d3d1",
}
_BAR: Final = 26
_HEIGHT: Final = 200


def draw_chart(results: Sequence[Result], budgets: Sequence[int] = BUDGETS) -> str:
    """Return the means as an SVG: a group of bars for each budget."""
    group = _BAR * len(STRATEGIES) + 34
    width = 60 + group * len(budgets)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT + 84}" '
        'font-family="sans-serif" font-size="11" role="img">',
        "<title>Share of the literals of later calls that a context holds</title>",
        f'<rect width="{width}" height="{_HEIGHT + 84}" fill="#ffffff"/>',
    ]
    for percent in (0, 25, 50, 75, 100):
        y = 20 + _HEIGHT - _HEIGHT * percent // 100
        parts.append(f'<path d="M44 {y}H{width - 8}" stroke="#e7e5e4"/>')
        parts.append(f'<text x="38" y="{y + 4}" text-anchor="end" fill="#57534e">{percent}%</text>')
    for number, budget in enumerate(budgets):
        left = 54 + number * group
        for place, strategy in enumerate(STRATEGIES):
            scores = group_scores(results, strategy, budget)
            share = statistics.mean(score.share for score in scores) if scores else 0.0
            height = round(_HEIGHT * share)
            x, y = left + place * _BAR, 20 + _HEIGHT - height
            parts.append(
                f'<rect x="{x}" y="{y}" width="{_BAR - 3}" height="{height}" '
                f'fill="{_COLORS[strategy]}"/>'
            )
            parts.append(
                f'<text x="{x + _BAR // 2 - 1}" y="{y - 4}" text-anchor="middle" fill="#57534e">'
                f"{share:.0%}</text>"
            )
        middle = left + _BAR * len(STRATEGIES) // 2
        parts.append(
            f'<text x="{middle}" y="{_HEIGHT + 38}" text-anchor="middle" fill="#1c1917">'
            f"{budget // limits.KIB} KiB</text>"
        )
    for place, strategy in enumerate(STRATEGIES):
        x = 54 + place * 112
        parts.append(
            f'<rect x="{x}" y="{_HEIGHT + 58}" width="10" height="10" fill="{_COLORS[strategy]}"/>'
        )
        name = f"compacted {_LABELS[strategy]}" if strategy in OURS else strategy
        parts.append(f'<text x="{x + 14}" y="{_HEIGHT + 67}" fill="#1c1917">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def write(results: Sequence[Result], document: Path = _DOCUMENT, chart: Path = _CHART) -> None:
    """Put the tables into the document, and write the chart."""
    before, rest = document.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    document.write_text(f"{before}{_BEGIN}\n\n{format_results(results)}\n\n{_END}{after}")
    chart.write_text(draw_chart(results))


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.survival", description=__doc__)
    parser.add_argument("folder", type=Path, help="directory of recorded sessions")
    parser.add_argument(
        "--write", action="store_true", help="put tables and chart into docs/how-to/compaction.md"
    )
    asked = parser.parse_args(arguments)
    results, short = [], 0
    for transcript in read_folder(asked.folder):
        result = measure_transcript(transcript)
        if result.scores:
            results.append(result)
            _out.print(f"{result.name}: {len(result.scores) // len(STRATEGIES)} cuts and budgets")
        else:
            short += 1
    if short:
        _out.print(f"{short} sessions have no cut with {LITERALS_MIN} literals of later calls")
    if not results:
        _out.print(f"error: {asked.folder} holds no session that is long enough")
        return 1
    _out.print(f"each cell: {', '.join(_LABELS.get(each, each) for each in STRATEGIES)}")
    _out.print(format_results(results), markup=False)
    if asked.write:
        write(results)
    failures = find_failures(results)
    for failure in failures:
        _out.print(f"FAIL {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
