"""CREATE UNIQUE INDEX and DROP INDEX (gram.y, IndexStmt).

In: a cursor behind the words CREATE UNIQUE or DROP INDEX. Out: a statement. A unique index of the
lake is a promise over columns: what else an index can be is refused by name (0A000).
"""

from __future__ import annotations

from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.lexer import Kind
from penstock.sql.object_names import qualified_name, relation_expr
from penstock.sql.table_statements import CreateIndex, DropIndex

_METHOD = "btree"


def create_unique_index(cursor: Cursor) -> CreateIndex:
    """``IndexStmt``, with UNIQUE"""
    cursor.expect("index")
    if cursor.word() == "concurrently":
        raise not_supported("CREATE INDEX CONCURRENTLY")
    missing_ok = cursor.accept("if", "not", "exists")
    name = cursor.name() if missing_ok or cursor.word() != "on" else None
    cursor.expect("on")
    relation = relation_expr(cursor)
    if relation.only:
        raise not_supported("CREATE INDEX ... ON ONLY")
    if cursor.accept("using") and (method := cursor.name()) != _METHOD:
        raise not_supported(f"CREATE UNIQUE INDEX ... USING {method}")
    cursor.expect_symbol("(")
    columns = [_column(cursor)]
    while cursor.accept_symbol(","):
        columns.append(_column(cursor))
    cursor.expect_symbol(")")
    if (word := cursor.word()) in ("include", "with", "tablespace", "where"):
        raise not_supported(f"CREATE UNIQUE INDEX ... {word.upper()}")
    if cursor.accept("nulls"):
        if cursor.word() == "not":
            raise not_supported("UNIQUE NULLS NOT DISTINCT")
        cursor.expect("distinct")
    cursor.expect_end()
    return CreateIndex(relation, tuple(columns), name, missing_ok, notices=cursor.notices)


def _column(cursor: Cursor) -> str:
    """``index_elem``; the order of an index that is none means nothing."""
    if cursor.at_symbol("("):
        raise not_supported("an index over expressions")
    name = cursor.name()
    if cursor.at_symbol("("):
        raise not_supported("an index over expressions")
    cursor.accept_any("asc", "desc")
    if not cursor.accept("nulls", "first"):
        cursor.accept("nulls", "last")
    if cursor.token.kind in (Kind.WORD, Kind.QUOTED):
        raise not_supported("an index with collation or operator class")
    return name


def drop_index(cursor: Cursor) -> DropIndex:
    """[CONCURRENTLY] [IF EXISTS] any_name_list opt_drop_behavior"""
    if cursor.word() == "concurrently":
        raise not_supported("DROP INDEX CONCURRENTLY")
    missing_ok = cursor.accept("if", "exists")
    names = [qualified_name(cursor)]
    while cursor.accept_symbol(","):
        names.append(qualified_name(cursor))
    cascade = cursor.opt_drop_behavior()
    cursor.expect_end()
    return DropIndex(tuple(names), missing_ok, cascade, notices=cursor.notices)
