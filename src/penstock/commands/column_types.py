"""Which type a written type is (parse_type.c, LookupTypeName), and which columns are of a type.

In: a type as written, a transaction of the catalog, the scope. Out: its oid and modifier: of one of
PostgreSQL's own, or of the node's enums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.namespace import get_schema, table_columns
from penstock.commands.scope import Scope
from penstock.enum_type import EnumType
from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError
from penstock.pgtypes.type_names import resolve
from penstock.sql import ColumnType
from penstock.sql.builtin import types_by_name
from penstock.sql.default_grammar import NOW, default_text
from penstock.sql.enum_types import enum_name
from penstock.sql.literals import canonical
from penstock.sql.quoting import type_name
from penstock.sql.type_cache import is_enum

_DATATYPE_MISMATCH: Final = "42804"
_WORDS: Final = {"true": "boolean", "false": "boolean", NOW: "timestamp with time zone"}
"""Types of defaults that are no strings and no numbers."""


def find_enum(
    transaction: CatalogTransaction, scope: Scope, written: ColumnType
) -> EnumType | None:
    """One of the node's enum types; None for every other name. Raises UndefinedObject (3F000)."""
    if written.schema is not None:
        get_schema(transaction, scope, written.schema)
        return transaction.types.find(written.schema, written.name)
    if written.name in types_by_name():
        return None
    found = (transaction.types.find(schema, written.name) for schema in scope.search_path)
    return next((type_ for type_ in found if type_ is not None), None)


def column_type(
    transaction: CatalogTransaction, scope: Scope, written: ColumnType
) -> tuple[int, int]:
    """(oid, typmod) of a column's type. Raises UndefinedObject (42704, 3F000), FeatureNotSupported
    for an array of an enum."""
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
    """As it was written (TypeNameToString)."""
    name = written.name if written.schema is None else f"{written.schema}.{written.name}"
    return f"{name}[]" if written.array else name


def check_enum_default(column: str, default: str | None, oid: int) -> None:
    """cookDefault, for a column of an enum. Raises PenstockError (22P02, 42804)."""
    if default is None or not is_enum(oid):
        return
    if default.startswith("'"):
        canonical(default_text(default), oid)
        return
    number = "integer" if default.removeprefix("-").isdigit() else "numeric"
    raise PenstockError(
        f'column "{column}" is of type {type_name(oid)} but default expression is of type '
        f"{_WORDS.get(default, number)}",
        hint="You will need to rewrite or cast the expression.",
        sqlstate=_DATATYPE_MISMATCH,
    )


def columns_of_types(
    transaction: CatalogTransaction, scope: Scope, types: Sequence[EnumType]
) -> list[tuple[LakeTable, str, EnumType]]:
    """Tables with their columns of these types, in the order in which PostgreSQL reports them."""
    tables = transaction.tables.all() if types else ()
    columns = [(table, reversed(table_columns(scope, table))) for table in tables]
    found = [(table, column) for table, all_ in columns for column in all_]
    return [
        (table, column.name, type_)
        for type_ in reversed(types)
        for table, column in found
        if column.type_oid == type_.oid
    ]
