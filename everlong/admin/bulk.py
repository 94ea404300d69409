"""Bulk actions: one action on many threads, previewed for each and confirmed once.

A preview is made from the rows of the list, by one request to the server: it queries no thread, so none
resumes. An action is planned again before it is done, since threads change meanwhile.
"""

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

from everlong.client.archives import Then
from everlong.client.thread import ThreadHandle
from everlong.client.visibility import ThreadRow
from everlong.errors import ControlRefused, EverlongError, NoWorker
from everlong.format import format_bytes, format_count
from everlong.models import Status
from everlong.models.labels import change_labels
from everlong.models.status import PERSON

_LOG: Final = logging.getLogger(__name__)

BulkAction: TypeAlias = Literal["compact", "pause", "unpause", "stop", "archive", "label"]
BULK_ACTIONS: Final[tuple[str, ...]] = get_args(BulkAction)
THREADS_MAX: Final = 200
"""Threads of one bulk action: as many as a page of the API has."""
# Signals and updates are short, and the server takes many more at once.
_AT_ONCE: Final = 8
# An archive takes tens of MB of memory while it is written.
_ARCHIVES_AT_ONCE: Final = 1
# A label is an update, which waits for a worker: without this bound up to 2.5 minutes for each thread.
_LABEL_SECONDS_MAX: Final = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class BulkOptions:
    """Options of a bulk action; each action uses its own."""

    then: Then = "keep"
    """What happens to archived threads: `keep` or `close`."""
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    """Labels to add, and labels or keys to remove."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BulkItem:
    """Effect of a bulk action on one thread."""

    thread_id: str
    effect: str
    """What will happen; empty if it is refused."""
    refused: str = ""
    """Why nothing happens; empty if something does."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BulkPreview:
    """Effect of a bulk action on each thread."""

    action: BulkAction
    items: tuple[BulkItem, ...]
    acts: int
    """Number of threads on which the action is done."""
    is_reversible: bool
    confirm: str = ""
    """Text to type as confirmation, as in `stop 12`; empty if none is needed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BulkResult:
    """Result of a bulk action on one thread."""

    thread_id: str
    state: Literal["done", "refused", "failed"]
    text: str


def plan_bulk(
    rows: Mapping[str, ThreadRow],
    thread_ids: Sequence[str],
    action: BulkAction,
    options: BulkOptions,
) -> BulkPreview:
    """Return the effect of an action on each thread. `rows` are the threads as the server lists them."""
    if options.then == "free":
        raise ControlRefused("archives that delete histories are written one thread at a time")
    if action == "label" and not (options.add or options.remove):
        raise ControlRefused("name a label to add, or one to remove")
    items = tuple(
        _plan_item(thread_id, rows.get(thread_id), action, options)
        for thread_id in dict.fromkeys(thread_ids)
    )
    acts = sum(not item.refused for item in items)
    is_final = action == "stop" or (action == "archive" and options.then == "close")
    return BulkPreview(
        action=action,
        items=items,
        acts=acts,
        is_reversible=not is_final and action != "compact",
        confirm=f"{action} {acts}" if is_final and acts else "",
    )


def _plan_item(
    thread_id: str, row: ThreadRow | None, action: BulkAction, options: BulkOptions
) -> BulkItem:
    refused, effect = "", ""
    if row is None:
        refused = "The server does not list it. It may have been deleted, or have started just now."
    elif not row.is_open and action != "archive":
        refused = "It has ended."
    else:
        refused, effect = _PLANS[action](row, options)
    return BulkItem(thread_id=thread_id, effect=effect, refused=refused)


_Plan: TypeAlias = Callable[[ThreadRow, BulkOptions], tuple[str, str]]
"""Returns why an action is refused, and else its effect."""


def _plan_compact(row: ThreadRow, options: BulkOptions) -> tuple[str, str]:
    del options
    if row.card is None or not row.card.context_bytes:
        return "It has published no context yet.", ""
    size = format_bytes(row.card.context_bytes)
    return "", f"Shortens its context of {size} at its next safe point, if that makes it smaller."


def _plan_pause(row: ThreadRow, options: BulkOptions) -> tuple[str, str]:
    del options
    if row.status == Status.PAUSED:
        return "It is paused already.", ""
    return "", "Takes no more steps. The step under way finishes."


def _plan_unpause(row: ThreadRow, options: BulkOptions) -> tuple[str, str]:
    del options
    if row.status == Status.PAUSED:
        if row.reason and row.reason != PERSON:
            return (
                "",
                f"Continues, but the limit {row.reason} pauses it again if it is still reached.",
            )
        return "", "Continues."
    # Both hide a pause: `held` is the more urgent status, and `unknown` is none at all.
    if row.status in (Status.HELD, Status.UNKNOWN):
        return "", "Continues, if it is paused."
    return "It is not paused.", ""


def _plan_stop(row: ThreadRow, options: BulkOptions) -> tuple[str, str]:
    del options
    lost = ""
    if row.pending:
        lost = f" {format_count(row.pending, 'pending approval')} will never be decided."
    return "", f"Ends at its next safe point, and cannot be started again.{lost}"


def _plan_archive(row: ThreadRow, options: BulkOptions) -> tuple[str, str]:
    ends = options.then == "close" and row.is_open
    first = "Ends, and cannot be started again. Then its" if ends else "Its"
    size = format_bytes(row.stored_bytes)
    return "", f"{first} journal is written to one file and read back; it has stored {size}."


def _plan_label(row: ThreadRow, options: BulkOptions) -> tuple[str, str]:
    try:
        labels = change_labels(row.labels, options.add, options.remove)
    except ValueError as error:
        return f"{error}.", ""
    if labels == tuple(sorted(row.labels)):
        return "It has these labels already.", ""
    return "", f"Labels: {', '.join(labels) or 'none'}."


_PLANS: Final[Mapping[BulkAction, _Plan]] = {
    "compact": _plan_compact,
    "pause": _plan_pause,
    "unpause": _plan_unpause,
    "stop": _plan_stop,
    "archive": _plan_archive,
    "label": _plan_label,
}


async def run_bulk(
    plan: BulkPreview,
    options: BulkOptions,
    make_handle: Callable[[str], Awaitable[ThreadHandle]],
    *,
    by: str,
    reason: str,
    on_progress: Callable[[str], None],
) -> tuple[BulkResult, ...]:
    """Do what was planned, some threads at a time. A failure on one thread stops no other.

    After a kill of the server the action can be repeated: what is done already is refused then.
    """
    places = asyncio.Semaphore(_ARCHIVES_AT_ONCE if plan.action == "archive" else _AT_ONCE)
    done = 0

    async def act(item: BulkItem) -> BulkResult:
        nonlocal done
        if item.refused:
            return BulkResult(thread_id=item.thread_id, state="refused", text=item.refused)
        async with places:
            try:
                handle = await make_handle(item.thread_id)
                text = await _act(handle, plan.action, options, by=by, reason=reason)
                result = BulkResult(thread_id=item.thread_id, state="done", text=text)
            except EverlongError as error:
                result = BulkResult(thread_id=item.thread_id, state="failed", text=str(error))
            except Exception as error:  # noqa: BLE001 - its message may hold content, so it is not shown.
                _LOG.error("a bulk action failed on a thread: %s", type(error).__name__)
                text = "An unexpected error occurred. The server's log has its type."
                result = BulkResult(thread_id=item.thread_id, state="failed", text=text)
        done += 1
        on_progress(f"{done} of {format_count(plan.acts, 'thread')}")
        return result

    return tuple(await asyncio.gather(*map(act, plan.items)))


async def _act(
    handle: ThreadHandle, action: BulkAction, options: BulkOptions, *, by: str, reason: str
) -> str:
    match action:
        case "compact":
            await handle.compact(by=by, reason=reason)
            return "Compacts at its next safe point."
        case "pause":
            await handle.pause(by=by, reason=reason)
            return "Takes no more steps."
        case "unpause":
            await handle.unpause(by=by, reason=reason)
            return "Continues."
        case "stop":
            await handle.stop(by=by, reason=reason)
            return "Ends at its next safe point."
        case "archive":
            found = await handle.archive(then=options.then, by=by, reason=reason)
            entries, size_bytes = found.manifest.entries, found.manifest.size_bytes
            return f"Archived: {entries:,} entries in {format_bytes(size_bytes)}."
        case "label":
            try:
                async with asyncio.timeout(_LABEL_SECONDS_MAX):
                    labels = await handle.label(
                        options.add, remove=options.remove, by=by, reason=reason
                    )
            except TimeoutError:
                raise NoWorker(
                    f"no worker answered within {_LABEL_SECONDS_MAX:.0f} s; the labels may still change"
                ) from None
            return f"Labels: {', '.join(labels) or 'none'}."


def describe_results(plan: BulkPreview, results: Sequence[BulkResult]) -> str:
    """Return a summary of the results for people."""
    counts = Counter(result.state for result in results)
    parts = [f"{plan.action}: done on {format_count(counts['done'], 'thread')}"]
    if counts["refused"]:
        parts.append(f"{counts['refused']} refused")
    if counts["failed"]:
        parts.append(f"{counts['failed']} failed")
    return f"{', '.join(parts)}."
