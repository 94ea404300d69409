"""Short runs of the benchmarks of a loop's payloads. They do not check the figures."""

import json
from pathlib import Path

import pytest

from bench import amplification, many_threads, shapes
from bench.amplification import INTERLEAVED, MIXED, SESSION, Size, measure_amplification
from bench.conversation import build_mixed_turns, build_session_turns, list_data
from bench.payloads import encode_messages
from bench.transcripts import find_sessions, measure_transcripts, read_session
from everlong.limits import KIB, MIB
from everlong.testing import workload


def test_a_seed_changes_the_workload_and_the_default_seed_is_7() -> None:
    assert workload.step(3) == workload.step(3, seed=7)
    assert workload.result_bytes(5) == workload.result_bytes(5, seed=7)
    assert workload.step(3, seed=8)[1]["content"] != workload.step(3)[1]["content"]
    sizes = sorted(workload.result_bytes(index, seed=8) for index in range(workload.BLOCK))
    assert sizes == sorted(workload.result_bytes(index) for index in range(workload.BLOCK))
    assert len(workload.step(3, seed=8, size_bytes=77)[1]["content"]) == 77


def test_a_list_of_messages_is_what_the_sdk_writes() -> None:
    messages = [message for index in range(3) for message in workload.step(index)]
    turns = build_mixed_turns(workload.SEED, 3)
    joined = list_data([message for turn in turns for message in (turn.reply, *turn.results)])
    assert joined == encode_messages(messages)


def test_a_session_has_small_messages_and_users_in_between() -> None:
    turns = build_session_turns(7, 200)
    assert turns == build_session_turns(7, 200)
    unanswered = sum(not turn.results for turn in turns)
    assert 20 < unanswered < 60
    mean = sum(len(list_data(turn.messages)) for turn in turns) / len(turns)
    assert 1000 < mean < 4000


async def test_loops_are_measured_with_one_worker_and_with_two() -> None:
    steps = (4, 8)
    size = Size(steps, seeds=(7,), scenarios=(MIXED, SESSION, INTERLEAVED), judged=False)
    report = await measure_amplification(size)
    [series] = report.series
    rows = [dict(zip(series.columns, row, strict=True)) for row in series.rows]
    assert len(rows) == 3 * 2 * 2
    assert {(row["workers"], row["steps"]) for row in rows} == {(1, 4), (1, 8), (2, 4), (2, 8)}
    values = {figure.what: figure.value for figure in report.figures}
    assert values["payloads that decode to other bytes"] == 0
    assert values["mixed sizes, 1 worker(s): written over unique at 8 steps"] is not None
    assert report.failed == []


async def test_what_is_written_grows_with_the_steps() -> None:
    turns = build_mixed_turns(7, 12)
    first, last = await amplification.run_scenario(MIXED, 1, 7, (6, 12), [turns])
    assert 0 < first.written_bytes < last.written_bytes
    assert first.tally.unique_bytes < last.tally.unique_bytes
    assert last.tally.payloads == 3 * 12
    assert last.cold.gets >= 1


def line(kind: str, **fields: object) -> str:
    return json.dumps({"type": kind, **fields}) + "\n"


def message(role: str, text: str, **fields: object) -> str:
    content = [{"type": "text", "text": text}]
    return line("message", message={"role": role, "content": content}, **fields)


def test_a_session_of_json_lines_gives_one_turn_for_each_model_call(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(
        line("session", id="s")
        + message("user", "read two files")
        + message("assistant", "I read them")
        + message("toolResult", "first")
        + message("toolResult", "second")
        + line("model_change", modelId="other")
        + message("assistant", "done")
        + message("user", "thanks")
        + message("assistant", "welcome")
        + '{"type": "message", "mess'
    )
    turns = read_session(path)
    assert [len(turn.messages) for turn in turns] == [4, 1, 2]
    assert b"second" in turns[0].results[1]
    assert b"thanks" in turns[2].before[0]


def test_the_last_branch_of_an_entry_tree_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tree.jsonl"
    path.write_text(
        line("session", id="s")
        + message("user", "hello", id="a", parentId=None)
        + message("assistant", "left", id="b", parentId="a")
        + message("assistant", "right", id="c", parentId="a")
    )
    [turn] = read_session(path)
    assert b"right" in turn.reply
    assert b"hello" in turn.before[0]


async def test_sessions_of_a_directory_are_replayed_with_plain_and_the_sdk(
    tmp_path: Path,
) -> None:
    (tmp_path / "notes.jsonl").write_text('{"type": "other"}\n')
    lines = [line("session", id="s"), message("user", "go")]
    for index in range(12):
        lines.append(message("assistant", f"step {index}"))
        lines.append(message("toolResult", workload.passage(index, 60_000)))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "long.jsonl").write_text("".join(lines))
    assert [path.name for path in find_sessions(tmp_path)] == ["long.jsonl"]
    report = await measure_transcripts(tmp_path)
    assert len(report.series) == 2
    variants = {str(row[0]): row for row in report.series[0].rows}
    plain, sdk, ours = (variants[name] for name in ("plain", "SDK ExternalStorage", "Everlong"))
    # The lists of 0 to 11 results, and the results themselves.
    assert int(str(plain[1])) > 78 * 60_000
    # The SDK stores lists above 256 KiB as they are: those of 5 results and more.
    assert sdk[3] == 7
    assert int(str(sdk[2])) > (5 + 6 + 7 + 8 + 9 + 10 + 11) * 60_000
    assert 0 < int(str(ours[2])) < int(str(sdk[2]))
    assert report.failed == []


async def test_a_directory_without_sessions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no session was found"):
        await measure_transcripts(tmp_path)


async def test_many_threads_are_compared_with_the_ideal() -> None:
    size = many_threads.Size(threads=3, list_bytes=40_000, rounds=2, bounds=(MIB,), judged=False)
    report = await many_threads.measure_many_threads(size)
    [series] = report.series
    rows = {str(row[0]): dict(zip(series.columns, row, strict=True)) for row in series.rows}
    [ideal, default, *_] = rows.values()
    assert int(str(ideal["bytes written"])) > 3 * 5_000
    # Three small threads fit into any memory.
    assert default["over ideal"] == 1
    assert len(rows) == (3 if many_threads.is_setting() else 2)


async def test_a_shape_is_the_same_for_a_seed_and_reads_back() -> None:
    shape = shapes.draw_shape(5)
    assert shape == shapes.draw_shape(5)
    first = await shapes.run_shape(shape, steps=6, new_bytes_max=MIB)
    assert first == await shapes.run_shape(shape, steps=6, new_bytes_max=MIB)
    assert first.new_bytes > 0


async def test_a_shape_with_edits_and_compactions_sends_lists_that_shrink() -> None:
    busy = shapes.Shape(
        seed=1,
        appended="4-32",
        others=2,
        other_sizes="1-4",
        joining=True,
        lists=2,
        edits=0.5,
        compactions=0.5,
    )
    result = await shapes.run_shape(busy, steps=20, new_bytes_max=4 * MIB)
    assert result.steps == 20
    assert result.new_bytes > 20 * 2 * KIB
    assert result.written_over_log < result.written_over_new


async def test_the_worst_of_random_shapes_are_listed() -> None:
    report = await shapes.measure_shapes(shapes.Size(shapes=3, steps=5, new_bytes_max=MIB))
    [series] = report.series
    assert len(series.rows) == 3 + len(shapes.WEAK)
    column = series.columns.index("/log2")
    ratios = [float(str(row[column])) for row in series.rows]
    assert ratios == sorted(ratios, reverse=True)
