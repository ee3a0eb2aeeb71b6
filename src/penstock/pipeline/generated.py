"""Generated columns of the rows that a subscription writes (execReplication.c).

``GeneratedColumns`` is made from a target's schema. It is a frozen value that crosses to executors
and computes the columns there, from complete rows in the target's columns. Expressions were checked
when the column was created.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import pyarrow as pa

from penstock.attribute import Attribute
from penstock.errors import (
    FeatureNotSupported,
    PenstockError,
    RelationChanged,
    ValueNotRepresentable,
)
from penstock.lakehouse.schema import Column, TableSchema
from penstock.pgtypes.pg_type import JSONB
from penstock.pgtypes.registry import type_of_arrow
from penstock.pgtypes.variant import VARIANT
from penstock.pipeline.evaluate import Evaluation
from penstock.sql.to_duckdb.duckdb_change import compile_generation

_TABLES: Final = 256
"""The number of tables whose compiled expressions are kept, since every batch needs them."""


@dataclass(frozen=True)
class GeneratedColumn:
    """A generated column. ``name``: in Delta; ``arguments``: Delta names of the columns that
    ``evaluation`` takes."""

    name: str
    arguments: tuple[str, ...]
    evaluation: Evaluation


@dataclass(frozen=True)
class GeneratedColumns:
    """The generated columns of a table; most tables have none."""

    table: str
    columns: tuple[GeneratedColumn, ...] = ()

    def filled(self, rows: pa.Table) -> pa.Table:
        """Return the rows with their generated values. Raises ValueNotRepresentable with
        PostgreSQL's SQLSTATE for the error."""
        for column in self.columns:
            at = rows.schema.get_field_index(column.name)
            try:
                values = column.evaluation.values(*(rows[name] for name in column.arguments))
            except PenstockError as error:
                raise ValueNotRepresentable(
                    error.message,
                    detail=f'Table "{self.table}", generated column "{column.name}".',
                    sqlstate=error.sqlstate,
                ) from None
            rows = rows.set_column(at, rows.schema.field(at), values)
        return rows


@lru_cache(maxsize=_TABLES)
def generated_columns(schema: TableSchema, table: str) -> GeneratedColumns:
    """Return the generated columns of a target. Raises RelationChanged if an expression no longer
    fits the table."""
    if all(column.attribute.generation is None for column in schema.columns):
        return GeneratedColumns(table)
    known = tuple(_output(column) for column in schema.columns)
    made = [
        _generated_column(column, own, known, schema, table)
        for column, own in zip(schema.columns, known, strict=True)
        if column.attribute.generation is not None
    ]
    return GeneratedColumns(table, tuple(made))


def _generated_column(
    column: Column,
    own: Attribute,
    known: tuple[Attribute, ...],
    schema: TableSchema,
    table: str,
) -> GeneratedColumn:
    try:
        compiled = compile_generation(own, known, table)
    except PenstockError as error:
        raise RelationChanged(
            f'generated column "{column.name}" of table "{table}" cannot be made: {error.message}',
            detail=f"Its expression is {column.attribute.generation}.",
        ) from None
    used = [schema.by_source[item.name] for _, item in compiled.columns]
    for argument in used:
        if argument.type == VARIANT:
            raise RelationChanged(
                f'generated column "{column.name}" of table "{table}" cannot be made of a variant',
                detail=f'Its expression has the column "{argument.source}".',
                sqlstate=FeatureNotSupported.default_sqlstate,
            )
    arguments = tuple(argument.name for argument in used)
    names = tuple(name for name, _ in compiled.columns)
    evaluation = Evaluation(compiled.sql, compiled.relation, names, column.type, {})
    return GeneratedColumn(column.name, arguments, evaluation)


def _output(column: Column) -> Attribute:
    if column.attribute.type_oid:
        return column.attribute
    type_oid, typmod = (JSONB, -1) if column.type == VARIANT else type_of_arrow(column.type)
    return replace(column.attribute, type_oid=type_oid, typmod=typmod)
