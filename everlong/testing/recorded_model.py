"""A model's replies in a file: recorded once from a real model, replayed afterwards.

A recording maps requests to replies, so a replay depends on the requests alone: a step that is retried
gets the same reply, and threads may run at the same time. The file holds the conversation, the names of
tools, and digests of the rest: no keys, no headers, no address, nothing else of a provider's response.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_json

from everlong.agents import Agent, Model, Reply, Tool
from everlong.errors import ConfigError, RecordingMismatch, RecordingMissing
from everlong.models import Message, ToolCall

_VERSION: Final = 1
# Of a longer text in a request, the file has the beginning and a digest. Replies are whole.
_TEXT_CHARS_MAX: Final = 2000
_DIGEST_BYTES: Final = 8
_DIFFERENCES_MAX: Final = 5
_AGAIN: Final = (
    "If that is meant, delete the file and record it again with: pytest --everlong-record"
)


@dataclass(frozen=True, kw_only=True)
class _Text:
    """Beginning of a long text."""

    begins: str
    chars: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class _Message:
    """A message of a request."""

    role: str
    text: str | _Text = ""
    tool: str = ""
    call_id: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A request: the messages, and digests of instructions and tools."""

    instructions: str
    tools: Mapping[str, str]
    messages: tuple[_Message, ...]


@dataclass(frozen=True, kw_only=True)
class _Reply:
    """The part of a reply that a replay needs."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: int = 0
    input_tokens: int = 0
    cost_usd: float = 0.0
    model: str = ""
    finish_reason: str = ""


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call in the file. Its request is written as what differs from the one before."""

    digest: str
    instructions: str | None = None
    """None if they are those of the call before."""
    tools: Mapping[str, str] | None = None
    kept: int = 0
    """Number of messages that this request begins with, as the one before does."""
    messages: tuple[_Message, ...] = ()
    reply: _Reply


@dataclass(frozen=True, kw_only=True)
class _File:
    """The file's content."""

    everlong_recording: int
    model: str = ""
    calls: tuple[_Call, ...] = ()


_REQUEST: Final = TypeAdapter(_Request)
_FILE: Final = TypeAdapter(_File)


@dataclasses.dataclass(frozen=True)
class _Recorded:
    digest: str
    request: _Request
    reply: _Reply


class RecordedModel:
    """Replays the replies of a real model from a file; records them first if it is asked to.

    Args:
        path: The file: JSON, made to be reviewed and kept with the tests.
        model: The model to record from: a name as in "openai:gpt-5", or any model that `Agent` takes.
            By default, with `run_agent`, the agent's own.
        record: Whether to call that model if the file does not exist. Without it, a missing file raises
            `RecordingMissing`, and no provider is ever called. The fixture `recorded_model` takes it
            from `pytest --everlong-record`.
        model_settings: Settings of the recorded model, as for `Agent`.

    A request that the file does not have raises `RecordingMismatch`, which names what differs from the
    nearest recorded one. Instructions, messages, and the tools' names, descriptions and parameters are
    compared: the replies would not be worth much for another request. A tool of the test must therefore
    return the same text each time: no times, no random ids.

    The file holds messages, tool results and arguments in the clear, and of a long text in a request the
    first 2,000 characters: record with data that may be in your repository.

    """

    def __init__(
        self,
        path: str | Path,
        *,
        model: object = None,
        record: bool = False,
        model_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(path)
        self._source = model
        self._settings = dict(model_settings or {})
        self._record = record and not self.path.exists()
        self._calls: dict[str, _Recorded] | None = {} if self._record else None
        self._resolved: Model | None = None

    @property
    def model_id(self) -> str:
        """Name of the recorded model, for spans."""
        name = self._source if isinstance(self._source, str) else ""
        return name or type(self).__name__

    def bind(self, agent: Agent) -> Self:
        """Record from an agent's model, unless a model was given. `run_agent` calls this."""
        if self._source is None and agent.model is not self:
            self._source, self._settings = agent.model, dict(agent.model_settings)
        return self

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """See `Model`."""
        request = _build_request(instructions, messages, tools)
        digest = _compute_digest(_REQUEST.dump_json(request))
        if self._calls is None:
            self._calls = _load(self.path)
        found = self._calls.get(digest)
        if found is None:
            if not self._record:
                raise self._build_mismatch(digest, request, self._calls)
            reply = await self._resolve().reply(instructions, messages, tools)
            found = _Recorded(digest, request, _build_reply(reply))
            # Another call of the same request may have been first.
            found = self._calls.setdefault(digest, found)
            _save(self.path, self.model_id, list(self._calls.values()))
        return Reply(**{name: getattr(found.reply, name) for name in _FIELDS})

    def _resolve(self) -> Model:
        if self._resolved is None:
            if self._source is None:
                raise ConfigError(
                    f"the recording {self.path.name} needs a model to record from: "
                    'RecordedModel(path, model="openai:gpt-5", record=True)'
                )
            source = Agent(name="recording", model=self._source, model_settings=self._settings)
            self._resolved = source.resolved_model
        return self._resolved

    def _build_mismatch(
        self, digest: str, request: _Request, calls: Mapping[str, _Recorded]
    ) -> RecordingMismatch:
        what = f"the recording {self.path.name} has no reply for request {digest}"
        if not calls:
            return RecordingMismatch(f"{what}: it is empty. {_AGAIN}")
        number, nearest = max(
            enumerate(calls.values(), 1), key=lambda each: _rate(each[1].request, request)
        )
        found = list(_list_differences(nearest.request, request))
        shown = "; ".join(found[:_DIFFERENCES_MAX])
        more = (
            f"; and {len(found) - _DIFFERENCES_MAX} more" if len(found) > _DIFFERENCES_MAX else ""
        )
        return RecordingMismatch(
            f"{what}. The nearest is call {number} of {len(calls)}, {nearest.digest}: {shown}{more}. "
            f"{_AGAIN}"
        )


_FIELDS: Final = tuple(field.name for field in dataclasses.fields(_Reply))


def _build_request(
    instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
) -> _Request:
    return _Request(
        instructions=_compute_digest(instructions.encode(errors="replace")),
        tools={
            each.name: _compute_digest(to_json([each.description, each.schema])) for each in tools
        },
        messages=tuple(
            _Message(
                role=each.role,
                text=_cut(each.text),
                tool=each.tool,
                call_id=each.call_id,
                tool_calls=each.tool_calls,
            )
            for each in messages
        ),
    )


def _cut(text: str) -> str | _Text:
    if len(text) <= _TEXT_CHARS_MAX:
        return text
    digest = _compute_digest(text.encode(errors="replace"))
    return _Text(begins=text[:_TEXT_CHARS_MAX], chars=len(text), digest=digest)


def _build_reply(reply: Reply) -> _Reply:
    return _Reply(**{name: getattr(reply, name) for name in _FIELDS})


def _compute_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _load(path: Path) -> dict[str, _Recorded]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise RecordingMissing(
            f"there is no recording {path}. Record it, which calls the model, with: "
            "pytest --everlong-record"
        ) from None
    try:
        file = _FILE.validate_json(data)
    except ValidationError as error:
        raise RecordingMismatch(f"{path} is no recording of a model. {_AGAIN}") from error
    if file.everlong_recording != _VERSION:
        raise RecordingMismatch(
            f"{path} has version {file.everlong_recording}; this Everlong reads {_VERSION}. {_AGAIN}"
        )
    calls: dict[str, _Recorded] = {}
    last = _Request(instructions="", tools={}, messages=())
    for call in file.calls:
        last = _Request(
            instructions=last.instructions if call.instructions is None else call.instructions,
            tools=last.tools if call.tools is None else call.tools,
            messages=(*last.messages[: call.kept], *call.messages),
        )
        calls[call.digest] = _Recorded(call.digest, last, call.reply)
    return calls


def _save(path: Path, model: str, calls: Sequence[_Recorded]) -> None:
    written: list[_Call] = []
    last = _Request(instructions="", tools={}, messages=())
    for each in calls:
        kept = _count_equal(last.messages, each.request.messages)
        same_instructions = each.request.instructions == last.instructions
        written.append(
            _Call(
                digest=each.digest,
                instructions=None if same_instructions else each.request.instructions,
                tools=None if each.request.tools == last.tools else each.request.tools,
                kept=kept,
                messages=each.request.messages[kept:],
                reply=each.reply,
            )
        )
        last = each.request
    file = _File(everlong_recording=_VERSION, model=model, calls=tuple(written))
    fields = _FILE.dump_python(file, mode="json", exclude_defaults=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all, also if the test is interrupted.
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


# Differences. They name places and sizes, never texts: errors reach logs and histories.


def _rate(recorded: _Request, now: _Request) -> tuple[int, int, bool, bool]:
    """Return how near a recorded request is: by its messages first."""
    return (
        _count_equal(recorded.messages, now.messages),
        -abs(len(recorded.messages) - len(now.messages)),
        recorded.tools == now.tools,
        recorded.instructions == now.instructions,
    )


def _count_equal(first: Sequence[_Message], second: Sequence[_Message]) -> int:
    """Return the number of messages that both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def _list_differences(recorded: _Request, now: _Request) -> Iterator[str]:
    if recorded.instructions != now.instructions:
        yield "the instructions differ"
    for name in sorted(recorded.tools.keys() | now.tools.keys()):
        if name not in now.tools:
            yield f"tool {name!r} is gone"
        elif name not in recorded.tools:
            yield f"tool {name!r} is new"
        elif recorded.tools[name] != now.tools[name]:
            yield f"tool {name!r} has another description or other parameters"
    if len(recorded.messages) != len(now.messages):
        yield f"the number of messages is {len(now.messages)}, recorded were {len(recorded.messages)}"
    for number, (before, after) in enumerate(zip(recorded.messages, now.messages, strict=False), 1):
        if before != after:
            yield f"message {number} {_describe_difference(before, after)}"


def _describe_difference(before: _Message, after: _Message) -> str:
    if before.role != after.role:
        return f"was of role {before.role!r}, now {after.role!r}"
    what = f"({before.role}{' ' + before.tool if before.tool else ''})"
    if before.text != after.text:
        return f"{what}: its text differs {_describe_texts(before.text, after.text)}"
    names = [[call.tool for call in each.tool_calls] for each in (before, after)]
    if names[0] != names[1]:
        return f"{what}: it called {names[0]}, now {names[1]}"
    return f"{what}: its calls have other arguments or ids"


def _describe_texts(before: str | _Text, after: str | _Text) -> str:
    sizes = [each.chars if isinstance(each, _Text) else len(each) for each in (before, after)]
    starts = [each.begins if isinstance(each, _Text) else each for each in (before, after)]
    pairs = enumerate(zip(*starts, strict=False))
    place = next((n for n, (a, b) in pairs if a != b), None)
    # Beyond the beginning of a long text only its digest is known.
    known = min(map(len, starts))
    where = f"after character {known}" if place is None else f"at character {place + 1}"
    return f"{where} (recorded {sizes[0]} characters, now {sizes[1]})"
