import pytest

from everlong import Reply, tool
from everlong.errors import ConfigError
from everlong.models import Message, ToolCall
from everlong.testing import ScriptedModel, call
from everlong.testing.scripted_model import Script


@tool
def restart(service: str) -> str:
    """Restart a service."""
    return service


def says(role: str, text: str) -> Message:
    return Message(role=role, text=text)


async def test_a_list_of_replies_is_given_in_order() -> None:
    other = ToolCall(id="2", tool="look", arguments="{}")
    script: Script = [
        call(restart, service="api"),
        [call("look", at=1), other],
        Reply(text="so"),
        "done",
    ]
    model = ScriptedModel(script)
    found = [await model.reply("", [says("user", str(n))], ()) for n in range(4)]
    names = [[each.tool for each in reply.tool_calls] for reply in found]
    assert names == [["restart"], ["look", "look"], [], []]
    assert [reply.text for reply in found] == ["", "", "so", "done"]
    assert restart.parse(found[0].tool_calls[0].arguments) == {"service": "api"}


async def test_a_repeated_request_gets_the_same_reply() -> None:
    model = ScriptedModel(["first", "second"])
    ask, again = [says("user", "a")], [says("user", "a"), says("assistant", "first")]
    assert [(await model.reply("", each, ())).text for each in (ask, ask, again, ask)] == [
        *("first", "first", "second", "first")
    ]


async def test_a_script_that_is_too_short_says_so() -> None:
    model = ScriptedModel(["only"])
    await model.reply("", [says("user", "a")], ())
    with pytest.raises(ConfigError, match=r"reply 2 of a script of 1, after a .*'tool'"):
        await model.reply("", [says("user", "a"), says("tool", "b")], ())
