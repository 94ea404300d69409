"""Commands that govern a thread: decide, limit, pause, compact, stop."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Protocol

import typer
from temporalio.client import Client

from everlong.admin import service
from everlong.admin.wording import setting_text
from everlong.cli.app import By, Json, OptionalThreadId, Reason, ThreadId, name_of
from everlong.cli.views import approval_text, arguments_text, print_json, print_lines
from everlong.config import load_settings
from everlong.connection import connect, open_configured_packs
from everlong.errors import ConfigError
from everlong.policy import Policy
from everlong.thread_ids import show_id

commands = typer.Typer()

ApprovalId = Annotated[str, typer.Argument(help="The approval's id, as `approvals` lists it.")]


DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]


class _Signal(Protocol):
    def __call__(
        self, client: Client, thread_id: str, by: str = "", reason: str = ""
    ) -> Awaitable[None]: ...


@commands.command()
def approvals(
    thread_id: OptionalThreadId = None,
    as_json: Json = False,
) -> None:
    """List the tool calls that wait for a person. With --json, a thread's arguments are whole.

    Those of all threads end at 32 KiB. Examples: everlong approvals. Of one thread: everlong approvals
    ops-7
    """
    settings = load_settings()
    if thread_id is None:
        _with_client(lambda client: _all_approvals(client, as_json))
        return

    async def work(client: Client) -> None:
        packs = open_configured_packs(settings)
        waiting = [
            (each, await service.arguments_of(client, packs, thread_id, each))
            for each in await service.pending(client, thread_id)
        ]
        if as_json:
            print_json([dataclasses.replace(each, arguments=whole) for each, whole in waiting])
            return
        for approval, whole in waiting:
            print_lines([approval_text(approval)])
            if whole != approval.arguments:
                print_lines([arguments_text(whole)])
        if not waiting:
            print_lines(["nothing waits for a person"])

    _with_client(work)


async def _all_approvals(client: Client, as_json: bool) -> None:
    page = await service.waiting(client, open_configured_packs(load_settings()))
    if as_json:
        print_json(page)
        return
    for each in page.waiting:
        print_lines([f"{show_id(each.thread_id)} ({each.agent})  {approval_text(each.approval)}"])
        if each.arguments != each.approval.arguments:
            print_lines([arguments_text(each.arguments)])
        if each.problem:
            print_lines([f"  not all of it can be shown: {each.problem}"])
    for thread_id, problem in page.problems.items():
        print_lines([f"{show_id(thread_id)}  cannot be asked: {problem}"])
    if page.not_asked:
        print_lines([f"{page.not_asked} more threads wait; decide about these first"])
    if not page.waiting and not page.problems:
        print_lines(["nothing waits for a person"])


@commands.command()
def approve(thread_id: ThreadId, approval_id: ApprovalId, by: By = "", reason: Reason = "") -> None:
    """Let a tool call run that waits for it.

    Example: everlong approve ops-7 12-1-5f0c --reason 'traffic is drained'
    """
    _decide(thread_id, approval_id, True, by, reason)


@commands.command()
def deny(thread_id: ThreadId, approval_id: ApprovalId, by: By = "", reason: Reason = "") -> None:
    """Deny a tool call. The model is told so, and why, and goes on without it.

    Example: everlong deny ops-7 12-1-5f0c --reason 'not during the sale'
    """
    _decide(thread_id, approval_id, False, by, reason)


@commands.command()
def limits(
    thread_id: ThreadId,
    changes: Annotated[
        list[str] | None, typer.Argument(help="NAME=VALUE; none lifts a limit that may be lifted.")
    ] = None,
    by: By = "",
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Show the policy of a thread, or change it while the thread lives.

    Example: everlong limits ops-7 steps_max=500 cost_usd_max=20 on_limit=stop
    """
    wanted = parse_changes(changes or [])

    async def work(client: Client) -> None:
        if wanted:
            await service.configure(client, thread_id, wanted, by=name_of(by), reason=reason)
        policy = (await service.status(client, thread_id)).policy
        if as_json:
            print_json(policy)
        else:
            print_lines(policy_lines(policy))

    _with_client(work)


@commands.command()
def pause(thread_id: ThreadId, by: By = "", reason: Reason = "") -> None:
    """Have a thread take no more steps. What is under way ends; messages are still queued.

    Example: everlong pause ops-7 --reason 'wrong cluster'
    """
    _signal(service.pause, thread_id, by, reason, "takes no more steps")


@commands.command()
def unpause(thread_id: ThreadId, by: By = "", reason: Reason = "") -> None:
    """Let a paused thread go on. A limit that is still reached pauses it again: raise it first.

    Example: everlong limits ops-7 steps_max=500 && everlong unpause ops-7
    """
    _signal(service.unpause, thread_id, by, reason, "goes on")


@commands.command()
def compact(thread_id: ThreadId, by: By = "", reason: Reason = "", dry_run: DryRun = False) -> None:
    """Have a thread shorten its context at its next safe point. The journal keeps everything.

    Example: everlong compact ops-7 --dry-run
    """
    if dry_run:
        _preview(thread_id, "compact")
        return
    _signal(service.compact, thread_id, by, reason, "will compact at its next safe point")


@commands.command()
def stop(
    thread_id: ThreadId,
    by: By = "",
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Stop a thread at its next safe point. Its journal stays; it takes no more messages.

    At a terminal it asks first. Example: everlong stop ops-7 --reason 'done'
    """
    if dry_run:
        _preview(thread_id, "stop")
        return
    confirm(f"Thread {show_id(thread_id)} will end, and cannot be started again.", yes=yes)
    _signal(service.stop, thread_id, by, reason, "will stop at its next safe point")


def confirm(what: str, *, yes: bool) -> None:
    """Ask whether to go on with what cannot be undone. Programs, which have no terminal, know."""
    if yes or not sys.stdin.isatty():
        return
    typer.confirm(f"{what} Go on?", abort=True)


def _preview(thread_id: str, action: service.Action) -> None:
    settings = load_settings()

    async def work(client: Client) -> None:
        found = await service.preview(client, open_configured_packs(settings), thread_id, action)
        print_lines([found.sentence, *(f"warning: {each}" for each in found.warnings)])

    _with_client(work)


def parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    """Return fields of a policy from `NAME=VALUE`. A value is JSON, or else a word."""
    found: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name or not text:
            raise ConfigError(f"{change!r} is no change; write NAME=VALUE, as in steps_max=500")
        try:
            found[name] = None if text.lower() == "none" else json.loads(text)
        except ValueError:
            found[name] = text
    return found


def policy_lines(policy: Policy) -> list[str]:
    """Return the fields of a policy; those with a star are not at their default."""
    changed = policy.differences()
    names = [field.name for field in dataclasses.fields(policy)]
    width = max(map(len, names))
    return [
        f"{'*' if name in changed else ' '} {name:<{width}}  {setting_text(getattr(policy, name))}"
        for name in names
    ]


def _decide(thread_id: str, approval_id: str, approve: bool, by: str, reason: str) -> None:
    name = name_of(by)

    async def work(client: Client) -> None:
        await service.decide(client, thread_id, approval_id, approve, name, reason)
        verdict = "approved" if approve else "denied"
        print_lines([f"{approval_id} on thread {show_id(thread_id)} is {verdict}, by {name}"])

    _with_client(work)


def _signal(signal: _Signal, thread_id: str, by: str, reason: str, what: str) -> None:
    name = name_of(by)

    async def work(client: Client) -> None:
        await signal(client, thread_id, by=name, reason=reason)
        print_lines([f"thread {show_id(thread_id)} {what}"])

    _with_client(work)


def _with_client(work: Callable[[Client], Awaitable[None]]) -> None:
    async def connected() -> None:
        await work(await connect(load_settings()))

    asyncio.run(connected())
