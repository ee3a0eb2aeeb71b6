"""CREATE, ALTER and DROP PUBLICATION (gram.y, CreatePublicationStmt; preprocess_pubobj_list).

In: a cursor behind the word PUBLICATION. Out: a statement, or PostgreSQL's syntax error, inside of
WHERE (...) too. What the expression means is left to the row filter compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from penstock.errors import SqlSyntaxError
from penstock.sql.cursor import Cursor
from penstock.sql.expression_text import expression_text
from penstock.sql.object_names import (
    RangeVar,
    column_list,
    indirection,
    range_var,
    relation_expr,
    role_spec,
)
from penstock.sql.publication_statements import (
    AlterPublicationObjects,
    AlterPublicationOptions,
    AlterPublicationOwner,
    CreatePublication,
    DropPublication,
    PublicationAction,
    PublicationObject,
    PublicationSchema,
    PublicationTable,
    RenamePublication,
)
from penstock.sql.statements import Statement


class _SpecKind(Enum):
    TABLE = auto()
    SCHEMA = auto()
    CONTINUATION = auto()


@dataclass(frozen=True, slots=True)
class _Spec:
    """PublicationObjSpec: a bare ``name``, a ``table``, or neither for CURRENT_SCHEMA."""

    kind: _SpecKind
    name: str | None = None
    table: PublicationTable | None = None


def create_publication(cursor: Cursor) -> CreatePublication:
    """name [FOR ALL TABLES | FOR pub_obj_list] opt_definition"""
    name = cursor.name()
    all_tables, specs = False, None
    if cursor.accept("for"):
        if cursor.accept("all"):
            cursor.expect("tables")
            all_tables = True
        else:
            specs = _pub_obj_list(cursor)
    options = cursor.opt_definition()
    objects = () if specs is None else _objects(specs)
    cursor.expect_end()
    return CreatePublication(name, objects, all_tables, options, notices=cursor.notices)


def alter_publication(cursor: Cursor) -> Statement:
    """name, and what to do with it"""
    name = cursor.name()
    if cursor.accept("rename", "to"):
        new_name = cursor.name()
        cursor.expect_end()
        return RenamePublication(name, new_name, notices=cursor.notices)
    if cursor.accept("owner", "to"):
        owner = role_spec(cursor)
        cursor.expect_end()
        return AlterPublicationOwner(name, owner, notices=cursor.notices)
    word = cursor.word()
    if word in ("rename", "owner"):
        cursor.take()
        raise cursor.syntax_error()
    if word not in ("add", "set", "drop"):
        raise cursor.syntax_error()
    cursor.take()
    if word == "set" and cursor.at_symbol("("):
        options = cursor.definition()
        cursor.expect_end()
        return AlterPublicationOptions(name, options, notices=cursor.notices)
    objects = _objects(_pub_obj_list(cursor))
    cursor.expect_end()
    action = PublicationAction(word.upper())
    return AlterPublicationObjects(name, action, objects, notices=cursor.notices)


def drop_publication(cursor: Cursor) -> DropPublication:
    """[IF EXISTS] name_list opt_drop_behavior"""
    missing_ok = cursor.accept("if", "exists")
    names = cursor.name_list()
    cursor.opt_drop_behavior()
    cursor.expect_end()
    return DropPublication(names, missing_ok, notices=cursor.notices)


def _pub_obj_list(cursor: Cursor) -> list[_Spec]:
    specs = [_pub_obj_spec(cursor)]
    while cursor.accept_symbol(","):
        specs.append(_pub_obj_spec(cursor))
    return specs


def _pub_obj_spec(cursor: Cursor) -> _Spec:
    """``PublicationObjSpec``"""
    if cursor.accept("table"):
        return _Spec(_SpecKind.TABLE, table=_table(cursor, relation_expr(cursor)))
    if cursor.word() == "tables" and cursor.word_after() == "in":
        cursor.expect("tables", "in", "schema")
        if cursor.accept("current_schema"):
            return _Spec(_SpecKind.SCHEMA)
        return _Spec(_SpecKind.SCHEMA, name=cursor.name())
    if cursor.accept("current_schema"):
        return _Spec(_SpecKind.CONTINUATION)
    if cursor.word() == "only":
        return _Spec(_SpecKind.CONTINUATION, table=_table(cursor, relation_expr(cursor)))
    return _name_spec(cursor)


def _name_spec(cursor: Cursor) -> _Spec:
    """A name without TABLE or TABLES IN SCHEMA, which goes on with what came before."""
    names = [cursor.name(), *indirection(cursor)]
    starred = cursor.accept_symbol("*")
    bare = len(names) == 1 and not starred and not cursor.at_symbol("(")
    if bare and cursor.word() != "where":
        return _Spec(_SpecKind.CONTINUATION, name=names[0])
    return _Spec(_SpecKind.CONTINUATION, table=_table(cursor, range_var(names)))


def _table(cursor: Cursor, relation: RangeVar) -> PublicationTable:
    columns = column_list(cursor) if cursor.at_symbol("(") else None
    where = expression_text(cursor) if cursor.accept("where") else None
    return PublicationTable(relation, columns, where)


def _objects(specs: Sequence[_Spec]) -> tuple[PublicationObject, ...]:
    """preprocess_pubobj_list: what a name without a word before it continues."""
    previous = specs[0].kind
    if previous is _SpecKind.CONTINUATION:
        raise SqlSyntaxError(
            "invalid publication object list",
            detail="One of TABLE or TABLES IN SCHEMA must be specified before a standalone table "
            "or schema name.",
        )
    objects: list[PublicationObject] = []
    for spec in specs:
        if spec.kind is not _SpecKind.CONTINUATION:
            previous = spec.kind
        objects.append(_as_table(spec) if previous is _SpecKind.TABLE else _as_schema(spec))
    return tuple(objects)


def _as_table(spec: _Spec) -> PublicationTable:
    if spec.table is not None:
        return spec.table
    if spec.name is None:
        raise SqlSyntaxError("invalid table name")
    return PublicationTable(RangeVar(spec.name))


def _as_schema(spec: _Spec) -> PublicationSchema:
    if spec.table is None:
        return PublicationSchema(spec.name)
    if spec.table.where is not None:
        raise SqlSyntaxError("WHERE clause not allowed for schema")
    if spec.table.columns is not None:
        raise SqlSyntaxError("column specification not allowed for schema")
    raise SqlSyntaxError("invalid schema name")
