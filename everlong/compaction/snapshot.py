"""The compacted base of a context: what is stored of it, and how.

A snapshot holds what the model reads of the entries up to `upto_seq`: notes in the words of the
originals, and messages that are kept as they are. The entries themselves stay in the journal.
"""

import dataclasses
import json
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from everlong.errors import BlobCorrupt, UnknownVersion
from everlong.models import Entry, Fact, Kind, Message

NoteKind = Literal[
    "open", "decision", "asked", "pair", "remark", "ref", "mention", "number", "prose"
]
"""`open`: an ask that waits for something. `asked`: what else the user said. `pair`: a tool call and its
outcome. `remark`: what the agent said and may matter. `ref`: a path, a command or an id. `mention`:
the same, in bulk output. `number`: one with the words around it. `prose`: what else the agent said."""


@dataclasses.dataclass(frozen=True)
class Item:
    """An entry of the journal with its message."""

    entry: Entry
    message: Message | None = None
    """None for kinds that are no message."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """A piece of evidence, word by word as it stood in an entry."""

    seq: int
    """Of the entry; of the newest, if it stood in several."""
    kind: NoteKind
    text: str
    source: Kind
    """Of the entry: how long the note stays depends on it."""
    time_ms: int
    """Of the entry."""
    seqs: tuple[int, ...] = ()
    """Of a pair: older ones that were the same, the newest of them."""
    more: int = 0
    """How many of those there were besides."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A message that is still shown as a message."""

    seq: int
    kind: Kind
    time_ms: int
    message: Message
    """Its text is the beginning, if something was left out."""
    left_out: int = 0
    """Bytes of the text that were left out."""
    tail: str = ""
    """The text after them."""
    noted: bool = False
    """Whether something was shortened, and its evidence is in the notes."""
    outcome: str = ""
    """Of a shortened tool result: what a line says about it."""
    calls: tuple[str, ...] = ()
    """Of a reply whose arguments were shortened: what a line says about each call."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What compaction leaves of a thread's past."""

    version: Literal[1] = 1
    upto_seq: int
    """Entries up to this one are in it."""
    time_ms: int
    """When it was made, by the workflow's clock."""
    budget_bytes: int
    """What it may take in a context."""
    facts: tuple[Fact, ...] = ()
    notes: tuple[Note, ...] = ()
    """By seq."""
    kept: tuple[Kept, ...] = ()
    """By seq: the newest user message, and the last steps."""
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    """Kinds of notes that did not fit, and up to which seq."""
    summary: str = ""
    """What a model wrote, if it was asked to."""
    summary_seq: int = 0
    """Up to which entry it had read."""


_SNAPSHOT: Final = TypeAdapter(Snapshot)


def dump(snapshot: Snapshot) -> bytes:
    """Return a snapshot as JSON: the same bytes for the same snapshot, everywhere."""
    data = _SNAPSHOT.dump_python(snapshot, mode="json", exclude_defaults=True)
    data["version"] = snapshot.version
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def load(data: bytes) -> Snapshot:
    """Return the snapshot that the bytes hold."""
    try:
        content = json.loads(data)
        version = content["version"]
    except (ValueError, KeyError, TypeError):
        raise BlobCorrupt("a snapshot is not JSON with a version; restore its bytes") from None
    if version != 1:
        # What is no number is not shown: it may be anything.
        named = version if isinstance(version, int) else "of no number"
        raise UnknownVersion(
            f"a snapshot has version {named}, and this Everlong reads 1; upgrade the workers"
        )
    try:
        return _SNAPSHOT.validate_python(content)
    except ValidationError:
        raise BlobCorrupt("a snapshot has not the fields of version 1; restore its bytes") from None
