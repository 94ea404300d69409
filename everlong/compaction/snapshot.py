"""Snapshot: the compacted base of a context, and its stored form.

A snapshot holds what the model reads of the entries up to `upto_seq`: notes in the words of the
originals, and messages that are kept. The entries themselves stay in the journal.
"""

import dataclasses
import json
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from everlong.compaction.terms import Term
from everlong.errors import BlobCorrupt, UnknownVersion
from everlong.models import Entry, Fact, Kind, Message

NoteKind = Literal[
    "open", "decision", "asked", "pair", "remark", "term", "command", "number", "prose"
]
"""`open`: a request that waits for something. `decision`: something decided. `asked`: other words of the
user. `pair`: a tool call with its outcome. `remark`: words of the agent that may matter. `term`: a
path, an id, a name or a long number, which a snapshot keeps in `terms`. `command`: a shell command.
`number`: a number with the words around it. `prose`: other words of the agent."""


Strategy = Literal["notes", "tail"]
"""`notes`: the last messages, and notes of all others. `tail`: the last messages that fit, and what is
open or decided, since notes would have kept less than these messages do."""


@dataclasses.dataclass(frozen=True)
class Item:
    """A journal entry with its message."""

    entry: Entry
    message: Message | None = None
    """None for kinds of entries without a message."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """A piece of evidence, word for word from an entry."""

    seq: int
    """Seq of the entry; the newest, if several entries have the same text."""
    kind: NoteKind
    text: str
    source: Kind
    """Kind of the entry, which determines when the note expires."""
    time_ms: int
    """Time of the entry."""
    seqs: tuple[int, ...] = ()
    """Seqs of older pairs with the same text, the newest of them; for pairs only."""
    more: int = 0
    """Number of older pairs that are not in `seqs`."""


@dataclass(frozen=True, kw_only=True)
class KeptMessage:
    """A message that the context still shows as a message."""

    seq: int
    kind: Kind
    time_ms: int
    message: Message
    """The message. If bytes were left out, its text is the part before them."""
    left_out: int = 0
    """Bytes left out of the text."""
    tail: str = ""
    """The text after the bytes left out."""
    noted: bool = False
    """Whether the message was shortened, so that its evidence is in the notes."""
    outcome: str = ""
    """The line of a shortened tool result, made from the whole result."""
    calls: tuple[str, ...] = ()
    """The line of each call of a reply with shortened arguments, made from the whole arguments."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The compacted past of a thread."""

    version: Literal[1] = 1
    upto_seq: int
    """Last entry that the snapshot covers."""
    time_ms: int
    """Time of the compaction, by the workflow's clock."""
    budget_bytes: int
    """Largest size in a context."""
    facts: tuple[Fact, ...] = ()
    notes: tuple[Note, ...] = ()
    """Notes by seq."""
    strategy: Strategy = "notes"
    """How the entries were shortened."""
    terms: tuple[Term, ...] = ()
    """Terms by seq, with the statistics that rank them at the next compaction."""
    kept: tuple[KeptMessage, ...] = ()
    """The newest user message and the last steps, by seq."""
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    """Newest seq of the notes that did not fit, by their kind."""
    summary: str = ""
    """Summary by a model; empty without one."""
    summary_seq: int = 0
    """Last entry that the model had read for its summary."""


_SNAPSHOT: Final = TypeAdapter(Snapshot)


def dump(snapshot: Snapshot) -> bytes:
    """Return a snapshot as JSON. Equal snapshots give equal bytes on every machine."""
    data = _SNAPSHOT.dump_python(snapshot, mode="json", exclude_defaults=True)
    data["version"] = snapshot.version
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def load(data: bytes) -> Snapshot:
    """Parse a snapshot."""
    try:
        content = json.loads(data)
        version = content["version"]
    except (ValueError, KeyError, TypeError):
        raise BlobCorrupt("a snapshot is not JSON with a version; restore its bytes") from None
    if version != 1:
        # Only a number is quoted: anything else could be user data.
        named = (
            f"version {version}" if isinstance(version, int) else "a version that is not a number"
        )
        raise UnknownVersion(
            f"a snapshot has {named}; this Everlong reads version 1. Upgrade the workers."
        )
    try:
        return _SNAPSHOT.validate_python(content)
    except ValidationError:
        raise BlobCorrupt("a snapshot lacks the fields of version 1; restore its bytes") from None
