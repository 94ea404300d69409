"""Approvals on a page: the shown call is the one that will run, and missing parts are reported."""

import json
import sys
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from everlong.admin.approvals import (
    ARGUMENTS_BYTES_MAX,
    ApprovalPage,
    OutcomePage,
    WaitingApproval,
    list_thread_approvals,
)
from everlong.admin.web.pages.layout import make_environment
from everlong.client.errors import translate_rpc_error
from everlong.errors import BlobMissing, SetupRefused
from everlong.models import Approval

APPROVAL = Approval(id="7-1-ab", tool="pay", arguments='{"euros": 5', asked_ms=1)


async def look(
    monkeypatch: pytest.MonkeyPatch, arguments: str | None, context: str = ""
) -> WaitingApproval:
    """Return what is shown of a call with these arguments; None if they cannot be had."""

    async def arguments_of(*_: object) -> str:
        if arguments is None:
            raise BlobMissing("the pack is gone")
        return arguments

    async def context_of(*_: object) -> tuple[Any, ...]:
        if context:
            raise BlobMissing(context)
        return ()

    # The service has a function of the same name as the module.
    module = sys.modules[WaitingApproval.__module__]
    monkeypatch.setattr(module, "load_arguments", arguments_of)
    monkeypatch.setattr(module, "_load_context", context_of)
    monkeypatch.setattr(module, "list_pending", list_pending)
    [found] = await list_thread_approvals(None, None, "ops-7")  # type: ignore[arg-type]
    return found


async def list_pending(*_: object) -> tuple[Approval, ...]:
    return (APPROVAL,)


async def test_unavailable_arguments_are_not_shown_as_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await look(monkeypatch, None)
    assert found.arguments == '{"euros": 5'
    assert found.problem.startswith("Only the beginning of the arguments can be shown")
    found = await look(monkeypatch, '{"euros": 500}', "that of before is gone")
    assert found.arguments == '{"euros": 500}'
    assert found.problem.startswith("The entries before the call cannot be shown")
    assert not (await look(monkeypatch, "{}")).problem


async def test_no_character_of_the_arguments_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await look(monkeypatch, "a\ud800b")).arguments == "a\\ud800b"
    found = await look(monkeypatch, "ü" * ARGUMENTS_BYTES_MAX)
    assert found.arguments == "ü" * (ARGUMENTS_BYTES_MAX // 2)
    assert found.arguments_bytes == 2 * ARGUMENTS_BYTES_MAX


async def test_a_call_has_unique_element_ids_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = await look(monkeypatch, json.dumps({"to": "\u202eann"}, ensure_ascii=False))
    template = make_environment().get_template("approvals_list.html")
    who = type("Who", (), {"may": lambda *_: True, "is_anonymous": True, "name": "ann"})()
    other = WaitingApproval(
        thread_id="ops-8",
        agent="",
        approval=APPROVAL,
        arguments="{}",
        arguments_bytes=2,
        context=(),
    )

    def ids(*calls: WaitingApproval) -> set[str]:
        found = ApprovalPage(waiting=calls, threads=2, not_asked=0, problems={})
        unknown = OutcomePage(waiting=(), threads=0, not_asked=0, problems={})
        text = template.render(
            found=found, waiting_list=calls, unknown=unknown, outcomes_list=(), who=who
        )
        assert "\u202e" not in text
        found_ids = [part.partition('"')[0] for part in text.split(' id="')[1:]]
        assert len(found_ids) == len(set(found_ids)) > 2
        return set(found_ids)

    assert ids(call).isdisjoint(ids(other))
    assert ids(call, other) == ids(call) | ids(other)


def test_a_server_without_our_search_attributes_gets_a_setup_hint() -> None:
    message = "invalid query: invalid search attribute: EverlongPendingApprovals"
    refused = translate_rpc_error(RPCError(message, RPCStatusCode.INVALID_ARGUMENT, b""), "")
    assert isinstance(refused, SetupRefused)
    assert "everlong setup" in str(refused)
