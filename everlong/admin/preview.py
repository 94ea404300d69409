"""Previews: the effect of an action, described before it is done. A preview changes no thread."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from temporalio.client import Client

from everlong import limits
from everlong.archive import manifest as manifests
from everlong.client.archives import ArchivePlan, Then, plan_archive
from everlong.client.fork import find_message
from everlong.client.lookup import ThreadLookup, look_up
from everlong.client.status import list_pending
from everlong.client.time_travel import Timeline, open_archive
from everlong.errors import ArchiveNotFound, ControlRefused, DecisionRefused, NoWorker
from everlong.format import format_bytes, format_count, format_setting
from everlong.models import Status, ThreadStatus, thread_key
from everlong.models.thread_ids import show_id
from everlong.policy import Usage, find_limit_hit
from everlong.storage.pack_store import PackStore

Action: TypeAlias = Literal[
    "compact",
    "archive",
    "revive",
    "fork",
    "rerun",
    "pause",
    "unpause",
    "stop",
    "limits",
    "decide",
]
ACTIONS: Final[tuple[str, ...]] = get_args(Action)
# Archive size as a share of the stored bytes (`make bench-archive`), plus a file's fixed cost.
_ARCHIVE_SHARE: Final = 0.7
_ARCHIVE_BYTES_MIN: Final = 4096
# More than a person edits in a dialog.
_TEXT_BYTES_MAX: Final = 32 * limits.KIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preview:
    """Effect of an action on a thread."""

    action: Action
    sentence: str
    """Description of the effect."""
    before_bytes: int | None = None
    after_bytes: int | None = None
    """Size of the context or the stored bytes, whichever the action changes."""
    is_reversible: bool = True
    confirm: str = ""
    """Text to type as confirmation; empty if none is needed."""
    warnings: tuple[str, ...] = ()
    text: str = ""
    """The message that a rerun changes, up to 32 KiB; empty for other actions and longer messages."""


async def preview_action(
    client: Client,
    packs: PackStore,
    thread_id: str,
    action: Action,
    arguments: Mapping[str, Any] | None = None,
) -> Preview:
    """Preview an action. `arguments` depend on the action: `seq`, `changes`, ..."""
    found = await look_up(client, packs, thread_id)
    given = arguments or {}
    if action == "compact":
        return await _preview_compact(client, packs, found)
    if action == "fork":
        return await _preview_fork(client, packs, found, given)
    if action == "rerun":
        return await _preview_rerun(client, packs, found, given)
    if action == "limits":
        return _preview_limits(found, given)
    if action == "archive":
        return await _preview_archive(client, packs, found, given)
    if action == "revive":
        return await _preview_revive(client, packs, found, given)
    if action == "decide":
        return await _preview_decide(client, found, given)
    return _preview_control(found, action)


async def _preview_compact(client: Client, packs: PackStore, found: ThreadLookup) -> Preview:
    if found.status is None or found.head is None:
        return _preview_nothing(found, "compact", "has no context yet")
    past = await Timeline.open(client, packs, found.thread_id)
    before_bytes, after_bytes = await past.estimate_compaction(found.last_seq)
    if after_bytes >= before_bytes:
        sentence = (
            f"The context has {format_bytes(before_bytes)}, and a compaction would not make it smaller. "
            "Nothing would change."
        )
        return Preview(
            action="compact",
            sentence=sentence,
            before_bytes=before_bytes,
            after_bytes=before_bytes,
            warnings=_list_ended_warnings(found),
        )
    sentence = (
        f"At its next safe point the thread shortens the context of its model from "
        f"{format_bytes(before_bytes)} to about {format_bytes(after_bytes)}. The journal keeps "
        "everything, and a fork of an earlier entry has the longer context."
    )
    return Preview(
        action="compact",
        sentence=sentence,
        before_bytes=before_bytes,
        after_bytes=after_bytes,
        is_reversible=False,  # No confirmation: the journal keeps everything.
        warnings=_list_ended_warnings(found),
    )


async def _preview_fork(
    client: Client, packs: PackStore, found: ThreadLookup, given: Mapping[str, Any]
) -> Preview:
    seq = _parse_seq(given, found.last_seq)
    past = await Timeline.open(client, packs, found.thread_id)
    scene = await past.load_scene(seq)
    sentence = (
        f"A new thread starts from the state of this one after entry {seq}: its model reads "
        f"{format_bytes(scene.context_bytes)} of context. It shares the stored bytes, and waits for a "
        "message. This thread does not change."
    )
    return Preview(
        action="fork",
        sentence=sentence,
        before_bytes=found.row.stored_bytes,
        # Its own head and a copy of the snapshot.
        after_bytes=found.row.stored_bytes + len(scene.snapshot_data),
    )


async def _preview_rerun(
    client: Client, packs: PackStore, found: ThreadLookup, given: Mapping[str, Any]
) -> Preview:
    past = await Timeline.open(client, packs, found.thread_id)
    seq = _parse_seq(given, found.last_seq)
    message = await find_message(past, seq)
    before = message.seq - 1
    context_bytes = (await past.load_scene(before)).context_bytes if before else 0
    sentence = (
        f"A new thread starts from the state before message {message.seq}: its model reads "
        f"{format_bytes(context_bytes)} of context, and answers the changed message at once. This "
        "thread does not change."
    )
    warnings = []
    calls = (await past.load_totals(found.last_seq)).tool_calls
    if before:
        calls -= (await past.load_totals(before)).tool_calls
    if calls:
        warnings.append(
            f"{format_count(calls, 'tool call')} ran after that message. The fork does not undo what "
            "they did."
        )
    text = ""
    whole_bytes = message.size_bytes if message.original is None else message.original.size_bytes
    if whole_bytes > _TEXT_BYTES_MAX:
        warnings.append("The message is too long to be shown here. Write the whole new message.")
    else:
        [found_message] = await past.journal.messages([message])
        text = found_message.text
    return Preview(action="rerun", sentence=sentence, warnings=tuple(warnings), text=text)


def _preview_limits(found: ThreadLookup, given: Mapping[str, Any]) -> Preview:
    changes = given.get("changes") or {}
    if found.status is None:
        raise NoWorker(found.unavailable)
    policy = found.status.policy
    try:
        changed = policy.with_changes(changes)
    except (ValueError, TypeError) as error:
        raise ControlRefused(f"the change does not fit: {error}") from None
    words = [
        f"{name} from {format_setting(name, getattr(policy, name))} "
        f"to {format_setting(name, getattr(changed, name))}"
        for name in sorted(changes)
        if getattr(policy, name) != getattr(changed, name)
    ]
    hit = find_limit_hit(changed, measure_usage(found.status))
    warnings = list(_list_ended_warnings(found))
    if hit is not None:
        warnings.append(f"{hit.reason} would be reached at once: the thread would {hit.action}.")
    sentence = f"Changes {', '.join(words)}." if words else "Nothing would change."
    return Preview(
        action="limits",
        sentence=sentence,
        is_reversible=hit is None or hit.action == "pause",
        confirm=_choose_confirmation(found, "limits")
        if hit is not None and hit.action != "pause"
        else "",
        warnings=tuple(warnings),
    )


def measure_usage(status: ThreadStatus) -> Usage:
    """Return how much of its limits a thread has used, by its status."""
    counters, streaks = status.counters, status.streaks
    return Usage(
        steps=counters.steps,
        tokens=counters.tokens,
        cost_usd=counters.cost_usd,
        thread_bytes=counters.written_bytes,
        context_bytes=status.context_bytes,
        failed_turns=streaks.failed_turns,
        same_failure=streaks.same_failure,
        no_progress_steps=streaks.no_progress_steps,
    )


async def _preview_archive(
    client: Client, packs: PackStore, found: ThreadLookup, given: Mapping[str, Any]
) -> Preview:
    then = given.get("then", "keep")
    if then not in get_args(Then):
        raise ControlRefused(f"`then` must be one of {', '.join(get_args(Then))}")
    if found.archive is not None:
        sentence = (
            f"Temporal has deleted the thread's histories; archive {found.archive.archive_id} has its "
            "journal. The archive is verified again, and nothing is written."
        )
        return Preview(action="archive", sentence=sentence)
    plan = await plan_archive(client, packs, found.thread_id, then)
    before_bytes = plan.size.blob_bytes if plan.size else found.row.stored_bytes
    file_bytes = await _estimate_archive_bytes(client, packs, found)
    frees = then == "free" and not plan.refused
    written_bytes = 0 if plan.existing else file_bytes
    is_final = plan.ends or frees
    return Preview(
        action="archive",
        sentence=_describe_archive(plan, file_bytes),
        before_bytes=before_bytes,
        after_bytes=file_bytes if frees else before_bytes + written_bytes,
        is_reversible=not is_final,
        confirm=_choose_confirmation(found, "archive") if is_final else "",
        warnings=_list_archive_warnings(found, plan),
    )


def _describe_archive(plan: ArchivePlan, file_bytes: int) -> str:
    sentence = (
        f"Writes the whole journal ({format_count(plan.entries, 'entry')}) as one Parquet file of about "
        f"{format_bytes(file_bytes)}, and reads it back to verify it."
    )
    if plan.existing:
        sentence = (
            f"Archive {plan.existing} has the whole journal ({format_count(plan.entries, 'entry')}): it "
            "is read back to verify it, and nothing is written."
        )
    if plan.ends:
        sentence += " Before that, the thread ends with the status archived."
    if plan.refused:
        sentence += " Its histories cannot be deleted."
    elif plan.then == "free":
        runs = format_count(plan.runs_deleted, "run")
        sentence += (
            f" Then its histories are deleted ({runs}), and the next sweeps free its packs after their "
            "grace period."
        )
    return sentence


def _list_archive_warnings(found: ThreadLookup, plan: ArchivePlan) -> tuple[str, ...]:
    warnings = list(_list_unfinished(found)) if plan.ends else []
    if plan.refused:
        warnings.append(f"{plan.refused[:1].upper()}{plan.refused[1:]}")
    elif plan.left_out:
        warnings.append(
            f"{plan.left_out} entries and messages are not journalled; the archive would lack them."
        )
    return tuple(warnings)


async def _estimate_archive_bytes(client: Client, packs: PackStore, found: ThreadLookup) -> int:
    """Estimate the size of an archive, from the last archive or from the measured share."""
    last = await manifests.load_newest(packs, thread_key(client.namespace, found.thread_id))
    if last is not None and last.entries:
        return last.size_bytes * found.last_seq // last.entries
    return _ARCHIVE_BYTES_MIN + int(_ARCHIVE_SHARE * found.row.stored_bytes)


async def _preview_revive(
    client: Client, packs: PackStore, found: ThreadLookup, given: Mapping[str, Any]
) -> Preview:
    archive_id = given.get("archive_id") or None
    archive = await open_archive(client, packs, found.thread_id, archive_id and str(archive_id))
    if archive is None:
        raise ArchiveNotFound(f"thread {found.thread_id!r} has no archive")
    manifest, past = archive.manifest, Timeline.from_archive(archive)
    seq = _parse_seq(given, manifest.entries)
    scene = await past.load_scene(seq)
    sentence = (
        f"A new thread starts from archive {manifest.archive_id}, up to entry {seq:,}: its model "
        f"reads {format_bytes(scene.context_bytes)} of context. It gets packs of its own, and waits for "
        "a message. The archive stays."
    )
    return Preview(
        action="revive",
        sentence=sentence,
        before_bytes=manifest.size_bytes,
        # The revived part takes about the same space again, in packs.
        after_bytes=manifest.size_bytes + manifest.size_bytes * seq // max(1, manifest.entries),
        warnings=(
            *(("The thread itself still runs.",) if found.row.is_open else ()),
            *(f"A newer archive cannot be read: {each}" for each in archive.passed_over),
        ),
    )


def _parse_seq(given: Mapping[str, Any], default: int) -> int:
    seq = given.get("seq") or default
    if isinstance(seq, bool) or not isinstance(seq, int):
        raise ControlRefused("`seq` must be the number of an entry")
    return seq


async def _preview_decide(client: Client, found: ThreadLookup, given: Mapping[str, Any]) -> Preview:
    approval_id = given.get("approval_id")
    if not approval_id:
        raise DecisionRefused("`approval_id` is missing")
    if not found.row.is_open:
        raise DecisionRefused(f"thread {found.thread_id!r} has ended and takes no decision")
    # Only a worker knows which approvals are pending.
    if found.status is not None:
        ids = [each.id for each in await list_pending(client, found.thread_id)]
        if approval_id not in ids:
            raise DecisionRefused(
                f"there is no approval {approval_id!r}; pending approvals are {ids}"
            )
    does = (
        "runs"
        if given.get("approve")
        else "does not run; the model sees the refusal and its reason"
    )
    sentence = f"The call {approval_id} {does}. A decision is final."
    return Preview(
        action="decide",
        sentence=sentence,
        is_reversible=False,
        warnings=_list_ended_warnings(found),
    )


def _preview_control(found: ThreadLookup, action: Action) -> Preview:
    status = found.status
    warnings = _list_ended_warnings(found)
    if action == "pause":
        sentence = (
            "The thread takes no more steps. The step under way finishes, and messages are still "
            "queued."
        )
        if status is not None and status.status == Status.PAUSED:
            sentence = "The thread is paused already. Nothing would change."
    elif action == "unpause":
        sentence = "The thread continues."
        if status is not None and status.status != Status.PAUSED:
            sentence = "The thread is not paused. Nothing would change."
        elif status is not None and (hit := find_limit_hit(status.policy, measure_usage(status))):
            warnings = (
                *warnings,
                f"{hit.reason} is still reached: the thread would {hit.action} again. "
                "Raise the limit first.",
            )
    else:
        sentence = (
            "The thread ends at its next safe point. Its journal stays, and the thread can still be "
            "forked."
        )
        return Preview(
            action="stop",
            sentence=sentence,
            is_reversible=False,
            confirm=_choose_confirmation(found, "stop"),
            warnings=warnings + _list_unfinished(found),
        )
    return Preview(action=action, sentence=sentence, warnings=warnings)


def _choose_confirmation(found: ThreadLookup, action: Action) -> str:
    """Return the text that confirms an action: the thread's id if it can be typed, else the action."""
    thread_id = found.thread_id
    return thread_id if show_id(thread_id) == thread_id else action


def _preview_nothing(found: ThreadLookup, action: Action, why: str) -> Preview:
    return Preview(
        action=action,
        sentence=f"The thread {why}. Nothing would change.",
        warnings=tuple(filter(None, [found.unavailable])),
    )


def _list_ended_warnings(found: ThreadLookup) -> tuple[str, ...]:
    if not found.row.is_open:
        return ("The thread has ended and accepts no more changes.",)
    return (found.unavailable,) if found.unavailable else ()


def _list_unfinished(found: ThreadLookup) -> tuple[str, ...]:
    status = found.status
    if status is None:
        return ()
    warnings = []
    if status.waiting_messages:
        warnings.append(
            f"Not answered: {format_count(status.waiting_messages, 'message')} in the queue."
        )
    if status.pending:
        warnings.append(f"Never decided: {format_count(status.pending, 'approval')}.")
    if status.children:
        warnings.append(f"Still working for it: {format_count(len(status.children), 'sub-agent')}.")
    return tuple(warnings)


def describe_plan(plan: ArchivePlan) -> list[str]:
    """Return the lines that `everlong archive --dry-run` prints."""
    if plan.size is None:
        return ["the server has no history of the thread: its newest archive is verified"]
    entries = (
        f"{format_count(plan.entries, 'entry')} of thread {show_id(plan.thread_id)} ({plan.status})"
    )
    if plan.existing:
        lines = [f"archive {plan.existing} has the {entries}, and is verified"]
    else:
        lines = [f"archives {entries}"]
    if plan.ends:
        lines.append("the thread ends first, at its next safe point")
    if plan.left_out:
        lines.append(f"{plan.left_out:,} more are not journalled; the archive will lack them")
    if plan.refused:
        lines.append(f"its histories cannot be deleted: {plan.refused}")
    elif plan.then == "free":
        lines.append(
            f"then deletes {format_count(plan.runs_deleted, 'run')} permanently, and a sweep may free "
            f"{format_count(plan.size.blobs, 'object')} of {format_bytes(plan.size.blob_bytes)}"
        )
    return [*lines, "nothing was done"]
