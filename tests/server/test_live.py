"""Live output from a real worker, and conversations at a terminal, with and without it."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from everlong import Agent, EverlongPlugin, Reply, thread, tool
from everlong.admin.web import Access, AppContext, create_admin_app
from everlong.embedded import TemporalServer
from everlong.errors import ModelUnavailable
from everlong.live import LiveServer
from everlong.live.models import LiveEvent
from everlong.live.reader import LiveReader
from everlong.models import Message
from everlong.storage.pack_store import open_packs
from everlong.testing import ScriptedModel
from tests.support.dashboard import serve
from tests.support.pseudo_terminal import PseudoTerminal
from tests.support.scripted_agents import call, calls_done


@tool(needs_approval=True)
def restart(service: str) -> str:
    """Restart a service."""
    return f"{service} is up"


@tool
async def wait_long() -> str:
    """Take as long as the test."""
    await asyncio.sleep(60)
    return "waited"


def script(turn: Sequence[Message]) -> Reply:
    word = turn[0].text.split()[0]
    if word in ("restart", "wait") and not calls_done(turn):
        wanted = {"restart": call(0, "restart", service="api"), "wait": call(0, "wait_long")}
        return Reply(text="Let me do that now.", tool_calls=(wanted[word],))
    return Reply(text=f"Your message has {len(turn[0].text)} characters.")


@contextlib.asynccontextmanager
async def open_admin(server: TemporalServer, store: str) -> AsyncIterator[str]:
    """Serve the admin app on loopback; yield its address."""
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])

    async def connect() -> Client:
        return client

    context = AppContext(connect, open_packs(store), task_queue="unused")
    async with serve(create_admin_app(context, Access())) as url:
        yield url


@contextlib.asynccontextmanager
async def open_worker(
    server: TemporalServer, store: str, queue: str, model: object, live: str = ""
) -> AsyncIterator[Client]:
    agent = Agent(name="ops", model=model, tools=[restart, wait_long])
    plugin = EverlongPlugin(
        store=store, agents=[agent], live=LiveServer(url=live) if live else None
    )
    client = await Client.connect(server.address, plugins=[plugin])
    async with Worker(client, task_queue=queue):
        yield client


async def test_a_chat_shows_replies_and_decides_in_place(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store = (tmp_path / "blobs").as_uri()
    async with (
        open_admin(server, store) as url,
        open_worker(server, store, thread_id, ScriptedModel(script, seconds=0.7), url) as client,
    ):
        env = {
            "TEMPORAL_ADDRESS": server.address,
            "EVERLONG_STORE": store,
            "EVERLONG_TASK_QUEUE": thread_id,
            "EVERLONG_LIVE_URL": url,
            "PROMPT_TOOLKIT_NO_CPR": "1",  # This terminal does not report its cursor.
        }
        command = [sys.executable, "-m", "everlong", "chat", thread_id, "--agent", "ops"]
        with PseudoTerminal(command, tmp_path, env) as terminal:
            # The worker and the server run in this event loop.
            await asyncio.to_thread(_converse, terminal)
        messages = await thread(client, thread_id).messages()
    assert [each.text for each in messages if each.role == "user"] == ["restart\nthe api", "wait"]
    assert [each.text for each in messages if each.role == "tool"] == ["api is up"]


def _converse(terminal: PseudoTerminal) -> None:
    terminal.wait_for(r"Ctrl-D, leaves.\s+>")
    terminal.type("restart\x0athe api\r")  # Two lines.
    terminal.wait_for("Let me")
    terminal.wait_for(r'approval needed: .* restart {"service": "api"}')
    terminal.wait_for(r"Approve \(a\)")
    terminal.type("a\r")
    begun = terminal.wait_for("Your message has").end()
    begun = terminal.wait_for(r"characters.\s+>", after=begun).end()
    terminal.type("wait\r")
    terminal.wait_for("→ wait_long", after=begun)
    terminal.type("\x03")
    terminal.wait_for(r"no longer waiting; the thread goes on(.|\n)*>")
    terminal.type("\x04")
    assert terminal.wait_for_end() == 0, terminal.printed


async def test_a_followed_message_needs_no_live_output(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    store = (tmp_path / "blobs").as_uri()
    async with open_worker(server, store, thread_id, ScriptedModel(script)):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "everlong", "send", thread_id, "hello", "--agent", "ops", "--follow"),
            cwd=tmp_path,
            env={
                "PATH": "",
                "TEMPORAL_ADDRESS": server.address,
                "EVERLONG_STORE": store,
                "EVERLONG_TASK_QUEUE": thread_id,
                "EVERLONG_LIVE_URL": "http://127.0.0.1:9",  # Nothing listens there.
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err
    # A pipe gets the answer alone.
    assert out.decode() == "Your message has 5 characters.\n"
    assert "Your message has 5 characters.\n" in err.decode()


async def test_a_failed_attempts_half_reply_is_cut_off_and_replaced(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    class Breaking(ScriptedModel):
        attempts = 0

        async def stream_reply(self, *arguments: object) -> Reply:
            self.attempts += 1
            if self.attempts == 1:
                arguments[-1]("Half a re")  # type: ignore[operator] # what takes text
                await asyncio.sleep(0.2)
                raise ModelUnavailable("the stream broke")
            return await super().stream_reply(*arguments)  # type: ignore[arg-type]

    store = (tmp_path / "blobs").as_uri()
    model = Breaking(["The whole reply."], seconds=0.3)
    events: list[LiveEvent] = []
    problems: list[str] = []
    async with (
        open_admin(server, store) as url,
        open_worker(server, store, thread_id, model, url) as client,
        LiveReader(LiveServer(url=url), thread_id, events.append, problems.append),
    ):
        async with asyncio.timeout(30):
            while not events:  # The reader is connected.
                await asyncio.sleep(0.01)
        answer = await thread(client, thread_id, task_queue=thread_id).ask("go", agent="ops")
        async with asyncio.timeout(30):
            while events[-1].name != "done":
                await asyncio.sleep(0.01)
    assert answer == "The whole reply."
    names = [each.name for each in events if each.name != "delta"]
    assert names == ["open", "start", "cut", "start", "done"]
    cut = [each.name for each in events].index("cut")
    texts = [
        "".join(str(each.data.get("text", "")) for each in part)
        for part in (events[:cut], events[cut:])
    ]
    assert texts == ["Half a re", "The whole reply."]
    assert [events[1].data["attempt"], events[cut + 1].data["attempt"]] == [1, 2]
    assert events[-1].data["seq"] == 2
    assert problems == []
