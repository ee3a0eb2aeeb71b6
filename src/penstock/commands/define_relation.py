"""Work out the definition of a new table (parse_utilcmd.c, transformCreateStmt; tablecmds.c,
MergeAttributes). This file writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from penstock.attribute import AttGenerated, Attribute, TupleDesc
from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.aclchk import check_owner, check_select
from penstock.commands.namespace import column_type, get_table, table_columns
from penstock.commands.scope import CommandScope, notice
from penstock.commands.sequence import (
    OwnedSequence,
    check_sequence,
    has_sequence,
    owned_sequence,
    serial_type,
)
from penstock.errors import (
    FeatureNotSupported,
    InvalidParameterValue,
    PenstockError,
    SqlSyntaxError,
)
from penstock.lakehouse.defaults import stored_value
from penstock.pgtypes import arrow_type
from penstock.protocol.answers import Notice
from penstock.sql import ColumnDef, ConstrType, CreateTable, PartitionBound, PartitionSpec, Unique
from penstock.sql.builtin.type_cache import is_enum
from penstock.sql.grammar.column import NEXTVAL
from penstock.sql.text.quoting import type_name
from penstock.sql.to_duckdb.duckdb_change import compile_generation
from penstock.sql.typed.column_default import check_default, coerced_default
from penstock.sql.typed.deparse import deparse
from penstock.sql.typed.generated_column import analyze_generation
from penstock.sql.typed.primnodes import Node, children, column_names
from penstock.sqlstate import (
    DatatypeMismatch,
    DuplicateColumn,
    InvalidObjectDefinition,
    InvalidTableDefinition,
    UndefinedColumn,
)

# Check GENERATED ALWAYS AS (...) in column definitions (tablecmds.c, heap.c). An expression that
# the node cannot compute is refused here (0A000), not at the first row.

_INVALID_COLUMN_DEFINITION = "42611"
_INVALID_OBJECT_DEFINITION = "42P17"


def check_generations(item: ColumnDef, table: str) -> None:
    """Check that a column has at most one generation clause, and not also a default
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
    """Return the columns of a new table with their expressions checked. Raises PenstockError
    (42P17, 42703, 42804, 0A000, ...)."""
    return TupleDesc(with_expression(column, columns, table) for column in columns)


def with_expression(column: Attribute, columns: Sequence[Attribute], table: str) -> Attribute:
    """Return ``column``, one of the table's ``columns``, with its expression checked. Raises as
    ``with_expressions``."""
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
    """Check that no column in ``names`` is virtual: ``what`` needs stored values (DefineIndex,
    ATAddForeignKeyConstraint).

    ``what``: "primary keys", for example, for the message. Raises FeatureNotSupported.
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
    """Check that a column is generated in a partition just as in its parent
    (MergeAttributesIntoExisting). Raises PenstockError (42804), FeatureNotSupported."""
    if child.generated and parent.generated and child.generated != parent.generated:
        raise DatatypeMismatch(
            f'column "{parent.name}" inherits from generated column of different kind',
            detail=f"Parent column is {parent.generated.name}, child column is "
            f"{child.generated.name}.",
        )
    if child.generated != parent.generated:
        must = "must be" if parent.generated else "must not be"
        raise DatatypeMismatch(f'column "{parent.name}" in child table {must} a generated column')
    if child.generation != parent.generation:
        raise FeatureNotSupported(
            f'a partition whose generated column "{parent.name}" has another expression is not '
            "supported",
            hint=f"Make the partition with that of the partitioned table: {parent.generation}.",
        )


_FILLFACTORS = range(10, 101)


@dataclass(frozen=True, slots=True)
class Definition:
    """A table to be created. ``parent``, ``bound``: None unless it is a partition; ``uniques``: its
    UNIQUE constraints; ``sequences``: the sequences of its columns."""

    columns: TupleDesc
    primary_key: tuple[str, ...]
    parent: LakeTable | None = None
    bound: PartitionBound | None = None
    notices: tuple[Notice, ...] = ()
    uniques: tuple[Unique, ...] = ()
    sequences: tuple[OwnedSequence, ...] = ()


def define(
    transaction: CatalogTransaction, scope: CommandScope, statement: CreateTable
) -> Definition:
    """Return the definition of a table. Raises UndefinedObject, DuplicateObject,
    InvalidParameterValue, FeatureNotSupported."""
    if statement.parent is not None:
        definition = _partition(transaction, scope, statement)
    else:
        for item in statement.columns:
            check_declarations(statement.relation.name, item)
        columns = _own_and_liked(transaction, scope, statement)
        key = _primary_key(statement, columns)
        _check_once(columns.names)
        columns = with_expressions(columns, statement.relation.name)
        uniques = _uniques(statement, columns)
        check_not_virtual(key, columns, "primary keys")
        for unique in uniques:
            check_not_virtual(unique.columns, columns, "unique constraints")
        notices = _references(transaction, scope, statement)
        notices += _storage_notices(statement)
        referring = [item.name for item in statement.columns if item.references is not None]
        check_not_virtual(referring, columns, "foreign key constraints")
        definition = Definition(
            columns, key, notices=notices, uniques=uniques, sequences=_sequences(statement, columns)
        )
    if statement.partition_by is not None:
        check_partition_key(
            statement.relation.name,
            statement.partition_by,
            definition.columns,
            definition.primary_key,
        )
    return definition


def check_declarations(table: str, item: ColumnDef) -> None:
    """Check that a column's clauses do not conflict (transformColumnDefinition). Raises
    SqlSyntaxError."""
    check_sequence(item, table)
    check_generations(item, table)
    if ConstrType.NULL in item.constraints and len(item.constraints) > 1:
        raise SqlSyntaxError(
            f'conflicting NULL/NOT NULL declarations for column "{item.name}" of table "{table}"'
        )


def build_column(
    transaction: CatalogTransaction, scope: CommandScope, item: ColumnDef
) -> Attribute:
    """Return a column with its type looked up; its generation expression stays as written.

    Raises UndefinedObject (42704, 3F000).
    """
    oid, typmod = column_type(transaction, scope, serial_type(item.type) or item.type)
    _check_default(item.name, item.default, oid, typmod)
    generation = item.generations[0] if item.generations else None
    return Attribute(
        item.name,
        oid,
        typmod,
        generated=AttGenerated.NOT if generation is None else generation.kind,
        default=NEXTVAL if has_sequence(item) else item.default,
        generation=None if generation is None else generation.expression,
        not_null=ConstrType.NOTNULL in item.constraints or has_sequence(item),
    )


def _check_default(name: str, default: str | None, oid: int, typmod: int) -> None:
    """Check a default (cookDefault). Raises PenstockError (42804, 22P02, ...), FeatureNotSupported;
    ValueNotRepresentable for a value that PostgreSQL can store but a Delta table cannot."""
    if default is None:
        return
    check_default(name, default, oid, typmod)
    try:
        value = coerced_default(name, default, oid, typmod, datetime.now(UTC))
    except FeatureNotSupported:
        raise
    except PenstockError:
        return  # as in PostgreSQL, a default that does not fit is an error when it is used
    stored_value(value, oid, typmod, arrow_type(oid, typmod))


def _partition(
    transaction: CatalogTransaction, scope: CommandScope, statement: CreateTable
) -> Definition:
    assert statement.parent is not None
    parent = get_table(transaction, scope, statement.parent)
    check_owner(scope.role, parent.owner, "table", parent.name)
    if parent.partition_key is None:
        raise InvalidObjectDefinition(f'"{parent.name}" is not partitioned')
    columns = _with_defaults(table_columns(scope, parent), statement)
    return Definition(columns, parent.primary_key, parent, statement.bound)


def _with_defaults(columns: TupleDesc, statement: CreateTable) -> TupleDesc:
    """Return the columns with a partition's own defaults. Raises UndefinedObject."""
    defaults = dict(statement.defaults)
    for name in defaults:
        if name not in columns.names:
            raise UndefinedColumn(f'column "{name}" does not exist')
    for item in columns:
        if item.name in defaults:
            check_own_default(item)
        _check_default(item.name, defaults.get(item.name), item.type_oid, item.typmod)
    return TupleDesc(replace(c, default=defaults.get(c.name, c.default)) for c in columns)


def _own_and_liked(
    transaction: CatalogTransaction, scope: CommandScope, statement: CreateTable
) -> TupleDesc:
    """Return the statement's columns and those of LIKE. From LIKE no defaults, expressions and keys
    are copied, but its NOT NULL columns and key columns become NOT NULL."""
    own = [build_column(transaction, scope, item) for item in statement.columns]
    if statement.like is None:
        return TupleDesc(own)
    source = get_table(transaction, scope, statement.like)
    check_select(transaction, scope.role, source)
    liked = table_columns(scope, source)
    at = statement.like_at
    plain = (
        replace(
            c,
            default=None,
            generated=AttGenerated.NOT,
            generation=None,
            not_null=c.not_null or c.name in source.primary_key,
        )
        for c in liked
    )
    return TupleDesc((*own[:at], *plain, *own[at:]))


def _primary_key(statement: CreateTable, columns: TupleDesc) -> tuple[str, ...]:
    """Return the columns of the PRIMARY KEY, or () without one. Raises if there are several."""
    keys: list[tuple[str, ...]] = [
        (c.name,) for c in statement.columns if ConstrType.PRIMARY in c.constraints
    ]
    keys += statement.primary_keys
    if len(keys) > 1:
        raise multiple_primary_keys(statement.relation.name)
    if not keys:
        return ()
    check_key(keys[0], columns.names)
    return keys[0]


def _sequences(statement: CreateTable, columns: TupleDesc) -> tuple[OwnedSequence, ...]:
    owned = (
        owned_sequence(item, columns.by_name[item.name].type_oid) for item in statement.columns
    )
    found = tuple(sequence for sequence in owned if sequence is not None)
    if found and statement.partition_by is not None:
        raise FeatureNotSupported(
            "serial and identity columns of partitioned tables are not supported",
            hint="Give the column a plain type, and its values in INSERT.",
        )
    return found


def _uniques(statement: CreateTable, columns: TupleDesc) -> tuple[Unique, ...]:
    """Return all UNIQUE constraints, column constraints first."""
    found = [item.unique for item in statement.columns if item.unique is not None]
    found += statement.uniques
    for unique in found:
        check_key(unique.columns, columns.names, "unique")
    return tuple(found)


def multiple_primary_keys(table: str) -> InvalidParameterValue:
    """Return the error for a table with more than one primary key."""
    return InvalidTableDefinition(f'multiple primary keys for table "{table}" are not allowed')


def check_key(key: Sequence[str], columns: Sequence[str], kind: str = "primary key") -> None:
    """Check that the columns of a key exist and are not repeated (transformIndexConstraint)."""
    for position, name in enumerate(key):
        if name not in columns:
            raise UndefinedColumn(f'column "{name}" named in key does not exist')
        if name in key[:position]:
            raise DuplicateColumn(f'column "{name}" appears twice in {kind} constraint')


def _check_once(columns: Sequence[str]) -> None:
    for position, name in enumerate(columns):
        if name in columns[:position]:
            raise DuplicateColumn(f'column "{name}" specified more than once')


def check_partition_key(
    table: str,
    spec: PartitionSpec,
    columns: TupleDesc,
    primary_key: Sequence[str],
) -> None:
    """Check a partition key (ComputePartitionAttrs). The primary key, if any, must include all
    columns of the partition key (DefineIndex)."""
    known = columns.by_name
    for name in spec.columns:
        if name not in known:
            raise UndefinedColumn(f'column "{name}" named in partition key does not exist')
        check_not_in_partition_key(known[name])
        if is_enum(known[name].type_oid):
            raise FeatureNotSupported(
                f"partitioning by a column of type {type_name(known[name].type_oid)} is not "
                "supported",
                detail="It is kept as text, whose order is another one.",
            )
    if primary_key:
        check_partition_columns(table, spec.columns, primary_key, "PRIMARY KEY")


def check_partition_columns(
    table: str, partition_key: Sequence[str], columns: Sequence[str], constraint: str
) -> None:
    """Check that a unique key includes all columns of the partition key (DefineIndex). Then a key
    that is unique in each partition is unique in the table."""
    for name in partition_key:
        if name not in columns:
            raise FeatureNotSupported(
                "unique constraint on partitioned table must include all partitioning columns",
                detail=f'{constraint} constraint on table "{table}" lacks column "{name}" which is '
                "part of the partition key.",
            )


def _references(
    transaction: CatalogTransaction, scope: CommandScope, statement: CreateTable
) -> tuple[Notice, ...]:
    """Check that the referenced tables exist, and return a notice that foreign keys are not
    enforced. Raises UndefinedObject (42P01)."""
    written = []
    for item in statement.columns:
        if item.references is not None:
            written.append(item.name)
            if item.references != statement.relation:
                get_table(transaction, scope, item.references)
    return _not_enforced(
        "REFERENCES",
        written,
        "Rows of the lake's tables are not looked up in others, since Spark writes them too.",
    )


def _storage_notices(statement: CreateTable) -> tuple[Notice, ...]:
    """Check storage parameters, and return notices that they have no effect. Raises
    InvalidParameterValue (22023)."""
    for name, value in statement.storage:
        if not value.isdecimal() or int(value) not in _FILLFACTORS:
            raise InvalidParameterValue(
                f'value {value} out of bounds for option "{name}"',
                detail=f'Valid values are between "{_FILLFACTORS[0]}" and "{_FILLFACTORS[-1]}".',
            )
    return tuple(
        notice(f'storage parameter "{name}" has no effect on tables of the lake')
        for name, _ in statement.storage
    )


def _not_enforced(what: str, columns: Sequence[str], detail: str) -> tuple[Notice, ...]:
    """Return a notice that the ``what`` constraints of some columns are ignored."""
    if not columns:
        return ()
    shown = ", ".join(f'"{name}"' for name in columns)
    return (notice(f"{what} of {shown} is not enforced", detail=detail),)
