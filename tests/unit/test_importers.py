"""Importers: sessions in each format, and files that are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from everlong.errors import ConfigError
from everlong.importers import RecordedSummary, Transcript, find_transcripts, read_transcripts

PI = [
    {"type": "session", "version": 3, "id": "s"},
    {
        "type": "message",
        "id": "a",
        "parentId": None,
        "message": {"role": "user", "content": [{"type": "text", "text": "fix a.py"}]},
    },
    {
        "type": "message",
        "id": "lost",
        "parentId": "a",
        "message": {"role": "user", "content": "another branch"},
    },
    {
        "type": "message",
        "id": "b",
        "parentId": "a",
        "message": {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "I look."},
                {"type": "toolCall", "id": "t1", "name": "read", "arguments": {"path": "a.py"}},
            ],
        },
    },
    {
        "type": "message",
        "id": "c",
        "parentId": "b",
        "message": {
            "role": "toolResult",
            "toolCallId": "t1",
            "content": [{"type": "text", "text": "x = 1"}, {"type": "image", "data": "AAAA"}],
        },
    },
    {
        "type": "compaction",
        "id": "d",
        "parentId": "c",
        "summary": "a.py was read",
        "firstKeptEntryId": "b",
    },
]
CLAUDE_CODE = [
    {"type": "summary", "summary": "a title", "leafUuid": "u4"},
    {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "fix a.py"}},
    {
        "type": "assistant",
        "uuid": "u2",
        "message": {"id": "m1", "content": [{"type": "text", "text": "I look."}]},
    },
    {
        "type": "assistant",
        "uuid": "u3",
        "message": {
            "id": "m1",
            "content": [
                {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a.py"}}
            ],
        },
    },
    {
        "type": "assistant",
        "uuid": "side",
        "isSidechain": True,
        "message": {"id": "m2", "content": [{"type": "text", "text": "a sub-agent"}]},
    },
    {
        "type": "user",
        "uuid": "u4",
        "message": {
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [
                        {"type": "text", "text": "x = 1"},
                        {"type": "image", "source": {"data": "AAAA"}},
                    ],
                }
            ]
        },
    },
    {
        "type": "user",
        "uuid": "u5",
        "isCompactSummary": True,
        "message": {"role": "user", "content": "a.py was read"},
    },
]
CODEX = [
    {"type": "session_meta", "payload": {"id": "s"}},
    {
        "type": "response_item",
        "payload": {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "instructions"}],
        },
    },
    {
        "type": "response_item",
        "payload": {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "fix a.py"}],
        },
    },
    {"type": "event_msg", "payload": {"type": "agent_message", "message": "I look."}},
    {
        "type": "response_item",
        "payload": {
            "type": "function_call",
            "name": "read",
            "arguments": '{"path":"a.py"}',
            "call_id": "t1",
        },
    },
    {
        "type": "response_item",
        "payload": {"type": "function_call_output", "call_id": "t1", "output": "x = 1"},
    },
    {"type": "compacted", "payload": {"message": "a.py was read"}},
]
OPENAI = [
    {"role": "system", "content": "instructions"},
    {"role": "user", "content": "fix a.py"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "t1",
                "type": "function",
                "function": {"name": "read", "arguments": '{"path":"a.py"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "t1", "content": "x = 1"},
]
SWE_AGENT = {
    "trajectory": [
        {"thought": "I look.", "action": "cat a.py", "observation": "x = 1", "response": "..."}
    ],
    "history": [{"role": "system", "content": "s"}, {"role": "user", "content": "fix a.py"}],
    "info": {},
}


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def describe(transcript: Transcript) -> list[tuple[str, ...]]:
    return [
        (
            message.role,
            message.text,
            *(f"{call.id} {call.tool} {call.arguments}" for call in message.tool_calls),
        )
        for message in transcript.messages
    ]


STEP = [
    ("user", "fix a.py"),
    ("assistant", "I look.", 't1 read {"path":"a.py"}'),
    ("tool", "x = 1\n[image]"),
]


@pytest.mark.parametrize(("lines", "kept_from"), [(PI, 1), (CLAUDE_CODE, 3)], ids=["pi", "claude"])
def test_sessions_of_coding_agents_are_read(
    tmp_path: Path, lines: list[dict[str, Any]], kept_from: int
) -> None:
    path = write_lines(tmp_path / "s.jsonl", lines)
    # A process that was killed leaves half a line.
    path.write_text(path.read_text() + '{"type": "mess')
    [found] = read_transcripts(path)
    assert describe(found) == STEP
    assert found.calls == 1
    assert found.summaries == (RecordedSummary(3, kept_from, "a.py was read"),)


def test_a_rollout_of_codex_is_read(tmp_path: Path) -> None:
    [found] = read_transcripts(write_lines(tmp_path / "rollout.jsonl", CODEX))
    assert describe(found) == [
        ("user", "fix a.py"),
        ("assistant", "", 't1 read {"path":"a.py"}'),
        ("tool", "x = 1"),
    ]
    assert [each.text for each in found.summaries] == ["a.py was read"]


@pytest.mark.parametrize(
    "content",
    [OPENAI, {"messages": OPENAI}, [{"traj": OPENAI}], [OPENAI]],
    ids=["list", "object", "runs", "lists"],
)
def test_openai_messages_are_read(tmp_path: Path, content: object) -> None:
    path = tmp_path / "messages.json"
    path.write_text(json.dumps(content))
    [found] = read_transcripts(path)
    assert describe(found) == [
        ("user", "fix a.py"),
        ("assistant", "", 't1 read {"path":"a.py"}'),
        ("tool", "x = 1"),
    ]


def test_a_trajectory_of_swe_agent_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.traj"
    path.write_text(json.dumps(SWE_AGENT))
    [found] = read_transcripts(path)
    assert describe(found) == [
        ("user", "fix a.py"),
        ("assistant", "I look.", 'step-1 shell {"command":"cat a.py"}'),
        ("tool", "x = 1"),
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", "not JSON\n[]\n"),
        ("a.jsonl", '{"type": "other"}\n'),
        ("a.json", "[" * 100_000),
        ("a.json", '{"messages": [{"text": "x"}]}'),
        ("a.json", "[1, null, {}]"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"a\.json"):
        read_transcripts(path)


def test_fields_of_another_shape_are_left_out(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"type": "session"},
        {"type": "message", "message": None},
        {"type": "message", "message": {"role": "assistant", "content": 5}},
        {"type": "message", "message": {"role": "toolResult", "toolCallId": "unknown"}},
        {"type": "message", "message": {"role": "user", "content": [None, "go", {"text": 1}]}},
    ]
    [found] = read_transcripts(write_lines(tmp_path / "s.jsonl", lines))
    assert describe(found) == [("user", "go")]


def test_sessions_of_a_directory_are_found_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/2.jsonl", "a.traj", "notes.txt", "c.json"):
        (tmp_path / name).write_text("")
    found = [str(path.relative_to(tmp_path)) for path in find_transcripts(tmp_path)]
    assert found == ["a.traj", "b/2.jsonl", "c.json"]
    assert find_transcripts(tmp_path / "a.traj") == [tmp_path / "a.traj"]
