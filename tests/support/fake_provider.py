"""Fake model provider: an HTTP server on loopback with the formats of OpenAI and Anthropic."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, Self

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Response:
    """Response of the server. With `hang` it accepts the request and never answers."""

    status: int = 200
    body: Json | bytes = b""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    hang: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    path: str
    headers: dict[str, str]
    body: Json


class ProviderServer:
    """Server that gives its responses in order, repeats the last one, and records requests."""

    def __init__(self, *responses: Response | Json) -> None:
        self._responses = [
            each if isinstance(each, Response) else Response(body=each) for each in responses
        ]
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[Request] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def connections(self) -> int:
        """Number of connected clients."""
        return len(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while request := await _read(reader):
                response = self._responses[min(len(self.requests), len(self._responses) - 1)]
                self.requests.append(request)
                if response.hang:
                    await asyncio.Event().wait()
                writer.write(_encode(response, stream=bool(request.body.get("stream"))))
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass  # The client disconnected, or the test ended.
        finally:
            self._tasks.discard(task)
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(path=first.split(" ")[1], headers=headers, body=json.loads(body or b"{}"))


def _encode(response: Response, stream: bool) -> bytes:
    kind = "application/json"
    if isinstance(response.body, bytes):
        body = response.body
    elif stream and response.status == 200:
        body, kind = encode_stream(response.body), "text/event-stream"
    else:
        body = json.dumps(response.body).encode()
    headers = {"content-type": kind, **response.headers, "content-length": str(len(body))}
    lines = [f"HTTP/1.1 {response.status} Scripted", *(f"{key}: {headers[key]}" for key in headers)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def encode_stream(message: Json) -> bytes:
    """Return a reply as a stream of events, in the format of its provider."""
    if message.get("object") == "chat.completion":
        lines = [json.dumps(each) for each in _list_chat_chunks(message)]
        return b"".join(f"data: {line}\n\n".encode() for line in [*lines, "[DONE]"])
    is_openai = message.get("object") == "response"
    events = _list_responses_events(message) if is_openai else _list_anthropic_events(message)
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events
    )


def _split(text: str) -> list[str]:
    """Return the words of a text, as models give them."""
    return [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:] if text else []


def _list_chat_chunks(message: Json) -> Iterator[Json]:
    [choice] = message["choices"]
    whole = choice["message"]
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in _split(whole["content"] or "")]
    deltas += [
        {"tool_calls": [{**call, "index": index}]}
        for index, call in enumerate(whole.get("tool_calls", ()))
    ]
    common = {key: message[key] for key in ("id", "created", "model")}
    common["object"] = "chat.completion.chunk"
    for delta in deltas:
        yield common | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    ended = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    yield common | {"choices": [ended]}
    yield common | {"choices": [], "usage": message["usage"]}


def _list_responses_events(message: Json) -> Iterator[Json]:
    numbers = itertools.count()

    def build(kind: str, **fields: Any) -> Json:
        return {"type": f"response.{kind}", "sequence_number": next(numbers), **fields}

    yield build("created", response={**message, "status": "in_progress", "output": []})
    for index, item in enumerate(message["output"]):
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            yield build("output_item.added", output_index=index, item={**item, "content": []})
            [part] = item["content"]
            place["content_index"] = 0
            yield build("content_part.added", **place, part={**part, "text": ""})
            for word in _split(part["text"]):
                yield build("output_text.delta", **place, delta=word, logprobs=[])
            yield build("output_text.done", **place, text=part["text"], logprobs=[])
            yield build("content_part.done", **place, part=part)
        elif item["type"] == "function_call":
            yield build("output_item.added", output_index=index, item={**item, "arguments": ""})
            yield build("function_call_arguments.delta", **place, delta=item["arguments"])
            yield build(
                "function_call_arguments.done",
                **place,
                name=item["name"],
                arguments=item["arguments"],
            )
        else:
            yield build("output_item.added", output_index=index, item=item)
        yield build("output_item.done", output_index=index, item=item)
    yield build("completed", response=message)


def _list_anthropic_events(message: Json) -> list[Json]:
    events: list[Json] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    ]
    for index, block in enumerate(message["content"]):
        empty = {
            key: {} if key == "input" else "" for key in block if key not in ("type", "id", "name")
        }
        start = {"type": "content_block_start", "content_block": {**block, **empty}}
        deltas = [
            {"type": kind, kind.removesuffix("_delta"): block[kind.removesuffix("_delta")]}
            for kind in ("thinking_delta", "signature_delta", "text_delta")
            if kind.removesuffix("_delta") in block
        ]
        if "input" in block:
            deltas.append({"type": "input_json_delta", "partial_json": json.dumps(block["input"])})
        events.append({**start, "index": index})
        events.extend(
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        )
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": message["usage"]})
    events.append({"type": "message_stop"})
    return events


Calls = Sequence[tuple[str, str, str]]
"""Id, tool and arguments of each."""


def chat(text: str | None = None, calls: Calls = (), finish: str | None = None) -> Json:
    """Return a reply of OpenAI's chat completions."""
    message: Json = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish or ("tool_calls" if calls else "stop"),
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "gpt-5",
        "choices": [choice],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
    }


def responses(
    text: str = "", calls: Calls = (), reasoning: str = "", status: str = "completed"
) -> Json:
    """Return a reply of OpenAI's responses API. `reasoning` is its encrypted reasoning."""
    output: list[Json] = []
    if reasoning:
        output.append(
            {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": reasoning}
        )
    if text:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output.append(
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        )
    output.extend(
        {
            "id": f"fc_{number}",
            "type": "function_call",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
            "status": "completed",
        }
        for number, (call_id, name, arguments) in enumerate(calls)
    )
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_790_000_000,
        "model": "gpt-5",
        "status": status,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 1000,
            "output_tokens": 100,
            "total_tokens": 1100,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def anthropic(
    text: str = "", calls: Calls = (), thinking: tuple[str, str] | None = None, stop: str = ""
) -> Json:
    """Return a reply of Anthropic's messages API. `thinking` is a text and its signature."""
    content: list[Json] = []
    if thinking:
        content.append({"type": "thinking", "thinking": thinking[0], "signature": thinking[1]})
    if text:
        content.append({"type": "text", "text": text})
    content.extend(
        {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}
        for call_id, name, arguments in calls
    )
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": content,
        "stop_reason": stop or ("tool_use" if calls else "end_turn"),
        "stop_sequence": None,
        "usage": {"input_tokens": 1000, "output_tokens": 100},
    }


def error(status: int, message: str = "scripted", **headers: str) -> Response:
    """Return an error in the shape that both providers use."""
    body = {"type": "error", "error": {"type": "scripted", "message": message, "code": None}}
    return Response(
        status=status,
        body=body,
        headers={key.replace("_", "-"): value for key, value in headers.items()},
    )
