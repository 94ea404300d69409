"""Commands that control a thread: limits, pause, unpause, compact, stop."""

import dataclasses
import json
from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, Protocol

import typer
from temporalio.client import Client

from everlong.admin.preview import Action, preview_action
from everlong.cli.help import Commands
from everlong.cli.options import (
    By,
    DryRun,
    Json,
    Reason,
    ThreadId,
    Yes,
    confirm,
    resolve_name,
    run_with_client,
)
from everlong.cli.output import print_json, print_lines
from everlong.client.thread import ThreadHandle
from everlong.config import load_settings
from everlong.connection import open_configured_packs
from everlong.errors import ConfigError
from everlong.format import format_setting
from everlong.models.thread_ids import show_id
from everlong.policy import Policy

commands = Commands()


class _Signal(Protocol):
    def __call__(
        self, thread: ThreadHandle, /, *, by: str = "", reason: str = ""
    ) -> Awaitable[None]: ...


@commands.command()
def limits(
    thread_id: ThreadId,
    changes: Annotated[
        list[str] | None, typer.Argument(help="NAME=VALUE; NAME=none removes an optional limit.")
    ] = None,
    by: By = "",
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Show the limits of a thread, or change them while it runs.

    Examples:
        everlong limits ops-7 steps_max=500 cost_usd_max=20 on_limit=stop

    """
    wanted = parse_changes(changes or [])

    async def work(client: Client) -> None:
        thread = ThreadHandle(client, thread_id)
        if wanted:
            await thread.configure(wanted, by=resolve_name(by), reason=reason)
        policy = (await thread.status()).policy
        if as_json:
            print_json(policy)
        else:
            print_lines(format_policy(policy))

    run_with_client(work)


@commands.command()
def pause(thread_id: ThreadId, by: By = "", reason: Reason = "") -> None:
    """Pause a thread: it takes no more steps until it is unpaused.

    The step under way finishes. Messages are queued.

    Examples:
        everlong pause ops-7 --reason 'wrong cluster'

    """
    _signal(ThreadHandle.pause, thread_id, by, reason, "takes no more steps")


@commands.command()
def unpause(thread_id: ThreadId, by: By = "", reason: Reason = "") -> None:
    """Let a paused thread continue.

    If a limit paused it, raise the limit first: it would pause the thread again.

    Examples:
        everlong unpause ops-7
        everlong limits ops-7 steps_max=500 && everlong unpause ops-7

    """
    _signal(ThreadHandle.unpause, thread_id, by, reason, "continues")


@commands.command()
def compact(thread_id: ThreadId, by: By = "", reason: Reason = "", dry_run: DryRun = False) -> None:
    """Compact a thread's context at its next safe point.

    The model then reads less. The journal keeps every entry.

    Examples:
        everlong compact ops-7 --dry-run
        everlong compact ops-7

    """
    if dry_run:
        _preview(thread_id, "compact")
        return
    _signal(ThreadHandle.compact, thread_id, by, reason, "will compact at its next safe point")


@commands.command()
def stop(
    thread_id: ThreadId,
    by: By = "",
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Stop a thread for ever, at its next safe point.

    It takes no more messages, and its id is not used again; its journal stays. At a terminal it asks
    for confirmation.

    Examples:
        everlong stop ops-7 --dry-run
        everlong stop ops-7 --reason 'done'

    """
    if dry_run:
        _preview(thread_id, "stop")
        return
    confirm(f"Thread {show_id(thread_id)} will end, and cannot be started again.", yes=yes)
    _signal(ThreadHandle.stop, thread_id, by, reason, "will stop at its next safe point")


def _preview(thread_id: str, action: Action) -> None:
    settings = load_settings()

    async def work(client: Client) -> None:
        found = await preview_action(client, open_configured_packs(settings), thread_id, action)
        print_lines([found.sentence, *(f"warning: {each}" for each in found.warnings)])

    run_with_client(work)


def parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    """Return policy fields from `NAME=VALUE`. A value is JSON or, if it does not parse, a string."""
    found: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name or not text:
            raise ConfigError(f"{change!r} is not NAME=VALUE; write it as in steps_max=500")
        try:
            found[name] = None if text.lower() == "none" else json.loads(text)
        except ValueError:
            found[name] = text
    return found


def format_policy(policy: Policy) -> list[str]:
    """Return a line for each field of a policy, with a star where it differs from the default."""
    changed = policy.differences()
    names = [field.name for field in dataclasses.fields(policy)]
    width = max(map(len, names))
    return [
        f"{'*' if name in changed else ' '} {name:<{width}}  {format_setting(getattr(policy, name))}"
        for name in names
    ]


def _signal(signal: _Signal, thread_id: str, by: str, reason: str, what: str) -> None:
    name = resolve_name(by)

    async def work(client: Client) -> None:
        await signal(ThreadHandle(client, thread_id), by=name, reason=reason)
        print_lines([f"thread {show_id(thread_id)} {what}"])

    run_with_client(work)
