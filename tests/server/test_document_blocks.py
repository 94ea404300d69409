"""The code blocks of the documents run: a page in order, in its own namespace and directory."""

import base64
import contextlib
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.worker import Worker

from everlong import Agent, EverlongPlugin, Reply, thread, tool
from everlong.client.wait import wait_for_status
from everlong.config import TASK_QUEUE_DEFAULT
from everlong.embedded import TemporalServer
from everlong.embedded.server import find_free_port
from everlong.models import thread_key
from everlong.storage import open_store
from everlong.storage.pack_store import PackStore
from everlong.testing import ScriptedModel, call
from tests.support.document_blocks import DATA, OWNERS, Block, list_pages, read_blocks
from tests.support.namespaces import AT_ONCE, new_namespace, sweep
from tests.support.page_runner import PageRunner

# `make test` runs one page, `make test-full` all of them.
FIRST = ("docs/how-to/approvals.md",)
PAGES = [
    pytest.param(page, marks=() if page in FIRST else pytest.mark.full)
    for page in list_pages()
    if not any(page.startswith(owned) for owned in OWNERS)
]
# Pages that bring their agent in a file `app.py`, and run it themselves.
OWN_AGENT = ("README.md", "docs/quickstart.md")
APP = "from tests.server.test_document_blocks import build_agent\n\nops = build_agent()\n"
# Commands that fail, as their page says; `chat` needs a terminal, which a test has not.
EXIT_CODES = {
    "everlong chat ops-7 --agent ops": 2,
    "everlong serve --host 0.0.0.0": 2,
    "everlong drain": 13,
    "everlong drain --open": 13,
}
USERS = {"docs/how-to/approvals.md": "alice"}
# The thread of the test is shorter, and the only one.
REPLACEMENTS = {
    "docs/how-to/agents.md": {"100": "10", "118": "1", "120": "20", "140": "25"},
    "docs/how-to/adopt.md": {"order-17": "ops-7"},
}


@tool
def read_log(service: str) -> str:
    """Read the log of a service."""
    return f"{service}: out of memory\n" * 400


@tool(needs_approval=True)
def restart(service: str) -> str:
    """Restart a service."""
    return f"{service} restarted"


def script(turn: Any) -> Reply:
    """Read three logs; if the message is that, restart instead, with an approval."""
    results = [message for message in turn if message.role == "tool"]
    if "Restart prod-api" not in turn[0].text and len(results) < 3:
        wanted = call(read_log, service=f"api-{len(results)}")
    elif not results:
        wanted = call("restart", service="prod-api")
    else:
        return Reply(text=f"Done: {results[-1].text[:40]}", tokens=10, cost_usd=0.01)
    return Reply(tool_calls=(wanted,), tokens=10, cost_usd=0.01)


def build_agent(approved: Any = restart) -> Agent:
    return Agent(name="ops", model=ScriptedModel(script), tools=[read_log, approved])


async def open_thread(
    stack: contextlib.AsyncExitStack, runner: PageRunner, approved: Any
) -> Client:
    """Start a worker with the agent `ops`, and its thread `ops-7`, on which the commands work."""
    plugin = EverlongPlugin(store=runner.environ["EVERLONG_STORE"], agents=[build_agent(approved)])
    client = await Client.connect(
        runner.environ["TEMPORAL_ADDRESS"],
        namespace=runner.environ["TEMPORAL_NAMESPACE"],
        plugins=[plugin],
    )
    await stack.enter_async_context(Worker(client, task_queue=TASK_QUEUE_DEFAULT))
    await thread(client, "ops-7").ask("Why is checkout slow?", agent="ops")
    return client


async def ask_for_approval(client: Client) -> None:
    """Let a call of the thread wait for a person."""
    ops = thread(client, "ops-7")
    if not await ops.approvals():
        await ops.send("Restart prod-api.", agent="ops")
        await wait_for_status(client, "ops-7", lambda status: status.pending > 0, seconds_max=60)


async def quarantine_an_object(client: Client, url: str) -> str:
    """Sweep an object that nothing needs; return its key."""
    packs = PackStore(open_store(url))
    owner = thread_key(client.namespace, "ops-7")
    ref, _ = await packs.write_body(owner, "segment", b"orphaned")  # type: ignore[arg-type] # any kind
    await sweep(client, packs, AT_ONCE)
    [key] = [
        each.key async for each in open_store(url).list("quarantine/") if ref.digest in each.key
    ]
    return key


async def find_last_task(client: Client) -> int:
    """Return the newest event of the thread at which a reset may begin."""
    history = await client.get_workflow_handle("ops-7").fetch_history()
    kind = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return [event.event_id for event in history.events if event.event_type == kind][-1]


async def prepare(page: str, client: Client, url: str) -> dict[str, str]:
    """Return what stands for the ids and keys of a page, which it can only give as examples."""
    if page == "docs/how-to/sweep.md":
        return {"v1/729b.../e966....pack": await quarantine_an_object(client, url)}
    if page == "docs/how-to/disaster-recovery.md":
        return {"--event-id 24": f"--event-id {await find_last_task(client)}"}
    return {}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", PAGES)
async def test_the_blocks_of_a_page_run(
    page: str,
    server: TemporalServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namespace = await new_namespace(server.address, attributes=True)
    folder = tmp_path / "reader"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "app.py").write_text(APP)
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_text("the SDK reads it when it reads its variables")
    url = (tmp_path / "blobs").as_uri()
    bucket = url
    if any("endpoint=" in block.text for block in read_blocks(page)):
        bucket = request.getfixturevalue("s3").url("docs")
    metrics_port = str(find_free_port())
    keys = [base64.b64encode(secrets.token_bytes(32)).decode() for _ in range(2)]
    runner = PageRunner(
        folder=folder,
        environ={
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_NAMESPACE": namespace,
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "EVERLONG_STORE": url,
            "OTEL_EXPORTER_PROMETHEUS_PORT": metrics_port,
            "LOGNAME": USERS.get(page, "kim"),
            "NO_COLOR": "1",
        },
        replacements={
            '"localhost:7233", plugins': f'"{server.address}", namespace="{namespace}", plugins',
            '"localhost:7233"': f'"{server.address}"',
            '"s3://bucket/prefix"': f'"{url}"',
            "s3://bucket/prefix?endpoint=http://127.0.0.1:9000": bucket,
            "s3://bucket/prefix": bucket,
            "localhost:7233": server.address,
            "127.0.0.1:9464": f"127.0.0.1:{metrics_port}",
            "2026-11:BASE64": f"2026-11:{keys[0]}",
            "2027-05:BASE64": f"2027-05:{keys[1]}",
            "2026-11:OLD": f"2026-11:{keys[0]}",
            "2027-05:NEW": f"2027-05:{keys[1]}",
            "/etc/everlong/tls/": f"{folder}/",
            **REPLACEMENTS.get(page, {}),
            **{f"TOKEN{number}": secrets.token_urlsafe(32) for number in (1, 2, 3)},
        },
        exit_codes=EXIT_CODES,
        asks_for_approval=page in OWN_AGENT,
    )
    # What a page leaves to its reader: an agent, a token, and the import of a type.
    runner.names.update(ops=build_agent(), token=secrets.token_urlsafe(32), Reply=Reply)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(runner.open())
        client: Client | None = None
        for block in read_blocks(page):
            if block.needs or not block.is_code or (page, block.language) in DATA:
                continue
            if client is None and page not in OWN_AGENT and needs_thread(block):
                client = await open_thread(stack, runner, runner.names.get("restart", restart))
                runner.names.setdefault("client", client)
                runner.replacements |= await prepare(page, client, url)
            if client is not None and re.search(r"everlong appr|approvals\(\)", block.text):
                await ask_for_approval(client)
            await runner.run(block)
    if (folder / "test_app.py").exists():
        run_pytest(folder)


def needs_thread(block: Block) -> bool:
    return block.language != "python" or "client" in block.text


def run_pytest(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout
