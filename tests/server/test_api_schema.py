"""The API against its own description: whatever is sent, nothing answers with a 5xx."""

import asyncio
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from everlong import Agent, Reply, tool
from everlong.config import build_store_url, load_settings, point_to_embedded
from everlong.embedded import TemporalServer, start_codec_server
from everlong.embedded.server import LOOPBACK, find_free_port
from everlong.storage import open_store
from everlong.testing import ScriptedModel
from tests.support.scale import scaled
from tests.support.scripted_agents import call, results
from tests.support.threads import open_threads

# Each operation. `make fuzz-api` sends many more.
EXAMPLES = int(os.environ.get("EVERLONG_FUZZ_EXAMPLES", str(scaled(2, 6))))
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
THREAD = "fuzzed"


def build_asking_agent() -> Agent:
    """Asks for approval in each turn, so that there is something of every kind."""

    @tool(needs_approval=True)
    def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    def script(turn: Any) -> Reply:
        return Reply(text="ok") if results(turn) else Reply(tool_calls=(call(0, "pay", euros=5),))

    return Agent(name="ops", model=ScriptedModel(script), tools=[pay])


@pytest.mark.guarantee(95)
@pytest.mark.timeout(900)
async def test_no_valid_or_invalid_request_gets_a_5xx(
    server: TemporalServer, tmp_path: Path
) -> None:
    (tmp_path / "blobs").mkdir()
    queue = f"fuzz-{os.getpid()}"
    found = load_settings({"EVERLONG_DATA_DIR": str(tmp_path), "EVERLONG_TASK_QUEUE": queue})
    port = find_free_port()
    store = open_store(build_store_url(tmp_path))
    async with open_threads(server.address, store, build_asking_agent()) as threads:
        threads.task_queue = queue
        with start_codec_server(point_to_embedded(found, server.address), port, 8233) as admin:
            async with threads.worker():
                await admin.wait_for_output("Uvicorn running on", 60)
                thread_id = f"{THREAD}/{os.getpid()}"
                await threads.send(thread_id, "hello")
                await asyncio.to_thread(fuzz, f"http://{LOOPBACK}:{port}", thread_id)
                assert admin.returncode is None
            assert "Traceback" not in admin.output()


def fuzz(base: str, thread_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The tool warns about its own dependencies.
        schema: Any = schemathesis.openapi.from_url(f"{base}/api/v1/openapi.json")
        for operation in schema.get_all_operations():
            # A stream of events lasts for minutes.
            if not operation.ok().path.endswith("/live") or operation.ok().method != "get":
                _fuzz(operation.ok(), thread_id)


def _cases(operation: Any) -> Any:
    """Give requests that fit the description, and some that do not, where that is possible."""
    fits = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    if not operation.path_parameters and not operation.query and not operation.body:
        return fits
    unfit = operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)
    return st.one_of(fits, unfit)


def _fuzz(operation: Any, thread_id: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(_cases(operation), st.booleans())
    def send(case: Any, is_known: bool) -> None:
        if is_known and "thread_id" in case.path_parameters:
            case.path_parameters["thread_id"] = thread_id
        answer = case.call()
        assert answer.status_code < 500, (operation.label, answer.status_code, answer.text[:500])
        case.validate_response(answer, checks=CHECKS)

    send()
