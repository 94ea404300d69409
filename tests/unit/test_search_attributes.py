"""Search attributes are asked for until the answer is known."""

import asyncio
import re
import time
from collections.abc import Collection, Sequence
from typing import Any, cast

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everlong.client import search_attributes
from everlong.client.search_attributes import (
    MISSING_SECONDS,
    RETRY_SECONDS_MAX,
    AttributeWatch,
    find_missing_attributes,
    has_attributes,
    parse_type_name,
    set_up,
)
from everlong.models.search_attributes import SEARCH_ATTRIBUTES

DOWN = RPCError("down", RPCStatusCode.UNAVAILABLE, b"")
REFUSED = RPCError("no", RPCStatusCode.PERMISSION_DENIED, b"")
ALL = ListSearchAttributesResponse(
    custom_attributes={name: parse_type_name(kind) for name, kind in SEARCH_ATTRIBUTES.items()}
)
NONE = ListSearchAttributesResponse()


class Operator:
    """An operator service that answers so, and with the last answer from then on."""

    def __init__(self, *answers: ListSearchAttributesResponse | Exception) -> None:
        self._answers = list(answers)
        self.calls = 0

    async def list_search_attributes(self, *_: Any, **__: Any) -> ListSearchAttributesResponse:
        self.calls += 1
        await asyncio.sleep(0)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeClient:
    """The part of a client that reads search attributes."""

    namespace = "ours"

    def __init__(self, operator: Operator, known: Collection[str] | None = None) -> None:
        self.operator_service = operator
        self._known = known
        self.queries: list[str] = []

    async def count_workflows(self, query: str, **_: Any) -> None:
        """Refuse a query that names an unknown attribute; without known ones, refuse all callers."""
        self.queries.append(query)
        if self._known is None:
            raise REFUSED
        if not set(re.findall(r"Everlong\w+", query)) <= set(self._known):
            raise RPCError("invalid query", RPCStatusCode.INVALID_ARGUMENT, b"")


def make_client(operator: Operator) -> Client:
    return cast("Client", FakeClient(operator))


def open_watch(
    *answers: ListSearchAttributesResponse | Exception,
) -> tuple[AttributeWatch, list[str]]:
    found: list[str] = []
    client = make_client(Operator(*answers))
    return AttributeWatch(lambda: client, found.append), found


async def paces(watch: AttributeWatch, times: int) -> Sequence[float | None]:
    return [await watch.ask() for _ in range(times)]


async def test_existing_attributes_take_one_call() -> None:
    watch, found = open_watch(ALL)
    await watch.run(await watch.ask())
    assert (found, watch.calls) == (["ours"], 1)


async def test_failed_calls_are_retried_until_the_answer_is_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(search_attributes, "RETRY_SECONDS", 0.001)
    watch, found = open_watch(DOWN, REFUSED, RuntimeError("cannot connect"), ALL)
    async with asyncio.timeout(30):
        await watch.run(await watch.ask())
    assert (found, watch.calls) == (["ours"], 4)
    assert len(caplog.records) == 1, "a warning for the first failure alone"


async def test_calls_to_a_failing_server_back_off() -> None:
    watch, found = open_watch(DOWN)
    asked = await paces(watch, 12)
    assert asked[:4] == [1, 2, 4, 8]
    assert asked[-1] == RETRY_SECONDS_MAX
    assert found == []


async def test_missing_attributes_are_checked_slowly_and_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch, found = open_watch(NONE)
    assert await paces(watch, 3) == [MISSING_SECONDS] * 3
    assert found == []
    [warning] = caplog.messages
    assert "everlong setup" in warning


@pytest.mark.parametrize("status", [RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED])
async def test_where_attributes_may_not_be_listed_one_query_shows_that_all_are_there(
    status: RPCStatusCode,
) -> None:
    client = FakeClient(Operator(RPCError("no", status, b"")), SEARCH_ATTRIBUTES)
    assert await find_missing_attributes(cast("Client", client)) == []
    assert await set_up(cast("Client", client)) == dict.fromkeys(SEARCH_ATTRIBUTES, "present")
    assert len(client.queries) == 2


async def test_where_attributes_may_not_be_listed_queries_show_which_are_missing() -> None:
    known = SEARCH_ATTRIBUTES.keys() - {"EverlongAskedAt", "EverlongReason"}
    client = FakeClient(Operator(REFUSED), known)
    missing = await find_missing_attributes(cast("Client", client))
    assert missing == ["EverlongReason", "EverlongAskedAt"]


async def test_an_attribute_of_another_type_counts_as_missing() -> None:
    wrong = ListSearchAttributesResponse()
    wrong.CopyFrom(ALL)
    wrong.custom_attributes["EverlongStatus"] = IndexedValueType.INDEXED_VALUE_TYPE_INT
    watch, found = open_watch(wrong, NONE, ALL)
    assert await paces(watch, 3) == [MISSING_SECONDS, MISSING_SECONDS, None]
    assert found == ["ours"]


async def test_programs_that_start_threads_check_once() -> None:
    operator = Operator(ALL)
    client = make_client(operator)
    assert all(await asyncio.gather(*(has_attributes(client) for _ in range(100))))
    assert await has_attributes(client)
    assert operator.calls == 1


@pytest.mark.parametrize("answer", [DOWN, NONE, RuntimeError("cannot connect")])
async def test_programs_check_again_a_minute_after_another_answer(
    answer: ListSearchAttributesResponse | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = Operator(answer, ALL)
    client = make_client(operator)
    assert not any([await has_attributes(client) for _ in range(3)])
    assert operator.calls == 1
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + MISSING_SECONDS + 1)
    assert await has_attributes(client)
    assert operator.calls == 2
