"""Translation of the SDK's errors about a thread to Everlong's."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from pydantic import ValidationError
from temporalio.client import (
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from everlong.errors import (
    BlobMissing,
    ControlRefused,
    DecisionRefused,
    EverlongError,
    KeyMissing,
    MessageRefused,
    NoWorker,
    RefRefused,
    ServerUnreachable,
    SetupRefused,
    ThreadEnded,
    ThreadError,
    ThreadNotFound,
)
from everlong.models import make_printable
from everlong.models.thread_ids import quote_id

T = TypeVar("T")

START_ONE: Final = "Start one on its task queue."
"""General advice, which a diagnosis replaces."""
_WHAT: Final[dict[type[ThreadError], str]] = {
    MessageRefused: "the message",
    DecisionRefused: "the decision",
    ControlRefused: "the change",
}
# pydantic's additions for programmers: the title, types, inputs, and a link.
_FOR_PROGRAMMERS: Final = re.compile(
    r"^\d+ validation errors? for .*$|\[type=.*?\]$|For further information visit \S+$",
    re.MULTILINE,
)
# A field's name stands on a line of its own, and what is wrong with it is indented below.
_FIELD: Final = re.compile(r"^(\S+)\n +(?:Value error, )?", re.MULTILINE)


@contextlib.contextmanager
def translate_errors(thread_id: str, refused: type[ThreadError] = MessageRefused) -> Iterator[None]:
    """Raise Everlong's errors for the SDK's. `refused` is raised if the thread rejects an update."""
    what = _WHAT[refused]
    try:
        yield
    except WorkflowUpdateFailedError as error:
        raise refused(
            f"thread {thread_id!r} refused {what}: {clean_reason(_get_message(error.cause))}"
        ) from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise NoWorker(
            f"no worker has taken {what} for thread {thread_id!r}. {START_ONE} It may still arrive, so "
            f"look before you send it again: everlong show {quote_id(thread_id)}"
        ) from error
    except WorkflowQueryFailedError as error:
        raise NoWorker(
            f"thread {thread_id!r} cannot answer: {error}. See its worker's log."
        ) from error
    except WorkflowAlreadyStartedError as error:
        # Raised for a start under the id of an ended thread.
        raise make_ended_error(thread_id) from error
    except RPCError as error:
        raise translate_rpc_error(error, thread_id) from error


@contextlib.contextmanager
def explain_unreadable(thread_id: str) -> Iterator[None]:
    """Add the likely cause where this process cannot read what a thread's worker has written."""
    try:
        yield
    except (BlobMissing, KeyMissing, RefRefused) as error:
        raise type(error)(
            f"this client cannot read what the worker of thread {thread_id!r} writes: they differ in "
            f"store or keys, or the bytes are lost. Run: everlong doctor. ({error})"
        ) from error


def _get_message(cause: BaseException) -> str:
    """Return the message of a thread's refusal, without the name of its Python type."""
    return cause.message if isinstance(cause, ApplicationError) else str(cause)


def translate_rpc_error(error: RPCError, thread_id: str) -> EverlongError:
    """Return our error for one of the server's."""
    if error.status == RPCStatusCode.NOT_FOUND and error.message.startswith("Namespace"):
        return ServerUnreachable(f"{error.message} Set TEMPORAL_NAMESPACE.")
    if is_closed(error):
        return make_ended_error(thread_id)
    if error.status == RPCStatusCode.NOT_FOUND:
        missing = ThreadNotFound(
            f"there is no running thread {thread_id!r} in this namespace. Start it with: "
            f"everlong send {quote_id(thread_id)} 'hello' --agent NAME"
        )
        missing.thread_id = thread_id
        return missing
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        message = make_printable(error.message, 200)
        if "search attribute" in error.message:
            return SetupRefused(
                f"the server does not have our search attributes ({message}). Add them with: "
                "everlong setup"
            )
        if "RunId" in error.message:
            return ThreadNotFound(
                f"that is no run of thread {thread_id!r}. List its runs: everlong runs "
                f"{quote_id(thread_id)}"
            )
        return ThreadNotFound(f"the Temporal server does not take that for a thread: {message}")
    if error.status in (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED):
        return NoWorker(f"no worker answers for thread {thread_id!r}. {START_ONE}")
    if error.status == RPCStatusCode.FAILED_PRECONDITION:
        return NoWorker(
            f"thread {thread_id!r} cannot take it now: {error.message} See its worker's log."
        )
    return ServerUnreachable(f"the Temporal server refused: {error.message}")


def is_closed(error: RPCError) -> bool:
    """Whether the server refused a request because the newest run has ended."""
    return error.status == RPCStatusCode.NOT_FOUND and "already completed" in error.message


def make_ended_error(thread_id: str) -> ThreadEnded:
    """Return the error for a thread that was stopped, archived, or terminated."""
    quoted = quote_id(thread_id)
    return ThreadEnded(
        f"thread {thread_id!r} has ended and takes nothing more; its id is not used again. Its journal "
        f"stays: everlong journal {quoted}. Go on from it with: everlong fork {quoted} SEQ NEW_ID, "
        "or begin a new thread under another id."
    )


def check_argument(refused: type[ThreadError], make: Callable[[], T]) -> T:
    """Return the argument of an update or a signal; raise `refused` if a field is invalid."""
    try:
        return make()
    except ValidationError as error:
        # Not chained, and shortened: pydantic's own message quotes what it was given.
        raise refused(f"{_WHAT[refused]} does not fit: {clean_reason(str(error))}") from None


def clean_reason(text: str) -> str:
    """Return a validator's message on one line, as `field: problem`, without pydantic's additions."""
    lines = _FIELD.sub(r"\1: ", _FOR_PROGRAMMERS.sub("", text)).splitlines()
    joined = "; ".join(line.strip() for line in lines if line.strip())
    return " ".join(joined.replace("Input should be", "must be").split())
