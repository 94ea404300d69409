"""Every error that Everlong raises on purpose.

    EverlongError
    ├── ConfigError                 permanent, exit 2: a setting or an argument is wrong
    │   ├── UnknownStoreScheme      a store URL that names no store of ours
    │   ├── PluginNotOnClient       the plugin is on the Worker but not on its Client
    │   └── AgentNotFound           `module:agent` does not lead to an Agent
    ├── StackError                  exit 3: the embedded stack cannot start or go on
    │   ├── TemporalBinaryMissing   permanent
    │   ├── PortInUse               permanent until the port is free
    │   ├── DataDirUnusable         permanent: not writable, or in use by another stack
    │   └── ProcessFailed           a server or worker ended by itself, or did not start
    ├── ServerUnreachable           exit 4, retryable: no Temporal server answers at the address
    ├── ThreadError                 exit 6: what was asked of a thread cannot be had
    │   ├── ThreadNotFound          permanent: no thread of that name
    │   ├── ThreadEnded             permanent: it was stopped, archived or terminated
    │   ├── ThreadExists            permanent: a fork would take the id of another thread
    │   ├── ThreadIdRefused         permanent: a new thread cannot be given this id
    │   ├── ArchiveNotFound         permanent: the thread has no archive, or none of that id
    │   ├── ThreadPaused            until somebody unpauses it; the message stays queued
    │   ├── EntryNotFound           permanent: the journal has no entry of that seq
    │   ├── MessageRefused          permanent: empty, too long, or the thread is stopping
    │   ├── DecisionRefused         permanent: unknown, decided already, or not for them to decide
    │   ├── ControlRefused          permanent: a policy, a name or a reason that does not fit
    │   ├── TurnFailed              permanent: the turn ended without an answer
    │   ├── NoWorker                retryable: nobody runs the thread
    │   └── NotAnswered             the thread is still at work, or has ended before that
    ├── StoreError                  exit 5: what holds the bytes
    │   ├── StoreUnavailable        retryable: an outage, a full disk, refused access
    │   ├── InvalidKey              permanent: a key that could escape the store
    │   ├── ObjectTooLarge          permanent: more than this version would read again
    │   ├── BlobMissing             holds the thread until the bytes are restored
    │   ├── BlobCorrupt             holds the thread until the bytes are restored
    │   ├── KeyMissing              holds the thread until the key is configured again
    │   ├── RefRefused              a ref that nobody with the key wrote; holds what reads it
    │   ├── PayloadTooLarge         permanent: must stay in history, and is too large for it
    │   └── UnknownVersion          holds the thread until a newer Everlong reads it
    ├── LimitReached                permanent, exit 7: policy stopped the run, with a reason
    ├── ModelUnavailable            exit 9, retryable: a rate limit, an outage, an unreadable reply
    ├── ModelRefused                exit 9, permanent: the key, the request or its content
    ├── SetupRefused                exit 10: the server does not take our search attributes
    ├── QueryRefused                exit 11, permanent: not one SELECT, or more than its bounds
    ├── SweepIncomplete             exit 12: a history cannot be read, so nothing was deleted
    └── CheckFailed                 permanent, exit 8: what the demo shows is not true

A data fault (missing, corrupt, unknown version) never ends a thread: it is held, says what to
restore, and goes on by itself once that has been done. How long a team's own activities are retried
is theirs to say.
A message names the thing and the remedy. It never holds payload bytes or secrets.
"""

from typing import ClassVar


class EverlongError(Exception):
    """The root of the tree. `exit_code` is what the command line exits with."""

    exit_code: ClassVar[int] = 1


class ConfigError(EverlongError):
    """A setting or an argument is wrong; nothing was started or changed."""

    exit_code = 2


class UnknownStoreScheme(ConfigError):
    """The URL names no store that this version has."""


class PluginNotOnClient(ConfigError):
    """Payloads would silently not be encoded, because the converter comes from the client."""


class AgentNotFound(ConfigError):
    """A `module:agent` argument does not lead to an `everlong.Agent`."""


class StackError(EverlongError):
    """The embedded stack cannot start, or cannot go on."""

    exit_code = 3


class TemporalBinaryMissing(StackError):
    """There is no `temporal` program to start the dev server with."""


class PortInUse(StackError):
    """Somebody else listens on a port that was asked for."""


class DataDirUnusable(StackError):
    """The data directory cannot be written to, or another stack has it."""


class ProcessFailed(StackError):
    """A server or a worker ended though nobody stopped it, or is not ready in time."""


class ServerUnreachable(EverlongError):
    """No Temporal server answers at the configured address."""

    exit_code = 4


class StoreError(EverlongError):
    """Something is wrong with stored bytes, or with the place that holds them."""

    exit_code = 5


class StoreUnavailable(StoreError):
    """The store cannot be reached or refuses; the same call may succeed later."""


class InvalidKey(StoreError):
    """A key that is not a plain relative path of safe characters."""


class ObjectTooLarge(StoreError):
    """A plaintext over the bound up to which objects are read again; nothing was written."""


class BlobMissing(StoreError):
    """A ref names bytes that the store does not have."""


class BlobCorrupt(StoreError):
    """Stored bytes do not match their digest, their declared size or their format."""


class KeyMissing(StoreError):
    """Bytes are sealed with a key that this process does not have."""


class RefRefused(StoreError):
    """Keys are configured, and a ref does not prove that it was written with one of them."""


class PayloadTooLarge(StoreError):
    """A payload that has to stay inline is larger than the server takes."""


class UnknownVersion(StoreError):
    """The bytes have a format version that this Everlong does not read: mostly a newer one's."""


class ThreadError(EverlongError):
    """What was asked of a thread cannot be had."""

    exit_code = 6


class ThreadNotFound(ThreadError):
    """There is no thread with this id in the namespace."""


class ThreadEnded(ThreadError):
    """The thread takes nothing more. Its journal stays, and can be forked."""


class ThreadExists(ThreadError):
    """There is a thread with this id, or was one; nothing was started."""


class ThreadIdRefused(ThreadError):
    """A new thread cannot be given this id; the message says what an id may be. Nothing was started."""


class ArchiveNotFound(ThreadError):
    """The thread has no archive, or none of this id."""


class ThreadPaused(ThreadError):
    """The thread takes no steps until somebody unpauses it. What was sent stays queued."""


class EntryNotFound(ThreadError):
    """The journal has no entry of this seq, or not yet."""


class MessageRefused(ThreadError):
    """The thread did not take the message; the message says why."""


class DecisionRefused(ThreadError):
    """The thread did not take a decision about an approval; the message says why."""


class ControlRefused(ThreadError):
    """The thread did not take a change of its policy, or who asked and why does not fit."""


class TurnFailed(ThreadError):
    """The turn of a message ended without an answer; the message says why."""


class NoWorker(ThreadError):
    """No worker has answered for the thread: none runs, or it cannot replay the thread."""


class NotAnswered(ThreadError):
    """The thread has not answered: not yet, or it has ended before that."""


class LimitReached(EverlongError):
    """A hard limit of the thread's policy stopped it; the message is the typed reason."""

    exit_code = 7


class ModelUnavailable(EverlongError):
    """The provider of a model has given no reply that can be used; the same call may succeed later."""

    exit_code = 9

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """How long the provider asks to wait; None if it does not say."""


class ModelRefused(EverlongError):
    """The provider of a model will not take this call, however often it is made."""

    exit_code = 9

    def __init__(self, message: str, *, context_too_large: bool = False) -> None:
        super().__init__(message)
        self.context_too_large = context_too_large
        """Whether a smaller context would be taken."""


class SetupRefused(EverlongError):
    """The server does not take our search attributes; the message says why, and what to do."""

    exit_code = 10


class QueryRefused(EverlongError):
    """A query that is not run, or was stopped: it asks for what it may not, or for too much."""

    exit_code = 11


class SweepIncomplete(EverlongError):
    """Something that a history names cannot be read, so nothing was deleted. The report says what."""

    exit_code = 12


class CheckFailed(EverlongError):
    """A claim that the demo makes did not hold."""

    exit_code = 8
