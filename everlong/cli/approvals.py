"""Commands for approvals: list the pending tool calls, and decide on them."""

import dataclasses
from typing import Annotated

import typer
from temporalio.client import Client

from everlong.admin.approvals import list_approvals
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
from everlong.models.thread_ids import show_id

commands = typer.Typer(add_completion=False)

ApprovalId = Annotated[str, typer.Argument(help="The approval's id, as `approvals` lists it.")]


@commands.command()
def approvals(
    thread_id: OptionalThreadId = None,
    as_json: Json = False,
) -> None:
    """List the tool calls that wait for approval.

    With --json and a thread id, arguments are complete; across all threads they are cut at 32 KiB.
    Examples: everlong approvals. For one thread: everlong approvals ops-7
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
def approve(thread_id: ThreadId, approval_id: ApprovalId, by: By = "", reason: Reason = "") -> None:
    """Approve a tool call, so that it runs.

    Example: everlong approve ops-7 12-1-5f0c --reason 'traffic is drained'
    """
    _decide(thread_id, approval_id, True, by, reason)


@commands.command()
def deny(thread_id: ThreadId, approval_id: ApprovalId, by: By = "", reason: Reason = "") -> None:
    """Deny a tool call. The model sees the denial and the reason, and continues without the result.

    Example: everlong deny ops-7 12-1-5f0c --reason 'not during the sale'
    """
    _decide(thread_id, approval_id, False, by, reason)


def _decide(thread_id: str, approval_id: str, approve: bool, by: str, reason: str) -> None:
    name = resolve_name(by)

    async def work(client: Client) -> None:
        thread = ThreadHandle(client, thread_id)
        await thread.decide(approval_id, approve=approve, by=name, reason=reason)
        verdict = "approved" if approve else "denied"
        print_lines([f"{approval_id} on thread {show_id(thread_id)} is {verdict}, by {name}"])

    run_with_client(work)
