"""The wire format against the protobuf package, and field numbers against Perfetto's descriptors."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from google.protobuf.internal import encoder
from gputrace.exporters import schema, wire
from hypothesis import example, given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

UINT64 = st.integers(0, (1 << 64) - 1)


@given(UINT64)
@example(0x7F)
@example(0x80)
@example(0x3FFF)
@example(0x4000)
def test_varint(value: int) -> None:
    assert wire.varint(value) == encoder._VarintBytes(value)  # type: ignore[attr-defined]


@given(st.integers(-(1 << 63), (1 << 63) - 1), UINT64, st.floats(), st.text())
def test_fields(signed: int, unsigned: int, real: float, text: str) -> None:
    body = wire.integer(4, signed) + wire.integer(3, unsigned) + wire.double(5, real) + wire.string(10, text)
    read = pb.DebugAnnotation.FromString(body)
    assert read.name == text.replace("\0", "\u2400")
    assert read.double_value == real or math.isnan(real)  # one of a oneof: the last
    assert pb.DebugAnnotation.FromString(wire.integer(4, signed)).int_value == signed
    assert pb.DebugAnnotation.FromString(wire.integer(3, unsigned)).uint_value == unsigned
    assert list(pb.TrackEvent.FromString(wire.fixed64(47, unsigned)).flow_ids) == [unsigned]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 3_000_000])
def test_lengths(size: int) -> None:
    assert pb.EventName.FromString(wire.message(2, b"x" * size)).name == "x" * size


MESSAGES = [value for _, value in inspect.getmembers(schema, inspect.isclass)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_numbers_are_perfettos(message: type) -> None:
    name = message.__name__
    if name == "BuiltinClock":
        descriptor: Any = pb.BuiltinClock.DESCRIPTOR
        known = {value.name: value.number for value in descriptor.values}
    else:
        descriptor = (pb.ClockSnapshot.Clock if name == "Clock" else getattr(pb, name)).DESCRIPTOR
        known = {field.name: field.number for field in descriptor.fields}
        known |= {value.name: value.number for enum in descriptor.enum_types for value in enum.values}
    ours = {key: value for key, value in vars(message).items() if not key.startswith("__")}
    assert ours
    assert {key: known.get(key) for key in ours} == ours


def test_names_of_args_are_interned_like_names() -> None:
    for field in ("iid", "name"):
        ours = getattr(schema.EventName, field)
        assert pb.DebugAnnotationName.DESCRIPTOR.fields_by_name[field].number == ours
