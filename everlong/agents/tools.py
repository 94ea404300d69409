"""Tools: typed functions that a model may call.

A tool's signature, docstring and options are checked when it is defined, not when a model first calls
it. A running tool reads the ids of its call with `current_call`.
"""

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import itertools
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    TypedDict,
    TypeVar,
    Unpack,
    get_type_hints,
    overload,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_json

from everlong import limits
from everlong.errors import ConfigError
from everlong.models import CallOptions

F = TypeVar("F", bound=Callable[..., Any])
# Covariant and unbound, so that type checkers infer a list of tools for `[search, restart]`.
F_co = TypeVar("F_co", covariant=True)

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.CALL_NAME_CHARS_MAX}}}")
# Part of a result that a model is shown by default: 8,000 tokens, an eighth of the context at which a
# thread compacts.
RESULT_BYTES_MAX: Final = 32 * limits.KIB


class ResultTooLarge(Exception):
    """A tool returned more than a journal stores. The message is for the model."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            f"the result has at least {size_bytes} bytes; the maximum is {limits.TEXT_BYTES_MAX}. Ask "
            "for a part of it."
        )


class ResultInvalid(TypeError):
    """A tool returned a value that is not JSON."""


class OutcomeUnknown(Exception):
    """Raise it in a tool with `effects="once"` that does not know whether it took effect.

    For example if the connection broke after the request was sent. A person is asked then, and the model
    gets nothing until the answer. In any other tool it is an error like others: the call is retried.
    """


class ToolOptions(TypedDict, total=False):
    """Options of `@tool`."""

    needs_approval: bool | Callable[..., bool]
    """Whether a person must approve a call before it runs; or a function that takes the call's arguments
    by name and returns that. If the function raises, approval is required."""
    approvers: list[str]
    """Names of the users who may decide. Default: every user who can reach the thread."""
    approvals_needed: int | Literal["all"]
    """How many of them must approve: 1 (the default), a larger number, or all. One who denies is enough
    to deny."""
    always: bool
    """Whether a person may also allow later calls, with a grant. Default: True. A call that needs
    several approvals accepts no grants."""
    deadline_seconds: float
    """How long to wait for a decision. Default: forever."""
    on_deadline: Literal["deny", "escalate"]
    """What happens at the deadline. `deny` (the default) denies the call, and the model reads that."""
    escalate_to: list[str]
    """Names of the users who may decide after an escalation."""
    timeout_seconds: float
    """Timeout of one attempt. Default: `limits.CALL_SECONDS_MAX`."""
    attempts_max: int
    """Attempts of a call that raises. Default: `limits.CALL_ATTEMPTS_MAX`; 1 with `effects="once"`."""
    effects: Literal["once", "repeatable"]
    """`once` for a tool whose effect must not happen twice and that cannot use an idempotency key. It
    gets one attempt. If that has no known outcome, because its worker died or it timed out, a person has
    to say what became of it. Default: `once` if `attempts_max` is 1, else `repeatable`."""
    max_result_bytes: int
    """Bytes of a result that the model is shown; the journal keeps all of it. Default: 32 KiB."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that a model may call. Make one with `@tool`."""

    name: str
    description: str
    arguments: type[BaseModel]
    """The function's parameters as a pydantic model. Its fields have internal names: use `parse`."""
    function: Callable[..., Any]
    needs_approval: bool | Callable[..., bool] = False
    call_options: CallOptions = dataclasses.field(default_factory=CallOptions)
    """Options of every call, except `needs_approval`, which may depend on the arguments: see
    `options`."""
    max_result_bytes: int = RESULT_BYTES_MAX

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        schema = self.arguments.model_json_schema(schema_generator=_Schema)
        schema.pop("title", None)
        return schema

    def parse(self, arguments: str) -> dict[str, Any]:
        """Return the function's arguments. Raises pydantic's `ValidationError`."""
        # Some providers send an empty text for a call without arguments.
        empty = arguments.strip() in ("", "null")
        parsed = self.arguments.model_validate_json("{}" if empty else arguments)
        fields = self.arguments.model_fields
        return {field.alias or name: getattr(parsed, name) for name, field in fields.items()}

    def options(self, arguments: str) -> CallOptions:
        """Return the options of a call with these arguments."""
        return dataclasses.replace(self.call_options, needs_approval=self._must_ask(arguments))

    def _must_ask(self, arguments: str) -> bool:
        if isinstance(self.needs_approval, bool) and not self.needs_approval:
            return False
        try:
            parsed = self.parse(arguments)
        except ValidationError:
            return False  # Invalid arguments are rejected without asking for approval.
        if isinstance(self.needs_approval, bool):
            return True
        try:
            return bool(self.needs_approval(**parsed))
        except Exception:  # noqa: BLE001 - user code; on any error a person decides
            _LOG.warning("needs_approval of tool %r failed; approval is required", self.name)
            return True

    def format_result(self, result: object) -> str:
        """Return the function's result as text for the model.

        Text that is too large is refused before the conversion, which would block the event loop for
        seconds.
        """
        if result is None:
            return "done"
        if isinstance(result, str | bytes | bytearray | memoryview):
            check_result_size(len(result))
        if isinstance(result, str):
            # Lone surrogates, for example from undecodable bytes, cannot be stored.
            return result.encode(errors="replace").decode()
        if isinstance(result, bytes | bytearray | memoryview):
            return bytes(result).decode(errors="replace")
        try:
            found = to_json(result)
        except (ValueError, RecursionError):  # Not chained: its message may quote the result.
            raise ResultInvalid(
                f"tool {self.name!r} returned a value of type {type(result).__name__} that is not JSON. "
                "Return text, bytes, None, or a value that pydantic can serialise."
            ) from None
        check_result_size(len(found))
        return found.decode()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionTool(Tool, Generic[F_co]):
    """The result of `@tool`: a tool that is still callable as its function.

    A direct call runs the function with the given arguments, as if it were not decorated: it asks for no
    approval and validates no argument, and that of an async function returns a coroutine.
    """

    def __post_init__(self) -> None:
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            object.__setattr__(self, name, getattr(self.function, name, None))
        object.__setattr__(self, "__wrapped__", self.function)  # For `inspect.signature`.

    if TYPE_CHECKING:

        @property
        def __call__(self) -> F_co:
            """The function."""

    else:

        def __call__(self, *args, **kwargs):
            """Call the function."""
            return self.function(*args, **kwargs)


def check_result_size(size_bytes: int) -> None:
    """Raise `ResultTooLarge` for more bytes than a journal stores as one text."""
    if size_bytes > limits.TEXT_BYTES_MAX:
        raise ResultTooLarge(size_bytes)


class _Schema(GenerateJsonSchema):
    """JSON schema without titles: they only repeat the names, and every model call would read them."""

    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default"})  # type: ignore[assignment] # the base declares a set, and only reads it

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _ignore(_: str) -> None:
    """Drop the progress of a call: live output is off."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallInfo:
    """A running tool call."""

    thread_id: str
    agent: str
    call_id: str
    """The model's id of the call."""
    idempotency_key: str
    """The same for every attempt of this call, and unique to it. Pass it to services that take such
    keys, so that an effect happens once even if the tool runs twice."""
    attempt: int
    """Number of the attempt, from 1."""
    on_progress: Callable[[str], None] = dataclasses.field(
        default=_ignore, repr=False, compare=False
    )
    """What takes the texts of `progress`."""

    def progress(self, text: str) -> None:
        """Show people who follow the thread how far the call is, as in "34 of 200 files".

        Best effort: the newest text is shown while the call runs, up to 300 characters, and stored
        nowhere. It may be called often, from any thread, and does nothing where live output is off.
        """
        self.on_progress(text)


_CURRENT: contextvars.ContextVar[CallInfo] = contextvars.ContextVar("everlong_call")


def current_call() -> CallInfo:
    """Return the call of the running tool. Works in sync and async tools.

    A tool need not send heartbeats: Everlong sends them while the tool runs, so a crash of the worker is
    noticed within seconds, and another worker retries the call.
    """
    try:
        return _CURRENT.get()
    except LookupError:
        raise ConfigError(
            "current_call() was called outside a tool. Call it in the function decorated with @tool, "
            "and pass the values to threads that you start."
        ) from None


@contextlib.contextmanager
def set_current_call(call: CallInfo) -> Iterator[None]:
    """Make a call the current one inside the block, in this context and its copies."""
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@overload
def tool(function: F, /) -> FunctionTool[F]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[F], FunctionTool[F]]: ...


def tool(
    function: F | None = None, /, **options: Unpack[ToolOptions]
) -> FunctionTool[F] | Callable[[F], FunctionTool[F]]:
    """Make a tool of a typed function, sync or async: `@tool`, or `@tool(needs_approval=True)`.

    The docstring's first paragraph describes the tool to the model, and its "Args:" section the
    parameters; the signature validates the model's arguments. The function returns text, bytes, None, or
    a value that pydantic can serialise. A call that raises is retried. See `ToolOptions`, and
    `current_call` for the context of a call.

    The tool is still the function: your code and your tests call it as before, with its own types.
    """
    if function is None:
        return functools.partial(_make_tool, options=options)
    return _make_tool(function, options)


def _make_tool(function: F, options: ToolOptions) -> FunctionTool[F]:
    name = check_name(getattr(function, "__name__", ""), f"the function {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"tool {name!r} is a generator; return a list, or text")
    description, documented = _read_docstring(inspect.getdoc(function) or "")
    if not description:
        raise ConfigError(
            f"tool {name!r} has no docstring. Describe it in a sentence: the model decides by it."
        )
    arguments = _build_arguments(name, function, documented)
    parameters = [field.alias or key for key, field in arguments.model_fields.items()]
    call_options = parse_options(name, dict(options), parameters)
    made: FunctionTool[F] = FunctionTool(
        name=name,
        description=description,
        arguments=arguments,
        function=function,
        needs_approval=options.get("needs_approval", False),
        call_options=call_options,
        max_result_bytes=options.get("max_result_bytes", RESULT_BYTES_MAX),
    )
    try:
        _ = made.schema
    except PydanticUserError as error:
        raise ConfigError(
            f"tool {name!r} has a parameter that JSON cannot express: {error.message}"
        ) from None
    return made


def check_name(name: str, what: str) -> str:
    """Return a name if every provider accepts it for a tool; otherwise raise `ConfigError`."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} cannot be a tool: providers accept only names of 1 to {limits.CALL_NAME_CHARS_MAX} "
            "letters, digits, _ and -. Rename it, or wrap it in a function."
        )
    return name


def _build_arguments(
    name: str, function: Callable[..., Any], documented: dict[str, str]
) -> type[BaseModel]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"tool {name!r}: the type {error.name!r} in its signature is not defined yet. "
            "Define or import it at the top of the module, before the tool."
        ) from None
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"tool {name!r}: {parameter} cannot be passed by name; make it a named parameter"
            )
        if parameter.name not in hints:
            raise ConfigError(f"tool {name!r}: parameter {parameter.name!r} needs a type")
        if isinstance(parameter.default, FieldInfo):
            raise ConfigError(
                f"tool {name!r}: write Annotated[..., Field(...)] as the type of {parameter.name!r}, "
                "and a plain value as its default"
            )
        hint = hints[parameter.name]
        # An internal name, since a parameter may have a name that pydantic reserves.
        fields[f"argument_{number}"] = (
            hint,
            Field(
                ... if parameter.default is parameter.empty else parameter.default,
                alias=parameter.name,
                description=FieldInfo.from_annotation(hint).description
                or documented.get(parameter.name),
            ),
        )
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    except PydanticUserError as error:
        raise ConfigError(
            f"tool {name!r} has a parameter of a type that pydantic cannot check: {error.message}"
        ) from None


_SECTIONS: Final = ("Args:", "Arguments:", "Parameters:")
_ARGUMENT: Final = re.compile(r"(\w+)(?: \([^)]*\))?:\s*(.*)")


def _read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Return the first paragraph, and the description of each parameter from the "Args:" section."""
    lines = doc.strip().splitlines()
    start = next((n for n, line in enumerate(lines) if line.strip() in _SECTIONS), len(lines))
    paragraph = itertools.takewhile(str.strip, lines[:start])
    section = lines[start + 1 :]
    indent = next((_measure_indent(line) for line in section if line.strip()), 0)
    found: dict[str, str] = {}
    current = ""
    for line in section:
        if line.strip() and _measure_indent(line) < max(indent, 1):
            break  # The next section.
        matched = _ARGUMENT.match(line.strip()) if _measure_indent(line) == indent else None
        if matched:
            current = matched[1]
            found[current] = matched[2]
        elif current:
            found[current] = f"{found[current]} {line.strip()}".strip()
    return " ".join(line.strip() for line in paragraph), found


def _measure_indent(line: str) -> int:
    return len(line) - len(line.lstrip())


# A shorter part of a result is useless to a model.
_RESULT_BYTES_MIN: Final = 256
_PEOPLE: Final = ("approvers", "deadline_seconds", "on_deadline", "escalate_to")
_APPROVAL: Final = ("approvals_needed", "always")
_KNOWN: Final = (
    "needs_approval",
    *_PEOPLE,
    *_APPROVAL,
    "timeout_seconds",
    "attempts_max",
    "effects",
    "max_result_bytes",
)


def parse_options(name: str, options: Mapping[str, Any], parameters: Sequence[str]) -> CallOptions:
    """Return the options of a tool. Raises `ConfigError` for the first that is invalid."""
    what = f"tool {name!r}"
    if unknown := sorted(set(options) - set(_KNOWN)):
        raise ConfigError(f"{what}: unknown option {unknown[0]}; @tool takes {', '.join(_KNOWN)}")
    _check_rule(what, options.get("needs_approval", False), parameters)
    _check_approval(what, options)
    _check_at_least(what, options, "attempts_max", 1)
    _check_effects(what, options)
    _check_at_least(what, options, "max_result_bytes", _RESULT_BYTES_MIN)
    return CallOptions(
        timeout_seconds=_read_seconds(what, options, "timeout_seconds"),
        attempts_max=1 if _is_once(options) else options.get("attempts_max"),
        approvers=_read_names(what, options, "approvers"),
        deadline_seconds=_read_seconds(what, options, "deadline_seconds"),
        on_deadline=options.get("on_deadline", "deny"),
        escalate_to=_read_names(what, options, "escalate_to"),
        approvals_needed=_read_approvals_needed(what, options),
        always=options.get("always", True),
        once=_is_once(options),
    )


def _is_once(options: Mapping[str, Any]) -> bool:
    default = "once" if options.get("attempts_max") == 1 else "repeatable"
    return bool(options.get("effects", default) == "once")


def _check_effects(what: str, options: Mapping[str, Any]) -> None:
    effects = options.get("effects", "repeatable")
    if effects not in ("once", "repeatable"):
        raise ConfigError(f"{what}: effects must be 'once' or 'repeatable', not {effects!r}")
    if effects == "once" and options.get("attempts_max", 1) != 1:
        raise ConfigError(
            f"{what}: effects='once' allows one attempt. Leave attempts_max out, or take "
            "effects='repeatable'."
        )


def _read_approvals_needed(what: str, options: Mapping[str, Any]) -> int:
    """Return the number of approvals; 0 stands for all approvers."""
    value = options.get("approvals_needed", 1)
    approvers = _read_names(what, options, "approvers")
    if value == "all":
        if not approvers:
            raise ConfigError(f"{what}: approvals_needed='all' needs approvers. Set both.")
        value = len(set(approvers))
    _check_at_least(what, {"approvals_needed": value}, "approvals_needed", 1)
    most = min(limits.APPROVALS_NEEDED_MAX, len(set(approvers)) or limits.APPROVALS_NEEDED_MAX)
    if value > most:
        raise ConfigError(
            f"{what}: approvals_needed is {value}, and at most {most} can be: "
            + ("there are no more approvers" if approvers else "the bound of Everlong")
        )
    return 0 if options.get("approvals_needed") == "all" else int(value)


def _check_rule(what: str, rule: object, parameters: Sequence[str]) -> None:
    if isinstance(rule, bool):
        return
    if not callable(rule) or inspect.iscoroutinefunction(rule):
        raise ConfigError(f"{what}: needs_approval must be True, False, or a function, not async")
    try:
        inspect.signature(rule).bind(**dict.fromkeys(parameters))
    except (TypeError, ValueError):
        raise ConfigError(
            f"{what}: needs_approval is called with the tool's arguments by name "
            f"({', '.join(parameters) or 'none'}). Take each of them, or end with **others."
        ) from None


def _check_approval(what: str, options: Mapping[str, Any]) -> None:
    names = _read_names(what, options, "approvers") + _read_names(what, options, "escalate_to")
    if sum(len(name.encode()) for name in names) > limits.APPROVERS_BYTES_MAX:
        raise ConfigError(
            f"{what}: approvers and escalate_to have over "
            f"{limits.APPROVERS_BYTES_MAX} bytes together. Name a group instead."
        )
    if not isinstance(options.get("always", True), bool):
        raise ConfigError(f"{what}: always must be True or False, not {options['always']!r}")
    if options.get("needs_approval", False) is False:
        # They also name the people who say what became of a call with an unknown outcome.
        people = () if _is_once(options) else _PEOPLE
        if given := [each for each in (*_APPROVAL, *people) if each in options]:
            raise ConfigError(f"{what}: {given[0]} has no effect without needs_approval. Set both.")
    action = options.get("on_deadline", "deny")
    if action not in ("deny", "escalate"):
        raise ConfigError(f"{what}: on_deadline must be 'deny' or 'escalate', not {action!r}")
    if "on_deadline" in options and "deadline_seconds" not in options:
        raise ConfigError(f"{what}: on_deadline needs deadline_seconds. Set both.")
    if (action == "escalate") != bool(options.get("escalate_to")):
        raise ConfigError(
            f"{what}: on_deadline='escalate' and escalate_to=[...] go together. Set both or neither."
        )


def _check_at_least(what: str, options: Mapping[str, Any], option: str, least: int) -> None:
    value = options.get(option, least)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{what}: {option} must be an integer of at least {least}, not {value!r}")


def _read_seconds(what: str, options: Mapping[str, Any], option: str) -> float | None:
    if option not in options:
        return None
    value = options[option]
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 < value <= limits.ACTIVITY_SECONDS_MAX:
        raise ConfigError(
            f"{what}: {option} must be over 0 and at most {limits.ACTIVITY_SECONDS_MAX:.0f} (30 days), "
            f"not {value!r}. Leave it out for the default."
        )
    return float(value)


def _read_names(what: str, options: Mapping[str, Any], option: str) -> tuple[str, ...]:
    names = options.get(option, ())
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{what}: {option} must be a list of names, as in {option}=['alice']")
    if option in options and not names:
        raise ConfigError(f"{what}: {option} is empty. Give at least one name, or leave it out.")
    return tuple(dict.fromkeys(names))
