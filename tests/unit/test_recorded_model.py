import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from everlong import Agent, Reply, tool
from everlong.agents import Tool
from everlong.errors import ConfigError, RecordingMismatch, RecordingMissing
from everlong.models import Message, ToolCall
from everlong.testing import RecordedModel, ScriptedModel, call

SECRET = "sk-live-0123456789"


class Provider:
    """A model that counts its calls, and whose response has more than a reply needs."""

    def __init__(self) -> None:
        self.calls = 0

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        self.calls += 1
        native = {"kind": "response", "provider_url": f"https://{SECRET}@example.org", "parts": []}
        if messages[-1].role == "user":
            wanted = (call("look", service="api"),)
            return Reply(tool_calls=wanted, tokens=12, native=native, response_id=SECRET)
        return Reply(text=f"saw {len(messages)}", cost_usd=0.5, model="gpt-5", native=native)


@tool
def look(service: str) -> str:
    """Look at a service."""
    return service


ASK = Message(role="user", text="how is it?")
CALL = Message(role="assistant", tool_calls=(call("look", service="api"),))


def result(text: str) -> Message:
    return Message(role="tool", text=text, call_id=CALL.tool_calls[0].id, tool="look")


CONVERSATION = (ASK, CALL, result("line\n" * 1000))


async def converse(
    model: RecordedModel, messages: Sequence[Message] = CONVERSATION, **options: Any
) -> list[Reply]:
    """Make the two calls of a turn."""
    fixed = {"instructions": "Watch.", "tools": [look], **options}
    return [await model.reply(messages=messages[:upto], **fixed) for upto in (1, len(messages))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recordings" / "watch.json"


@pytest.fixture
async def recorded(path: Path) -> Path:
    await converse(RecordedModel(path, model=Provider(), record=True))
    return path


async def test_a_conversation_is_recorded_once_and_replayed_without_the_model(path: Path) -> None:
    provider = Provider()
    first = await converse(RecordedModel(path, model=provider, record=True))
    again = await converse(RecordedModel(path, model=provider, record=True))
    assert provider.calls == 2
    assert await converse(RecordedModel(path)) == first == again
    assert (first[0].tokens, first[1].cost_usd, first[1].text) == (12, 0.5, "saw 3")


async def test_a_missing_recording_never_calls_the_model(path: Path) -> None:
    provider = Provider()
    with pytest.raises(RecordingMissing, match="pytest --everlong-record"):
        await converse(RecordedModel(path, model=provider))
    assert provider.calls == 0
    assert not path.exists()


async def test_the_file_holds_no_more_of_the_response_than_a_replay_needs(recorded: Path) -> None:
    text = recorded.read_text()
    assert SECRET not in text
    assert "example.org" not in text
    assert text.count('"line') == 1
    assert len(text) < 5000, "of a long text there is the beginning"
    file = json.loads(text)
    assert [each.get("kept") for each in file["calls"]] == [None, 1]
    assert text.endswith("}\n")


async def test_recording_again_writes_the_same_bytes(recorded: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    await converse(RecordedModel(other, model=Provider(), record=True))
    assert other.read_bytes() == recorded.read_bytes()


@pytest.mark.parametrize(
    ("changed", "options", "named"),
    [
        (
            (ASK, CALL, result("line\n" * 999)),
            {},
            r"message 3 \(tool look\): its text differs after character 2000 ",
        ),
        (
            (ASK, CALL, result("x" + "line\n" * 1000)),
            {},
            "differs at character 1 .*5000 .*now 5001",
        ),
        ((ASK, CALL), {}, "the number of messages is 2, recorded were 3"),
        (CONVERSATION, {"instructions": "Watch!"}, "the instructions differ"),
        (CONVERSATION, {"tools": []}, "tool 'look' is gone"),
        ((ASK, result("x"), result("y")), {}, "message 2 was of role 'assistant', now 'tool'"),
        (
            (ASK, Message(role="assistant", tool_calls=(call("rm"),)), result("y")),
            {},
            r"message 2 \(assistant\): it called \['look'\], now \['rm'\]",
        ),
    ],
)
async def test_a_mismatch_names_what_differs(
    recorded: Path, changed: Sequence[Message], options: dict[str, Any], named: str
) -> None:
    with pytest.raises(RecordingMismatch, match=named) as raised:
        await converse(RecordedModel(recorded), changed, **options)
    assert "watch.json" in str(raised.value)
    assert "line" not in str(raised.value), "texts may be secret"


async def test_a_tool_with_another_description_is_named(recorded: Path) -> None:
    @tool
    def look(service: str, deep: bool = False) -> str:
        """Look at a service."""
        return service

    with pytest.raises(RecordingMismatch, match="tool 'look' has another description or other par"):
        await converse(RecordedModel(recorded), tools=[look])


async def test_a_call_with_other_arguments_is_a_mismatch(recorded: Path) -> None:
    wanted = ToolCall(id=CALL.tool_calls[0].id, tool="look", arguments='{"service": "db"}')
    changed = (ASK, Message(role="assistant", tool_calls=(wanted,)), CONVERSATION[2])
    with pytest.raises(RecordingMismatch, match="its calls have other arguments or ids") as raised:
        await converse(RecordedModel(recorded), changed)
    assert "db" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{}", '{"everlong_recording": 9}', "[1]"])
async def test_a_file_that_is_no_recording_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(RecordingMismatch, match=r"broken\.json"):
        await converse(RecordedModel(path))


async def test_recording_needs_a_model(path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a model to record from"):
        await converse(RecordedModel(path, record=True))


async def test_the_model_to_record_is_the_agents_unless_one_is_given(path: Path) -> None:
    provider = Provider()
    agent = Agent(name="ops", model=provider)
    await converse(RecordedModel(path, record=True).bind(agent))
    assert provider.calls == 2
    other = RecordedModel(path, model=ScriptedModel(["a"])).bind(agent)
    assert other.model_id == "RecordedModel"
    assert RecordedModel(path, model="openai:gpt-5").model_id == "openai:gpt-5"
