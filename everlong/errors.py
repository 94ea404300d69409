"""The errors that Everlong raises on purpose, as one tree.

    EverlongError
    ├── ConfigError                 permanent, exit 2: a setting or an argument is wrong
    │   ├── UnknownStoreScheme      the scheme of a store URL is not supported
    │   ├── PluginNotOnClient       the plugin is on the Worker but not on its Client
    │   ├── AgentNotFound           `module:agent` does not name an Agent
    │   ├── RecordingMissing        in tests: there is no recording of a model, and none may be made
    │   └── RecordingMismatch       in tests: the recording has no reply for a request
    ├── StackError                  exit 3: the embedded stack cannot start or continue
    │   ├── TemporalBinaryMissing   permanent: the `temporal` program is not installed
    │   ├── PortInUse               permanent until the port is free
    │   ├── DataDirUnusable         permanent: not writable, or in use by another stack
    │   └── ProcessFailed           a server or worker ended by itself, or did not start
    ├── ServerUnreachable           exit 4, retryable: no Temporal server answers at the address
    ├── ThreadError                 exit 6: a request to a thread failed
    │   ├── ThreadNotFound          permanent: no thread has this id
    │   ├── ThreadEnded             permanent: the thread was stopped, archived or terminated
    │   ├── ThreadExists            permanent: the id of a new thread is taken
    │   ├── ThreadIdRefused         permanent: the id is not valid for a new thread
    │   ├── ArchiveNotFound         permanent: the thread has no archive, or none with this id
    │   ├── ThreadPaused            until an operator unpauses the thread; the message stays queued
    │   ├── EntryNotFound           permanent: the journal has no entry with this seq
    │   ├── MessageRefused          permanent: empty, too long, or the thread is stopping
    │   ├── DecisionRefused         permanent: unknown, decided already, or not an approver
    │   ├── ControlRefused          permanent: an invalid policy, name or reason
    │   ├── TurnFailed              permanent: the turn ended without an answer
    │   ├── NoWorker                retryable: no worker runs the thread
    │   └── NotAnswered             the thread is still working, or ended before it answered
    ├── StoreError                  exit 5: stored bytes, or the store itself
    │   ├── StoreUnavailable        retryable: an outage, a full disk, denied access
    │   ├── InvalidKey              permanent: a key that could escape the store
    │   ├── ObjectTooLarge          permanent: larger than this version reads back
    │   ├── BlobMissing             holds the thread until the bytes are restored
    │   ├── BlobCorrupt             holds the thread until the bytes are restored
    │   ├── KeyMissing              holds the thread until the key is configured again
    │   ├── RefRefused              the ref was not written with a known key; holds its reader
    │   ├── PayloadTooLarge         permanent: must stay in history, and is too large for it
    │   └── UnknownVersion          holds the thread until a newer Everlong reads it
    ├── LimitReached                permanent, exit 7: policy stopped the run, with a reason
    ├── ModelUnavailable            exit 9, retryable: a rate limit, an outage, an unreadable reply
    ├── ModelRefused                exit 9, permanent: the API key, the request or its content
    ├── SetupRefused                exit 10: the server rejects Everlong's search attributes
    ├── QueryRefused                exit 11, permanent: not a single SELECT, or over its bounds
    ├── SweepIncomplete             exit 12: something could not be read, so nothing was deleted
    ├── SinkUnreachable             exit 14: a sink of notifications did not take a test message
    └── CheckFailed                 permanent, exit 8: a claim of the demo does not hold

*Permanent*: a retry fails the same way. *Retryable*: the same call may succeed later. *Holds*: a data
fault never ends a thread; the thread stays where it is, names what to restore, and continues by itself
afterwards. The retries of a team's own activities are the team's to configure.
A message names the thing and the remedy. It never contains payload bytes or secrets.
"""

from collections.abc import Iterable
from typing import ClassVar, Final

_QUOTED_CHARS_MAX: Final = 80


def quote(text: str) -> str:
    """Return a name that a user gave, quoted for a message: on one line, and not too long."""
    cut = text if len(text) <= _QUOTED_CHARS_MAX else f"{text[:_QUOTED_CHARS_MAX]}…"
    return "'" + "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut) + "'"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean X?` with the nearest known name; empty if none is near."""
    # Imported here: only errors need it.
    from difflib import get_close_matches

    folded = {each.casefold(): each for each in reversed(list(known))}
    wanted = name.casefold()
    begun = sorted((each for each in folded if wanted and each.startswith(wanted)), key=len)
    found = begun or get_close_matches(wanted, folded, n=1, cutoff=0.65)
    return f" Did you mean {folded[found[0]]}?" if found else ""


class EverlongError(Exception):
    """The root of the tree. `exit_code` is the exit code of the command line."""

    exit_code: ClassVar[int] = 1


class ConfigError(EverlongError):
    """A setting or an argument is wrong; nothing was started or changed."""

    exit_code = 2


class UnknownStoreScheme(ConfigError):
    """The store URL has a scheme that this version does not support."""


class PluginNotOnClient(ConfigError):
    """The plugin is missing on the client, whose converter encodes: payloads would not be encoded."""


class AgentNotFound(ConfigError):
    """A `module:agent` argument does not name an `everlong.Agent`."""


class RecordingMissing(ConfigError):
    """A recorded model has no file, and was not asked to record one."""


class RecordingMismatch(ConfigError):
    """A recorded model has no reply for a request; the message names what differs."""


class StackError(EverlongError):
    """The embedded stack cannot start or continue."""

    exit_code = 3


class TemporalBinaryMissing(StackError):
    """There is no `temporal` program to start the dev server with."""


class PortInUse(StackError):
    """Another process listens on the requested port."""


class DataDirUnusable(StackError):
    """The data directory is not writable, or another stack uses it."""


class ProcessFailed(StackError):
    """A server or worker process ended by itself, or was not ready in time."""


class ServerUnreachable(EverlongError):
    """No Temporal server answers at the configured address."""

    exit_code = 4


class StoreError(EverlongError):
    """A fault of stored bytes, or of the store."""

    exit_code = 5


class StoreUnavailable(StoreError):
    """The store cannot be reached, or denies access; the same call may succeed later."""


class InvalidKey(StoreError):
    """A key that is not a plain relative path of safe characters."""


class ObjectTooLarge(StoreError):
    """A plaintext exceeds the size up to which objects are read back; nothing was written."""


class BlobMissing(StoreError):
    """A ref names bytes that the store does not have."""


class BlobCorrupt(StoreError):
    """Stored bytes do not match their digest, their declared size or their format."""


class KeyMissing(StoreError):
    """Stored bytes are sealed with a key that this process does not have."""


class RefRefused(StoreError):
    """Keys are configured, and the ref is not authenticated by any of them."""


class PayloadTooLarge(StoreError):
    """A payload that has to stay inline exceeds the server's limit."""


class UnknownVersion(StoreError):
    """The bytes have a format version that this Everlong cannot read, usually of a newer Everlong."""


class ThreadError(EverlongError):
    """A request to a thread failed."""

    exit_code = 6


class ThreadNotFound(ThreadError):
    """The namespace has no thread with this id."""

    thread_id: str = ""
    """The id, where a similar one may have been meant: the command suggests the nearest."""


class ThreadEnded(ThreadError):
    """The thread has ended and accepts nothing more. Its journal stays, and can be forked."""


class ThreadExists(ThreadError):
    """A thread with this id exists or existed; nothing was started."""


class ThreadIdRefused(ThreadError):
    """The id is not valid for a new thread; the message says which ids are. Nothing was started."""


class ArchiveNotFound(ThreadError):
    """The thread has no archive, or none with this id."""


class ThreadPaused(ThreadError):
    """The thread takes no steps until an operator unpauses it. Messages stay queued."""


class EntryNotFound(ThreadError):
    """The journal has no entry with this seq, or not yet."""


class MessageRefused(ThreadError):
    """The thread did not accept the message; the error says why."""


class DecisionRefused(ThreadError):
    """The thread did not accept a decision on an approval; the error says why."""


class ControlRefused(ThreadError):
    """The thread did not accept a control request: the policy, the name or the reason is invalid."""


class TurnFailed(ThreadError):
    """The turn of a message ended without an answer; the error says why."""


class NoWorker(ThreadError):
    """No worker answers for the thread: none is running, or it cannot replay the thread."""

    held_by: str = ""
    """Why its workflow tasks fail, if they do: the thread is held by a key or an object, for example."""


class NotAnswered(ThreadError):
    """The thread has not answered yet, or ended before it answered."""


class LimitReached(EverlongError):
    """A hard limit of the thread's policy stopped it; the message is the typed reason."""

    exit_code = 7


class ModelUnavailable(EverlongError):
    """The model provider gave no usable reply; the same call may succeed later."""

    exit_code = 9

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """Seconds that the provider asks to wait; None if it does not say."""


class ModelRefused(EverlongError):
    """The model provider rejects this call, and would reject it again."""

    exit_code = 9

    def __init__(self, message: str, *, context_too_large: bool = False) -> None:
        super().__init__(message)
        self.context_too_large = context_too_large
        """Whether the provider would accept a smaller context."""


class SetupRefused(EverlongError):
    """The server rejects Everlong's search attributes; the message says why, and what to do."""

    exit_code = 10


class QueryRefused(EverlongError):
    """A query was rejected or stopped: it is not allowed, or it exceeds its bounds."""

    exit_code = 11


class SweepIncomplete(EverlongError):
    """A sweep could not read everything, so it deleted nothing. The report lists what is missing."""

    exit_code = 12


class SinkUnreachable(EverlongError):
    """A sink of notifications did not take a test message."""

    exit_code = 14


class CheckFailed(EverlongError):
    """A claim of the demo does not hold."""

    exit_code = 8
