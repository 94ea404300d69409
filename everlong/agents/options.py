"""Checks of what `@tool` was told. What cannot be meant is refused, with what to write instead."""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from everlong import limits
from everlong.errors import ConfigError
from everlong.models import CallOptions

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


def checked_options(
    name: str, options: Mapping[str, Any], parameters: Sequence[str]
) -> CallOptions:
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
