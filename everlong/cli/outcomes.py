"""Commands for unknown outcomes: list the calls that may have taken effect, and resolve them."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

import typer
from temporalio.client import Client

from everlong.admin.approvals import list_outcomes
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
from everlong.cli.output import format_arguments, format_outcome, print_json, print_lines
from everlong.client.thread import ThreadHandle
from everlong.config import load_settings
from everlong.connection import open_configured_packs
from everlong.errors import ConfigError, DecisionRefused
from everlong.models import UnknownOutcome
from everlong.models.thread_ids import quote_id, show_id
from everlong.storage.pack_store import PackStore

commands = Commands()


@commands.command()
def outcomes(thread_id: OptionalThreadId = None, as_json: Json = False) -> None:
    """List the calls of which it is not known whether they took effect.

    Their worker was lost while they ran, or they timed out. Look for the effect, by the idempotency key
    if the other side keeps it; then: everlong resolve.

    Examples:
        everlong outcomes
        everlong outcomes ops-7 --json

    """
    packs = open_configured_packs(load_settings())

    async def work(client: Client) -> None:
        if thread_id is None:
            await _list_all(client, packs, as_json)
        else:
            await _list_one(ThreadHandle(client, thread_id, packs=packs), as_json)

    run_with_client(work)


_NONE = "the outcome of every call is known"


async def _list_all(client: Client, packs: PackStore, as_json: bool) -> None:
    page = await list_outcomes(client, packs)
    if as_json:
        print_json(page)
        return
    for each in page.waiting:
        thread = f"{show_id(each.thread_id)} ({each.agent})"
        _print_outcome(f"{thread}  {format_outcome(each.outcome)}", each.outcome, each.arguments)
    for name, problem in page.problems.items():
        print_lines([f"{show_id(name)}  does not answer: {problem}"])
    if page.not_asked:
        print_lines([f"{page.not_asked} more threads wait for people; answer these first"])
    if not page.waiting and not page.problems:
        print_lines([_NONE])


async def _list_one(thread: ThreadHandle, as_json: bool) -> None:
    found = [(each, await thread.arguments(each)) for each in await thread.outcomes()]
    if as_json:
        print_json([dataclasses.replace(each, arguments=whole) for each, whole in found])
        return
    for outcome, whole in found:
        _print_outcome(format_outcome(outcome), outcome, whole)
    if not found:
        print_lines([_NONE])


def _print_outcome(line: str, outcome: UnknownOutcome, arguments: str) -> None:
    print_lines([line])
    if arguments != outcome.arguments:
        print_lines([format_arguments(arguments)])


@commands.command()
def resolve(
    thread_id: ThreadId,
    outcome_id: Annotated[
        str | None,
        typer.Argument(
            metavar="OUTCOME",
            help="An id that `everlong outcomes` lists; by default the only one that waits.",
        ),
    ] = None,
    done: Annotated[
        str | None,
        typer.Option(
            metavar="RESULT", help="It took effect; the model reads this as the call's result."
        ),
    ] = None,
    not_done: Annotated[
        bool, typer.Option("--not-done", help="It had no effect; the model reads that.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run it again, with the same idempotency key.")
    ] = False,
    by: By = "",
    reason: Reason = "",
) -> None:
    """Say what became of a call: done, not done, or try again.

    The id may be left out if one call of the thread waits.

    Examples:
        everlong resolve ops-7 --done 'transfer 17'
        everlong resolve ops-7 12-1-5f0c-1 --not-done --reason 'no entry in the ledger'
        everlong resolve ops-7 --retry

    """
    name = resolve_name(by)
    chosen = [done is not None, not_done, retry]
    if sum(chosen) != 1:
        raise ConfigError("give one of --done RESULT, --not-done and --retry")
    kinds: tuple[Literal["done", "not_done", "retry"], ...] = ("done", "not_done", "retry")
    outcome = kinds[chosen.index(True)]

    async def work(client: Client) -> None:
        thread = ThreadHandle(client, thread_id)
        found = outcome_id or choose_only(thread_id, await thread.outcomes())
        await thread.resolve_outcome(
            found, outcome=outcome, by=name, result=done or "", reason=reason
        )
        said = {"done": "done", "not_done": "not done", "retry": "run again"}[outcome]
        print_lines([f"{found} on thread {show_id(thread_id)} is {said}, by {name}"])

    run_with_client(work)


def choose_only(thread_id: str, waiting: Sequence[UnknownOutcome]) -> str:
    """Return the id of the only outcome; raise `DecisionRefused` with the choices otherwise."""
    if len(waiting) == 1:
        return waiting[0].id
    shown = show_id(thread_id)
    if not waiting:
        raise DecisionRefused(f"the outcome of every call of thread {shown} is known")
    ids = "".join(f"\n  everlong resolve {quote_id(thread_id)} {each.id}" for each in waiting)
    raise DecisionRefused(
        f"the outcomes of {len(waiting)} calls of thread {shown} are unknown. Name one:{ids}"
    )
