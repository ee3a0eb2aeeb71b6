"""VARIANT's encoding: what pyspark's own reader and ``variant_text`` make of it is the value."""

from __future__ import annotations

import json
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.variant_utils import VariantUtils

from faults.heavy import part_of_make_faults
from penstock.errors import PenstockError
from penstock.pgtypes.variant import (
    DEPTH_LIMIT,
    VARIANT,
    compared_text,
    encoded,
    variant_text,
    variants,
)
from penstock.sql.typed.literals import read_jsonb
from pgtypes import plain_variant

_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80)
_NUMBERS = (
    st.integers(-(10**38) + 1, 10**38 - 1)
    | st.decimals(-(10**20), 10**20, places=7)
    | st.sampled_from([0, 1, -1, 127, 128, -128, -129, 2**31, -(2**63), 2**63, Decimal("0.00")])
)


def _values(keys: st.SearchStrategy[str], most: int) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | _NUMBERS | _TEXTS,
        lambda inner: st.lists(inner, max_size=most) | st.dictionaries(keys, inner, max_size=most),
        max_leaves=30,
    )


_VALUES: st.SearchStrategy[Any] = _values(_TEXTS, 8)
_OF_FEW_KEYS = _values(st.sampled_from(["a", "b", "bb", "é", "", "😀", "ｚ"]), 4)


def _json(value: Any) -> str:
    """JSON text with each decimal's digits."""
    match value:
        case Decimal():
            return format(value, "f")
        case list():
            return f"[{','.join(map(_json, value))}]"
        case dict():
            return "{" + ",".join(f"{json.dumps(k)}:{_json(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def _read(text: str) -> Any:
    with localcontext(prec=80):  # its reader rounds as it multiplies
        return VariantUtils.to_python(*encoded(text))


def _text(text: str) -> Any:
    return variant_text(variants(pa.array([text])))[0].as_py()


@given(_VALUES)
def test_others_read_the_value(value: Any) -> None:
    text = read_jsonb(_json(value))
    assert _read(text) == json.loads(text, parse_float=Decimal)
    assert _text(text) == text


@given(st.lists(_OF_FEW_KEYS | _VALUES, max_size=8))
def test_what_is_remembered_changes_no_byte(values: list[Any]) -> None:
    texts: list[str | None] = [read_jsonb(_json(value)) for value in values]
    both = variants(pa.array([None, *texts, None, *texts, "{}"], pa.string()).slice(1))
    wanted = [plain_variant.encoded(text) for text in [*texts, *texts, "{}"] if text is not None]
    assert both.is_valid().to_pylist() == [True] * len(texts) + [False] + [True] * len(texts) + [
        True
    ]
    found = both.filter(both.is_valid())
    parts = (found.field(name).to_pylist() for name in ("value", "metadata"))
    assert list(zip(*parts, strict=True)) == wanted


@pytest.mark.parametrize(
    ("text", "value", "metadata"),
    [
        # as Spark's parse_json has it
        ("{}", "020000", "010000"),
        ("[]", "030000", "010000"),
        ("null", "00", "010000"),
        ("1", "0c01", "010000"),
        ("1.0", "20010a000000", "010000"),
        ("12345678901234567890", "2800d20a1feb8ca954ab0000000000000000", "010000"),
        ("1" + "0" * 40, "1ca55cc3f129633d48", "010000"),
        ('"é\\u0001\\"\\\\"', "15c3a901225c", "010000"),
        ('{"b": 1, "a": 2}', "020201000200040c010c02", "01020001026261"),
        ("0.00", "200200000000", "010000"),
        ("40000", "14409c0000", "010000"),
        ("-129", "107fff", "010000"),
        ("0." + "0" * 299 + "1", "1c59f3f8c21f6ea501", "010000"),
    ],
)
def test_the_bytes_are_those_of_spark(text: str, value: str, metadata: str) -> None:
    assert encoded(text) == (bytes.fromhex(value), bytes.fromhex(metadata))


@part_of_make_faults
def test_large_ones() -> None:
    keys = {f"k{n}": n for n in range(300)}
    for value in (keys, {"a" * 70000: [["x" * 70_000] * 300]}, list(range(100_000)), [keys] * 300):
        text = read_jsonb(json.dumps(value))
        assert _read(text) == value
        assert _text(text) == text
        assert encoded(text) == plain_variant.encoded(text)


def test_fields_are_where_spark_looks_for_them() -> None:
    """It compares strings as Java does: by UTF-16."""
    keys = ["Z", "é", "\uff5a", "😀", *(f"k{n:02}" for n in range(40))]
    value = encoded(json.dumps(dict.fromkeys(keys, 1)))[0]
    names = list(dict.fromkeys(keys))
    assert [names[i] for i in value[2 : 2 + len(keys)]] == [
        "Z",
        *keys[4:],
        "é",
        "😀",
        "\uff5a",
    ]


@pytest.mark.parametrize(
    ("text", "sqlstate", "told"),
    [
        ("0." + "1" * 39, "22003", "neither a decimal"),
        ("1" * 39, "22003", "neither a decimal"),
        ("1" + "0" * 400, "22003", "neither a decimal"),
        ("1" * 5000, "22003", "too many digits"),
        ("0." + "0" * 400 + "1", "22003", "neither a decimal"),
        ("[" * (DEPTH_LIMIT + 1) + "]" * (DEPTH_LIMIT + 1), "54001", "inside one another"),
        ("[" * 5000 + "]" * 5000, "54001", "inside one another"),
        ("{", "22P02", "invalid input syntax"),
        ("{} {}", "22P02", "invalid input syntax"),
        ("NaN", "22P02", "invalid input syntax"),
        ('"\\ud800"', "22P02", "invalid input syntax"),
    ],
)
def test_what_no_variant_holds(text: str, sqlstate: str, told: str) -> None:
    with pytest.raises(PenstockError) as caught:
        variants(pa.array([None, text]))
    assert caught.value.sqlstate == sqlstate
    assert told in f"{caught.value.message} {caught.value.detail}"


@pytest.mark.parametrize(
    "text",
    [
        "0.1" + "0" * 50,
        "12345678901234567890." + "0" * 30,
        "1" + "0" * 300,
    ],
)
def test_no_value_is_lost_at_the_limits(text: str) -> None:
    same = read_jsonb(text)
    compared = compared_text(variants(pa.array([same])))[0].as_py()
    assert json.loads(compared, parse_float=Decimal, parse_int=Decimal) == json.loads(
        same, parse_float=Decimal, parse_int=Decimal
    )


def test_deep_ones() -> None:
    assert _text("[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT) == "[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT


def test_null_is_not_json_null() -> None:
    column = variants(pa.array([None, "null"]))
    assert column.type == VARIANT
    assert column.is_null().to_pylist() == [True, False]
    assert variant_text(column.slice(1)).to_pylist() == ["null"]
    assert variants(pa.array([], pa.string())).type == VARIANT


def test_equal_values_compare_equal() -> None:
    texts = ['{"a": 1.00, "b": [0.0]}', '{"b":[0],"a":1}', '{"a": 1.01, "b": [0]}']
    one, same, other = compared_text(variants(pa.array(texts))).to_pylist()
    assert one == same != other
