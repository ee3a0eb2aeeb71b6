"""Lookup of types as they are written (parse_type.c, LookupTypeName), and of the columns of a type.

In: a type as written, a transaction of the catalog, the scope. Out: the oid and modifier of one of
PostgreSQL's own types, or of one of the node's enums.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.namespace import get_schema, table_columns
from penstock.commands.scope import CommandScope
from penstock.enum_type import EnumType
from penstock.errors import FeatureNotSupported, SqlSyntaxError
from penstock.pgtypes.type_names import resolve
from penstock.sql import ColumnType
from penstock.sql.builtin import types_by_name
from penstock.sql.builtin.enum_types import enum_name


def find_enum(
    transaction: CatalogTransaction, scope: CommandScope, written: ColumnType
) -> EnumType | None:
    """Return one of the node's enum types; None for every other name. Raises UndefinedObject
    (3F000)."""
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
    """Return (oid, typmod) of a column's type. Raises UndefinedObject (42704, 3F000),
    FeatureNotSupported for an array of an enum."""
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
    """Return (table, column, type) of all columns of these types, in the order in which PostgreSQL
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
