"""Oracle of the soak: compares a thread's journal with what was sent to the thread."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import Client
from temporalio.service import RPCError

from everlong.models import Entry, Kind, Message, ThreadStatus, thread_key
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore
from tests.support.soak_agent import list_calls, list_tools, make_answer, make_result

_SPOKEN = (Kind.MESSAGE, Kind.REPLY, Kind.TOOL_RESULT, Kind.FAILURE)
# A message arrived while a run was about to end: the server repeats the task with it.
_HARMLESS = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND


@dataclasses.dataclass
class Attempt:
    """Attempt to decide an approval."""

    approval: str
    by: str
    approve: bool
    outcome: str = "unknown"
    """`accepted`, `refused`, or `unknown` where the answer was lost."""


@dataclasses.dataclass
class SentInput:
    """Everything that was sent to a thread."""

    thread_id: str
    seed: str
    sent: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    """Messages with the numbers that `send` returned."""
    attempts: list[Attempt] = dataclasses.field(default_factory=list)
    configures: int = 0
    configures_refused: int = 0
    retries: int = 0


async def find_faults(
    life: SentInput, status: ThreadStatus, packs: PackStore, namespace: str
) -> list[str]:
    """Return the faults in the journal of a stopped thread."""
    journal = Journal(packs, thread_key(namespace, life.thread_id))
    entries = await journal.read(status.head)
    spoken = [entry for entry in entries if entry.kind in _SPOKEN]
    messages = await journal.messages(spoken, whole=True)
    pairs = list(zip(spoken, messages, strict=True))
    return [
        *_sequence(entries),
        *_conversation(life, pairs, entries),
        *_approvals(life, pairs, entries),
        *_counters(life, status, entries),
    ]


def _sequence(entries: Sequence[Entry]) -> Iterator[str]:
    seqs = [entry.seq for entry in entries]
    if seqs != list(range(1, len(seqs) + 1)):
        yield f"the journal has a gap or a duplicate: {seqs}"


def _conversation(
    life: SentInput, pairs: Sequence[tuple[Entry, Message]], entries: Sequence[Entry]
) -> Iterator[str]:
    """Check that each message is there once, in order, followed by its steps and one answer."""
    numbers = sorted(number for number, _ in life.sent)
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the numbers of messages are {numbers}"
    decided = _decisions(entries)
    expected = [each for _, text in sorted(life.sent) for each in _turn(text)]
    found = [_describe_entry(entry, message, decided) for entry, message in pairs]
    for place, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            yield f"at place {place} of {len(found)} there is {other}, and {one} was expected"
            return
    if len(expected) != len(found):
        longer = max(expected, found, key=len)
        yield (
            f"{len(expected)} were expected and {len(found)} are there; the first that only one has is "
            f"{longer[min(len(expected), len(found))]}"
        )


def _turn(text: str) -> Iterator[tuple[str, ...]]:
    yield ("message", text)
    for calls in list_calls(text):
        yield ("calls", *calls)
        for call in calls:
            yield ("result", call)
    yield ("answer", make_answer(text))


def _describe_entry(entry: Entry, message: Message, decided: dict[str, bool]) -> tuple[str, ...]:
    """Return an entry in the notation of `_turn`; a wrong result appears as it is."""
    if entry.kind == Kind.MESSAGE:
        return ("message", message.text)
    if entry.kind == Kind.REPLY and message.tool_calls:
        return ("calls", *(call.id for call in message.tool_calls))
    if entry.kind == Kind.REPLY:
        return ("answer", message.text)
    if entry.kind == Kind.FAILURE:
        return ("failure", message.text)
    denied = message.tool == "act" and not decided.get(message.call_id, True)
    right = "error: denied by " if denied else make_result(message.call_id)
    same = message.text.startswith(right) if denied else message.text == right
    return ("result", message.call_id) if same else ("result", message.call_id, message.text[:99])


def _decisions(entries: Sequence[Entry]) -> dict[str, bool]:
    """Return the decision about each call, by the model's name of the call."""
    names = {data["id"]: str(data["arguments"]) for data in _data(entries, Kind.ASKED)}
    return {
        names[data["id"]].split('"')[3]: bool(data["approve"])
        for data in _data(entries, Kind.DECIDED)
        if data["id"] in names
    }


def _data(entries: Sequence[Entry], kind: Kind) -> list[dict[str, object]]:
    return [entry.data for entry in entries if entry.kind == kind and entry.data is not None]


def _approvals(
    life: SentInput, pairs: Sequence[tuple[Entry, Message]], entries: Sequence[Entry]
) -> Iterator[str]:
    """Check that each call that needs approval has one request and one decision by its approver."""
    wanted = [
        f"{entry.seq}-{number}"
        for entry, message in pairs
        if entry.kind == Kind.REPLY
        for number, call in enumerate(message.tool_calls, 1)
        if call.tool == "act"
    ]
    planned = sum(step.count("act") for _, text in life.sent for step in list_tools(text))
    if len(wanted) != planned:
        yield f"{len(wanted)} calls needed approval, and {planned} were to"
    asked = Counter(_place(data["id"]) for data in _data(entries, Kind.ASKED))
    decided = Counter(_place(data["id"]) for data in _data(entries, Kind.DECIDED))
    if asked != Counter(wanted):
        yield f"asked for {dict(asked)}, wanted {wanted}"
    if decided != Counter(wanted):
        yield f"decided {dict(decided)}, wanted {wanted}"
    yield from _deciders(life, entries)


def _place(approval: object) -> str:
    """Return the position of an approval's call: its reply, and its number there."""
    return "-".join(str(approval).split("-")[:2])


def _deciders(life: SentInput, entries: Sequence[Entry]) -> Iterator[str]:
    journalled = {data["id"]: data for data in _data(entries, Kind.DECIDED)}
    for attempt in life.attempts:
        data = journalled.get(attempt.approval)
        its_own = data is not None and data["by"] == attempt.by
        if attempt.outcome == "accepted" and not its_own:
            yield f"{attempt} was accepted, and the journal has {data}"
        if attempt.outcome == "refused" and its_own:
            yield f"{attempt} was refused, and the journal has it"
        if its_own and data is not None and data["approve"] != attempt.approve:
            yield f"{attempt} is in the journal as {data}"


def _counters(life: SentInput, status: ThreadStatus, entries: Sequence[Entry]) -> Iterator[str]:
    kinds = Counter(entry.kind for entry in entries)
    counters = status.counters
    configures = sum(data["action"] == "configure" for data in _data(entries, Kind.CONTROL))
    for what, one, other in (
        ("messages", counters.messages, len(life.sent)),
        ("answered", counters.answered, len(life.sent)),
        ("steps", counters.steps, kinds[Kind.REPLY]),
        ("tool calls", counters.tool_calls, kinds[Kind.TOOL_RESULT]),
        ("compactions", counters.compactions, kinds[Kind.COMPACTION]),
        ("configures", configures, life.configures),
        ("limits", kinds[Kind.LIMIT], 0),
        ("entries left", status.tail_entries, 0),
    ):
        if one != other:
            yield f"{what}: {one}, not {other}"


async def list_failed_tasks(
    client: Client, thread_id: str, frozen: Collection[int], keep: Path | None = None
) -> list[str]:
    """Return the failed workflow tasks of a thread, in all its runs. None should fail.

    A frozen process sees its own tasks as deadlocked, and rightly gives them up. For other failures the
    histories can be kept.
    """
    found: Counter[str] = Counter()
    run_id: str | None = None  # The newest.
    histories = []
    try:
        while run_id != "":
            handle = client.get_workflow_handle(thread_id, run_id=run_id)
            history = await handle.fetch_history()
            histories.append(history)
            started = history.events[0].workflow_execution_started_event_attributes
            run_id = started.continued_execution_run_id
            for event in history.events:
                failed = event.workflow_task_failed_event_attributes
                stood_still = (
                    failed.failure.application_failure_info.type == "_DeadlockError"
                    and failed.identity.split("@")[0] in map(str, frozen)
                )
                if failed.cause not in (0, _HARMLESS) and not stood_still:
                    where = "".join(failed.failure.stack_trace.splitlines(keepends=True)[-6:])
                    found[f"{failed.cause}: {failed.failure.message[:200]}\n{where}"] += 1
    except RPCError as error:
        return [f"its histories cannot be read: {error}"]
    if found and keep is not None:
        for number, history in enumerate(reversed(histories), 1):
            (keep / f"{thread_id}-{number}.json").write_text(history.to_json())
    return [f"{count} workflow tasks failed with {what}" for what, count in found.items()]
