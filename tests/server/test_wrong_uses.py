"""Wrong uses of the command: each ends with one message that says what happened, without internals."""

import asyncio
import contextlib
import os
import re
import shlex
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from everlong import thread
from everlong.client.wait import wait_for_status
from everlong.embedded import TemporalServer
from everlong.storage import open_store
from tests.support.forked_command import run_command
from tests.support.governed_agent import build_governed_agent
from tests.support.namespaces import new_namespace
from tests.support.threads import open_threads
from tests.support.wrong_uses import WRONG_USES

# What a user cannot read: names of Python and Rust types, their reprs, plurals that do not agree.
INTERNALS = re.compile(
    r"Traceback|validation error|<class|<everlong|\bNone\b|Error\(|Os \{"
    r"|\b1 (?:runs|threads|objects|calls)\b"
)
MESSAGE_CHARS_MAX = 700
HINTS = {
    "everlong show osp-7": "Did you mean ops-7? List all with: everlong threads",
    "everlong archive osp-7": "Did you mean ops-7?",
    "everlong send ops-7 hi --agent opz": "this thread runs agent 'ops', not 'opz'. Name that agent",
    "everlong send ops-10 hi --agent opz --timeout 5s": "workers have: ops. Did you mean ops?",
    "everlong approve ops-9 1-1-0000": "See what waits: everlong approvals ops-9",
    "everlong approve ops-7": "Look at the thread: everlong show ops-7",
    "everlong limits ops-7 steps_max=0": "steps_max: must be greater than or equal to 1",
    "everlong limits ops-7 on_limit=explode": "on_limit: must be 'pause', 'stop' or 'archive'",
    "everlong query 'select toll from entries'": "no column is named 'toll'. Did you mean tool?",
    "everlong query --run cost": "Did you mean cost-by-day?",
    "everlong journal ops-7 --from 99": "has no entries from 99 on: its last entry is 2",
    "everlong runs ops-7 --cursor yesterday": "List its runs: everlong runs ops-7",
    "TEMPORAL_ADDRESS=127.0.0.1:1 everlong threads": "(Connection refused)",
    "EVERLONG_STORE={empty}/blobs everlong show ops-7": "Write it as file:///",
    "EVERLONG_STORE=file://{empty}/blobs everlong journal ops-7": "Run: everlong doctor",
}


@contextlib.asynccontextmanager
async def open_scene(
    server: TemporalServer, folder: Path
) -> AsyncIterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    """Make the threads that the wrong uses name; yield their environment and placeholders."""
    url = (folder / "blobs").as_uri()
    namespace = await new_namespace(server.address, attributes=True)
    env = {
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_NAMESPACE": namespace,
        "EVERLONG_STORE": url,
        "COLUMNS": "100",
    }
    (folder / "empty").mkdir()
    agent = build_governed_agent()
    async with open_threads(server.address, open_store(url), agent, namespace=namespace) as threads:
        client = threads.client
        async with threads.worker():
            env["EVERLONG_TASK_QUEUE"] = threads.task_queue
            for name in ("ops-7", "ops-3"):
                number = await threads.send(name, "hello")
                await threads.wait_for_answers(name, number)
            ids = {}
            for name in ("ops-9", "ops-5"):
                await threads.send(name, "restart api")
                await wait_for_status(client, name, lambda found: found.pending > 0, seconds_max=60)
                [ids[name]] = [each.id for each in await thread(client, name).approvals()]
            await thread(client, "ops-5").decide(ids["ops-5"], approve=True, by="ann")
            await thread(client, "ops-3").stop(by="ann")
            await client.get_workflow_handle("ops-3").result()
            yield (
                env,
                {
                    "{approval}": ids["ops-9"],
                    "{decided}": ids["ops-5"],
                    "{empty}": str(folder / "empty"),
                },
            )


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_every_wrong_use_ends_with_a_message_that_a_user_can_read(
    server: TemporalServer, tmp_path: Path
) -> None:
    violations, seen = [], dict(HINTS)
    async with open_scene(server, tmp_path) as (env, places):

        def fill(text: str) -> str:
            for name, value in places.items():
                text = text.replace(name, value)
            return text

        for use in WRONG_USES:
            words = [*(f"{name}={value}" for name, value in use.env), "everlong"]
            command = " ".join([*words, *map(shlex.quote, use.arguments)])
            done = await asyncio.to_thread(
                run_command,
                *map(fill, use.arguments),
                cwd=tmp_path,
                env={**env, **{name: fill(value) for name, value in use.env}},
            )
            message = done.stderr.partition("error: ")[2].strip()
            if not 1 <= done.returncode <= 20 or not message:
                violations.append(f"{command}: exit code {done.returncode}, {done.stderr!r}")
            elif INTERNALS.search(message) or len(message) > MESSAGE_CHARS_MAX:
                violations.append(f"{command}: {message}")
            elif seen.pop(command, "") not in message:
                violations.append(f"{command} lacks {HINTS[command]!r}: {message}")
    assert violations == []
    assert seen == {}
