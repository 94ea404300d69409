import asyncio
import contextvars
import dataclasses
import datetime
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal, assert_type

import pytest
from pydantic import BaseModel, Field, ValidationError

from everlong.agents import Agent, CallInfo, Reply, current_call, set_current_call, tool
from everlong.errors import ConfigError
from everlong.models import CallOptions
from everlong.testing import ScriptedModel


@tool
def restart(service: str, times: Annotated[int, Field(ge=1)] = 1) -> str:
    """Restart a service,
    however long it takes.

    It is asked first.

    Args:
        service: its name, as in the
            catalogue.
        times (int): how often

    Returns:
        service: nothing of interest
    """
    return f"{service} {times}"


def test_a_tool_is_described_by_its_signature_and_docstring() -> None:
    assert restart.name == "restart"
    assert restart.description == "Restart a service, however long it takes."
    assert restart.schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["service"],
        "properties": {
            "service": {"type": "string", "description": "its name, as in the catalogue."},
            "times": {
                "type": "integer",
                "minimum": 1,
                "default": 1,
                "description": "how often",
            },
        },
    }


def test_a_description_in_the_annotation_overrides_the_docstring() -> None:
    @tool
    def look(path: Annotated[str, Field(description="where")], deep: bool = False) -> str:
        """Look.

        Args:
            path: not this
            stale: of a parameter that is no more
        """
        return path

    assert look.schema["properties"]["path"]["description"] == "where"
    assert "description" not in look.schema["properties"]["deep"]


def test_rich_types_have_a_schema_and_are_parsed() -> None:
    class Window(BaseModel):
        start: datetime.date
        days: int = 7

    def search(
        window: Window, levels: list[Literal["info", "error"]], limit: int | None = None
    ) -> str:
        """Search."""
        return ""

    made = tool(search)
    parsed = made.parse('{"window": {"start": "2026-03-01"}, "levels": ["error"]}')
    assert parsed == {
        "window": Window(start=datetime.date(2026, 3, 1)),
        "levels": ["error"],
        "limit": None,
    }
    assert made.schema["properties"]["levels"]["items"]["enum"] == ["info", "error"]


def test_parameters_may_have_names_reserved_by_pydantic() -> None:
    @tool
    def odd(json: str, copy: int, model_config: bool, _hidden: str = "x") -> str:
        """Do."""
        return json

    assert odd.parse('{"json": "a", "copy": 1, "model_config": true}') == {
        "json": "a",
        "copy": 1,
        "model_config": True,
        "_hidden": "x",
    }
    assert set(odd.schema["properties"]) == {"json", "copy", "model_config", "_hidden"}
    with pytest.raises(ValidationError, match="json"):
        odd.parse('{"copy": 1, "model_config": true}')


@pytest.mark.parametrize("arguments", ["", "  ", "null", "{}"])
def test_empty_arguments_may_have_any_form(arguments: str) -> None:
    @tool
    def ping() -> str:
        """Ping."""
        return "pong"

    assert ping.parse(arguments) == {}


@pytest.mark.parametrize(
    "arguments",
    [
        "{",
        "[]",
        "1",
        '{"service": 1}',
        '{"service": "a", "times": 0}',
        '{"service": "a", "x": 1}',
        "{}",
    ],
)
def test_invalid_arguments_are_refused(arguments: str) -> None:
    with pytest.raises(ValidationError):
        restart.parse(arguments)


def test_a_bound_method_is_a_tool() -> None:
    class Desk:
        def file(self, page: int) -> int:
            """File a page."""
            return page + 1

    made = tool(Desk().file)
    assert made.function(**made.parse('{"page": 1}')) == 2


def _nameless(x: int) -> str:
    return str(x)


def _arguments_only(x: int) -> str:
    """Args:
    x: a number
    """
    return str(x)


def _loose(x) -> str:  # type: ignore[no-untyped-def] # that is what is refused
    """Do."""
    return str(x)


def _many(*x: int) -> str:
    """Do."""
    return str(x)


def _yields(x: int) -> Iterator[int]:
    """Do."""
    yield x


async def _yields_later(x: int) -> AsyncIterator[int]:
    """Do."""
    yield x


def _unknown(x: "Nowhere") -> str:  # type: ignore[name-defined] # noqa: F821 - that is what is refused
    """Do."""
    return str(x)


def _called(x: Callable[[], None]) -> str:
    """Do."""
    return str(x)


def _odd_type(x: threading.Lock) -> str:
    """Do."""
    return str(x)


def _field_default(x: int = Field(3)) -> str:
    """Do."""
    return str(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_nameless, "'_nameless' has no docstring"),
        (_arguments_only, "'_arguments_only' has no docstring"),
        (_loose, "'x' needs a type"),
        (_many, "cannot be passed by name"),
        (_yields, "is a generator; return a list"),
        (_yields_later, "is a generator; return a list"),
        (_unknown, "'Nowhere' in its signature is not defined"),
        (_called, "'_called' has a parameter that JSON cannot express"),
        (_odd_type, "of a type that pydantic cannot check"),
        (_field_default, "write Annotated"),
        (lambda x: x, "letters, digits"),
        (type("A" * 65, (), {}), "1 to 64 letters"),
    ],
)
def test_an_unsuitable_function_is_refused_with_the_reason(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tool(function)


def pay(amount: int, to: str = "us") -> str:
    """Pay."""
    return f"{amount} {to}"


def test_a_tool_keeps_its_options() -> None:
    made = tool(
        needs_approval=True,
        approvers=["alice"],
        deadline_seconds=60,
        on_deadline="escalate",
        escalate_to=["bob"],
        timeout_seconds=5,
        attempts_max=1,
        max_result_bytes=1024,
    )(pay)
    assert made.max_result_bytes == 1024
    assert made.options('{"amount": 1}') == CallOptions(
        timeout_seconds=5,
        attempts_max=1,
        needs_approval=True,
        approvers=("alice",),
        deadline_seconds=60,
        on_deadline="escalate",
        escalate_to=("bob",),
        once=True,
    )
    assert tool(pay).options('{"amount": 1}') == CallOptions()
    assert tool(pay).max_result_bytes == 32 * 1024


def test_a_rule_says_which_calls_need_approval() -> None:
    made = tool(needs_approval=lambda amount, **others: amount > 100)(pay)
    assert made.options('{"amount": 101}').needs_approval
    assert not made.options('{"amount": 100}').needs_approval


@pytest.mark.parametrize("rule", [True, lambda amount, to: True])
def test_an_invalid_call_asks_for_no_approval(
    rule: bool | Callable[..., bool],
) -> None:
    made = tool(needs_approval=rule)(pay)
    assert not made.options('{"amount": "much"}').needs_approval
    assert made.options('{"amount": "1"}').needs_approval


@pytest.mark.guarantee(64)
def test_a_failing_rule_requires_approval(caplog: pytest.LogCaptureFixture) -> None:
    def rule(amount: int, to: str) -> bool:
        raise KeyError(to)

    with caplog.at_level(logging.WARNING):
        assert tool(needs_approval=rule)(pay).options('{"amount": 1}').needs_approval
    assert "'pay' failed" in caplog.text


async def _later(amount: int, to: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_seconds": 0}, "timeout_seconds must be over 0"),
        ({"timeout_seconds": -1}, "timeout_seconds must be over 0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds must be over 0"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds must be over 0"),
        ({"timeout_seconds": "5"}, "timeout_seconds must be over 0"),
        ({"attempts_max": 0}, "attempts_max must be an integer of at least 1"),
        ({"attempts_max": True}, "attempts_max must be an integer"),
        ({"max_result_bytes": 10}, "max_result_bytes must be an integer of at least 256"),
        ({"needs_approval": "yes"}, "needs_approval must be True, False, or a function"),
        ({"needs_approval": _later}, "not async"),
        ({"needs_approval": lambda total: True}, "arguments by name .amount, to."),
        ({"approvers": ["a"]}, "approvers has no effect without needs_approval"),
        ({"deadline_seconds": 5}, "deadline_seconds has no effect"),
        ({"needs_approval": True, "approvers": "alice"}, "approvers must be a list of names"),
        ({"needs_approval": True, "approvers": []}, "approvers is empty"),
        ({"needs_approval": True, "approvers": ["a" * 300]}, "over 256 bytes"),
        ({"needs_approval": True, "deadline_seconds": 0}, "deadline_seconds must be over 0"),
        ({"needs_approval": True, "on_deadline": "deny"}, "needs deadline_seconds"),
        (
            {"needs_approval": True, "deadline_seconds": 1, "on_deadline": "escalate"},
            "go together",
        ),
        ({"needs_approval": True, "deadline_seconds": 1, "escalate_to": ["a"]}, "go together"),
        (
            {"needs_approval": True, "deadline_seconds": 1, "on_deadline": "allow"},
            "'deny' or 'escalate', not 'allow'",
        ),
        ({"retries": 3}, "unknown option retries; @tool takes needs_approval"),
    ],
)
def test_nonsensical_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tool(**options)(pay)


class Colour(StrEnum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    at: datetime.date


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        ("lone \udcff", "lone ?"),
        (Colour.RED, "red"),
        (b"\xffraw", "\ufffdraw"),
        (bytearray(b"x"), "x"),
        (None, "done"),
        (0, "0"),
        (True, "true"),
        ([], "[]"),
        ({"a": [1, 2.5], "b": None}, '{"a":[1,2.5],"b":null}'),
        (Point(1, datetime.date(2026, 3, 1)), '{"x":1,"at":"2026-03-01"}'),
    ],
)
def test_a_result_becomes_text(result: object, text: str) -> None:
    assert restart.format_result(result) == text


def _circle() -> list[object]:
    found: list[object] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "result",
    [threading.Lock(), {"secret": object()}, _circle(), ["lone \udcff"], [b"\xff"]],
    ids=["lock", "object", "circle", "surrogate", "bytes"],
)
def test_a_result_that_json_cannot_hold_is_a_clear_error(result: object) -> None:
    with pytest.raises(TypeError, match=r"'restart' returned a .* that is not JSON") as caught:
        restart.format_result(result)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


CALL = CallInfo(thread_id="t", agent="ops", call_id="c", idempotency_key="t/3-0", attempt=2)


async def test_a_tool_knows_its_call_in_coroutines_tasks_and_threads() -> None:
    with set_current_call(CALL):
        assert current_call() is CALL
        assert await asyncio.create_task(_seen()) is CALL
        in_context = contextvars.copy_context().run
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, in_context, current_call) is CALL


async def _seen() -> CallInfo:
    await asyncio.sleep(0)
    return current_call()


async def test_concurrent_calls_do_not_mix() -> None:
    async def run(number: int) -> bool:
        mine = dataclasses.replace(CALL, call_id=str(number))
        with set_current_call(mine):
            await asyncio.sleep(0)
            return current_call() is mine

    assert all(await asyncio.gather(*(run(number) for number in range(50))))


def test_there_is_no_current_call_outside_a_tool() -> None:
    with set_current_call(CALL):
        pass
    with pytest.raises(ConfigError, match="outside a tool"):
        current_call()


def test_a_tool_stays_callable_as_its_function() -> None:
    assert restart("api", times=2) == "api 2"
    assert_type(restart("api"), str)
    assert getattr(restart, "__name__", "") == "restart"
    assert list(inspect.signature(restart).parameters) == ["service", "times"]
    assert str(inspect.getdoc(restart)).startswith("Restart a service,")


async def test_an_async_tool_with_options_stays_awaitable() -> None:
    @tool(needs_approval=True)
    async def double(number: int) -> int:
        """Double."""
        return 2 * number

    doubled = await double(number=21)
    assert_type(doubled, int)
    assert doubled == 42, "a direct call asks for no approval"


def test_a_sub_agent_is_a_tool_but_no_function() -> None:
    helper = Agent(
        name="helper", model=ScriptedModel(lambda _: Reply(text="ok")), description="Helps."
    )
    [made] = Agent(name="lead", model=helper.model, tools=[helper]).callable_tools
    assert not callable(made)
