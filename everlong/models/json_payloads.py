"""JSON payloads of our own activities, written and read by pydantic.

The SDK's converter reads dataclasses field by field in Python, which takes longer than the rest of a
short step. If a team's converter writes anything but plain JSON, it is used instead.
"""

import contextlib
import dataclasses
import json
import weakref
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import PayloadConverter

T = TypeVar("T")

_ENCODING: Final = b"json/plain"


@dataclasses.dataclass(frozen=True)
class _Sample:
    """A value that shows how a converter writes dataclasses."""

    text: str = "plain"
    numbers: tuple[int, ...] = (1, 2)


_SAMPLE: Final = _Sample()
_SAMPLE_JSON: Final = {"text": "plain", "numbers": [1, 2]}
# Each workflow instance has a converter of its own.
_plain: Final[weakref.WeakKeyDictionary[PayloadConverter, bool]] = weakref.WeakKeyDictionary()


def to_raw(value: object, converter: PayloadConverter) -> RawValue:
    """Return the payload of a value as a `RawValue`, which the SDK does not convert."""
    if writes_plain_json(converter):
        try:
            # Defaults are not written, so the defaults of these models are part of the format.
            data = _get_adapter(type(value)).dump_json(value, exclude_defaults=True)
        except PydanticSerializationError:  # A lone surrogate: the SDK escapes it.
            return RawValue(converter.to_payload(value))
        return RawValue(Payload(metadata={"encoding": _ENCODING}, data=data))
    return RawValue(converter.to_payload(value))


def from_raw(raw: RawValue, value_type: type[T], converter: PayloadConverter) -> T:
    """Return the value of a payload."""
    payload = raw.payload
    if payload.metadata.get("encoding") == _ENCODING and writes_plain_json(converter):
        # Pydantic rejects an escaped lone surrogate. The SDK reads it, or raises for invalid JSON.
        with contextlib.suppress(ValidationError):
            found: T = _get_adapter(value_type).validate_json(payload.data)
            return found
    value: T = converter.from_payload(payload, value_type)
    return value


# Bounded: one adapter for each class that an activity takes or returns.
_adapters: Final[dict[type, TypeAdapter[Any]]] = {}


def _get_adapter(value_type: type) -> TypeAdapter[Any]:
    found = _adapters.get(value_type)
    if found is None:
        found = _adapters[value_type] = TypeAdapter(value_type)
    return found


def writes_plain_json(converter: PayloadConverter) -> bool:
    """Return whether a converter writes plain JSON. A team's may encrypt, or use another encoding."""
    try:
        found = _plain.get(converter)
    except TypeError:  # A converter that cannot be hashed.
        return _writes_plain_json(converter)
    if found is None:
        found = _plain[converter] = _writes_plain_json(converter)
    return found


def _writes_plain_json(converter: PayloadConverter) -> bool:
    sample = converter.to_payload(_SAMPLE)
    return dict(sample.metadata) == {"encoding": _ENCODING} and _holds_sample(sample.data)


def _holds_sample(data: bytes) -> bool:
    try:
        return bool(json.loads(data) == _SAMPLE_JSON)
    except ValueError:
        return False
