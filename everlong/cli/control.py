"""Commands that control a thread: limits, labels, pause, unpause, compact, stop."""

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
from everlong.client.labels import read_labels
from everlong.client.thread import ThreadHandle
from everlong.client.time_travel import Timeline
from everlong.config import load_settings
from everlong.connection import open_configured_packs
from everlong.errors import ConfigError, quote, suggest
from everlong.format import format_bytes, format_setting, parse_bytes, parse_duration
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
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            help="A limit to change. Sizes and durations take units, as in 512KiB and 5m; none removes "
            "an optional limit.",
        ),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show all limits, not only those that differ.")
    ] = False,
    by: By = "",
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Show the limits of a thread, or change them while it runs.

    It shows what differs from the defaults.

    Examples:
        everlong limits ops-7
        everlong limits ops-7 --all
        everlong limits ops-7 steps_max=500 cost_usd_max=20 on_limit=stop
        everlong limits ops-7 context_bytes_max=512KiB idle_seconds=5m --reason 'long logs'

    """
    wanted = parse_changes(changes or [])

    async def work(client: Client) -> None:
        thread = ThreadHandle(client, thread_id)
        if wanted:
            await thread.configure(wanted, by=resolve_name(by), reason=reason)
        status = await thread.status()
        if as_json:
            print_json(status.policy)
            return
        print_lines(format_policy(thread_id, status.policy, whole=show_all))
        if status.policy_from == "default":
            print_lines(
                [f"no worker with agent {status.agent!r} has answered yet: its own may differ"]
            )

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
def compact(
    thread_id: ThreadId,
    by: By = "",
    reason: Reason = "",
    dry_run: DryRun = False,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate",
            help="Compact the thread's past at several places, and show what later tool calls would "
            "have found. Nothing changes.",
        ),
    ] = False,
) -> None:
    """Compact a thread's context at its next safe point.

    The model then reads less. The journal keeps every entry.

    Examples:
        everlong compact ops-7 --dry-run
        everlong compact ops-7 --evaluate
        everlong compact ops-7

    """
    if evaluate:
        _evaluate(thread_id)
        return
    if dry_run:
        _preview(thread_id, "compact")
        return
    what = "will compact at its next safe point, unless that frees nothing"
    _signal(ThreadHandle.compact, thread_id, by, reason, what)


@commands.command()
def label(
    thread_id: ThreadId,
    labels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LABEL",
            help="A label to add: a word, or key=value, which replaces the label with that key.",
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="A label or a key to remove; may be repeated."),
    ] = None,
    by: By = "",
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Show the labels of a thread, or change them.

    A thread has at most 10 labels of 64 characters. Lists are filtered by them. They are stored as a
    search attribute, which is not sealed: put no secrets into them.

    Examples:
        everlong label ops-7
        everlong label ops-7 team=payments urgent
        everlong label ops-7 --remove urgent --remove team

    """

    async def work(client: Client) -> None:
        if labels or remove:
            found = await ThreadHandle(client, thread_id).label(
                labels or [], remove=remove or [], by=resolve_name(by), reason=reason
            )
        else:
            found = await read_labels(client, thread_id)
        if as_json:
            print_json({"thread_id": thread_id, "labels": found})
        else:
            print_lines([" ".join(found) or f"thread {show_id(thread_id)} has no labels"])

    run_with_client(work)


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


def _evaluate(thread_id: str) -> None:
    settings = load_settings()

    async def work(client: Client) -> None:
        packs = open_configured_packs(settings)
        timeline = await Timeline.open(client, packs, thread_id)
        scores = await timeline.evaluate_compaction()
        print_lines(
            f"entry {score.seq}: later calls use {score.literals} paths, ids, names and numbers that "
            f"stand before. Compacted to {format_bytes(score.budget_bytes)}, the context holds "
            f"{score.share:.0%} of them, and the last messages of that size {score.tail_share:.0%}. "
            f"With recall: {score.recalled_share:.0%}."
            for score in scores
        )
        if not scores:
            print_lines(
                [
                    "Nothing to evaluate: later tool calls use fewer than 20 paths, ids, names and "
                    "numbers that stand before. Try again when the thread is longer."
                ]
            )

    run_with_client(work)


def parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    """Return policy fields from `NAME=VALUE`. Sizes and durations may have units; `none` is no limit."""
    defaults = Policy().fields()
    found: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name or not text:
            raise ConfigError(f"{quote(change)} is not NAME=VALUE. Write it as in steps_max=500.")
        if name not in defaults:
            raise ConfigError(
                f"there is no limit {quote(name)}.{suggest(name, defaults)} List all with: everlong "
                "limits THREAD --all"
            )
        try:
            found[name] = _parse_value(name, text, defaults[name])
        except ValueError as error:
            raise ConfigError(f"{name}: {error}.") from None
    return found


def _parse_value(name: str, text: str, default: object) -> Any:
    """Return the value of a field, by its name and the type of its default."""
    if text.lower() == "none":
        return None
    if "_bytes" in name:
        return parse_bytes(text)
    if name.endswith(("_seconds", "_seconds_max")):
        return parse_duration(text)
    if isinstance(default, str):
        return text
    if isinstance(default, int | float) and not isinstance(default, bool):
        return _parse_number(name, text.removeprefix("$").replace(",", ""))
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"{quote(text)} is not JSON, such as {json.dumps(default)}") from None


def _parse_number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{quote(text)} is not a number. Write it as in {name}=500") from None
    return int(number) if number.is_integer() else number


def format_policy(thread_id: str, policy: Policy, *, whole: bool) -> list[str]:
    """Return the lines of a policy: what differs from the defaults, or all with a star at these."""
    changed, defaults = policy.differences(), Policy().fields()
    names = list(defaults) if whole else list(changed)
    width = max(map(len, names), default=0)
    rows = [(name, format_setting(name, getattr(policy, name))) for name in names]
    value_width = max((len(value) for _, value in rows), default=0)
    lines = [
        f"{'*' if name in changed else ' '} {name:<{width}}  {value:<{value_width}}  "
        f"default {format_setting(name, defaults[name])}"
        if name in changed
        else f"  {name:<{width}}  {value}"
        for name, value in rows
    ]
    if changed:
        count = f"{len(changed)} of {len(defaults)} limits of {show_id(thread_id)} differ"
        lines.append(f"{count} from the defaults{'' if whole else '; --all shows the others too'}")
    else:
        count = f"all {len(defaults)} limits of {show_id(thread_id)} have their defaults"
        lines.append(f"{count}{'' if whole else '; --all shows them'}")
    return lines


def _signal(signal: _Signal, thread_id: str, by: str, reason: str, what: str) -> None:
    name = resolve_name(by)

    async def work(client: Client) -> None:
        await signal(ThreadHandle(client, thread_id), by=name, reason=reason)
        print_lines([f"thread {show_id(thread_id)} {what}"])

    run_with_client(work)
