"""A server on loopback that speaks chat completions and nothing else, to run without a model.

It answers the first message with a tool call, and repeats the result.
"""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

PORT = 8000


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers POST /v1/chat/completions; any other path is not found, as /v1/responses."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer one request."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/chat/completions":
            self._send(404, {"error": {"code": 404, "message": f"{self.path} not found"}})
            return
        message, finish = make_reply(request)
        reply = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220},
        }
        self._send(200, reply)

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def make_reply(request: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the next message of the assistant, and why it ends."""
    last = request["messages"][-1]
    asked = [each["content"] for each in request["messages"] if each["role"] == "user"]
    if last["role"] == "user" and len(asked) == 1:
        function = {"name": "disk_usage", "arguments": '{"path": "/"}'}
        call = {"id": "call_1", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    text = last["content"] if last["role"] == "tool" else f"You asked: {'; '.join(asked)}"
    return {"role": "assistant", "content": text}, "stop"


@contextlib.contextmanager
def serve(port: int = PORT) -> Iterator[str]:
    """Serve in an OS thread; yields the value of OPENAI_BASE_URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    with serve() as url, contextlib.suppress(KeyboardInterrupt):
        print(f"Serving. In the terminal of the worker: export OPENAI_BASE_URL={url}")
        threading.Event().wait()
