"""Small workflows and activities for every path of a payload through Temporal.

Imported into the workflow sandbox: keep its imports few.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from google.protobuf.message import Message
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue, RetryPolicy
from temporalio.converter import PayloadCodec
from temporalio.exceptions import ActivityError, ApplicationError

Value = str | bytes
SIZE = 300_000
PATIENCE = timedelta(seconds=30)
ONCE = RetryPolicy(maximum_attempts=1)


def noise(seed: str, size: int = SIZE) -> bytes:
    """Return bytes that do not compress, the same for the same seed."""
    return hashlib.shake_256(seed.encode()).digest(size)


def letters(seed: str, size: int = SIZE) -> str:
    """Return text of `size` bytes in UTF-8, none of them ASCII, that hardly compresses."""
    data = noise(seed, size // 3 * 2)
    numbers = (int.from_bytes(data[i : i + 2]) for i in range(0, len(data), 2))
    return "".join(chr(0x4E00 + number % 0x5000) for number in numbers)


def find_payloads(message: Message) -> Iterator[Payload]:
    """Yield every payload in a protobuf message, at any depth."""
    if isinstance(message, Payload):
        yield message
        return
    for _, content in message.ListFields():
        # Maps, lists and single messages; a map of scalars holds no messages.
        parts = content.values() if hasattr(content, "values") else content
        if isinstance(content, Message):
            parts = [content]
        if isinstance(parts, str | bytes | int | float):
            continue
        for part in parts:
            if isinstance(part, Message):
                yield from find_payloads(part)


def list_encodings(messages: Sequence[Message]) -> set[bytes]:
    """Return the encodings of all payloads in some messages."""
    found = (payload for message in messages for payload in find_payloads(message))
    return {payload.metadata["encoding"] for payload in found}


class Xor(PayloadCodec):
    """Codec of a team's own; stands in for encryption."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"test/xor"}, data=self._flip(p.SerializeToString()))
            for p in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(self._flip(p.data)) if p.metadata["encoding"] == b"test/xor" else p
            for p in payloads
        ]

    def _flip(self, data: bytes) -> bytes:
        mask = int.from_bytes(b"\x5a" * len(data))
        return (int.from_bytes(data) ^ mask).to_bytes(len(data))


@activity.defn
async def echo(value: Value) -> Value:
    return value


@activity.defn
async def refuse(value: Value) -> NoReturn:
    raise ApplicationError("refused", value, type="Refused")


@activity.defn
async def beat(value: Value) -> Value:
    """Heartbeat the value, and read it back in the second attempt."""
    info = activity.info()
    if info.attempt == 1:
        activity.heartbeat(value)
        raise RuntimeError("the first attempt fails")
    left: Value = info.heartbeat_details[0]
    return left


@activity.defn
async def defer(value: Value) -> Value:
    activity.raise_complete_async()


@activity.defn(dynamic=True)
async def any_activity(args: Sequence[RawValue]) -> RawValue:
    value: Value = activity.payload_converter().from_payload(args[0].payload)
    return RawValue(activity.payload_converter().to_payload(value[::-1]))


@workflow.defn
class Echo:
    @workflow.run
    async def run(self, value: Value) -> Value:
        return value


@workflow.defn
class Pick:
    """Takes several arguments and returns the chosen one."""

    @workflow.run
    async def run(self, index: int, first: Value, second: Value, third: Value) -> Value:
        return (first, second, third)[index]


@workflow.defn
class OneActivity:
    """Runs one activity; returns its result, or the first detail of its failure."""

    @workflow.run
    async def run(self, name: str, value: Value) -> Value:
        try:
            result: Value = await workflow.execute_activity(
                name,
                value,
                start_to_close_timeout=PATIENCE,
                heartbeat_timeout=PATIENCE,
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(seconds=1),
                    maximum_attempts=2,
                    non_retryable_error_types=["Refused"],
                ),
            )
        except ActivityError as error:
            if not isinstance(error.cause, ApplicationError):
                raise
            result = error.cause.details[0]
        return result


@workflow.defn
class OneLocalActivity:
    @workflow.run
    async def run(self, value: Value) -> Value:
        return await workflow.execute_local_activity(echo, value, start_to_close_timeout=PATIENCE)


@workflow.defn
class Parent:
    """Runs a child, whose result is encoded under the child's id and read by its parent."""

    @workflow.run
    async def run(self, value: Value) -> Value:
        child = f"{workflow.info().workflow_id}-child"
        return await workflow.execute_child_workflow(Echo.run, value, id=child)


@workflow.defn
class Mailbox:
    """Ends with the first value that a signal or an update brings."""

    def __init__(self) -> None:
        self._values: list[Value] = []

    @workflow.run
    async def run(self) -> Value:
        await workflow.wait_condition(lambda: bool(self._values))
        return self._values[0]

    @workflow.signal
    def put(self, value: Value) -> None:
        self._values.append(value)

    @workflow.update
    def exchange(self, value: Value) -> Value:
        self._values.append(value)
        return value[::-1]

    @workflow.query
    def reverse(self, value: Value) -> Value:
        return value[::-1]


@workflow.defn
class Sender:
    @workflow.run
    async def run(self, to: str, value: Value) -> None:
        await workflow.get_external_workflow_handle(to).signal(Mailbox.put, value)


@workflow.defn
class Remember:
    """Returns a memo from its start, and writes the same value to another one."""

    @workflow.run
    async def run(self) -> Value:
        value: Value = workflow.memo_value("before")
        workflow.upsert_memo({"after": value})
        await asyncio.sleep(0.01)
        return value


@workflow.defn
class Again:
    @workflow.run
    async def run(self, value: Value, more: int) -> Value:
        if more:
            workflow.continue_as_new(args=[value, more - 1])
        return value


@workflow.defn
class Failing:
    @workflow.run
    async def run(self, value: Value) -> NoReturn:
        raise ApplicationError("it ends here", value)


@workflow.defn
class Last:
    """Returns the result of the previous run, or its argument without one."""

    @workflow.run
    async def run(self, value: Value) -> Value:
        if workflow.has_last_completion_result():
            value = workflow.get_last_completion_result() or value
            return value[::-1]
        return value


@workflow.defn(dynamic=True)
class AnyWorkflow:
    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> RawValue:
        value: Value = workflow.payload_converter().from_payload(args[0].payload)
        reversed_value: RawValue = await workflow.execute_activity(
            "of no known name", value, start_to_close_timeout=PATIENCE, result_type=RawValue
        )
        return reversed_value


@activity.defn
async def annotate(notes: list[str]) -> str:
    """Stand in for a model that reads all notes and adds one."""
    return hashlib.sha256("".join(notes).encode()).hexdigest() + letters(notes[-1][:50], 30_000)


@workflow.defn
class Notebook:
    """List-passing loop of a team: each step sends all notes to an activity."""

    @workflow.init
    def __init__(self, title: str) -> None:
        self._notes = [title]
        self._closed = False

    @workflow.run
    async def run(self, title: str) -> list[str]:
        await workflow.wait_condition(lambda: self._closed)
        return self._notes

    @workflow.update
    async def step(self, note: str) -> str:
        self._notes.append(note)
        added = await workflow.execute_activity(
            annotate, self._notes, start_to_close_timeout=PATIENCE
        )
        self._notes.append(added)
        return added

    @workflow.query
    def notes(self) -> list[str]:
        return self._notes

    @workflow.signal
    def close(self) -> None:
        self._closed = True


WORKFLOWS = [
    Again,
    AnyWorkflow,
    Echo,
    Failing,
    Last,
    Mailbox,
    OneActivity,
    OneLocalActivity,
    Parent,
    Pick,
    Remember,
    Sender,
]
ACTIVITIES: list[Callable[..., Any]] = [any_activity, beat, defer, echo, refuse]
