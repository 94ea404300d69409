"""Commands for approvals: list the pending tool calls, and decide on them."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import typer
from temporalio.client import Client

from everlong.admin.approvals import list_approvals
from everlong.cli.help import Commands
from everlong.cli.options import (
    By,
    Json,
    OptionalThreadId,
    Reason,
    ThreadId,
    resolve_name,
    run_with_client,
)
from everlong.cli.output import format_approval, format_arguments, print_json, print_lines
from everlong.client.thread import ThreadHandle
from everlong.config import load_settings
from everlong.connection import open_configured_packs
from everlong.errors import DecisionRefused, suggest
from everlong.format import shorten_line
from everlong.models import Approval
from everlong.models.thread_ids import quote_id, show_id

commands = Commands()

Verb: TypeAlias = Literal["approve", "deny"]
ApprovalId = Annotated[
    str | None,
    typer.Argument(
        metavar="APPROVAL",
        help="An id that `everlong approvals` lists; by default the only one that waits.",
    ),
]


@commands.command()
def approvals(
    thread_id: OptionalThreadId = None,
    as_json: Json = False,
) -> None:
    """List the tool calls that wait for approval.

    With --json and a thread, arguments are complete; across all threads they are cut at 32 KiB.

    Examples:
        everlong approvals
        everlong approvals ops-7 --json

    """
    settings = load_settings()
    if thread_id is None:
        run_with_client(lambda client: _list_all(client, as_json))
        return

    async def work(client: Client) -> None:
        thread = ThreadHandle(client, thread_id, packs=open_configured_packs(settings))
        waiting = [(each, await thread.arguments(each)) for each in await thread.approvals()]
        if as_json:
            print_json([dataclasses.replace(each, arguments=whole) for each, whole in waiting])
            return
        for approval, whole in waiting:
            print_lines([format_approval(approval)])
            if whole != approval.arguments:
                print_lines([format_arguments(whole)])
        if not waiting:
            print_lines(["no tool call waits for approval"])

    run_with_client(work)


async def _list_all(client: Client, as_json: bool) -> None:
    page = await list_approvals(client, open_configured_packs(load_settings()))
    if as_json:
        print_json(page)
        return
    for each in page.waiting:
        print_lines([f"{show_id(each.thread_id)} ({each.agent})  {format_approval(each.approval)}"])
        if each.arguments != each.approval.arguments:
            print_lines([format_arguments(each.arguments)])
        if each.problem:
            print_lines([f"  the arguments cannot be shown in full: {each.problem}"])
    for thread_id, problem in page.problems.items():
        print_lines([f"{show_id(thread_id)}  does not answer: {problem}"])
    if page.not_asked:
        print_lines([f"{page.not_asked} more threads wait for approvals; decide on these first"])
    if not page.waiting and not page.problems:
        print_lines(["no tool call waits for approval"])


@commands.command()
def approve(
    thread_id: ThreadId, approval_id: ApprovalId = None, by: By = "", reason: Reason = ""
) -> None:
    """Approve a tool call, so that it runs.

    The id may be left out if one call of the thread waits.

    Examples:
        everlong approve ops-7 --reason 'traffic is drained'
        everlong approve ops-7 12-1-5f0c

    """
    _decide(thread_id, approval_id, "approve", by, reason)


@commands.command()
def deny(
    thread_id: ThreadId, approval_id: ApprovalId = None, by: By = "", reason: Reason = ""
) -> None:
    """Deny a tool call; the model is told so, with the reason.

    The model continues without the result. The id may be left out if one call of the thread waits.

    Examples:
        everlong deny ops-7 --reason 'not during the sale'
        everlong deny ops-7 12-1-5f0c

    """
    _decide(thread_id, approval_id, "deny", by, reason)


def _decide(thread_id: str, approval_id: str | None, verb: Verb, by: str, reason: str) -> None:
    name = resolve_name(by)

    async def work(client: Client) -> None:
        thread = ThreadHandle(client, thread_id)
        chosen = approval_id or choose_only(thread_id, await thread.approvals(), verb)
        try:
            await thread.decide(chosen, approve=verb == "approve", by=name, reason=reason)
        except DecisionRefused as error:
            waiting = await thread.approvals()
            if chosen in [each.id for each in waiting]:
                raise
            hint = suggest(chosen, [each.id for each in waiting])
            raise DecisionRefused(
                f"{error}.{hint} See what waits: everlong approvals {quote_id(thread_id)}"
            ) from error
        verdict = "approved" if verb == "approve" else "denied"
        print_lines([f"{chosen} on thread {show_id(thread_id)} is {verdict}, by {name}"])

    run_with_client(work)


def choose_only(thread_id: str, waiting: Sequence[Approval], verb: Verb) -> str:
    """Return the id of the only approval; raise `DecisionRefused` with the choices otherwise."""
    if len(waiting) == 1:
        return waiting[0].id
    shown = show_id(thread_id)
    if not waiting:
        raise DecisionRefused(
            f"no tool call of thread {shown} waits for approval. Look at the thread: everlong show "
            f"{quote_id(thread_id)}"
        )
    # The call is not on the line of the command: a shell might run what an agent has written there.
    choices = [
        f"\n  {each.tool} {shorten_line(each.arguments)}"
        f"\n    everlong {verb} {quote_id(thread_id)} {each.id}"
        for each in waiting
    ]
    raise DecisionRefused(
        f"{len(waiting)} tool calls of thread {shown} wait for approval. Name one:{''.join(choices)}"
    )
