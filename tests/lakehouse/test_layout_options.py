"""The texts of partition_by and cluster_by."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.attribute import Attribute
from penstock.errors import InvalidParameterValue
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.table_layout import NewTableLayouts, TableLayout, column_lists


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        ("", {}),
        ("t(a)", {("public", "t"): ("a",)}),
        (" S.T ( A, b ) ;u(c);", {("s", "t"): ("a", "b"), ("public", "u"): ("c",)}),
        ("t (a), u (b, c)", {("public", "t"): ("a",), ("public", "u"): ("b", "c")}),
        (
            '"S;1"."T(""x"")" ("A,b", "c)")',
            {("S;1", 'T("x")'): ("A,b", "c)")},
        ),
    ],
)
def test_lists(text: str, lists: dict[tuple[str, str], tuple[str, ...]]) -> None:
    assert column_lists("partition_by", text) == lists


@pytest.mark.parametrize(
    "text", ["t", "t()", "(a)", "t(a) u(b) x", "a.b.c(d)", "t(a,)", "t(a", "t(a, a)", "t(a); t(b)"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(InvalidParameterValue, match='"cluster_by"'):
        column_lists("cluster_by", text)


def test_a_table_is_laid_out_one_way() -> None:
    with pytest.raises(InvalidParameterValue, match=r"partition_by and in cluster_by"):
        NewTableLayouts.of("t (a)", "public.t (b)")


def test_columns_are_found_by_the_names_of_the_publisher() -> None:
    schema = TableSchema(
        (Column("a_b", Attribute("a b", 0), pa.int32()), Column("c", Attribute("c", 0), pa.int32()))
    )
    layouts = NewTableLayouts.of('t ("a b")', "u (c)")
    assert layouts.layout_of(("public", "t"), schema) == TableLayout(("a_b",))
    assert layouts.layout_of(("public", "u"), schema) == TableLayout((), ("c",))
    assert layouts.layout_of(("other", "t"), schema) == TableLayout()
    with pytest.raises(InvalidParameterValue, match="a_b"):
        NewTableLayouts.of("t (a_b)", "").layout_of(("public", "t"), schema)
