"""Hops: how many modules of `everlong` a flow crosses, and how often it switches between them.

    python -m tools.hops            # all flows, as a Markdown table
    python -m tools.hops send list  # some of them
    python -m tools.hops --list send  # also the modules, with the functions that each switch enters
    python -m tools.hops encode --store "s3://bucket/prefix?endpoint=http://127.0.0.1:8333"

One process holds the client, the worker and the admin application, so one profile function
(`sys.setprofile`, `threading.setprofile`) sees all calls. Temporal's dev server and the store, a
directory unless `--store` names another, are the only other parts. Each flow runs once before it is
measured, so that imports and lazily created objects are not counted.

A switch is a call whose caller is in another module of `everlong`. The caller is the nearest frame of
`everlong` up the stack, so a call through a library counts. A call that only the event loop or a thread
pool makes has no caller: it adds its module and no switch. A coroutine that continues after an `await`
is not a call. `switches` counts all these calls; `places` counts each pair of calling and called
function once, so loops, polls and heartbeats do not change it.

The flows use names that older commits have too (`everlong.ask`, the HTTP API, the command `sweep`), so
the same file measures them: copy it there. Flows that a commit cannot run are reported as such.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import importlib
import io
import json
import os
import random
import sys
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import httpx
from temporalio.client import Client
from temporalio.converter import WorkflowSerializationContext
from temporalio.worker import Worker

import everlong
from everlong import Agent, EverlongPlugin, Reply, tool
from everlong.embedded import start_server
from everlong.models import Message, ToolCall
from everlong.testing import ScriptedModel

_PACKAGE: Final = str(Path(everlong.__file__).parent) + os.sep
_AGENT: Final = "hops"
_PAYLOAD_BYTES: Final = 200 * 1024
_WAIT_SECONDS_MAX: Final = 60.0
_QUIET_SECONDS: Final = 1.5

_Call = tuple[str, str]
"""A module, and a function in it."""


class Profile:
    """Counts of calls between modules, while it is active."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.switches: collections.Counter[tuple[_Call, _Call]] = collections.Counter()
        self._modules_of_files: dict[str, str] = {}
        self._is_active = False

    def install(self) -> None:
        """Observe this thread and all threads that are started later."""
        threading.setprofile(self._observe)
        sys.setprofile(self._observe)

    @contextlib.contextmanager
    def measure(self) -> Any:
        """Count calls within this block, from zero."""
        self.modules, self.switches = set(), collections.Counter()
        self._is_active = True
        try:
            yield
        finally:
            self._is_active = False

    def _observe(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self._is_active or event != "call":
            return
        callee = self._find_call(frame)
        if callee is None or _is_resumed(frame):
            return
        self.modules.add(callee[0])
        caller_frame = frame.f_back
        while caller_frame is not None:
            caller = self._find_call(caller_frame)
            if caller is not None:
                if caller[0] != callee[0]:
                    self.switches[caller, callee] += 1
                return
            caller_frame = caller_frame.f_back

    def _find_call(self, frame: FrameType) -> _Call | None:
        """Return the module and function of a frame, or None if it is not a function of `everlong`."""
        code = frame.f_code
        module = self._modules_of_files.get(code.co_filename)
        if module is None:
            file = code.co_filename
            module = file.removeprefix(_PACKAGE) if file.startswith(_PACKAGE) else ""
            self._modules_of_files[file] = module
        return (module, code.co_qualname) if module and code.co_name != "<module>" else None


def _is_resumed(frame: FrameType) -> bool:
    """Whether a coroutine or generator continues: the argument of its RESUME instruction is not 0."""
    at = frame.f_lasti
    return at >= 0 and frame.f_code.co_code[at + 1] & 3 != 0


@tool(needs_approval=True)
def publish(page: int) -> str:
    """Publish a page."""
    _published.set()
    return f"page {page} is out"


_published: Final = threading.Event()


def _reply(turn: Sequence[Message]) -> Reply:
    if turn[0].text == "publish" and turn[-1].role != "tool":
        return Reply(tool_calls=(ToolCall(id="call-1", tool="publish", arguments='{"page": 1}'),))
    return Reply(text=f"done: {turn[0].text[:40]}")


class Stack:
    """A client, workers, and the admin application, all in this process."""

    def __init__(self, address: str, store_url: str) -> None:
        self.address = address
        self.store_url = store_url
        self.queue = f"hops-{uuid.uuid4().hex[:8]}"
        self.client: Client
        self._worker: Worker | None = None

    async def make_client(self) -> Client:
        """Return a client whose plugin has empty caches."""
        agent = Agent(name=_AGENT, model=ScriptedModel(_reply), tools=[publish])
        plugin = EverlongPlugin(store=self.store_url, agents=[agent])
        return await Client.connect(self.address, plugins=[plugin])

    async def start_worker(self) -> None:
        """Start a worker of a new client."""
        self.client = await self.make_client()
        worker = Worker(self.client, task_queue=self.queue)
        self._worker = worker
        await worker.__aenter__()

    async def stop_worker(self) -> None:
        """Stop the worker."""
        if self._worker is not None:
            await self._worker.__aexit__(None, None, None)
            self._worker = None

    async def ask(self, thread_id: str, text: str) -> str:
        """Ask a thread; the first question starts it."""
        return await everlong.ask(
            self.client, thread_id, text, agent=_AGENT, task_queue=self.queue, seconds_max=60
        )

    @contextlib.asynccontextmanager
    async def open_http(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yield an HTTP client of the admin application, without a network."""
        web = importlib.import_module("everlong.admin.web")
        # `Desk` until 2026-11.
        context_type = getattr(web, "AppContext", None) or web.Desk
        plugin = next(p for p in self.client.config()["plugins"] if isinstance(p, EverlongPlugin))

        async def connect() -> Client:
            return self.client

        context = context_type(
            connect, plugin.packs, task_queue=self.queue, temporal_ui="http://127.0.0.1:1"
        )
        app = web.create_admin_app(context, web.Access())
        host = "http://127.0.0.1:8234"
        headers = {"sec-fetch-site": "same-origin", "origin": host}
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 50_000))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url=host, headers=headers) as client,
        ):
            yield client


async def _wait_until_quiet(client: Client, thread_id: str, *, more_than: int) -> None:
    """Wait until the history has more events than that, and has not grown for `_QUIET_SECONDS`."""
    handle = client.get_workflow_handle(thread_id)
    events, since = 0, 0.0
    async with asyncio.timeout(_WAIT_SECONDS_MAX):
        while events <= more_than or since < _QUIET_SECONDS:
            await asyncio.sleep(0.1)
            now = await _count_events(handle)
            since = since + 0.1 if now == events else 0.0
            events = now


async def _count_events(handle: Any) -> int:
    described = await handle.describe()
    return int(described.raw_description.workflow_execution_info.history_length)


def _make_id() -> str:
    return f"hops-{uuid.uuid4().hex[:8]}"


def _make_text(seed: int) -> str:
    """Return text of `_PAYLOAD_BYTES` that compresses about as JSON does."""
    words = random.Random(seed)  # noqa: S311 - a fixed sequence, no secret
    parts = [f"{words.randrange(10**6):06d} row of a result\n" for _ in range(_PAYLOAD_BYTES // 23)]
    return "".join(parts)


async def measure_encode(stack: Stack, profile: Profile) -> None:
    """Encode a new payload of 200 KiB: from the client's data converter to the store."""
    context = WorkflowSerializationContext(namespace="default", workflow_id=_make_id())
    converter = stack.client.data_converter.with_context(context)
    await converter.encode([_make_text(1)])
    with profile.measure():
        await converter.encode([_make_text(2)])


async def measure_resume(stack: Stack, profile: Profile) -> None:
    """Resume a thread of 4 turns on a worker without caches: from its first task to its end."""
    thread_id = _make_id()
    for number in range(4):
        await stack.ask(thread_id, f"question {number}: {_make_text(number)[:20_000]}")
    await _wait_until_quiet(stack.client, thread_id, more_than=0)
    await stack.stop_worker()
    stack.client = await stack.make_client()
    stack._worker = Worker(stack.client, task_queue=stack.queue)
    handle = stack.client.get_workflow_handle(thread_id)
    events = await _count_events(handle)
    # A signal of the wire, not of a handle: only the worker's part is measured.
    await handle.signal("unpause", {"by": "hops", "reason": ""})
    with profile.measure():
        await stack._worker.__aenter__()
        await _wait_until_quiet(stack.client, thread_id, more_than=events + 2)


async def measure_send(stack: Stack, profile: Profile) -> None:
    """Send a message and wait for the reply: `everlong.ask`, a warm worker, one model call."""
    thread_id = _make_id()
    await stack.ask(thread_id, "first")
    with profile.measure():
        await stack.ask(thread_id, "second")


async def measure_approval(stack: Stack, profile: Profile) -> None:
    """Decide an approval: from the HTTP request of the dashboard to the call of the tool."""
    thread_id = _make_id()
    await stack.ask(thread_id, "first")
    asking = asyncio.create_task(stack.ask(thread_id, "publish"))
    async with stack.open_http() as http:
        approvals: list[dict[str, Any]] = []
        async with asyncio.timeout(_WAIT_SECONDS_MAX):
            while not approvals:
                await asyncio.sleep(0.2)
                found = await http.get(f"/api/v1/threads/{thread_id}/approvals")
                approvals = found.raise_for_status().json()
        # The waiting caller is not a part of the flow.
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await _wait_until_quiet(stack.client, thread_id, more_than=0)
        _published.clear()
        approval_id = approvals[0]["approval"]["id"]
        with profile.measure():
            response = await http.post(
                f"/api/v1/threads/{thread_id}/approvals/{approval_id}",
                json={"approve": True, "by": "kim", "reason": "reviewed"},
            )
            response.raise_for_status()
            await asyncio.to_thread(_published.wait, _WAIT_SECONDS_MAX)


async def measure_compact(stack: Stack, profile: Profile) -> None:
    """Compact a context: from the HTTP request to the end of the workflow task that records it."""
    thread_id = _make_id()
    for number in range(3):
        await stack.ask(thread_id, f"question {number}: {_make_text(number)[:20_000]}")
    await _wait_until_quiet(stack.client, thread_id, more_than=0)
    events = await _count_events(stack.client.get_workflow_handle(thread_id))
    async with stack.open_http() as http:
        body = {"by": "kim", "reason": "tidy"}
        with profile.measure():
            response = await http.post(f"/api/v1/threads/{thread_id}/compact", json=body)
            response.raise_for_status()
            # Signal, three events of a task, three of an activity.
            await _wait_until_quiet(stack.client, thread_id, more_than=events + 6)


async def measure_sweep(stack: Stack, profile: Profile) -> None:
    """Sweep the namespace: the command `everlong sweep --json`, with a retention of 0."""
    await stack.ask(_make_id(), _make_text(7)[:40_000])

    def sweep() -> None:
        from everlong import cli

        os.environ |= {
            "TEMPORAL_ADDRESS": stack.address,
            "EVERLONG_STORE": stack.store_url,
            "EVERLONG_TASK_QUEUE": stack.queue,
        }
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            cli.app(["sweep", "--json", "--by", "hops"], standalone_mode=False)
        json.loads(printed.getvalue())

    with profile.measure():
        await asyncio.to_thread(sweep)


async def measure_list(stack: Stack, profile: Profile) -> None:
    """List threads: the HTTP request of the dashboard's first page."""
    for _ in range(3):
        await stack.ask(_make_id(), "first")
    async with stack.open_http() as http:
        (await http.get("/api/v1/threads")).raise_for_status()
        with profile.measure():
            (await http.get("/api/v1/threads")).raise_for_status()


_FLOWS: Final[dict[str, Callable[[Stack, Profile], Awaitable[None]]]] = {
    "encode": measure_encode,
    "resume": measure_resume,
    "send": measure_send,
    "approval": measure_approval,
    "compact": measure_compact,
    "sweep": measure_sweep,
    "list": measure_list,
}


@dataclasses.dataclass(frozen=True)
class Result:
    """The hops of one flow."""

    flow: str
    modules: int
    switches: int
    places: int
    failure: str = ""


async def measure_flows(
    names: Sequence[str], *, with_list: bool, store_url: str = ""
) -> list[Result]:
    """Measure the flows one after the other."""
    profile = Profile()
    profile.install()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "temporal"
        data_dir.mkdir()
        server = await start_server(data_dir, durable=False)
        try:
            for name in names:
                # One store: a sweep reads the histories of all flows.
                stack = Stack(server.address, store_url or (Path(folder) / "blobs").as_uri())
                await stack.start_worker()
                try:
                    await _FLOWS[name](stack, profile)  # Imports, and objects that are made once.
                    await _FLOWS[name](stack, profile)
                except Exception as error:  # noqa: BLE001 - an older commit may lack what a flow uses.
                    results.append(Result(name, 0, 0, 0, f"{type(error).__name__}: {error}"))
                else:
                    counts = len(profile.modules), profile.switches.total(), len(profile.switches)
                    results.append(Result(name, *counts))
                    if with_list:
                        print(_describe_switches(name, profile), flush=True)
                await stack.stop_worker()
        finally:
            server.process.stop()
    return results


def _describe_switches(name: str, profile: Profile) -> str:
    lines = [f"## {name}"]
    for module in sorted(profile.modules):
        entered = sorted({callee[1] for _, callee in profile.switches if callee[0] == module})
        lines.append(f"{module}: {', '.join(entered)}")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("flows", nargs="*", help=f"of {', '.join(_FLOWS)}; all by default")
    parser.add_argument("--list", action="store_true", help="also print modules and functions")
    parser.add_argument("--store", default="", metavar="URL", help="a store other than a directory")
    given = parser.parse_args()
    unknown = [name for name in given.flows if name not in _FLOWS]
    if unknown:
        parser.error(f"unknown flow {unknown[0]}: choose from {', '.join(_FLOWS)}")
    results = asyncio.run(
        measure_flows(given.flows or [*_FLOWS], with_list=given.list, store_url=given.store)
    )
    print("| flow | modules | switches | places |\n|---|---|---|---|")
    for each in results:
        row = f"{each.modules} | {each.switches} | {each.places} |"
        print(f"| {each.flow} | {f'not traced: {each.failure[:120]} |' if each.failure else row}")
    sys.stdout.flush()
    os._exit(0)  # The SDK's native threads would observe a shutdown of the interpreter.


if __name__ == "__main__":
    main()
