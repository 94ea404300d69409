"""Commands for approvals: list the pending tool calls, and decide on them."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import typer
from temporalio.client import Client

from everlong import limits
from everlong.admin.approvals import list_approvals
from everlong.cli.help import Commands
from everlong.cli.options import (
    By,
    Json,
    OptionalThreadId,
    Reason,
    ThreadId,
    Yes,
    confirm,
    resolve_name,
    run_with_client,
)
from everlong.cli.output import format_approval, format_arguments, print_json, print_lines
from everlong.client.thread import ThreadHandle
from everlong.config import load_settings
from everlong.connection import open_configured_packs
from everlong.errors import ConfigError, DecisionRefused, suggest
from everlong.format import format_duration, parse_duration, shorten_line
from everlong.models import Always, Approval
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
    thread_id: ThreadId,
    approval_id: ApprovalId = None,
    arguments: Annotated[
        str,
        typer.Option(
            metavar="JSON", help="Run the call with these arguments, which are all of them."
        ),
    ] = "",
    always: Annotated[
        Literal["tool", "arguments"] | None,
        typer.Option(
            metavar="tool|arguments",
            help="Allow later calls too: all of the tool, or those with the same arguments.",
        ),
    ] = None,
    scope: Annotated[
        Literal["thread", "agent"],
        typer.Option(
            metavar="thread|agent",
            help="With --always: for this thread, or for all threads of its agent.",
        ),
    ] = "thread",
    lasting: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="With --always: for how long, as in 30m, 8h, 7d; by default until it is revoked.",
        ),
    ] = "",
    by: By = "",
    reason: Reason = "",
    yes: Yes = False,
) -> None:
    """Approve a tool call, so that it runs.

    The id may be left out if one call of the thread waits. With --always, the command says what it
    allows, and asks before it does.

    Examples:
        everlong approve ops-7 --reason 'traffic is drained'
        everlong approve ops-7 12-1-5f0c --arguments '{"service": "staging-api"}'
        everlong approve ops-7 --always tool --for 8h

    """
    if always is None and (lasting or scope != "thread"):
        raise ConfigError("--for and --scope have no effect without --always tool|arguments")
    wanted = None if always is None else _build_always(always, scope, lasting)
    changed = _parse_arguments(arguments) if arguments else None
    _decide(
        thread_id, approval_id, "approve", by, reason, arguments=changed, always=wanted, yes=yes
    )


def _build_always(
    match: Literal["tool", "arguments"], scope: Literal["thread", "agent"], lasting: str
) -> Always:
    try:
        seconds = parse_duration(lasting) if lasting else None
    except ValueError as error:
        raise ConfigError(f"--for: {error}") from None
    if seconds is not None and not 0 < seconds <= limits.GRANT_SECONDS_MAX:
        days = limits.GRANT_SECONDS_MAX / (24 * 3600)
        raise ConfigError(f"--for must be over 0 and at most {days:.0f} days, not {lasting!r}")
    return Always(match=match, scope=scope, seconds=seconds)


def _parse_arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--arguments is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError("--arguments must be a JSON object, with a name for each argument")
    return found


def _describe_always(always: Always, approval: Approval, thread_id: str) -> str:
    """Return what a grant would allow."""
    calls = f"every call of {approval.tool}"
    if always.match == "arguments":
        calls += f" with the arguments {shorten_line(approval.arguments)}"
    place = f"thread {show_id(thread_id)}"
    if always.scope == "agent":
        place = f"all threads of the agent of thread {show_id(thread_id)}"
    until = "until it is revoked"
    if always.seconds is not None:
        until = f"for {format_duration(always.seconds)}"
    return f"This approves the call, and lets {calls} in {place} run without an approval, {until}."


@commands.command()
def deny(
    thread_id: ThreadId, approval_id: ApprovalId = None, by: By = "", reason: Reason = ""
) -> None:
    """Deny a tool call; the model reads the denial and the reason.

    The model continues without the result. The id may be left out if one call of the thread waits.

    Examples:
        everlong deny ops-7 --reason 'not during the sale'
        everlong deny ops-7 12-1-5f0c

    """
    _decide(thread_id, approval_id, "deny", by, reason)


def _decide(
    thread_id: str,
    approval_id: str | None,
    verb: Verb,
    by: str,
    reason: str,
    *,
    arguments: dict[str, Any] | None = None,
    always: Always | None = None,
    yes: bool = False,
) -> None:
    name = resolve_name(by)

    async def work(client: Client) -> None:
        thread = ThreadHandle(client, thread_id)
        listed = await thread.approvals() if always or not approval_id else []
        chosen = approval_id or choose_only(thread_id, listed, verb)
        found = next((each for each in listed if each.id == chosen), None)
        if always is not None and found is not None:
            print_lines([_describe_always(always, found, thread_id)])
            confirm("It holds at once.", yes=yes)
        try:
            await thread.decide(
                chosen,
                approve=verb == "approve",
                by=name,
                reason=reason,
                arguments=arguments,
                always=always,
            )
        except DecisionRefused as error:
            waiting = await thread.approvals()
            if chosen in [each.id for each in waiting]:
                raise
            hint = suggest(chosen, [each.id for each in waiting])
            raise DecisionRefused(
                f"{error}.{hint} See what waits: everlong approvals {quote_id(thread_id)}"
            ) from error
        verdict = "approved" if verb == "approve" else "denied"
        changed = " with other arguments" if arguments is not None else ""
        print_lines([f"{chosen} on thread {show_id(thread_id)} is {verdict}{changed}, by {name}"])
        if verb == "approve" and found is not None and len(found.votes) + 1 < found.needed:
            print_lines([f"it needs {found.needed} approvals: see everlong approvals"])
        if always is not None:
            print_lines(
                [f"see, and revoke, what is allowed: everlong grants {quote_id(thread_id)}"]
            )

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
