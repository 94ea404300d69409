"""Built-in tools of every agent: `recall`, `remember` and `forget`.

Their docstrings are the descriptions that models read.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Annotated, Any, Final

from pydantic import Field
from pydantic_core import to_json

from everlong import compaction, limits
from everlong.agents import Tool, tool
from everlong.models import (
    Entry,
    Fact,
    Kind,
    MemoryChange,
    Message,
    SegmentRef,
    seq_after,
)
from everlong.storage.context_store import ContextStore, LoadedContext
from everlong.storage.objects import run_in_thread
from everlong.storage.segments import MESSAGE_KINDS

# Largest answer of `recall`: 4,000 tokens.
RECALL_BYTES_MAX: Final = 16 * limits.KIB
# Bounds of one search, which reads the newest entries first and reports how far it got. A cold search of
# 2,048 entries takes about 270 GETs.
_SEARCH_BYTES_MAX: Final = 32 * limits.MIB
_SEARCH_ENTRIES_MAX: Final = 2048
_BATCH_ENTRIES: Final = 64
_RANGE_MAX: Final = 100
_DAY_MS: Final = 24 * 3600 * 1000


@dataclasses.dataclass
class Session:
    """The thread on behalf of which a built-in tool runs."""

    contexts: ContextStore
    head: SegmentRef
    load: Callable[[], Awaitable[LoadedContext]]
    memory: dict[str, Any] | None = None
    """Memory change of the call, as data of a `memory` entry; None without one."""


_SESSION: contextvars.ContextVar[Session] = contextvars.ContextVar("everlong_builtins")


@contextlib.contextmanager
def use_session(session: Session) -> Iterator[None]:
    """Make built-in tools work on a thread."""
    token = _SESSION.set(session)
    try:
        yield
    finally:
        _SESSION.reset(token)


async def recall(
    seq: Annotated[int, Field(ge=1)] | None = None,
    to_seq: Annotated[int, Field(ge=1)] | None = None,
    ref: str | None = None,
    pattern: str | None = None,
    offset: Annotated[int, Field(ge=0)] = 0,
) -> str:
    """Open what is no longer in your context: earlier messages, replies and tool results, in full.

    Args:
        seq: Number of the entry to open, as notes like recall(seq=42) say.
        to_seq: With seq: list the entries from seq up to this one, in short.
        ref: The first 8 or more characters of a stored object's digest, instead of seq.
        pattern: Text to look for: in the entry of seq, or newest first in all there is up to to_seq.
        offset: With seq: where to begin, in bytes, if an entry is longer than one answer.

    """
    session = _SESSION.get()
    last_seq = seq_after(session.head) - 1
    if ref is not None:
        seq = await _find_seq(session, ref)
    if seq is None:
        if not pattern:
            raise ValueError("say what to recall: seq, seq and to_seq, ref, or pattern")
        return await _search(session, pattern, to_seq)
    if seq > last_seq:
        raise ValueError(f"there is no entry {seq} yet; the last is {last_seq}")
    if to_seq is not None and to_seq != seq:
        return await _list(session, seq, min(to_seq, last_seq), pattern)
    [opened] = await _open_entries(
        session, await session.contexts.journal.read(session.head, seq, seq)
    )
    text = opened.text
    if pattern:
        found = await _grep(text, pattern, RECALL_BYTES_MAX)
        return found or f"entry {seq} does not hold that"
    if offset and offset >= len(text.encode()):
        raise ValueError(f"entry {seq} has {len(text.encode())} bytes; offset is behind its end")
    return compaction.excerpt(text, offset=offset, bytes_max=RECALL_BYTES_MAX)


async def remember(
    key: Annotated[str, Field(min_length=1, max_length=64)],
    text: Annotated[str, Field(min_length=1)],
    ttl_days: Annotated[float, Field(gt=0, le=3650)] | None = None,
    importance: Annotated[int, Field(ge=1, le=5)] = 3,
) -> str:
    """Remember a small fact. It stays in your context, word by word, until it expires.

    Args:
        key: A short name. A fact of the same name is replaced.
        text: The fact, in a sentence.
        ttl_days: After how many days it is forgotten. Left out: as the thread's policy says.
        importance: 1 to 5. The least important go first when there are too many.

    """
    session = _SESSION.get()
    past = await session.load()
    fact = Fact(
        # On one line, since the context has one line for each fact.
        key=" ".join(key.split()),
        text=" ".join(text.split()),
        time_ms=past.now_ms,
        expires_ms=None if ttl_days is None else past.now_ms + int(ttl_days * _DAY_MS),
        importance=importance,
    )
    if not fact.key or not fact.text:
        raise ValueError("a fact needs a key and a text that are not blank")
    size_bytes = len(to_json(fact))
    if size_bytes > limits.FACT_BYTES_MAX:
        raise ValueError(
            f"the fact takes {size_bytes} bytes, and one may take {limits.FACT_BYTES_MAX}. Remember "
            "less, such as where to find the rest."
        )
    facts = compaction.list_facts(past.base, past.items, past.policy, past.now_ms)
    change = compaction.remember(facts, fact, past.policy, past.now_ms)
    session.memory = compaction.dump_change(change)
    return _describe_change(change)


async def forget(key: str) -> str:
    """Forget a fact that was remembered and no longer holds.

    Args:
        key: Its name.

    """
    session = _SESSION.get()
    past = await session.load()
    facts = compaction.list_facts(past.base, past.items, past.policy, past.now_ms)
    session.memory = compaction.dump_change(compaction.forget(facts, key))
    return f"forgot {key!r}"


BUILTINS: Final[tuple[Tool, ...]] = (
    tool(max_result_bytes=2 * RECALL_BYTES_MAX)(recall),
    tool(remember),
    tool(forget),
)


def find_builtin(name: str) -> Tool | None:
    """Return the built-in tool of that name, or None."""
    return _BY_NAME.get(name)


_BY_NAME: Final = {each.name: each for each in BUILTINS}


def _describe_change(change: MemoryChange) -> str:
    gone = f"; forgot {', '.join(change.evicted)} to make room" if change.evicted else ""
    return f"remembered{gone}"


@dataclasses.dataclass(frozen=True)
class _Opened:
    """An entry with its content as text, and the tool whose result it is."""

    entry: Entry
    text: str
    tool: str = ""


async def _open_entries(
    session: Session, entries: Sequence[Entry], *, whole: bool = True
) -> list[_Opened]:
    """Read the content of entries: messages with their calls, or data. Each pack is read once."""
    with_message = [entry for entry in entries if entry.kind in MESSAGE_KINDS]
    messages = dict(
        zip(
            (entry.seq for entry in with_message),
            await session.contexts.journal.messages(with_message, whole=whole),
            strict=True,
        )
    )
    return [
        _Opened(entry, _format_message(messages[entry.seq]), messages[entry.seq].tool)
        if entry.seq in messages
        else _Opened(entry, to_json(entry.data, indent=1).decode())
        for entry in entries
    ]


def _format_message(message: Message) -> str:
    calls = [f"{call.tool}({call.arguments}) [{call.id}]" for call in message.tool_calls]
    return "\n".join([message.text, *calls] if message.text else calls)


async def _find_seq(session: Session, ref: str) -> int:
    """Return the seq of the entry that refers to a stored object."""
    if len(ref) < 8:
        raise ValueError("give the first 8 characters of the ref at least")
    last_seq = seq_after(session.head) - 1
    first_seq = max(1, last_seq - _SEARCH_ENTRIES_MAX + 1)
    async for entries in _walk_back(session, first_seq, last_seq):
        found = [entry.seq for entry in entries if _leads_to(entry, ref)]
        if len(found) > 1:
            raise ValueError(f"entries {found} share that object; give one of them as seq")
        if found:
            return found[0]
    where = "nothing stored" if first_seq == 1 else f"nothing stored from entry {first_seq} on"
    raise ValueError(f"{where} has a digest that begins with {ref[:64]!r}")


def _leads_to(entry: Entry, ref: str) -> bool:
    refs = [each for each in (entry.ref, entry.original) if each is not None]
    return any(each.digest.startswith(ref) for each in refs)


async def _walk_back(session: Session, first_seq: int, last_seq: int) -> AsyncIterator[list[Entry]]:
    """Yield entries of the journal in batches, the newest batch first."""
    while last_seq >= first_seq:
        from_seq = max(first_seq, last_seq - _BATCH_ENTRIES + 1)
        yield await session.contexts.journal.read(session.head, from_seq, last_seq)
        last_seq = from_seq - 1


async def _list(session: Session, seq: int, to_seq: int, pattern: str | None) -> str:
    """List a range of entries with an excerpt of each, as many as fit into one answer."""
    if to_seq < seq:
        raise ValueError("to_seq is before seq")
    to_seq = min(to_seq, seq + _RANGE_MAX - 1)
    entries = await session.contexts.journal.read(session.head, seq, to_seq)
    share = max(200, RECALL_BYTES_MAX // len(entries) - 40)
    lines: list[str] = []
    left, to_read = RECALL_BYTES_MAX, _SEARCH_BYTES_MAX
    for entry in entries:
        size_bytes = _get_read_bytes(entry) if pattern else entry.size_bytes
        # The first entry is read whatever its size: otherwise the model would repeat the same call.
        if left < 0 or (size_bytes > to_read and entry.seq > seq):
            words = f", pattern={to_json(pattern).decode()}" if pattern else ""
            lines.append(f"[more from recall(seq={entry.seq}, to_seq={to_seq}{words})]")
            break
        to_read -= size_bytes
        [opened] = await _open_entries(session, [entry], whole=pattern is not None)
        shown = (
            await _grep(opened.text, pattern, share)
            if pattern
            else compaction.excerpt(opened.text, offset=0, bytes_max=share)
        )
        if shown:
            lines.append(f"{entry.seq} {entry.kind}: {shown}")
            left -= len(lines[-1].encode())
    return "\n".join(lines) or f"entries {seq} to {to_seq} do not hold that"


async def _search(session: Session, pattern: str, to_seq: int | None) -> str:
    """Look through the journal, newest first, until an answer is full or enough has been read."""
    found: list[str] = []
    left, to_read = RECALL_BYTES_MAX, _SEARCH_BYTES_MAX
    # Begin before the reply that called this tool: it contains the pattern itself.
    asking = await session.contexts.journal.last(session.head, Kind.REPLY)
    last_seq = (asking.seq if asking else seq_after(session.head)) - 1
    last_seq = last_seq if to_seq is None else min(last_seq, to_seq)
    newest_seq, first_seq = last_seq, max(1, last_seq - _SEARCH_ENTRIES_MAX + 1)
    async for entries in _walk_back(session, first_seq, last_seq):
        # The newest entry is read whatever its size: otherwise the model would repeat the same call.
        affordable = _take_affordable(entries, to_read, at_least=int(last_seq == newest_seq))
        to_read -= sum(map(_get_read_bytes, affordable))
        for opened in reversed(await _open_entries(session, affordable)):
            last_seq = opened.entry.seq - 1
            if opened.tool == recall.__name__:
                continue  # An answer of `recall` only repeats other entries.
            if shown := await _grep(opened.text, pattern, min(left, 1024)):
                found.append(f"{opened.entry.seq} {opened.entry.kind}: {shown}")
                left -= len(found[-1].encode())
            if left <= 0:
                break
        if left <= 0 or last_seq >= entries[0].seq:
            break
    if last_seq >= 1:
        again = f"recall(pattern={to_json(pattern).decode()}, to_seq={last_seq})"
        found.append(f"[looked back to entry {last_seq + 1}; {again} looks on from there]")
    return "\n".join(found) or "nothing holds that"


async def _grep(text: str, pattern: str, bytes_max: int) -> str:
    """Search a text. A long one is searched in a thread, which does not block heartbeats."""
    if len(text) < limits.LOOP_BYTES_MAX:
        return compaction.grep(text, pattern, bytes_max=bytes_max)
    return await run_in_thread(compaction.grep, text, pattern, bytes_max=bytes_max)


def _take_affordable(entries: Sequence[Entry], to_read: int, at_least: int) -> list[Entry]:
    """Return the newest entries that fit into `to_read` bytes; at least `at_least` entries."""
    wanted: list[Entry] = []
    for entry in reversed(entries):
        to_read -= _get_read_bytes(entry)
        if to_read < 0 and len(wanted) >= at_least:
            break
        wanted.insert(0, entry)
    return wanted


def _get_read_bytes(entry: Entry) -> int:
    return (entry.original or entry).size_bytes
