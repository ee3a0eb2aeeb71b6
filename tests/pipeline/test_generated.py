"""Generated columns of whole rows in a task: by the target's names, with PostgreSQL's errors."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.attribute import AttGenerated, Attribute
from penstock.errors import RelationChanged, ValueNotRepresentable
from penstock.lakehouse.schema import TableSchema
from penstock.pipeline.generated import generated_columns
from penstock.relation import Relation, ReplicaIdentity

_INT4, _TEXT = 23, 25


def schema(**expressions: str) -> TableSchema:
    """Of (twice, "A b", t), in which PostgreSQL's names are not Delta's."""
    attributes = tuple(
        Attribute(name, oid, generated=AttGenerated.STORED, generation=expressions[name])
        if name in expressions
        else Attribute(name, oid)
        for name, oid in (("twice", _INT4), ("A b;", _INT4), ("t", _TEXT))
    )
    made = TableSchema.of_relation(Relation(1, "public", "g", ReplicaIdentity.FULL, attributes))
    columns = (replace(c, local=True) for c in made.columns)
    return TableSchema(tuple(columns))


def rows(made: TableSchema, values: list[tuple[int | None, str | None]]) -> pa.Table:
    cells = [[None] * len(values), *map(list, zip(*values, strict=True))]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(cells, made.arrow(), strict=True)],
        schema=made.arrow(),
    )


def test_values_are_made_of_the_other_columns() -> None:
    made = schema(twice='("A b;" * 2)')
    generated = pickle.loads(pickle.dumps(generated_columns(made, "public.g")))
    filled = generated.filled(rows(made, [(1, "x"), (None, None), (-4, "y")]))
    assert filled.schema == made.arrow()
    assert filled.column(0).to_pylist() == [2, None, -8]
    assert filled.column(2).to_pylist() == ["x", None, "y"]


def test_a_quotient_has_postgresqls_digits() -> None:
    made = schema(t='("A b;"::numeric / 7)::text')
    filled = generated_columns(made, "public.g").filled(rows(made, [(1, None), (700000, None)]))
    assert filled.column(2).to_pylist() == ["0.14285714285714285714", "100000.000000000000"]


def test_an_expression_without_columns_and_rows() -> None:
    made = schema(twice="7", t="'made'::text")
    filled = generated_columns(made, "public.g").filled(rows(made, [(1, None), (2, None)]))
    assert filled.column(0).to_pylist() == [7, 7]
    assert filled.column(2).to_pylist() == ["made", "made"]
    empty = made.arrow().empty_table()
    assert generated_columns(made, "public.g").filled(empty) == empty


def test_an_error_names_the_column() -> None:
    made = schema(twice='(100 / "A b;")')
    with pytest.raises(ValueNotRepresentable, match="division by zero") as caught:
        generated_columns(made, "public.g").filled(rows(made, [(1, None), (0, None)]))
    assert caught.value.sqlstate == "22012"
    assert caught.value.detail == 'Table "public.g", generated column "twice".'


def test_rows_without_a_key_are_told_apart_by_the_others() -> None:
    made = schema(twice='("A b;" * 2)')
    others = tuple(column.name for column in made.columns[1:])
    assert made.identity == others
    assert replace(made, key=others[:1]).identity == others[:1]


def test_the_expression_stays_in_the_metadata() -> None:
    made = schema(twice='("A b;" * 2)')
    assert TableSchema.of_delta(made.delta_json(), {}) == made


def test_an_expression_that_does_not_fit_any_more() -> None:
    with pytest.raises(RelationChanged, match="cannot be made") as caught:
        generated_columns(schema(twice="(gone * 2)"), "public.g")
    assert 'column "gone" does not exist' in caught.value.message
