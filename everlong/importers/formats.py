"""Formats of recorded sessions: pi and OpenClaw, Claude Code, Codex, OpenAI messages, SWE-agent.

A reader takes what other programs wrote, so it trusts no field: a line or a part of another shape is
left out, and a file of no known format is refused by name.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from everlong import limits
from everlong.errors import ConfigError
from everlong.importers.transcript import Transcript, TranscriptBuilder, join_content

Line = dict[str, Any]
# A session file above this size is refused: it is read whole.
FILE_BYTES_MAX: Final = 512 * limits.MIB
_SUFFIXES: Final = (".jsonl", ".json", ".traj")
# Files that one directory may hold: a command that is given a home directory must end.
_FILES_MAX: Final = 100_000
_MESSAGE_ROLES: Final = frozenset(["system", "developer", "user", "assistant", "tool", "function"])


def find_transcripts(place: Path) -> list[Path]:
    """Return the files below a directory that may hold sessions, in the order of their names."""
    if place.is_file():
        return [place]
    found: list[Path] = []
    for folder, folders, files in os.walk(place):
        folders.sort()
        found += (Path(folder, name) for name in files if name.endswith(_SUFFIXES))
        if len(found) > _FILES_MAX:
            raise ConfigError(
                f"{place} holds more than {_FILES_MAX} files; name a smaller directory"
            )
    return sorted(found)


def read_transcripts(path: Path) -> list[Transcript]:
    """Read the sessions of a file. A file of OpenAI messages may hold several."""
    size_bytes = path.stat().st_size
    if size_bytes > FILE_BYTES_MAX:
        raise ConfigError(
            f"{path} has {size_bytes} bytes; sessions of at most {FILE_BYTES_MAX} bytes are read"
        )
    if path.suffix == ".jsonl":
        return [_read_lines(path)]
    try:
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is not JSON") from None
    found = list(_read_content(path.stem, content))
    if not found:
        raise ConfigError(f"{path} holds no session in a known format: {', '.join(FORMATS)}")
    return found


def _read_lines(path: Path) -> Transcript:
    with path.open(encoding="utf-8", errors="replace") as lines:
        entries = [entry for entry in map(_parse_line, lines) if entry is not None]
    for read in FORMATS.values():
        transcript = read(path.stem, entries)
        if transcript is not None:
            return transcript
    raise ConfigError(f"{path} holds no session in a known format: {', '.join(FORMATS)}")


def _parse_line(line: str) -> Line | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None  # A session whose process was killed ends in the middle of a line.
    return entry if isinstance(entry, dict) else None


def _get_dict(entry: Line, name: str) -> Line:
    value = entry.get(name)
    return value if isinstance(value, dict) else {}


def _get_list(entry: Line, name: str) -> list[Any]:
    value = entry.get(name)
    return value if isinstance(value, list) else []


def _list_dicts(values: object) -> list[Line]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


# pi and OpenClaw.


def read_pi(name: str, entries: Sequence[Line]) -> Transcript | None:
    """Read a session of pi or OpenClaw: a `session` header, then lines that may form a tree."""
    if not entries or entries[0].get("type") != "session":
        return None
    branch = _find_branch(entries[1:], "id", "parentId")
    found = TranscriptBuilder(name)
    places: dict[str, int] = {}
    for number, entry in enumerate(branch):
        places[str(entry.get("id", number))] = found.size
        message = _get_dict(entry, "message")
        kind = entry.get("type")
        if kind == "message":
            _add_pi_message(found, message)
        elif kind == "custom_message":
            found.add_user(join_content(entry.get("content")))
        elif kind == "compaction":
            kept = str(entry.get("firstKeptEntryId", entry.get("firstKeptEntryIndex", "")))
            found.add_summary(str(entry.get("summary", "")), places.get(kept))
    return found.build()


def _add_pi_message(found: TranscriptBuilder, message: Line) -> None:
    role = message.get("role")
    content = message.get("content")
    if role == "user":
        found.add_user(join_content(content))
    elif role == "assistant":
        calls = [
            (str(part.get("id", "")), str(part.get("name", "")), part.get("arguments"))
            for part in _list_dicts(content)
            if part.get("type") == "toolCall"
        ]
        found.add_reply(_join_texts(content), calls)
    elif role == "toolResult":
        found.add_result(str(message.get("toolCallId", "")), join_content(content))
    elif role == "bashExecution":
        found.add_user(f"$ {message.get('command', '')}\n{message.get('output', '')}")
    elif role in ("custom", "hookMessage"):
        found.add_user(join_content(content))


def _join_texts(content: object) -> str:
    if isinstance(content, str):
        return content
    return join_content([part for part in _list_dicts(content) if part.get("type") == "text"])


def _find_branch(entries: Sequence[Line], id_name: str, parent_name: str) -> list[Line]:
    """Return the entries of the last branch, in order; all of them if they form no tree."""
    if not any(parent_name in entry for entry in entries):
        return list(entries)
    by_id = {entry[id_name]: entry for entry in entries if isinstance(entry.get(id_name), str)}
    branch: list[Line] = []
    at = next((entry for entry in reversed(entries) if entry.get(id_name) in by_id), None)
    # Bounded by the number of entries: a damaged file may have a cycle.
    while at is not None and len(branch) < len(entries):
        branch.append(at)
        parent = at.get(parent_name)
        at = by_id.get(parent) if isinstance(parent, str) else None
    return branch[::-1]


# Claude Code.


def read_claude_code(name: str, entries: Sequence[Line]) -> Transcript | None:
    """Read a session of Claude Code: lines of type `user` and `assistant`, without side chains."""
    spoken = [
        entry
        for entry in entries
        if entry.get("type") in ("user", "assistant")
        and isinstance(entry.get("message"), dict)
        and not entry.get("isSidechain")
    ]
    if not any("uuid" in entry for entry in spoken):
        return None
    found = TranscriptBuilder(name)
    # The parts of one reply are lines of their own with the same message id.
    for _, lines in itertools.groupby(spoken, key=_get_reply_key):
        parts = list(lines)
        if parts[0]["type"] == "assistant":
            content = [
                part for line in parts for part in _list_parts(line["message"].get("content"))
            ]
            calls = [
                (str(part.get("id", "")), str(part.get("name", "")), part.get("input"))
                for part in content
                if part.get("type") == "tool_use"
            ]
            found.add_reply(_join_texts(content), calls)
            continue
        for line in parts:
            _add_claude_code_request(found, line)
    return found.build()


def _get_reply_key(entry: Line) -> tuple[str, object]:
    return str(entry["type"]), entry["message"].get("id") or entry.get("uuid")


def _list_parts(content: object) -> list[Line]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return _list_dicts(content)


def _add_claude_code_request(found: TranscriptBuilder, line: Line) -> None:
    content = line["message"].get("content")
    if line.get("isCompactSummary"):
        found.add_summary(join_content(content))
        return
    results = [part for part in _list_parts(content) if part.get("type") == "tool_result"]
    for part in results:
        found.add_result(str(part.get("tool_use_id", "")), join_content(part.get("content")))
    if not results:
        found.add_user(join_content(content))


# Codex.

_CODEX_CALLS: Final = ("function_call", "custom_tool_call", "local_shell_call", "mcp_tool_call")


def read_codex(name: str, entries: Sequence[Line]) -> Transcript | None:
    """Read a rollout of Codex: lines of type `response_item`; older ones are the items themselves."""
    if not any(entry.get("type") in ("session_meta", "response_item") for entry in entries):
        # The oldest rollouts begin with a line that has an id and a time, and no type.
        if not entries or not {"id", "timestamp"} <= entries[0].keys() or "type" in entries[0]:
            return None
        entries = [{"type": "response_item", "payload": entry} for entry in entries[1:]]
    found = TranscriptBuilder(name)
    for entry in entries:
        payload = _get_dict(entry, "payload")
        if entry.get("type") == "compacted":
            found.add_summary(str(payload.get("message", "")))
        elif entry.get("type") == "response_item":
            _add_codex_item(found, payload)
    return found.build()


def _add_codex_item(found: TranscriptBuilder, item: Line) -> None:
    kind = str(item.get("type", ""))
    if kind == "message":
        text = join_content(item.get("content"))
        if item.get("role") == "assistant":
            found.add_reply(text)
        elif item.get("role") == "user":
            found.add_user(text)
    elif kind in _CODEX_CALLS:
        call_id = str(item.get("call_id") or item.get("id") or "")
        arguments = item.get("arguments", item.get("input", item.get("action")))
        found.add_reply("", [(call_id, str(item.get("name", kind)), arguments)])
    elif kind.endswith("_output"):
        output = item.get("output")
        if isinstance(output, dict):
            output = output.get("content", output.get("output", ""))
        found.add_result(str(item.get("call_id", "")), join_content(output))


# Messages in OpenAI's format.


def read_openai(name: str, entries: Sequence[Line]) -> Transcript | None:
    """Read messages in the format of OpenAI's chat completions."""
    if not entries or not all(_is_openai_message(entry) for entry in entries[:8]):
        return None
    found = TranscriptBuilder(name)
    legacy = 0
    for entry in filter(_is_openai_message, entries):
        role, text = entry["role"], join_content(entry.get("content"))
        if role == "assistant":
            calls = []
            for call in _list_dicts(entry.get("tool_calls")):
                function = _get_dict(call, "function")
                calls.append(
                    (
                        str(call.get("id", "")),
                        str(function.get("name", "")),
                        function.get("arguments"),
                    )
                )
            if function := _get_dict(entry, "function_call"):
                legacy += 1
                calls.append(
                    (f"call-{legacy}", str(function.get("name", "")), function.get("arguments"))
                )
            found.add_reply(text, calls)
        elif role == "tool":
            found.add_result(str(entry.get("tool_call_id", "")), text)
        elif role == "function":
            found.add_result(f"call-{legacy}", text)
        elif role == "user":
            found.add_user(text)
        # Instructions are not part of a thread's messages.
    return found.build()


def _is_openai_message(entry: Line) -> bool:
    return entry.get("role") in _MESSAGE_ROLES and "type" not in entry


# SWE-agent.


def read_swe_agent(name: str, content: Line) -> Transcript | None:
    """Read a trajectory of SWE-agent: steps of a thought, an action and an observation."""
    steps = _list_dicts(content.get("trajectory"))
    if not steps or "action" not in steps[0]:
        return None
    found = TranscriptBuilder(name)
    for entry in _list_dicts(content.get("history")):
        if entry.get("role") == "user":
            # The first request is the problem; later ones are the observations of the steps.
            found.add_user(join_content(entry.get("content")))
            break
    for number, step in enumerate(steps, 1):
        call_id = f"step-{number}"
        action = str(step.get("action") or "")
        thought = str(step.get("thought") or step.get("response") or "")
        found.add_reply(thought, [(call_id, "shell", {"command": action})] if action else [])
        found.add_result(call_id, str(step.get("observation") or ""))
    return found.build()


def _read_content(name: str, content: object) -> Iterator[Transcript]:
    """Yield the sessions of a JSON document."""
    if isinstance(content, dict):
        trajectory = read_swe_agent(name, content)
        if trajectory is not None:
            yield trajectory
            return
        for key in ("messages", "history", "traj", "trajectory", "conversation"):
            found = read_openai(name, _list_dicts(content.get(key)))
            if found is not None:
                yield found
                return
    elif isinstance(content, list):
        whole = read_openai(name, _list_dicts(content))
        if whole is not None:
            yield whole
            return
        for number, each in enumerate(content[:_FILES_MAX], 1):
            if isinstance(each, dict | list):
                yield from _read_nested(f"{name}-{number}", each)


def _read_nested(name: str, content: object) -> Iterable[Transcript]:
    """Return the session of one element of a list. Lists within it are not searched again."""
    if isinstance(content, list):
        found = read_openai(name, _list_dicts(content))
        return [] if found is None else [found]
    return _read_content(name, content)


FORMATS: Final[dict[str, Callable[[str, Sequence[Line]], Transcript | None]]] = {
    "pi": read_pi,
    "claude-code": read_claude_code,
    "codex": read_codex,
    "openai": read_openai,
}
"""Readers of JSON lines, by name. JSON documents hold OpenAI messages or a SWE-agent trajectory."""
