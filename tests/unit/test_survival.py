"""Survival: which literals of later calls a context holds."""

import json
from pathlib import Path

from bench.survival import (
    build_items,
    draw_chart,
    find_failures,
    format_results,
    measure_transcript,
    write,
)
from everlong.client.time_travel import _evaluate
from everlong.compaction.survival import (
    Evaluation,
    find_later_literals,
    find_literals,
    holds,
    take_head_and_tail,
    take_tail,
)
from everlong.importers import RecordedSummary, Transcript
from everlong.models import Message, ToolCall
from everlong.policy import Policy
from tests.support.conversations import Thread

KIB = 1024


def build_call(number: int, path: str) -> Message:
    call = ToolCall(id=f"c{number}", tool="edit", arguments=json.dumps({"path": path}))
    return Message(role="assistant", text="", tool_calls=(call,))


def build_transcript(steps: int = 120) -> Transcript:
    """Return a session whose second half edits the files that its first half has listed."""
    messages = [Message(role="user", text="Rename the option everywhere.")]
    for number in range(steps):
        path = f"src/part_{number % (steps // 2)}/options.py"
        messages.append(build_call(number, path))
        noise = f"{number * 7919 % 1000} of these lines do not matter\n" * 40
        text = f"{path} sets retry_limit_{number % 30}\n{noise}"
        messages.append(Message(role="tool", text=text, call_id=f"c{number}", tool="edit"))
    summary = RecordedSummary(61, 55, "The agent renames an option in src/part_3/options.py.")
    return Transcript("made up", tuple(messages), (summary,))


def test_literals_are_paths_ids_names_and_long_numbers() -> None:
    text = "edit src/a.py:12 or b.json, call ctx.load_all(4096), at 3f2a9c1b; plain words, 42"
    assert find_literals(text) == {
        "src/a.py": "path",
        "b.json": "path",
        "ctx.load_all": "name",
        "4096": "number",
        "3f2a9c1b": "id",
    }


def test_only_literals_that_stand_before_the_cut_count() -> None:
    later = [build_call(1, "src/a.py"), build_call(2, "src/new.py")]
    assert find_later_literals("I read src/a.py before", later) == {"src/a.py": "path"}


def test_a_part_of_a_longer_word_is_not_the_literal() -> None:
    assert holds("see a/b.py, then", "b.py")
    assert not holds("retry_limit_12", "retry_limit")
    assert not holds("retry_limit_12", "limit_1")
    assert not holds("", "b.py")


def test_truncation_keeps_the_end_or_both_ends() -> None:
    messages = [Message(role="user", text=f"{number} " + "x" * 100) for number in range(10)]
    tail = take_tail(messages, 300)
    assert [message.text[:2] for message in tail[1:]] == ["8 ", "9 "]
    assert len(tail[0].text) == 300 - 2 * (16 + 102) - 16
    both = take_head_and_tail(messages, 800)
    assert both[0] == messages[0]
    assert both[-1] == messages[-1]


def test_a_compacted_context_holds_more_than_the_tail_and_recall_finds_the_rest() -> None:
    result = measure_transcript(build_transcript(), (4 * KIB, 16 * KIB))
    assert find_failures([result], (4 * KIB, 16 * KIB)) == []
    shares = {
        (each.strategy, each.budget_bytes): each.share for each in result.scores if each.at == 61
    }
    assert shares["compact", 4 * KIB] > shares["tail", 4 * KIB]
    assert shares["chain", 16 * KIB] == 1
    sizes = {each.size_bytes <= each.budget_bytes for each in result.scores}
    assert sizes == {True}


def test_recorded_summaries_are_compared_at_their_own_size() -> None:
    result = measure_transcript(build_transcript(), (4 * KIB,))
    summaries = [each for each in result.summaries if each.strategy == "summary"]
    assert [each.share < 0.2 for each in summaries] == [True, True]
    ours = [each for each in result.summaries if each.strategy == "compact"]
    assert ours[-1].budget_bytes == summaries[-1].size_bytes


def test_cuts_with_few_literals_are_left_out() -> None:
    thread = Thread()
    thread.user("go")
    thread.step("cat a.py", "x")
    thread.step("cat a.py", "x")
    evaluation = Evaluation(thread.items, Policy())
    assert [list(evaluation.measure(at, (4 * KIB,))) for at in evaluation.list_cuts()] == [[], []]


def test_tables_and_chart_are_written(tmp_path: Path) -> None:
    document, chart = tmp_path / "page.md", tmp_path / "chart.svg"
    document.write_text(
        "before\n<!-- made by: make bench-compaction TRANSCRIPTS=dir EVIDENCE=--write -->\n"
        "stale\n<!-- end of survival -->\nafter\n"
    )
    results = [measure_transcript(build_transcript())]
    write(results, document, chart)
    text = document.read_text()
    assert "stale" not in text
    assert "| made up, 120 calls | message 61 |" in format_results(results)
    assert format_results(results) in text
    assert chart.read_text() == draw_chart(results)
    assert chart.read_text().count("<rect") == 1 + 4 * 4 + 4


def test_a_threads_own_journal_is_evaluated() -> None:
    items = build_items(build_transcript().messages)
    scores = _evaluate(items, Policy(compact_to_bytes=8 * KIB))
    assert [score.seq for score in scores] == [61, 121, 181]
    for score in scores:
        assert score.budget_bytes == 8 * KIB
        assert score.literals >= 30
        assert score.tail_share < score.share <= score.recalled_share == 1
