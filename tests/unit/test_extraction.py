"""Facts that compaction extracts from texts, and how many are left after ten compactions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.evidence import Evidence, measure, table
from bench.evidence_corpus import corpus, transcript
from bench.evidence_measure import build_whole_context, can_recall
from everlong.compaction import extraction
from everlong.compaction.extraction import find_commands, find_numbers, find_refs
from everlong.compaction.renderer import (
    cut_arguments,
    render_arguments,
    render_call,
    render_outcome,
    shorten_pair,
)
from everlong.models import ToolCall
from tests.support.scale import scaled

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return measure(corpus(scaled(3, 8)))


@pytest.mark.guarantee(60)
def test_evidence_survives_ten_compactions_and_the_rest_can_be_recalled(evidence: Evidence) -> None:
    assert evidence.failures == []
    assert evidence.rows["all"].counts["pairs"].there > scaled(300, 1000)
    assert evidence.cut.counts["pairs"].share < 0.2
    assert "| **all** | 100% | 100% | 100% |" in table(evidence)


DIGESTS = """
from bench.evidence_corpus import transcript
from bench.evidence_measure import compact_in_rounds
print(compact_in_rounds(transcript("golden", "ops"), 30_000)[1])
"""


@pytest.mark.guarantee(60)
def test_snapshots_are_the_same_bytes_in_every_process_and_on_every_machine() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": zone},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout.decode()
        for seed, locale, zone in (("1", "C", "UTC"), ("77", "C.UTF-8", "Asia/Tokyo"))
    ]
    assert outputs[0] == outputs[1]
    # A golden value: what compaction gave once is what it gives everywhere.
    assert outputs[0].strip() == "c05441eceb8ce508bef98f0e11004238"


def test_the_corpus_is_long_and_has_each_kind_of_evidence() -> None:
    for each in corpus(scaled(2, 5)):
        truth = each.truth
        steps = sum(bool(item.message and item.message.tool_calls) for item in each.items)
        assert 100 <= steps <= 300
        assert [item.entry.seq for item in each.items] == list(range(1, len(each.items) + 1))
        assert min(len(truth.asks), len(truth.paths), len(truth.ids), len(truth.numbers)) > 5
        assert len(truth.decisions) > 10
        assert len(build_whole_context(each)) > 200
        assert all(can_recall(each.items, planted) for planted in truth.asks)
    assert transcript("x", "ops").items == transcript("x", "ops").items


@pytest.mark.parametrize(
    ("text", "refs"),
    [
        ("see src/app/main.py:42, please", ["src/app/main.py"]),
        ("(docs/über.md) and ./run.sh.", ["docs/über.md", "./run.sh"]),
        ("--- a/pkg/x.go\n+++ b/pkg/x.go", ["pkg/x.go"]),
        ("at tests/test_a.py::test_b[1]", ["tests/test_a.py"]),
        ("open https://x.org/a?b=1&c=2#d now", ["https://x.org/a?b=1&c=2#d"]),
        ("http://localhost:8080 is up", ["http://localhost:8080"]),
        ("URL=s3://bucket/key.csv", ["s3://bucket/key.csv"]),
        (r"C:\Users\me\a.txt:7 or \\nas\share\b.doc", [r"C:\Users\me\a.txt", r"\\nas\share\b.doc"]),
        (r'{"path": "C:\\Temp\\x.log"}', [r"C:\Temp\x.log"]),
        (r"a.py\nsrc/b.py", ["a.py", "src/b.py"]),
        ("commit 9f3c2ab and abc1234..def5678", ["9f3c2ab", "abc1234", "def5678"]),
        ("id=7d9f8b6c-1a2b-4c3d-8e4f-0123456789ab", ["7d9f8b6c-1a2b-4c3d-8e4f-0123456789ab"]),
        (
            "ENG-1234, CVE-2024-3094 (web-7d9f8b6c5-x2x4z)",
            ["ENG-1234", "CVE-2024-3094", "web-7d9f8b6c5-x2x4z"],
        ),
        ("10.0.0.12:5432 for a@b.org", ["10.0.0.12:5432", "a@b.org"]),
        (
            "arXiv:2106.09685, doi 10.1145/3292500.3330701x",
            ["arXiv:2106.09685", "10.1145/3292500.3330701x"],
        ),
        ("and/or yes/no 1/2 2024-01-02 12:30:45 3.14 hello. I/O", []),
        ("the end of a cut path src/app/ma…", []),
    ],
)
def test_paths_and_ids_are_found_verbatim(text: str, refs: list[str]) -> None:
    assert find_refs(text, bulk=True) == refs


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("$ git log --oneline -n 5\nabc", ["git log --oneline -n 5"]),
        ("root@web-1:~# systemctl restart nginx", ["systemctl restart nginx"]),
        ("[me@host dir]$ ./go.sh --fast", ["./go.sh --fast"]),
        ("PS C:\\work> git status -s", ["git status -s"]),
        ("+ docker build .\n+ added a line\n- removed", ["docker build ."]),
        ("Running: npm run build", ["npm run build"]),
        ("```sh\nmake all ENV=prod\n```\nmake no sense of this", ["make all ENV=prod"]),
        ("> quoted text\n# A heading\n100 % of it", []),
    ],
)
def test_shell_lines_are_found_in_output(text: str, commands: list[str]) -> None:
    assert find_commands(text, bulk=True) == commands


def test_code_in_backticks_is_a_command_in_user_messages() -> None:
    assert find_commands("run `frobnicate --all` or `main`", bulk=False) == ["frobnicate --all"]


def test_numbers_are_found_with_the_words_around_them() -> None:
    assert find_numbers("p99 rose to 340 ms, a 12.5% gain; rows=1,532") == [
        ("340", "to 340 ms"),
        ("12.5%", "a 12.5% gain"),
        ("1,532", "rows=1,532"),
    ]
    assert find_numbers('{"elapsed_ms": 83, "ok": true}') == [("83", "elapsed_ms 83 ok")]


def test_a_list_has_the_kind_of_its_heading() -> None:
    text = "Fixed it.\n\nOpen points:\n- the changelog\n- the docs\n\nThat is all."
    found = list(extraction.split_sentences(text))
    assert found == [
        ("Fixed it.", ""),
        ("the changelog", "Open points:"),
        ("the docs", "Open points:"),
        ("That is all.", ""),
    ]
    assert extraction.is_open("the docs", "Open points:", by_user=False)
    assert not extraction.is_open("the docs", "", by_user=False)


def test_code_and_dots_within_words_do_not_split_sentences() -> None:
    text = "See e.g. v1.2 of a.py. It works.\n```py\nTODO = 1\n```\nDr. Who agreed."
    assert [sentence for sentence, _ in extraction.split_sentences(text)] == [
        "See e.g. v1.2 of a.py.",
        "It works.",
        "Dr. Who agreed.",
    ]


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ("", "ok, empty"),
        ("wrote 3 files\nin 2 s", "wrote 3 files in 2 s"),
        ("error: denied", "error: denied"),
        ("line\n" * 100 + "3 failed, 12 passed", "519B: 3 failed, 12 passed"),
        ("line\n" * 100 + "3 failed\nFinished in 2 s", "524B: 3 failed"),
        ("error: no disk\n" + "x" * 2000, "failed 2kB: error: no disk"),
        (
            "Traceback (most recent call last):\n" + "  File x\n" * 90 + "KeyError: 'a'",
            "failed 858B: KeyError: 'a'",
        ),
        ("output\n" * 50 + "exit code 2", "failed 361B: exit code 2"),
    ],
)
def test_an_outcome_says_how_a_call_ended(result: str, outcome: str) -> None:
    assert render_outcome(result) == outcome


def test_a_brief_line_does_not_hide_that_something_failed() -> None:
    assert shorten_pair("bash make test -> 3kB: 40 passed") == "bash make test -> 3kB"
    for line in (
        "bash make test -> 3kB: 2 failed, 40 passed",
        "bash ./gradlew -> 9kB: BUILD FAILED in 3s",
        "bash make -> failed 3kB: exit code 2",
        "bash echo 'a -> 3kB: b' -> failed 5kB: error: disk",
        "bash true -> ok, empty",
    ):
        assert shorten_pair(line) == line


def test_arguments_are_shown_shortly_and_numbers_as_they_were_written() -> None:
    assert render_arguments('{"path": "a.py"}') == "a.py"
    assert (
        render_arguments('{"path": "a.py", "limit": 1.10, "all": true}')
        == "a.py limit=1.10 all=true"
    )
    assert render_arguments('{"argv": ["ls", "-l"]}') == "ls -l"
    assert (
        render_arguments('{"path": "a.py", "text": "%s"}' % ("word " * 100)) == "a.py text=(500B)"
    )
    assert render_arguments("not JSON") == "not JSON"
    assert render_arguments("[" * 100_000).startswith("[[[")
    assert render_call(ToolCall(id="1", tool="ls", arguments="{}")) == "ls"


def test_long_arguments_are_cut_to_an_object_that_still_fits() -> None:
    assert cut_arguments('{"a": 1}', 100, 5) == '{"a": 1}'
    cut = cut_arguments('{"path": "a.py", "content": "%s"}' % ("x" * 5000), 300, 5)
    assert len(cut) <= 300
    assert '"path":"a.py"' in cut
    assert "recall(seq=5)" in cut
    assert cut_arguments("x" * 5000, 128, 5) == '{"left_out": "recall(seq=5)"}'
