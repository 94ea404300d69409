"""Readable form of the OpenAPI document: operations by resource, and the models of their values.

The page `/api/docs` and the site's HTTP reference show the same. The document is our own, so this reads
what FastAPI writes of it, and no other OpenAPI.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_METHODS: Final = ("get", "post", "put", "patch", "delete")
_JSON: Final = "application/json"
_REF: Final = "#/components/schemas/"
# Nested types of a field, such as a list of lists of models. Our documents have three levels.
_TYPE_DEPTH_MAX: Final = 8


@dataclasses.dataclass(frozen=True)
class TypeText:
    """A type as a text, and the names of the models in it."""

    text: str
    models: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[tuple[str, bool], ...]:
        """The text in parts; True for one that is the name of a model."""
        if not self.models:
            return ((self.text, False),) if self.text else ()
        names = "|".join(sorted(map(re.escape, set(self.models)), key=len, reverse=True))
        found = re.split(rf"\b({names})\b", self.text)
        return tuple((part, part in self.models) for part in found if part)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A parameter of an operation, or a field of a model."""

    name: str
    type: TypeText
    place: str = ""
    """Where a parameter is sent: path, query or header."""
    is_required: bool = False
    default: str = ""
    """As JSON; empty if there is none."""
    description: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """A response of an operation."""

    status: str
    description: str
    type: TypeText


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """A method of a path."""

    method: str
    path: str
    summary: str
    description: str
    parameters: tuple[Field, ...]
    body: TypeText | None
    answers: tuple[Answer, ...]
    """The responses below 400. `ApiDescription.errors` lists the others once for all operations."""

    @property
    def anchor(self) -> str:
        """Fragment of the operation's URL on the page."""
        path = self.path.strip("/").replace("{", "").replace("}", "").replace("/", "-")
        return f"{self.method.lower()}-{path}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A schema with a name: an object with fields, or one of some values."""

    name: str
    description: str
    fields: tuple[Field, ...]
    values: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApiDescription:
    """The whole API."""

    title: str
    summary: str
    version: str
    operations: Mapping[str, tuple[Operation, ...]]
    """By resource, in the order of the document."""
    errors: Mapping[str, str]
    """Meaning of each status from 400 on."""
    models: tuple[Model, ...]
    """By name."""


def describe_api(document: Mapping[str, Any]) -> ApiDescription:
    """Return the readable form of an OpenAPI document."""
    operations: dict[str, list[Operation]] = {}
    errors: dict[str, str] = {}
    for path, methods in document["paths"].items():
        for method in (each for each in _METHODS if each in methods):
            source = methods[method]
            resource = (source.get("tags") or ["other"])[0]
            operations.setdefault(resource, []).append(_read_operation(method, path, source))
            for status, answer in source["responses"].items():
                if status >= "400":
                    errors.setdefault(status, answer.get("description", ""))
    info = document["info"]
    schemas = document.get("components", {}).get("schemas", {})
    return ApiDescription(
        title=info["title"],
        summary=info.get("summary", ""),
        version=info["version"],
        operations={name: tuple(found) for name, found in operations.items()},
        errors=dict(sorted(errors.items())),
        models=tuple(_read_model(name, schemas[name]) for name in sorted(schemas)),
    )


def _read_operation(method: str, path: str, source: Mapping[str, Any]) -> Operation:
    body = source.get("requestBody")
    return Operation(
        method=method.upper(),
        path=path,
        summary=source.get("summary", ""),
        description=source.get("description", ""),
        parameters=tuple(
            _read_field(
                each["name"],
                each.get("schema", {}),
                place=each["in"],
                is_required=each.get("required", False),
                description=each.get("description", ""),
            )
            for each in source.get("parameters", [])
        ),
        body=None if body is None else _read_content(body),
        answers=tuple(
            Answer(
                status=status,
                description=answer.get("description", ""),
                type=_read_content(answer),
            )
            for status, answer in sorted(source["responses"].items())
            if status < "400"
        ),
    )


def _read_content(source: Mapping[str, Any]) -> TypeText:
    content = source.get("content", {})
    if _JSON in content:
        return _read_type(content[_JSON].get("schema", {}))
    return TypeText(", ".join(content))


def _read_model(name: str, schema: Mapping[str, Any]) -> Model:
    required = schema.get("required", ())
    return Model(
        name=name,
        description=schema.get("description", ""),
        fields=tuple(
            _read_field(field, source, is_required=field in required)
            for field, source in schema.get("properties", {}).items()
        ),
        values=tuple(map(str, schema.get("enum", ()))),
    )


def _read_field(
    name: str,
    schema: Mapping[str, Any],
    *,
    place: str = "",
    is_required: bool = False,
    description: str = "",
) -> Field:
    return Field(
        name=name,
        type=_read_type(schema),
        place=place,
        is_required=is_required,
        default=json.dumps(schema["default"], ensure_ascii=False) if "default" in schema else "",
        description=description or schema.get("description", ""),
    )


def _read_type(schema: Mapping[str, Any], depth: int = 0) -> TypeText:
    """Return a type as in Python's annotations, with its bounds: `list[Entry]`, `integer (1 to 500)`."""
    if depth > _TYPE_DEPTH_MAX:
        return TypeText("any")
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return TypeText(name, (name,))
    for joined in ("anyOf", "oneOf", "allOf"):
        if joined in schema:
            return _join(_read_type(each, depth + 1) for each in schema[joined])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return TypeText(" | ".join(json.dumps(each, ensure_ascii=False) for each in values))
    return _read_plain_type(schema, depth)


def _read_plain_type(schema: Mapping[str, Any], depth: int) -> TypeText:
    match schema.get("type"):
        case "array":
            if "items" not in schema:
                items = [_read_type(each, depth + 1) for each in schema.get("prefixItems", [])]
                return _wrap("tuple", items)
            return _wrap("list", [_read_type(schema["items"], depth + 1)])
        case "object":
            values = schema.get("additionalProperties")
            if not isinstance(values, dict):
                return TypeText("object")
            return _wrap("dict", [TypeText("string"), _read_type(values, depth + 1)])
        case list() as names:
            return TypeText(" | ".join(names))
        case str() as name:
            return TypeText(name + _show_bounds(schema))
        case _:
            return TypeText("any")


def _wrap(name: str, inner: Sequence[TypeText]) -> TypeText:
    text = ", ".join(each.text for each in inner)
    return TypeText(f"{name}[{text}]", tuple(model for each in inner for model in each.models))


def _join(found: Iterator[TypeText]) -> TypeText:
    kinds = list(dict.fromkeys(found))
    return TypeText(
        " | ".join(each.text for each in kinds),
        tuple(model for each in kinds for model in each.models),
    )


def _show_bounds(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" ({low} to {high})"
    if low is not None or high is not None:
        return f" (at least {low})" if high is None else f" (at most {high})"
    if "maxLength" in schema:
        return f" (at most {schema['maxLength']} characters)"
    return ""
