"""Every family: columns equal single values, binary equals text, arrays equal their elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pgtypes import FAMILIES, Cells, arrow_type, binary_supported, find
from pgtypes.values import KINDS, OTHER, Kind, array_out, array_send

BOTH = [*KINDS.items()]
NAMES = [name for name, _ in BOTH]


def cells(raws: Sequence[bytes | None], gap: bytes = b"\xff") -> Cells:
    """Values with something else between them, as in a message."""
    data, start, length = b"", [], []
    for raw in raws:
        data += gap
        start.append(len(data) if raw is not None else -5)
        length.append(len(raw) if raw is not None else 99)
        data += raw or b""
    return Cells(
        np.frombuffer(data, np.uint8),
        np.array(start, np.int32),
        np.array(length, np.int32),
        np.array([raw is None for raw in raws]) if None in raws else None,
    )


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


def check(kind: Kind, oid: int, values: list[Any], raws: list[Any], wanted: list[Any]) -> None:
    family = find(oid)
    for form, encoded in zip(("text", "binary"), raws, strict=True):
        if encoded is None:
            continue
        column = getattr(family, f"{form}_column")(cells(encoded), kind.typmod)
        column.validate(full=True)
        assert column.type == arrow_type(oid, kind.typmod)
        got = column.to_pylist()
        read = getattr(family, f"{form}_value")
        single = [None if raw is None else read(raw, kind.typmod) for raw in encoded]
        assert all(map(same, got, single)), (form, got, single)
        assert all(map(same, got, wanted)), (form, got, wanted)


@pytest.mark.parametrize("name", [*NAMES, "other"])
def test_columns_equal_values_in_both_formats(name: str) -> None:
    kind = KINDS.get(name, OTHER)

    @given(st.lists(st.one_of(st.none(), kind.values), max_size=8))
    @settings(max_examples=40, deadline=None)
    def run(values: list[Any]) -> None:
        text = [None if v is None else kind.text(v) for v in values]
        binary = [None if v is None else kind.binary(v) for v in values] if kind.binary else None
        check(
            kind,
            kind.oid,
            values,
            [text, binary],
            [v if v is None else kind.result(v) for v in values],
        )

    run()


@pytest.mark.parametrize("name", NAMES)
def test_arrays_equal_their_elements_in_both_formats(name: str) -> None:
    kind = KINDS[name]
    assert kind.binary is not None
    binary_of = kind.binary
    array = st.lists(st.one_of(st.none(), kind.values), max_size=5)

    def each(encode: Any, values: list[Any]) -> list[Any]:
        return [None if v is None else encode(v) for v in values]

    @given(st.lists(st.one_of(st.none(), array), max_size=30))
    @settings(max_examples=25, deadline=None)
    def run(values: list[Any]) -> None:
        text = [None if v is None else array_out(each(kind.text, v)) for v in values]
        binary = [None if v is None else array_send(kind.oid, each(binary_of, v)) for v in values]
        wanted = [None if v is None else each(kind.result, v) for v in values]
        check(kind, kind.array_oid, values, [text, binary], wanted)

    run()


def test_each_oid_has_one_family_and_names_are_format_type_s() -> None:
    oids = [oid for family in FAMILIES for oid in family.oids]
    assert len(oids) == len(set(oids))
    assert find(1184).name == "timestamp with time zone"
    assert find(1007).name == "integer[]"


def test_types_without_a_family_are_text_and_have_no_binary_format() -> None:
    assert str(arrow_type(600, -1)) == "string"
    assert not binary_supported(600)
    assert binary_supported(1231)


def test_long_arrays_beside_short_ones() -> None:
    values = [[f"element {i}" for i in range(n)] for n in (5000, 1, 0, 3, *([2] * 40), 700)]
    raws = [array_send(25, [v.encode() for v in value]) for value in values]
    assert find(1009).binary_column(cells(raws), -1).to_pylist() == values
