"""What activities report to the live channel; the result of a step is the same as without it."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from everlong import Agent, Reply, current_call, tool
from everlong.activities import AgentActivities
from everlong.errors import ModelUnavailable
from everlong.live import LiveSender, LiveServer
from everlong.models import Context, Kind, Message, ModelCall, ModelTurn, ToolRun, build_entry
from everlong.storage.pack_store import open_packs
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import call

ASKED = build_entry(1, Kind.MESSAGE, Message(role="user", text="go"), 1)
TURN = ModelCall(
    context=Context(agent="ops", head=None, snapshot=None, now_ms=5, policy={}), tail=(ASKED,)
)


class RecordingSender(LiveSender):
    """Records what steps report, and posts nothing."""

    def __init__(self) -> None:
        super().__init__(LiveServer(url="http://127.0.0.1:1"))
        self.found: list[Any] = []

    def _start(self) -> None:
        pass

    def open_step(self, namespace: str, **fields: Any) -> Any:
        self.found.append(fields)
        return super().open_step(namespace, **fields)

    def take_text(self, output: Any, text: str) -> None:
        self.found.append(text)

    def take_progress(self, output: Any, text: str) -> None:
        self.found.append(text)

    def end_step(self, output: Any, state: Any) -> None:
        self.found.append(state)


@tool
def scan(files: int) -> str:
    """Scan files."""
    for number in range(files):
        current_call().progress(f"{number} of {files} files")
    return "scanned"


@tool
async def fail() -> str:
    """Fail."""
    current_call().progress("nearly")
    raise ValueError("it failed")


@pytest.fixture
def sender() -> RecordingSender:
    return RecordingSender()


def activities(folder: Path, model: object, sender: LiveSender | None) -> AgentActivities:
    agent = Agent(name="ops", model=model, tools=[scan, fail])
    return AgentActivities(open_packs(folder.as_uri()), [agent], live=sender)


async def run_tool(folder: Path, sender: LiveSender | None, name: str, **arguments: object) -> Any:
    model = ScriptedModel(lambda _: Reply(tool_calls=(call(0, name, **arguments),)))
    made, env = activities(folder, model, sender), ActivityEnvironment()
    turn = await env.run(made.call_model, TURN)
    if isinstance(sender, RecordingSender):
        sender.found.clear()
    context = dataclasses.replace(TURN.context, head=turn.head)
    return await env.run(made.run_tool, ToolRun(context=context, call_id="call-0", tool=name))


async def test_a_reply_is_reported_word_by_word(tmp_path: Path, sender: RecordingSender) -> None:
    made = activities(tmp_path, ScriptedModel(["The log is full."]), sender)
    env = ActivityEnvironment()
    await env.run(made.call_model, TURN)
    opened, *text, ended = sender.found
    scheduled = env.info.current_attempt_scheduled_time
    assert opened == {
        "kind": "reply",
        "thread_id": env.info.workflow_id,
        "attempt": 1,
        "order": int(scheduled.timestamp() * 1000),
        "seq": 2,
    }
    assert text == ["The ", "log ", "is ", "full."]
    assert ended == "done"


async def test_the_recorded_result_is_the_same_as_without(
    tmp_path: Path, sender: RecordingSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlong.activities.agent._now_ms", lambda: 5)
    turns: list[ModelTurn] = []
    for each in (None, sender):
        made = activities(tmp_path / "blobs", ScriptedModel(["All is well."]), each)
        turns.append(await ActivityEnvironment().run(made.call_model, TURN))
    assert turns[0].head == turns[1].head
    assert dataclasses.replace(turns[0], written_bytes=0) == dataclasses.replace(
        turns[1], written_bytes=0
    )


async def test_a_failed_reply_is_cut_off(tmp_path: Path, sender: RecordingSender) -> None:
    class Breaking:
        async def reply(self, *_: Any) -> Reply:
            raise AssertionError("a model that can stream is asked for a stream")

        async def stream_reply(self, *arguments: Any) -> Reply:
            arguments[-1]("half a re")
            raise ModelUnavailable("the stream broke")

    made = activities(tmp_path, Breaking(), sender)
    with pytest.raises(Exception, match="the stream broke"):
        await ActivityEnvironment().run(made.call_model, TURN)
    assert sender.found[1:] == ["half a re", "cut"]


async def test_a_cancelled_reply_is_cut_off(tmp_path: Path, sender: RecordingSender) -> None:
    made = activities(tmp_path, ScriptedModel(["one two three"], seconds=60), sender)
    running = asyncio.ensure_future(ActivityEnvironment().run(made.call_model, TURN))
    while len(sender.found) < 2:
        await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sender.found[1:] == ["one ", "cut"]


async def test_a_model_without_streams_reports_its_steps_only(
    tmp_path: Path, sender: RecordingSender
) -> None:
    class Plain:
        async def reply(self, *_: Any) -> Reply:
            return Reply(text="plain")

    made = activities(tmp_path, Plain(), sender)
    await ActivityEnvironment().run(made.call_model, TURN)
    assert sender.found[1:] == ["done"]


async def test_a_tool_reports_its_progress(tmp_path: Path, sender: RecordingSender) -> None:
    result = await run_tool(tmp_path, sender, "scan", files=2)
    opened, *progress, ended = sender.found
    assert (opened["kind"], opened["call_id"], opened["tool"]) == ("tool", "call-0", "scan")
    assert progress == ["0 of 2 files", "1 of 2 files"]
    assert (ended, result.outcome) == ("done", "ok")


async def test_a_tool_that_raises_is_cut_off(tmp_path: Path, sender: RecordingSender) -> None:
    with pytest.raises(Exception, match="it failed"):
        await run_tool(tmp_path, sender, "fail")
    assert sender.found[1:] == ["nearly", "cut"]


async def test_progress_does_nothing_where_live_output_is_off(tmp_path: Path) -> None:
    assert (await run_tool(tmp_path, None, "scan", files=3)).outcome == "ok"


async def test_a_slow_scripted_reply_takes_the_same_time_with_and_without_a_stream() -> None:
    model = ScriptedModel(["one two", "three four"], seconds=0.05)
    loop = asyncio.get_running_loop()
    message = [Message(role="user", text="go")]
    began = loop.time()
    await model.reply("", message, ())
    between = loop.time()
    words: list[str] = []
    await model.stream_reply("", message, (), words.append)
    assert between - began >= 0.05
    assert loop.time() - between >= 0.05
    assert words == ["one ", "two"]
