"""`everlong demo` with a user at the terminal: it waits for a decision in the dashboard."""

import json
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from everlong.embedded.server import find_free_port
from tests.support.pseudo_terminal import PseudoTerminal


def call(url: str, body: dict[str, object] | None = None) -> dict[str, object]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, object] = json.load(answer)
    return found


@pytest.mark.full
def test_the_demo_waits_for_a_person_and_takes_a_denial_as_well(tmp_path: Path) -> None:
    ports = ["--port", str(find_free_port()), "--ui-port", str(find_free_port())]
    command = [sys.executable, "-m", "everlong", "demo", "--data-dir", str(tmp_path / "d"), *ports]
    with PseudoTerminal(command, tmp_path) as terminal:
        url = terminal.wait_for(r"Dashboard: +(http://127\.0\.0\.1:\d+)", 120)[1]
        thread_id = terminal.wait_for(r"Thread: +(demo-\w+)")[1]
        terminal.wait_for(rf"Decide in the dashboard(.|\s)+{url}/approvals")
        deadline = time.monotonic() + 90  # Visibility is a second or so behind.
        while not (waiting := call(f"{url}/api/v1/approvals")["waiting"]):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert isinstance(waiting, list)
        [approval] = waiting
        assert approval["thread_id"] == thread_id
        decision = f"{url}/api/v1/threads/{thread_id}/approvals/{approval['approval']['id']}"
        call(decision, {"approve": False, "by": "ana", "reason": "not now"})
        terminal.wait_for("restart waited for approval, and did not run")
        terminal.wait_for("Press Enter to stop the stack")
        rows = call(f"{url}/api/v1/threads")["rows"]
        assert isinstance(rows, list)
        assert {row["thread_id"] for row in rows} == {thread_id, f"{thread_id}-runaway"}
        terminal.type("\n")
        assert terminal.wait_for_end() == 0, terminal.printed
        assert "Checked:" in terminal.printed
