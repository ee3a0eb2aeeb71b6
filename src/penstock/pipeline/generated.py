"""Generated columns of the rows that a subscription writes (execReplication.c).

In: a target's schema. Out: ``GeneratedColumns``, a frozen value that crosses to executors and makes
the columns there, of complete rows in the target's columns. What may stand in an expression was
decided when the column was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa

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
from penstock.sql.typed.query_nodes import OutputColumn

_TABLES: Final = 256
"""Of which the compiled expressions are kept: every batch asks."""


@dataclass(frozen=True)
class GeneratedColumn:
    """``name``: in Delta; ``arguments``: Delta names of what ``evaluation`` takes."""

    name: str
    arguments: tuple[str, ...]
    evaluation: Evaluation


@dataclass(frozen=True)
class GeneratedColumns:
    """Of a table; most have none."""

    table: str
    columns: tuple[GeneratedColumn, ...] = ()

    def filled(self, rows: pa.Table) -> pa.Table:
        """The rows with their generated values. Raises ValueNotRepresentable with the SQLSTATE of
        what went wrong, as PostgreSQL would have it."""
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
    """Of a target. Raises RelationChanged where an expression does not fit the table any more."""
    if all(column.generated is None for column in schema.columns):
        return GeneratedColumns(table)
    known = tuple(_output(column) for column in schema.columns)
    made = [
        _generated_column(column, own, known, schema, table)
        for column, own in zip(schema.columns, known, strict=True)
        if column.generated is not None
    ]
    return GeneratedColumns(table, tuple(made))


def _generated_column(
    column: Column,
    own: OutputColumn,
    known: tuple[OutputColumn, ...],
    schema: TableSchema,
    table: str,
) -> GeneratedColumn:
    try:
        compiled = compile_generation(own, known, table)
    except PenstockError as error:
        raise RelationChanged(
            f'generated column "{column.name}" of table "{table}" cannot be made: {error.message}',
            detail=f"Its expression is {column.generated}.",
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


def _output(column: Column) -> OutputColumn:
    if column.type_oid or column.type == VARIANT:
        pair = (column.type_oid or JSONB, column.typmod)
    else:
        pair = type_of_arrow(column.type)
    return OutputColumn(column.source, *pair, generation=column.generated)
