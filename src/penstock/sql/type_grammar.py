"""CREATE TYPE ... AS ENUM, ALTER TYPE ... ADD VALUE, DROP TYPE (gram.y, DefineStmt, AlterEnumStmt).

In: a cursor behind the word TYPE. Out: a statement. Types of other kinds, and changes of labels
that rows may hold, are refused by name (0A000).
"""

from __future__ import annotations

from typing import Final

from penstock.sql.column_type_grammar import column_type
from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.keywords import words
from penstock.sql.object_names import qualified_name
from penstock.sql.type_statements import AddEnumValue, CreateEnum, DropType

_OTHER_CHANGES: Final = words("drop rename set owner alter")


def create_type(cursor: Cursor) -> CreateEnum:
    """``DefineStmt``: CREATE TYPE any_name AS ENUM '(' opt_enum_val_list ')'"""
    name = qualified_name(cursor)
    if not cursor.accept("as"):
        if cursor.at_symbol("("):
            raise not_supported("CREATE TYPE of a base type")
        cursor.expect_end()
        raise not_supported("CREATE TYPE of a shell type")
    if cursor.at_symbol("("):
        raise not_supported("CREATE TYPE of a composite type")
    if cursor.accept("range"):
        raise not_supported("CREATE TYPE ... AS RANGE")
    cursor.expect("enum")
    cursor.expect_symbol("(")
    labels = []
    if not cursor.at_symbol(")"):
        labels.append(cursor.string())
        while cursor.accept_symbol(","):
            labels.append(cursor.string())
    cursor.expect_symbol(")")
    cursor.expect_end()
    return CreateEnum(name, tuple(labels), notices=cursor.notices)


def alter_type(cursor: Cursor) -> AddEnumValue:
    """``AlterEnumStmt``: ALTER TYPE any_name ADD VALUE opt_if_not_exists Sconst"""
    name = qualified_name(cursor)
    if cursor.word() in _OTHER_CHANGES:
        raise not_supported(f"ALTER TYPE ... {str(cursor.word()).upper()}")
    cursor.expect("add")
    if cursor.word() == "attribute":
        raise not_supported("ALTER TYPE ... ADD ATTRIBUTE")
    cursor.expect("value")
    missing_ok = cursor.accept("if", "not", "exists")
    label = cursor.string()
    place = cursor.accept_any("before", "after")
    neighbor = None if place is None else cursor.string()
    cursor.expect_end()
    return AddEnumValue(
        name, label, neighbor, place != "before", missing_ok, notices=cursor.notices
    )


def drop_type(cursor: Cursor) -> DropType:
    """DROP TYPE [IF EXISTS] type_name_list opt_drop_behavior"""
    missing_ok = cursor.accept("if", "exists")
    types = [column_type(cursor)]
    while cursor.accept_symbol(","):
        types.append(column_type(cursor))
    cascade = cursor.opt_drop_behavior()
    cursor.expect_end()
    return DropType(tuple(types), missing_ok, cascade, notices=cursor.notices)
