"""Tools: typed functions that a model may call.

All that can be wrong with one is found when it is made, not when a model first calls it.
"""

import dataclasses
import functools
import inspect
import itertools
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, Unpack, get_type_hints, overload

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

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.CALL_NAME_CHARS_MAX}}}")
# What a model is shown of a result, unless the tool says otherwise: 8,000 tokens, an eighth of the
# context at which a thread compacts.
RESULT_BYTES_MAX: Final = 32 * limits.KIB


class ResultTooLarge(Exception):
    """A tool returned more than a journal stores. The message is for the model."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            f"the result has at least {size_bytes} bytes; {limits.TEXT_BYTES_MAX} is the most. Ask "
            "for a part of it."
        )


class ToolOptions(TypedDict, total=False):
    """What `@tool` may be told."""

    needs_approval: bool | Callable[..., bool]
    """Whether a person has to agree before a call is run; or a function that takes the call's
    arguments by name and says so. If it raises, a person is asked."""
    approvers: list[str]
    """Who may decide. Left out: anybody who reaches the thread."""
    deadline_seconds: float
    """How long a decision is waited for. Left out: for good."""
    on_deadline: Literal["deny", "escalate"]
    """What happens then. `deny` (the default) tells the model so."""
    escalate_to: list[str]
    """Who may decide once it has been escalated."""
    timeout_seconds: float
    """How long one attempt may take. Left out: `limits.CALL_SECONDS_MAX`."""
    attempts_max: int
    """How often a call that raises is tried. Left out: `limits.CALL_ATTEMPTS_MAX`. 1 for a tool
    whose effect must not happen twice, if it has no use for an idempotency key."""
    max_result_bytes: int
    """How much of a result the model is shown; the journal keeps all of it. 32 KiB if left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that a model may call. Make one with `@tool`."""

    name: str
    description: str
    arguments: type[BaseModel]
    """The function's parameters. Use `parse`: the model's fields have names of their own."""
    function: Callable[..., Any]
    needs_approval: bool | Callable[..., bool] = False
    call_options: CallOptions = dataclasses.field(default_factory=CallOptions)
    """All but whether a call needs approval, which may depend on its arguments: see `options`."""
    max_result_bytes: int = RESULT_BYTES_MAX

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        schema = self.arguments.model_json_schema(schema_generator=_Schema)
        schema.pop("title", None)
        return schema

    def parse(self, arguments: str) -> dict[str, Any]:
        """Return what to call the function with; raise pydantic's `ValidationError`."""
        # No arguments at all is what some providers write where there is nothing to say.
        empty = arguments.strip() in ("", "null")
        parsed = self.arguments.model_validate_json("{}" if empty else arguments)
        fields = self.arguments.model_fields
        return {field.alias or name: getattr(parsed, name) for name, field in fields.items()}

    def options(self, arguments: str) -> CallOptions:
        """Return how a call with these arguments is to be run."""
        return dataclasses.replace(self.call_options, needs_approval=self._asks(arguments))

    def _asks(self, arguments: str) -> bool:
        if isinstance(self.needs_approval, bool) and not self.needs_approval:
            return False
        try:
            parsed = self.parse(arguments)
        except ValidationError:
            return False  # The call will be refused, so there is nothing to approve.
        if isinstance(self.needs_approval, bool):
            return True
        try:
            return bool(self.needs_approval(**parsed))
        except Exception:  # noqa: BLE001 - it is not our code; a person decides better than an error
            _LOG.warning("needs_approval of tool %r failed; a person is asked", self.name)
            return True

    def text_of(self, result: object) -> str:
        """Return what the function returned, as the model reads it.

        Text that is too large is refused before it is converted: that takes seconds in which no
        other code runs.
        """
        if result is None:
            return "done"
        if isinstance(result, str | bytes | bytearray | memoryview):
            check_result_size(len(result))
        if isinstance(result, str):
            # Lone surrogates, as from undecodable bytes, cannot be stored.
            return result.encode(errors="replace").decode()
        if isinstance(result, bytes | bytearray | memoryview):
            return bytes(result).decode(errors="replace")
        try:
            found = to_json(result)
        except (ValueError, RecursionError):  # Its message may quote the result.
            raise TypeError(
                f"tool {self.name!r} returned a {type(result).__name__} that is no JSON. Return text, "
                "bytes, None, or what pydantic can serialise."
            ) from None
        check_result_size(len(found))
        return found.decode()


def check_result_size(size_bytes: int) -> None:
    """Refuse a result of more bytes than a journal stores as one text."""
    if size_bytes > limits.TEXT_BYTES_MAX:
        raise ResultTooLarge(size_bytes)


class _Schema(GenerateJsonSchema):
    """Without titles, which only repeat the names and are read with every call."""

    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default"})  # type: ignore[assignment] # the base wants a set, and only looks into it

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, sync or async: `@tool`, or `@tool(needs_approval=True)`.

    The docstring's first paragraph describes it to the model, and its "Args:" section the parameters;
    the signature validates what a model writes. It returns text, bytes, None, or what pydantic can
    serialise. What it raises is retried. See `ToolOptions`, and `current_call` for what it may know.
    """
    if function is None:
        return functools.partial(_make_tool, options=options)
    return _make_tool(function, options)


def _make_tool(function: Callable[..., Any], options: ToolOptions) -> Tool:
    name = check_name(getattr(function, "__name__", ""), f"the function {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"tool {name!r} yields; return a list, or text")
    description, documented = _read_docstring(inspect.getdoc(function) or "")
    if not description:
        raise ConfigError(
            f"tool {name!r} has no docstring. Say in a sentence what it does: the model decides by it."
        )
    arguments = _arguments_of(name, function, documented)
    parameters = [field.alias or key for key, field in arguments.model_fields.items()]
    call_options = parse_options(name, dict(options), parameters)
    made = Tool(
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
    """Return a name that every provider takes for a tool, or raise."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} cannot be a tool: its name has to be 1 to {limits.CALL_NAME_CHARS_MAX} letters, "
            "digits, _ and -, because providers take no others. Rename it, or wrap it in a function."
        )
    return name


def _arguments_of(
    name: str, function: Callable[..., Any], documented: dict[str, str]
) -> type[BaseModel]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"tool {name!r}: the type {error.name!r} of its signature is not known when it is made. "
            "Define or import it at the top of the module, before the tool."
        ) from None
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}: {parameter} cannot be given by name; make it so")
        if parameter.name not in hints:
            raise ConfigError(f"tool {name!r}: parameter {parameter.name!r} needs a type")
        if isinstance(parameter.default, FieldInfo):
            raise ConfigError(
                f"tool {name!r}: write Annotated[..., Field(...)] as the type of {parameter.name!r}, "
                "and a plain value as its default"
            )
        hint = hints[parameter.name]
        # A name of ours, since some of theirs mean something else on a pydantic model.
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
    """Return the first paragraph, and what the "Args:" section says of each parameter."""
    lines = doc.strip().splitlines()
    start = next((n for n, line in enumerate(lines) if line.strip() in _SECTIONS), len(lines))
    paragraph = itertools.takewhile(str.strip, lines[:start])
    section = lines[start + 1 :]
    indent = next((_indent(line) for line in section if line.strip()), 0)
    found: dict[str, str] = {}
    current = ""
    for line in section:
        if line.strip() and _indent(line) < max(indent, 1):
            break  # The next section.
        matched = _ARGUMENT.match(line.strip()) if _indent(line) == indent else None
        if matched:
            current = matched[1]
            found[current] = matched[2]
        elif current:
            found[current] = f"{found[current]} {line.strip()}".strip()
    return " ".join(line.strip() for line in paragraph), found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


# A shorter part of a result is no use to a model.
_RESULT_BYTES_MIN: Final = 256
_APPROVAL: Final = ("approvers", "deadline_seconds", "on_deadline", "escalate_to")
_KNOWN: Final = (
    "needs_approval",
    *_APPROVAL,
    "timeout_seconds",
    "attempts_max",
    "max_result_bytes",
)


def parse_options(name: str, options: Mapping[str, Any], parameters: Sequence[str]) -> CallOptions:
    """Return the options of a tool, or raise `ConfigError` for the first that is wrong."""
    what = f"tool {name!r}"
    if unknown := sorted(set(options) - set(_KNOWN)):
        raise ConfigError(f"{what}: there is no {unknown[0]}; @tool takes {', '.join(_KNOWN)}")
    _check_rule(what, options.get("needs_approval", False), parameters)
    _check_approval(what, options)
    _check_at_least(what, options, "attempts_max", 1)
    _check_at_least(what, options, "max_result_bytes", _RESULT_BYTES_MIN)
    return CallOptions(
        timeout_seconds=_seconds(what, options, "timeout_seconds"),
        attempts_max=options.get("attempts_max"),
        approvers=_names(what, options, "approvers"),
        deadline_seconds=_seconds(what, options, "deadline_seconds"),
        on_deadline=options.get("on_deadline", "deny"),
        escalate_to=_names(what, options, "escalate_to"),
    )


def _check_rule(what: str, rule: object, parameters: Sequence[str]) -> None:
    if isinstance(rule, bool):
        return
    if not callable(rule) or inspect.iscoroutinefunction(rule):
        raise ConfigError(f"{what}: needs_approval is True, False, or a function that is not async")
    try:
        inspect.signature(rule).bind(**dict.fromkeys(parameters))
    except (TypeError, ValueError):
        raise ConfigError(
            f"{what}: needs_approval is called with the tool's arguments by name "
            f"({', '.join(parameters) or 'none'}). Take each of them, or end with **others."
        ) from None


def _check_approval(what: str, options: Mapping[str, Any]) -> None:
    everybody = _names(what, options, "approvers") + _names(what, options, "escalate_to")
    if sum(len(name.encode()) for name in everybody) > limits.APPROVERS_BYTES_MAX:
        raise ConfigError(
            f"{what}: approvers and escalate_to have over "
            f"{limits.APPROVERS_BYTES_MAX} bytes together. Name a group instead."
        )
    given = [each for each in _APPROVAL if each in options]
    if given and options.get("needs_approval", False) is False:
        raise ConfigError(f"{what}: {given[0]} says nothing without needs_approval. Set that too.")
    action = options.get("on_deadline", "deny")
    if action not in ("deny", "escalate"):
        raise ConfigError(f"{what}: on_deadline is 'deny' or 'escalate', not {action!r}")
    if "on_deadline" in options and "deadline_seconds" not in options:
        raise ConfigError(f"{what}: on_deadline needs deadline_seconds. Set that too.")
    if (action == "escalate") != bool(options.get("escalate_to")):
        raise ConfigError(
            f"{what}: on_deadline='escalate' and escalate_to=[...] go together. Set both or neither."
        )


def _check_at_least(what: str, options: Mapping[str, Any], option: str, least: int) -> None:
    value = options.get(option, least)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{what}: {option} is a whole number of at least {least}, not {value!r}")


def _seconds(what: str, options: Mapping[str, Any], option: str) -> float | None:
    if option not in options:
        return None
    value = options[option]
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 < value <= limits.ACTIVITY_SECONDS_MAX:
        raise ConfigError(
            f"{what}: {option} is over 0 and at most {limits.ACTIVITY_SECONDS_MAX:.0f} (30 days), "
            f"not {value!r}. Leave it out for the default."
        )
    return float(value)


def _names(what: str, options: Mapping[str, Any], option: str) -> tuple[str, ...]:
    names = options.get(option, ())
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{what}: {option} is a list of names, as in {option}=['alice']")
    if option in options and not names:
        raise ConfigError(f"{what}: {option} is empty. Name somebody, or leave it out.")
    return tuple(names)
