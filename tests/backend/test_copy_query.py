"""What a node asks of a publisher when it copies a table is understood by a node."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import penstock.pgtypes as pgtypes
from penstock.attribute import Attribute
from penstock.backend.runner import copy_of_rows
from penstock.identifiers import quoted
from penstock.pgtypes.text_output import text_cast
from penstock.protocol.answers import Cells, Rows
from penstock.protocol.backend_messages import FieldDescription
from penstock.sql import Copy, parse
from penstock.sql.grammar.copy import CopyForm, CopyTarget, copy_query
from penstock.sql.grammar.parsenodes import RangeVar
from penstock.sql.grammar.raw_statements import parse_expression, parse_select


@pytest.mark.parametrize(
    ("type_oid", "typmod", "form"),
    [
        (23, -1, CopyForm.VALUE),
        (1700, 655366, CopyForm.VALUE),
        (1700, -1, CopyForm.CAST),
        (1007, -1, CopyForm.VALUE),
        (1231, -1, CopyForm.CAST),
        (869, -1, CopyForm.OUTPUT),
        (1186, -1, CopyForm.OUTPUT),
        (99999, -1, CopyForm.OUTPUT),
    ],
    ids=[
        "integer",
        "numeric(10,2)",
        "numeric",
        "integer[]",
        "numeric[]",
        "inet",
        "interval",
        "enum",
    ],
)
def test_every_form_of_a_column(type_oid: int, typmod: int, form: CopyForm) -> None:
    for name in ("a", "case", 'the "A", :: b', "ünï"):
        asked = pgtypes.find(type_oid).copy_expression(quoted(name), typmod)
        query = copy_query(parse_select(f'SELECT "id", {asked} FROM ONLY "s"."t" WHERE (id > 1)'))
        assert query is not None
        assert query.columns == (CopyTarget("id"), CopyTarget(name, form))
        assert query.relation == RangeVar("t", "s", only=True)
        assert query.where == parse_expression("id > 1")


@pytest.mark.parametrize(
    "asked",
    [
        "a::integer",
        "a::text::text",
        "CASE WHEN num_nulls(a) = 1 THEN format('%s', a) END",
        "CASE WHEN num_nulls(a) = 0 THEN format('%L', a) END",
        "CASE WHEN num_nulls(a) = 0 THEN format('%s', b) END",
        "CASE WHEN num_nulls(a) = 0 THEN format('%s', a) ELSE '' END",
        "upper(a)",
    ],
)
def test_nothing_else_is_taken_for_it(asked: str) -> None:
    assert copy_query(parse_select(f"SELECT {asked} FROM t")) is None


def test_a_cast_is_not_what_is_printed() -> None:
    """SELECT v::text of a server, for the three types where it differs."""
    for values, oid, wanted in (
        (pa.array([True, False, None]), 16, [b"true", b"false", None]),
        (pa.array(["ab   ", "  ", None]), 1042, [b"ab", b"", None]),
        (
            pa.array(["10.0.0.1", "10.0.0.0/8", "::1", "2001:db8::/32", None]),
            869,
            [b"10.0.0.1/32", b"10.0.0.0/8", b"::1/128", b"2001:db8::/32", None],
        ),
    ):
        assert text_cast(values, oid).to_pylist() == wanted


def test_rows_are_drawn_while_they_are_taken() -> None:
    drawn = 0

    def rows() -> Iterator[Cells]:
        nonlocal drawn
        for _ in range(100):
            drawn += 1
            yield [b"x" * 100_000, None]

    fields = (FieldDescription(Attribute("a", 25)), FieldDescription(Attribute("b", 25)))
    statement = parse("COPY (SELECT 1) TO STDOUT")
    assert isinstance(statement, Copy)
    chunks = iter(copy_of_rows(Rows(fields, rows()), statement).chunks)
    first, _ = next(chunks)
    assert first == drawn == 3
    assert first + sum(count for count, _ in chunks) == 100
