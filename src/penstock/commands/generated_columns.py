"""Checks of GENERATED ALWAYS AS (...) in definitions of columns (tablecmds.c, heap.c).

In: columns of a table to be created, with expressions as they were written. Out: the same columns
with expressions as the catalog shows and keeps them, or PostgreSQL's error. An expression that the
node could not compute is refused here (0A000), not at the first row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.attribute import AttGenerated, Attribute, TupleDesc
from penstock.errors import (
    FeatureNotSupported,
    InvalidParameterValue,
    PenstockError,
    SqlSyntaxError,
)
from penstock.sql import ColumnDef
from penstock.sql.builtin.type_cache import is_enum
from penstock.sql.to_duckdb.duckdb_change import compile_generation
from penstock.sql.typed.deparse import deparse
from penstock.sql.typed.generated_column import analyze_generation
from penstock.sql.typed.primnodes import Node, children, column_names

_INVALID_COLUMN_DEFINITION = "42611"
_INVALID_OBJECT_DEFINITION = "42P17"
_DATATYPE_MISMATCH = "42804"


def check_generations(item: ColumnDef, table: str) -> None:
    """Check that a column has at most one generation clause, and then no default
    (transformColumnDefinition). Raises SqlSyntaxError."""
    if len(item.generations) > 1:
        raise SqlSyntaxError(
            f'multiple generation clauses specified for column "{item.name}" of table "{table}"'
        )
    if item.generations and item.default is not None:
        raise SqlSyntaxError(
            f'both default and generation expression specified for column "{item.name}" of table '
            f'"{table}"'
        )


def with_expressions(columns: Sequence[Attribute], table: str) -> TupleDesc:
    """Return all columns of a new table with checked expressions. Raises PenstockError (42P17,
    42703, 42804, 0A000, ...)."""
    return TupleDesc(with_expression(column, columns, table) for column in columns)


def with_expression(column: Attribute, columns: Sequence[Attribute], table: str) -> Attribute:
    """Return one of the ``columns`` of a table with a checked expression. Raises what
    ``with_expressions`` raises."""
    if column.generation is None:
        return column
    virtual = column.generated is AttGenerated.VIRTUAL
    if virtual and is_enum(column.type_oid):
        raise _user_defined_error(f'virtual generated column "{column.name}" cannot have a')
    node = analyze_generation(column, columns, table)
    if virtual and _uses_enum(node):
        raise _user_defined_error("generation expression uses")
    compile_generation(column, columns, table)
    return replace(column, generation=deparse(node))


def _user_defined_error(what: str) -> FeatureNotSupported:
    return FeatureNotSupported(
        f"{what} user-defined type",
        detail="Virtual generated columns that make use of user-defined types are not yet "
        "supported.",
    )


def _uses_enum(node: Node) -> bool:
    """Tell whether an expression uses an enum (check_virtual_generated_security)."""
    return is_enum(node.type) or any(map(_uses_enum, children(node)))


def check_not_virtual(names: Collection[str], columns: Sequence[Attribute], what: str) -> None:
    """Check that none of the columns ``names`` is virtual, as ``what`` needs stored values
    (DefineIndex, ATAddForeignKeyConstraint).

    ``what``: as the message calls it. Raises FeatureNotSupported.
    """
    if any(c.name in names and c.generated is AttGenerated.VIRTUAL for c in columns):
        raise FeatureNotSupported(f"{what} on virtual generated columns are not supported")


def generated_from(name: str, columns: Sequence[Attribute], table: str) -> tuple[str, ...]:
    """Return the generated columns that are computed from a column."""
    return tuple(
        column.name
        for column in columns
        if column.generation is not None
        and name in column_names(analyze_generation(column, columns, table))
    )


def check_own_default(column: Attribute) -> None:
    """Check that a partition's column may have its own default (MergeChildAttribute). Raises
    InvalidParameterValue (42611)."""
    if column.generated:
        raise InvalidParameterValue(
            f'column "{column.name}" inherits from generated column but specifies default',
            sqlstate=_INVALID_COLUMN_DEFINITION,
        )


def check_not_in_partition_key(column: Attribute) -> None:
    """Check that a column may be in a partition key (ComputePartitionAttrs). Raises
    InvalidParameterValue (42P17)."""
    if column.generated:
        raise InvalidParameterValue(
            "cannot use generated column in partition key",
            detail=f'Column "{column.name}" is a generated column.',
            sqlstate=_INVALID_OBJECT_DEFINITION,
        )


def check_same_generation(child: Attribute, parent: Attribute) -> None:
    """Check that a partition generates a column as its parent does (MergeAttributesIntoExisting).
    Raises PenstockError (42804), FeatureNotSupported."""
    if child.generated and parent.generated and child.generated != parent.generated:
        raise PenstockError(
            f'column "{parent.name}" inherits from generated column of different kind',
            detail=f"Parent column is {parent.generated.name}, child column is "
            f"{child.generated.name}.",
            sqlstate=_DATATYPE_MISMATCH,
        )
    if child.generated != parent.generated:
        must = "must be" if parent.generated else "must not be"
        raise PenstockError(
            f'column "{parent.name}" in child table {must} a generated column',
            sqlstate=_DATATYPE_MISMATCH,
        )
    if child.generation != parent.generation:
        raise FeatureNotSupported(
            f'a partition whose generated column "{parent.name}" has another expression is not '
            "supported",
            hint=f"Make the partition with that of the partitioned table: {parent.generation}.",
        )
