"""Payloads of our own activities: plain JSON where the converter writes that, else its own."""

import json

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
    PayloadConverter,
)

from everlong.models import Brief, Context, ThreadStart, ThreadState
from everlong.models.json_payloads import from_raw, to_raw
from everlong.policy import Policy

VALUE = Brief(
    context=Context(agent="ops", head=None, snapshot=None, now_ms=1),
    call_id="call-1",
    tool="ask",
    child_id="child",
)


class _ReversingConverter(JSONPlainPayloadConverter):
    """Stands for a converter that encrypts."""

    def to_payload(self, value: object) -> Payload | None:
        payload = super().to_payload(value)
        return payload and Payload(metadata=payload.metadata, data=payload.data[::-1])

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> object:
        plain = Payload(metadata=payload.metadata, data=payload.data[::-1])
        return super().from_payload(plain, type_hint)


class CompositeConverter(CompositePayloadConverter):
    """A composite converter, as teams write them."""

    def __init__(self) -> None:
        super().__init__(_ReversingConverter())


PLAIN = [DefaultPayloadConverter(), pydantic_data_converter.payload_converter]


@pytest.mark.parametrize("converter", PLAIN, ids=["default", "pydantic"])
def test_the_converter_and_our_json_read_each_other(
    converter: PayloadConverter,
) -> None:
    raw = to_raw(VALUE, converter)
    assert raw.payload.metadata["encoding"] == b"json/plain"
    assert converter.from_payload(raw.payload, Brief) == VALUE
    assert from_raw(RawValue(converter.to_payload(VALUE)), Brief, converter) == VALUE


def test_an_opaque_converter_is_used_unchanged() -> None:
    converter = CompositeConverter()
    to_raw(VALUE, PLAIN[0])  # One that is plain was seen before.
    raw = to_raw(VALUE, converter)
    assert raw.payload.data == converter.to_payload(VALUE).data
    assert b'"agent"' not in raw.payload.data
    assert from_raw(raw, Brief, converter) == VALUE


def test_a_lone_surrogate_is_written_as_the_sdk_writes_it() -> None:
    value = Brief(context=VALUE.context, call_id="\ud800", tool="ask", child_id="child")
    raw = to_raw(value, DataConverter.default.payload_converter)
    assert from_raw(raw, Brief, DefaultPayloadConverter()).call_id == "\ud800"


def test_fields_at_their_default_are_not_written() -> None:
    raw = to_raw(VALUE, DefaultPayloadConverter())
    assert b"policy" not in raw.payload.data
    assert from_raw(raw, Brief, DefaultPayloadConverter()) == VALUE


def test_a_thread_keeps_every_field_of_its_policy_when_it_rolls() -> None:
    # A later release may have other defaults; the thread began with these.
    start = ThreadStart(agent="ops", policy=Policy(), state=ThreadState(in_turn=True))
    raw = to_raw(start, DefaultPayloadConverter())
    assert set(json.loads(raw.payload.data)["policy"]) == set(Policy().fields())
    assert json.loads(raw.payload.data)["state"] == {"in_turn": True}
    assert from_raw(raw, ThreadStart, DefaultPayloadConverter()) == start
    assert DefaultPayloadConverter().from_payload(raw.payload, ThreadStart) == start
