"""Configuration file of notifications: TOML, which `EVERLONG_NOTIFY` names.

Secrets are not in the file. It names the environment variable or the file that has one, by the suffix
`_env` or `_file`: `secret_env = "OPS_WEBHOOK_SECRET"`.
"""

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError

from everlong import limits
from everlong.errors import ConfigError, quote, suggest
from everlong.notify.mail import Email
from everlong.notify.sinks import Notify, QuietHours, Sink
from everlong.notify.slack import Slack
from everlong.notify.webhook import Webhook

_KINDS: Final[dict[str, type[Sink]]] = {"webhook": Webhook, "slack": Slack, "email": Email}
_SECRETS: Final = frozenset({"secret", "token", "signing_secret", "password"})
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_TOP: Final = frozenset({"url", "deadline_minutes", "held_minutes", "sinks"})


def load_notify(path: str, environ: Mapping[str, str]) -> Notify | None:
    """Return the configuration in a file; None for an empty path.

    `environ` has the variables that the file names for secrets: pass `os.environ`.
    """
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            text = file.read(limits.NOTIFY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"EVERLONG_NOTIFY is {quote(path)}, which cannot be read: {error.strerror}"
        ) from None
    if len(text) > limits.NOTIFY_FILE_BYTES_MAX:
        raise ConfigError(f"{quote(path)} is larger than {limits.NOTIFY_FILE_BYTES_MAX} bytes")
    try:
        found = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{quote(path)} is not valid TOML: {error}") from None
    return parse_notify(found, environ)


def parse_notify(found: Mapping[str, Any], environ: Mapping[str, str]) -> Notify:
    """Return the configuration that a parsed file holds."""
    _check_fields("the notify file", found, _TOP)
    tables = found.get("sinks", {})
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise ConfigError("write each sink as a table of its own: [sinks.NAME]")
    sinks = [_parse_sink(name, table, environ) for name, table in tables.items()]
    top = {name: value for name, value in found.items() if name != "sinks"}
    found_notify: Notify = _build(Notify, {**top, "sinks": sinks}, "the notify file")
    return found_notify


def _parse_sink(name: str, table: Mapping[str, Any], environ: Mapping[str, str]) -> Sink:
    what = f"sink {quote(name)}"
    kind = table.get("kind")
    if kind not in _KINDS:
        raise ConfigError(f"{what}: kind is one of {', '.join(_KINDS)}")
    sink_type = _KINDS[kind]
    values = {key: value for key, value in table.items() if key != "kind"}
    if "quiet" in values:
        quiet = {"hours": values.pop("quiet"), "zone": values.pop("zone", "UTC")}
        values["quiet"] = _build(QuietHours, quiet, what)
    known = {field.name for field in dataclasses.fields(sink_type)} - {"name"}
    for secret in _SECRETS & known:
        if secret in values:
            raise ConfigError(
                f"{what}: {secret} is not in this file. Name where it is: {secret}_env = "
                f'"VARIABLE", or {secret}_file = "/path"'
            )
        if (text := _read_secret(what, secret, values, environ)) is not None:
            values[secret] = text
    _check_fields(what, values, known | {f"{each}_env" for each in _SECRETS & known})
    sink: Sink = _build(sink_type, {**values, "name": name}, what)
    return sink


def _read_secret(
    what: str, secret: str, values: dict[str, Any], environ: Mapping[str, str]
) -> str | None:
    """Take the place of a secret from a table, and return the secret; None if it has none."""
    variable, path = values.pop(f"{secret}_env", None), values.pop(f"{secret}_file", None)
    if variable is None and path is None:
        return None
    if variable is not None and path is not None:
        raise ConfigError(f"{what}: give {secret}_env or {secret}_file, not both")
    if variable is not None:
        text = environ.get(str(variable), "")
        where = f"the environment variable that {secret}_env names"
        if _VARIABLE.fullmatch(str(variable)):  # Else it may be the secret itself.
            where = f"the environment variable {variable}"
    else:
        where = f"the file {quote(str(path))}"
        try:
            with Path(str(path)).open(encoding="utf-8") as file:
                text = file.read(limits.NOTIFY_FILE_BYTES_MAX)
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"{what}: {where} cannot be read") from None
    if not (text := text.strip()):
        raise ConfigError(f"{what}: {where} is empty, and should hold its {secret}")
    return text


def _check_fields(what: str, values: Mapping[str, Any], known: set[str] | frozenset[str]) -> None:
    for name in values:
        if name not in known:
            raise ConfigError(f"{what} has no setting {quote(name)}.{suggest(name, known)}")


def _build(made: type[Any], values: dict[str, Any], what: str) -> Any:
    """Return an object of values whose types are checked first: a file may hold any."""
    fields = {field.name: field for field in dataclasses.fields(made)}
    for name, value in values.items():
        field = fields[name]
        if name in ("sinks", "quiet"):
            continue
        try:
            TypeAdapter[Any](cast("Any", field.type)).validate_python(
                value, strict=name not in _NUMBERS
            )
        except ValidationError:
            raise ConfigError(f"{what}: {name} has a value of the wrong type") from None
    try:
        return made(**values)
    except TypeError:
        required = [
            name
            for name, field in fields.items()
            if field.default is field.default_factory and name not in values
        ]
        raise ConfigError(f"{what} lacks: {', '.join(required)}") from None


# A whole number is accepted where a fraction is possible.
_NUMBERS: Final = frozenset({"deadline_minutes", "held_minutes", "seconds_max"})
