"""Stored messages: the JSON of pydantic-ai's `ModelMessage`.

Any tool that knows that format can read a journal. This module does not import pydantic-ai, which only a
worker with a provider's model needs.
"""

import dataclasses
from typing import Any, Final

from pydantic_core import from_json, to_json

from everlong.models.journal import Body, Entry, Kind, Message, ToolCall
from everlong.models.tools import Outcome, ToolResult, failure_digest

NO_ANSWER: Final = "[The turn ended without an answer: "


def build_body(message: Message) -> Body:
    """Return the stored form of a message."""
    if message.native is not None:
        return message.native
    if message.role == "assistant":
        parts: list[dict[str, Any]] = []
        if message.text:
            parts.append({"part_kind": "text", "content": message.text})
        parts.extend(
            {
                "part_kind": "tool-call",
                "tool_name": call.tool,
                "args": call.arguments,
                "tool_call_id": call.id,
            }
            for call in message.tool_calls
        )
        return {"kind": "response", "parts": parts}
    if message.role == "failure":
        # A response, so that requests and responses alternate, which some providers require.
        part = {"part_kind": "text", "content": f"{NO_ANSWER}{message.text}]"}
        return {"kind": "response", "parts": [part]}
    if message.role == "tool":
        part = {
            "part_kind": "tool-return",
            "tool_name": message.tool,
            "content": message.text,
            "tool_call_id": message.call_id,
        }
        return {"kind": "request", "parts": [part]}
    return {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": message.text}]}


def parse_message(kind: Kind, body: Body) -> Message:
    """Return the message of a stored body. The kind of its entry decides how to read it."""
    parts = body["parts"]
    if kind == Kind.TOOL_RESULT:
        [part] = parts
        return Message(
            role="tool",
            text=part["content"],
            call_id=part["tool_call_id"],
            tool=part["tool_name"],
        )
    text = "".join(part["content"] for part in parts if part["part_kind"] in _TEXTS)
    if kind == Kind.FAILURE:
        return Message(role="failure", text=text.removeprefix(NO_ANSWER).removesuffix("]"))
    if kind == Kind.MESSAGE:
        return Message(role="user", text=text)
    calls = tuple(
        ToolCall(
            id=part["tool_call_id"],
            tool=part["tool_name"],
            arguments=_format_arguments(part["args"]),
        )
        for part in parts
        if part["part_kind"] == "tool-call"
    )
    plain = Message(role="assistant", text=text, tool_calls=calls)
    if build_body(plain) == body:
        return plain
    # A copy, since a team's model may change it, and the body may be read again.
    return Message(role="assistant", text=text, tool_calls=calls, native=from_json(to_json(body)))


def _format_arguments(args: object) -> str:
    """Return a call's arguments as JSON text. Providers give text, an object, or nothing."""
    if isinstance(args, str):
        return args
    return "{}" if args is None else to_json(args).decode()


_TEXTS: Final = {"text", "user-prompt"}


def build_entry(seq: int, kind: Kind, message: Message, time_ms: int) -> Entry:
    """Return an entry with its message inside."""
    body = build_body(message)
    return Entry(seq=seq, kind=kind, time_ms=time_ms, size_bytes=len(to_json(body)), body=body)


def build_lost_entry(entry: Entry) -> Entry:
    """Return an entry with a notice in place of a message that is not in this store."""
    lost = Message(role="user", text="[this message was never stored]")
    placed = build_entry(entry.seq, entry.kind, lost, entry.time_ms)
    return dataclasses.replace(placed, data=entry.data)


def build_error_result(
    call_id: str, tool: str, reason: str, time_ms: int, outcome: Outcome = "failed"
) -> ToolResult:
    """Return a result with an error text, for a call without a result of its own."""
    text = f"error: {reason}"
    message = Message(role="tool", text=text, call_id=call_id, tool=tool)
    return ToolResult(
        entry=build_entry(1, Kind.TOOL_RESULT, message, time_ms),
        written_bytes=0,
        outcome=outcome,
        digest=failure_digest(text),
    )
