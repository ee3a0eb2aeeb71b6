"""CREATE UNIQUE INDEX, DROP INDEX, and the indexes of constraints (indexcmds.c, index.c)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.catalog import Catalog, CatalogTransaction, LakeTable, UniqueIndex
from penstock.commands.aclchk import check_create_in_schema, check_owner
from penstock.commands.define_relation import (
    check_not_virtual,
    check_partition_columns,
)
from penstock.commands.depend import shown_name
from penstock.commands.namespace import (
    find_schema,
    get_schema,
    get_table,
    keep_former,
    register,
    table_columns,
)
from penstock.commands.scope import CommandResult, CommandScope, notice
from penstock.errors import (
    NotInPrerequisiteState,
    UndefinedObject,
    WrongObjectType,
)
from penstock.identifiers import truncated
from penstock.protocol.answers import Notice
from penstock.relation import ReplicaIdentity
from penstock.sql import CreateIndex, DropIndex, RangeVar, Unique
from penstock.sql.grammar.partition_bound import key_columns
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import (
    DependentObjectsStillExist,
    DuplicateTable,
    InvalidSchemaName,
    UndefinedColumn,
)

# Unique indexes of tables and partitions, and their names (index.c, indexcmds.c). As for a primary
# key, nothing is checked when an index is created: code that needs unique columns checks them.

_NAME_BYTES: Final = 63
"""The most bytes of a name (NAMEDATALEN - 1)."""


def relation_names(transaction: CatalogTransaction, table: LakeTable) -> list[str]:
    """Return the names of a table, its indexes and its sequences."""
    sequences = transaction.sequences.of_table(table.oid)
    return [*table.own_names, *(sequence.name for sequence in sequences)]


def check_free(transaction: CatalogTransaction, schema: str, name: str) -> None:
    """Raise DuplicateObject (42P07) if the name is taken."""
    if transaction.is_taken(schema, name):
        raise DuplicateTable(f'relation "{name}" already exists')


def choose_name(
    transaction: CatalogTransaction,
    table: LakeTable,
    columns: Sequence[str],
    *,
    constraint: bool,
) -> str:
    """Return a name for an index: ``table_column_idx``, or ``table_column_key`` for a constraint
    (ChooseIndexName)."""
    label = "key" if constraint else "idx"
    return choose_relation_name(transaction, table, "_".join(columns), label)


def choose_relation_name(
    transaction: CatalogTransaction, table: LakeTable, second: str, label: str
) -> str:
    """Return ``table_second_label``, with a number if this name is taken (ChooseRelationName)."""
    number = 0
    while True:
        name = make_object_name(table.name, second, f"{label}{number or ''}")
        if not transaction.is_taken(table.schema, name):
            return name
        number += 1


def make_object_name(first: str, second: str, label: str) -> str:
    """Join the parts of a name; if it is too long, shorten the longer part first
    (makeObjectName)."""
    one, two = len(first.encode()), min(len(second.encode()), _NAME_BYTES)
    room = _NAME_BYTES - len(label) - len("__")
    if one + two > room:
        half = room // 2
        if min(one, two) > half:
            one, two = room - half, half
        elif one < two:
            two = room - one
        else:
            one = room - two
    return f"{truncated(first, one)}_{truncated(second, two)}_{label}"


def add_index(
    transaction: CatalogTransaction,
    table: LakeTable,
    columns: Sequence[str],
    name: str | None,
    *,
    constraint: bool,
    parent: int | None = None,
) -> LakeTable:
    """Add an index on existing columns to a table and its partitions, and save them (DefineIndex).
    ``name``: None to choose a name.

    Raises DuplicateObject (42P07); FeatureNotSupported for an index without the partition key.
    """
    if table.partition_key is not None:
        check_partition_columns(table.name, key_columns(table.partition_key), columns, "UNIQUE")
    if name is None:
        name = choose_name(transaction, table, columns, constraint=constraint)
    check_free(transaction, table.schema, name)
    index = transaction.tables.new_index(name, tuple(columns), constraint=constraint, parent=parent)
    table = replace(table, indexes=(*table.indexes, index))
    transaction.tables.save(table)
    for child in _children(transaction, table):
        add_index(transaction, child, columns, None, constraint=constraint, parent=index.oid)
    return table


def add_constraints(
    transaction: CatalogTransaction, table: LakeTable, uniques: Sequence[Unique]
) -> LakeTable:
    """Add the UNIQUE constraints of a statement, except those with the columns of the primary key
    or of an earlier constraint."""
    said = [table.primary_key]
    for unique in uniques:
        if unique.columns not in said:
            said.append(unique.columns)
            table = add_index(transaction, table, unique.columns, unique.name, constraint=True)
    return table


def inherit_indexes(
    transaction: CatalogTransaction, parent: LakeTable, child: LakeTable
) -> LakeTable:
    """Give a partition an index for each index of its parent; its own indexes are used where they
    match (AttachPartitionEnsureIndexes)."""
    for index in parent.indexes:
        fitting = [own for own in child.indexes if own.parent is None and _same(own, index)]
        if fitting:
            child = with_index(child, replace(fitting[0], parent=index.oid))
            transaction.tables.save(child)
        else:
            child = add_index(
                transaction,
                child,
                index.columns,
                None,
                constraint=index.constraint,
                parent=index.oid,
            )
    return child


def _same(one: UniqueIndex, other: UniqueIndex) -> bool:
    return (one.columns, one.constraint) == (other.columns, other.constraint)


def detach_indexes(child: LakeTable) -> LakeTable:
    """Return a detached partition, with its indexes separated from the parent's indexes."""
    return replace(child, indexes=tuple(replace(index, parent=None) for index in child.indexes))


def with_index(table: LakeTable, index: UniqueIndex) -> LakeTable:
    """Return the table with an index replaced by a changed one with the same oid."""
    return replace(
        table, indexes=tuple(index if own.oid == index.oid else own for own in table.indexes)
    )


def delete_index(
    transaction: CatalogTransaction, table: LakeTable, index: UniqueIndex
) -> LakeTable:
    """Drop an index from a table and its partitions, save them, and return the table. If the index
    was the replica identity, rows have no identity any more."""
    table = without(table, index)
    transaction.tables.save(table)
    for child in _children(transaction, table):
        for own in child.indexes:
            if own.parent == index.oid:
                delete_index(transaction, child, own)
    return table


def without(table: LakeTable, index: UniqueIndex) -> LakeTable:
    """Return the table without the index."""
    kept = tuple(own for own in table.indexes if own.oid != index.oid)
    identity = () if index.replica_identity else table.identity_key
    return replace(table, indexes=kept, identity_key=identity)


def identify_by(table: LakeTable, index: UniqueIndex | None) -> LakeTable:
    """Return the table with REPLICA IDENTITY USING INDEX. ``index``: None to only unmark the
    present index, before another kind of identity is set."""
    marked = tuple(
        replace(own, replica_identity=index is not None and own.oid == index.oid)
        for own in table.indexes
    )
    table = replace(table, indexes=marked)
    if index is None:
        return table
    return replace(table, replica_identity=ReplicaIdentity.INDEX, identity_key=index.columns)


def _children(transaction: CatalogTransaction, table: LakeTable) -> list[LakeTable]:
    return [child for child in transaction.tables.all() if child.parent == table.oid]


def create_index(statement: CreateIndex, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run CREATE UNIQUE INDEX (DefineIndex)."""
    with catalog.write() as transaction:
        table = get_table(transaction, scope, statement.relation)
        check_owner(scope.role, table.owner, "table", table.name)
        schema = get_schema(transaction, scope, table.schema)
        check_create_in_schema(scope, schema.owner, schema.name)
        name = statement.name
        if statement.missing_ok and name and transaction.is_taken(table.schema, name):
            message = f'relation "{name}" already exists, skipping'
            return CommandResult(
                "CREATE INDEX", (notice(message, sqlstate=DuplicateTable.default_sqlstate),)
            )
        known = table_columns(scope, table)
        for column in statement.columns:
            if column not in known.names:
                raise UndefinedColumn(f'column "{column}" does not exist')
        check_not_virtual(statement.columns, known, "indexes")
        add_index(transaction, table, statement.columns, name, constraint=False)
    return CommandResult("CREATE INDEX")


def drop_index(statement: DropIndex, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run DROP INDEX: drop all of the indexes or none (RemoveRelations)."""
    notices: list[Notice] = []
    with catalog.write() as transaction:
        for name in statement.names:
            found = _index_to_drop(transaction, scope, name, statement.missing_ok, notices)
            if found is not None:
                before = transaction.tables.family(found[0])
                delete_index(transaction, *found)
                keep_former(transaction, scope, before)
    return CommandResult("DROP INDEX", tuple(notices))


def _index_to_drop(
    transaction: CatalogTransaction,
    scope: CommandScope,
    name: RangeVar,
    missing_ok: bool,
    notices: list[Notice],
) -> tuple[LakeTable, UniqueIndex] | None:
    schemas = scope.search_path if name.schema is None else (name.schema,)
    if name.schema and find_schema(transaction, scope, name.schema) is None:
        missing = f'schema "{name.schema}" does not exist'
        if not missing_ok:
            raise InvalidSchemaName(missing)
        notices.append(notice(f"{missing}, skipping"))
        return None
    for schema in schemas:
        if register(transaction, scope, schema, name.name) is not None:
            raise WrongObjectType(
                f'"{name.name}" is not an index', hint="Use DROP TABLE to remove a table."
            )
        for table in transaction.tables.all():
            if table.schema == schema:
                index = _find_droppable(transaction, scope, table, name.name)
                if index is not None:
                    return table, index
    missing = f'index "{name.name}" does not exist'
    if not missing_ok:
        raise UndefinedObject(missing)
    notices.append(notice(f"{missing}, skipping"))
    return None


def _find_droppable(
    transaction: CatalogTransaction, scope: CommandScope, table: LakeTable, name: str
) -> UniqueIndex | None:
    """Return a table's index of this name, or None. Raises NotInPrerequisiteState (2BP01) if the
    index cannot be dropped by itself."""
    index = next((own for own in table.indexes if own.name == name), None)
    is_key = bool(table.primary_key) and name == table.primary_key_name
    if index is None and not is_key:
        return None
    check_owner(scope.role, table.owner, "index", name)
    shown = shown_name(transaction, scope, table.schema, name)
    if index is not None and index.parent is not None:
        owner, above = _index(transaction, index.parent)
        raise _required_error(
            shown, f"index {shown_name(transaction, scope, owner.schema, above.name)}"
        )
    if index is None or index.constraint:
        held_by = shown_name(transaction, scope, table.schema, table.name)
        raise _required_error(shown, f"constraint {quote_identifier(name)} on table {held_by}")
    return index


def _index(transaction: CatalogTransaction, oid: int) -> tuple[LakeTable, UniqueIndex]:
    return next((t, i) for t in transaction.tables.all() for i in t.indexes if i.oid == oid)


def _required_error(shown: str, what: str) -> NotInPrerequisiteState:
    return DependentObjectsStillExist(
        f"cannot drop index {shown} because {what} requires it",
        hint=f"You can drop {what} instead.",
    )
