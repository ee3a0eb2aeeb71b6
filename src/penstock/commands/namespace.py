"""Look up tables by name (namespace.c), and their columns (relcache.c); keep their history
(snapbuild.c).

A name is looked up in the catalog; columns come from Delta's metadata. When a table of the
warehouse is first named, it gets a row in the catalog, with the key that the Delta table records.
When a statement changes a table, the catalog keeps the former row and the last version for which it
was valid: streams send a change with the table's definition at the time of the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.attribute import TupleDesc
from penstock.catalog import CatalogTransaction, LakeTable, Namespace
from penstock.commands.scope import CommandScope, warning
from penstock.enum_type import EnumType
from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError
from penstock.lakehouse.describe import TableDescription, describe, table_names
from penstock.lakehouse.log import list_log
from penstock.lakehouse.schema import (
    arrow_type,
    attribute_of,
    recorded_type,
)
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.pgtypes.pg_type import TEXT
from penstock.pgtypes.registry import type_of_arrow
from penstock.pgtypes.type_names import resolve
from penstock.protocol.answers import Notice
from penstock.sql import ColumnType, RangeVar
from penstock.sql.builtin import types_by_name
from penstock.sql.builtin.enum_types import enum_name
from penstock.sqlstate import InvalidSchemaName, UndefinedTable


def warehouse_of(scope: CommandScope) -> Warehouse:
    """Return the warehouse. Raises FeatureNotSupported if statements run without one."""
    if scope.warehouse is None:
        raise FeatureNotSupported("this statement needs a warehouse")
    return scope.warehouse


def find_schema(
    transaction: CatalogTransaction, scope: CommandScope, name: str
) -> Namespace | None:
    """Return a schema, or None. If only the warehouse has the schema, add it to the catalog: it is
    a folder with a table in it."""
    found = transaction.namespaces.find(name)
    if found is None and scope.warehouse is not None:
        found_names = table_names(scope.warehouse)
        held = any(s == name and not _is_of_another(transaction, s, t) for s, t in found_names)
        found = transaction.namespaces.create(name) if held else None
    return found


def get_schema(transaction: CatalogTransaction, scope: CommandScope, name: str) -> Namespace:
    """Return a schema (get_namespace_oid). Raises UndefinedObject (3F000)."""
    found = find_schema(transaction, scope, name)
    if found is None:
        raise InvalidSchemaName(f'schema "{name}" does not exist')
    return found


def creation_schema(
    transaction: CatalogTransaction, scope: CommandScope, name: RangeVar
) -> Namespace:
    """Return the schema in which a relation is to be created (RangeVarGetCreationNamespace). Raises
    UndefinedObject (3F000)."""
    _check_catalog(scope, name)
    if name.schema is not None:
        return get_schema(transaction, scope, name.schema)
    for schema in scope.search_path:
        found = find_schema(transaction, scope, schema)
        if found is not None:
            return found
    raise InvalidSchemaName("no schema has been selected to create in")


def find_table(
    transaction: CatalogTransaction, scope: CommandScope, name: RangeVar
) -> LakeTable | None:
    """Return the table with this name, or None (RangeVarGetRelid with missing_ok). Register a table
    that is named for the first time."""
    _check_catalog(scope, name)
    if name.schema is not None:
        get_schema(transaction, scope, name.schema)
        return register(transaction, scope, name.schema, name.name)
    for schema in scope.search_path:
        found = register(transaction, scope, schema, name.name)
        if found is not None:
            return found
    return None


def get_table(transaction: CatalogTransaction, scope: CommandScope, name: RangeVar) -> LakeTable:
    """Return the table with this name (RangeVarGetRelid). Raises UndefinedObject (42P01, 3F000)."""
    found = find_table(transaction, scope, name)
    if found is None:
        shown = name.name if name.schema is None else f"{name.schema}.{name.name}"
        raise UndefinedTable(f'relation "{shown}" does not exist')
    return found


def _check_catalog(scope: CommandScope, name: RangeVar) -> None:
    if name.catalog is not None and name.catalog != scope.database:
        raise FeatureNotSupported(f'cross-database references are not implemented: "{name}"')


def register(
    transaction: CatalogTransaction, scope: CommandScope, schema: str, name: str
) -> LakeTable | None:
    """Return the table's row in the catalog. If there is none yet, create it from the Delta table;
    return None if there is no Delta table."""
    known = transaction.tables.find(schema, name)
    if known is not None or scope.warehouse is None or _is_of_another(transaction, schema, name):
        return known
    uri = scope.warehouse.table_uri(schema, name)
    found = describe(scope.warehouse, uri)
    if found is None:
        return None
    if transaction.namespaces.find(schema) is None:
        transaction.namespaces.create(schema)
    return transaction.tables.register(schema, name, uri, found.key)


def _is_of_another(transaction: CatalogTransaction, schema: str, name: str) -> bool:
    """Tell whether the folder for a name holds a table that was moved to another schema, or a table
    that a transaction block has not committed yet."""
    if transaction.tables.in_folder_of(schema, name) is not None:
        return True
    return transaction.block_commits.makes(schema, name)


def open_delta(scope: CommandScope, table: LakeTable) -> DeltaTable | None:
    """Open a table's Delta table. Raises as ``Warehouse.open``."""
    warehouse = warehouse_of(scope)
    return warehouse.open(*(table.folder_of or (table.schema, table.name)))


def delta_uri(scope: CommandScope, table: LakeTable) -> str:
    """Return the URI of a table's Delta table, which for a partitioned table has no rows."""
    return table.uri or warehouse_of(scope).table_uri(table.schema, table.name)


def register_all(transaction: CatalogTransaction, scope: CommandScope) -> list[Notice]:
    """Register every table of the warehouse that is not in the catalog, for publications of all
    tables.

    Return warnings about tables that cannot be read; they are registered once they can be read.
    """
    warnings = []
    if scope.warehouse is not None:
        for schema, name in table_names(scope.warehouse):
            try:
                register(transaction, scope, schema, name)
            except PenstockError as error:
                warnings.append(
                    warning(
                        f'table "{schema}.{name}" is left out until it can be read: {error.message}'
                    )
                )
    return warnings


def table_columns(scope: CommandScope, table: LakeTable) -> TupleDesc:
    """Return the columns of a table, also of a partitioned table, in order. Raises UndefinedObject
    (42P01)."""
    uri = delta_uri(scope, table)
    found = describe(warehouse_of(scope), uri)
    if found is None:
        raise UndefinedTable(
            f'Delta table of relation "{table.qualified_name}" does not exist',
            detail=f'There is none at "{uri}".',
        )
    return columns_of(found)


def columns_of(description: TableDescription) -> TupleDesc:
    """Return the columns of a Delta table with their names and types in PostgreSQL."""
    columns = []
    for field in description.fields:
        metadata = field.get("metadata") or {}
        pair = recorded_type(metadata)
        if not pair[0]:
            pair = _type_of(field["type"])
        columns.append(attribute_of(field, pair))
    return TupleDesc(columns)


def _type_of(delta: object) -> tuple[int, int]:
    try:
        return type_of_arrow(arrow_type(delta))
    except FeatureNotSupported:
        return TEXT, -1


def keep_former(
    transaction: CatalogTransaction,
    scope: CommandScope,
    before: Iterable[LakeTable],
    committed: Mapping[int, int] | None = None,
) -> None:
    """Keep the former catalog rows of the tables that a statement has changed. A row is valid up to
    a version: the one that the statement has committed (``committed``, by oid), or the newest.
    Raises StorageError."""
    known = committed or {}
    for table in before:
        if table.uri is None or transaction.tables.find_oid(table.oid) == table:
            continue
        version = known.get(table.oid)
        if version is None:
            version = list_log(warehouse_of(scope).storage, table.uri).newest
        if version is not None:
            transaction.tables.keep_former(table, version, transaction.transactions.end())


# Look up types as they are written (parse_type.c, LookupTypeName), and the columns of a type.


def find_enum(
    transaction: CatalogTransaction, scope: CommandScope, written: ColumnType
) -> EnumType | None:
    """Return the node's enum type with this name; None if it is not an enum's name. Raises
    UndefinedObject (3F000)."""
    if written.schema is not None:
        get_schema(transaction, scope, written.schema)
        return transaction.types.find(written.schema, written.name)
    if written.name in types_by_name():
        return None
    found = (transaction.types.find(schema, written.name) for schema in scope.search_path)
    return next((type_ for type_ in found if type_ is not None), None)


def column_type(
    transaction: CatalogTransaction, scope: CommandScope, written: ColumnType
) -> tuple[int, int]:
    """Return (oid, typmod) of a column's type. Raises UndefinedObject (42704, 3F000);
    FeatureNotSupported for an array of enums."""
    enum = find_enum(transaction, scope, written)
    if enum is None:
        return resolve(written.name, written.modifiers, array=written.array, schema=written.schema)
    if written.modifiers:
        raise SqlSyntaxError(f'type modifier is not allowed for type "{shown_type(written)}"')
    if written.array:
        raise FeatureNotSupported(
            f"a column of type {enum_name(enum)}[] is not supported, an array of an enum",
            hint="Use text[].",
        )
    return enum.oid, -1


def shown_type(written: ColumnType) -> str:
    """Return the type as it was written (TypeNameToString)."""
    name = written.name if written.schema is None else f"{written.schema}.{written.name}"
    return f"{name}[]" if written.array else name


def columns_of_types(
    transaction: CatalogTransaction, scope: CommandScope, types: Sequence[EnumType]
) -> list[tuple[LakeTable, str, EnumType]]:
    """Return (table, column, type) for all columns of these types, in the order in which PostgreSQL
    reports them."""
    tables = transaction.tables.all() if types else ()
    columns = [(table, reversed(table_columns(scope, table))) for table in tables]
    found = [(table, column) for table, all_ in columns for column in all_]
    return [
        (table, column.name, type_)
        for type_ in reversed(types)
        for table, column in found
        if column.type_oid == type_.oid
    ]
