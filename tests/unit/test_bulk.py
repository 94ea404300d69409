"""Bulk actions: the plan for each thread, its execution, and the routes. Without a server."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast, get_args

import pytest

from everlong.admin.bulk import (
    BULK_ACTIONS,
    THREADS_MAX,
    BulkAction,
    BulkOptions,
    plan_bulk,
    run_bulk,
)
from everlong.admin.web.auth import PERMISSIONS, Role
from everlong.client.thread import ThreadHandle
from everlong.client.visibility import ThreadRow
from everlong.errors import ControlRefused, ThreadNotFound
from everlong.models import Status, ThreadCard
from tests.support.admin_client import ROLES, bearer, make_context, open_http_client
from tests.unit.test_thread_list import row

ROWS: Mapping[str, ThreadRow] = {
    each.thread_id: each
    for each in (
        row("works", labels=("team=search",), card=ThreadCard(ms=1, context_bytes=2048)),
        row("paused", status=Status.PAUSED, reason="person"),
        row("limited", status=Status.PAUSED, reason="steps_max"),
        row("held", status=Status.HELD),
        row("asks", status=Status.APPROVAL, pending=2),
        row("ended", status=Status.DONE, closed_ms=5),
    )
}
IDS = (*ROWS, "unknown")


def effects(action: str, **options: Any) -> dict[str, str]:
    """Return the effect on each thread; a refusal begins with a minus."""
    found = plan_bulk(ROWS, IDS, cast("BulkAction", action), BulkOptions(**options))
    return {
        each.thread_id: f"-{each.refused}" if each.refused else each.effect for each in found.items
    }


def test_a_preview_says_of_each_thread_what_happens_or_why_nothing_does() -> None:
    pause = effects("pause")
    assert pause["works"].startswith("Takes no more steps")
    assert pause["paused"] == "-It is paused already."
    assert pause["ended"] == "-It has ended."
    assert pause["unknown"].startswith("-The server does not list it")
    unpause = effects("unpause")
    assert unpause["works"] == "-It is not paused."
    assert unpause["paused"] == "Continues."
    assert "steps_max pauses it again" in unpause["limited"]
    assert unpause["held"] == "Continues, if it is paused."
    assert "2 pending approvals will never be decided" in effects("stop")["asks"]
    compact = effects("compact")
    assert "2.0 KiB" in compact["works"]
    assert compact["asks"].startswith("-It has published no context")
    assert effects("archive")["ended"].startswith("Its journal is written")
    closing = effects("archive", then="close")
    assert closing["works"].startswith("Ends, and cannot be started again.")
    assert closing["ended"].startswith("Its journal is written")
    label = effects("label", add=("team=payments",))
    assert label["works"] == "Labels: team=payments."
    assert effects("label", add=("team=search",))["works"] == "-It has these labels already."
    assert "is no label" in effects("label", add=("a b",))["works"]


def test_only_what_ends_threads_needs_a_confirmation_with_the_number_of_threads() -> None:
    for action in BULK_ACTIONS:
        for then in ("keep", "close"):
            options = BulkOptions(then=then, add=("x",))
            found = plan_bulk(ROWS, IDS, cast("BulkAction", action), options)
            ends = action == "stop" or (action == "archive" and then == "close")
            assert found.confirm == (f"{action} {found.acts}" if ends else "")
            assert not (ends and found.is_reversible)
            assert len(found.items) == len(IDS)
    assert plan_bulk(ROWS, ("ended",), "stop", BulkOptions()).confirm == ""
    with pytest.raises(ControlRefused):
        plan_bulk(ROWS, IDS, "archive", BulkOptions(then="free"))
    with pytest.raises(ControlRefused):
        plan_bulk(ROWS, IDS, "label", BulkOptions())


class FakeHandle:
    """A handle that notes what is done, and fails on one thread."""

    def __init__(self, thread_id: str, done: list[str]) -> None:
        self.id = thread_id
        self.done = done

    async def pause(self, *, by: str, reason: str) -> None:
        await asyncio.sleep(0)
        if self.id == "held":
            raise ThreadNotFound("it is gone")
        if self.id == "asks":
            raise ValueError("with content")
        self.done.append(f"{self.id} {by} {reason}")


async def test_a_failure_on_one_thread_stops_no_other() -> None:
    done: list[str] = []
    progress: list[str] = []

    async def make_handle(thread_id: str) -> ThreadHandle:
        return cast("ThreadHandle", FakeHandle(thread_id, done))

    plan = plan_bulk(ROWS, IDS, "pause", BulkOptions())
    results = await run_bulk(
        plan, BulkOptions(), make_handle, by="ann", reason="test", on_progress=progress.append
    )
    assert done == ["works ann test"]
    assert {each.thread_id: each.state for each in results} == {
        "works": "done",
        "paused": "refused",
        "limited": "refused",
        "held": "failed",
        "asks": "failed",
        "ended": "refused",
        "unknown": "refused",
    }
    assert all("with content" not in each.text for each in results)
    assert progress[-1] == "3 of 3 threads"


async def test_the_routes_confirm_bound_and_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context()
    done: list[str] = []

    async def by_ids(thread_ids: Any) -> Mapping[str, ThreadRow]:
        return {each: ROWS[each] for each in thread_ids if each in ROWS}

    async def make_handle(thread_id: str) -> Any:
        return FakeHandle(thread_id, done)

    monkeypatch.setattr(context.thread_list, "by_ids", by_ids)
    monkeypatch.setattr(context, "thread", make_handle)
    body: dict[str, Any] = {"action": "pause", "thread_ids": ["works", "ended"]}
    async with open_http_client(context, ROLES) as http:
        operator = bearer(Role.OPERATOR)
        preview = (await http.post("/api/v1/bulk/preview", json=body, headers=operator)).json()
        assert (preview["acts"], preview["confirm"]) == (1, "")
        job = (await http.post("/api/v1/bulk", json=body, headers=operator)).json()
        assert [each["state"] for each in job["bulk"]] == ["done", "refused"]
        assert done == ["works Operator "]
        stop = body | {"action": "stop"}
        refused = await http.post("/api/v1/bulk", json=stop, headers=operator)
        assert refused.status_code == 409
        assert "stop 1" in refused.text
        for role in (Role.VIEWER, Role.APPROVER):
            answer = await http.post("/api/v1/bulk", json=body, headers=bearer(role))
            assert answer.status_code == 403
        many = body | {"thread_ids": [f"t-{at}" for at in range(THREADS_MAX + 1)]}
        assert (await http.post("/api/v1/bulk", json=many, headers=operator)).status_code == 422
        freed = body | {"action": "archive", "then": "free"}
        assert (await http.post("/api/v1/bulk", json=freed, headers=operator)).status_code == 403


def test_each_action_has_a_permission() -> None:
    assert set(get_args(BulkAction)) <= set(PERMISSIONS)
