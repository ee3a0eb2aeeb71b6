"""CREATE and DROP TABLE, CREATE and DROP SCHEMA (gram.y, CreateStmt); ALTER TABLE is in
``alter_table_grammar``.

In: a cursor behind the word TABLE or SCHEMA. Out: a statement. What a Delta table cannot keep
(defaults, checks, references, storage) is refused by name (0A000).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import InvalidParameterValue, SqlSyntaxError
from penstock.sql.column_type_grammar import column_type
from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.default_grammar import default_constant
from penstock.sql.generated_grammar import generation
from penstock.sql.lexer import Kind
from penstock.sql.object_names import (
    RangeVar,
    column_list,
    qualified_name,
    role_spec,
)
from penstock.sql.partition_bound import Strategy, partition_bound
from penstock.sql.table_statements import (
    ColumnDef,
    CreateSchema,
    CreateTable,
    CreateTableAs,
    DropSchema,
    DropTable,
    Generation,
    PartitionSpec,
    Unique,
)

_CONSTRAINTS: Final = {
    "check": "CHECK",
    "generated": "GENERATED",
    "references": "REFERENCES",
    "foreign": "FOREIGN KEY",
    "exclude": "EXCLUDE",
    "collate": "COLLATE",
    "storage": "STORAGE",
    "compression": "COMPRESSION",
    "deferrable": "DEFERRABLE",
    "initially": "INITIALLY",
}
_TABLE_OPTIONS: Final = {
    "inherits": "INHERITS",
    "using": "USING",
    "with": "WITH",
    "without": "WITHOUT OIDS",
    "on": "ON COMMIT",
    "tablespace": "TABLESPACE",
    "as": "CREATE TABLE AS",
}
_WITH_DATA: Final = re.compile(r"\s+WITH\s+(NO\s+)?DATA$", re.IGNORECASE)


def create_table(cursor: Cursor) -> CreateTable | CreateTableAs:
    """``CreateStmt``, ``CreateAsStmt``"""
    missing_ok = cursor.accept("if", "not", "exists")
    relation = qualified_name(cursor)
    if cursor.accept("partition"):
        return _partition_of(cursor, relation, missing_ok)
    if cursor.word() == "as" or (cursor.at_symbol("(") and cursor.peek(2) in (",", ")")):
        return _create_as(cursor, relation, missing_ok)
    if cursor.word() in ("of", "using", "with", "on", "tablespace"):
        raise not_supported(f"CREATE TABLE ... {str(cursor.word()).upper()}")
    elements = _elements(cursor)
    spec = _partition_spec(cursor)
    _refuse_options(cursor)
    cursor.expect_end()
    return CreateTable(
        relation,
        tuple(elements.columns),
        tuple(elements.keys),
        missing_ok,
        spec,
        like=elements.like,
        like_at=elements.like_at,
        uniques=tuple(elements.uniques),
        notices=cursor.notices,
    )


def _create_as(cursor: Cursor, relation: RangeVar, missing_ok: bool) -> CreateTableAs:
    columns = column_list(cursor) if cursor.at_symbol("(") else ()
    if cursor.word() in ("using", "with", "on", "tablespace"):
        raise not_supported(f"CREATE TABLE ... {str(cursor.word()).upper()}")
    cursor.expect("as")
    query = cursor.rest_of_text()
    data = _WITH_DATA.search(query)
    return CreateTableAs(
        relation,
        columns,
        query[: data.start()] if data else query,
        missing_ok,
        with_data=data is None or data[1] is None,
        notices=cursor.notices,
    )


def _partition_of(cursor: Cursor, relation: RangeVar, missing_ok: bool) -> CreateTable:
    cursor.expect("of")
    parent = qualified_name(cursor)
    defaults = _partition_defaults(cursor) if cursor.accept_symbol("(") else ()
    bound = partition_bound(cursor)
    spec = _partition_spec(cursor)
    _refuse_options(cursor)
    cursor.expect_end()
    return CreateTable(
        relation,
        missing_ok=missing_ok,
        partition_by=spec,
        parent=parent,
        bound=bound,
        defaults=defaults,
        notices=cursor.notices,
    )


def _partition_defaults(cursor: Cursor) -> tuple[tuple[str, str | None], ...]:
    """``OptTypedTableElementList``: columns with defaults of their own."""
    found = []
    while True:
        name = cursor.name()
        if cursor.word() != "default":
            raise not_supported("PARTITION OF with constraints of columns")
        found.append((name, default_constant(cursor)))
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")")
    return tuple(found)


def _refuse_options(cursor: Cursor) -> None:
    word = cursor.word()
    if word in _TABLE_OPTIONS:
        raise not_supported(_TABLE_OPTIONS[word])


@dataclass
class _Elements:
    """Columns, keys of table constraints, and LIKE with the number of columns in front of it."""

    columns: list[ColumnDef] = field(default_factory=list)
    keys: list[tuple[str, ...]] = field(default_factory=list)
    uniques: list[Unique] = field(default_factory=list)
    like: RangeVar | None = None
    like_at: int = 0


def _elements(cursor: Cursor) -> _Elements:
    """``'(' OptTableElementList ')'``"""
    found = _Elements()
    cursor.expect_symbol("(")
    if cursor.accept_symbol(")"):
        return found
    while True:
        if cursor.accept("like"):
            if found.like is not None:
                raise not_supported("LIKE of several tables")
            found.like, found.like_at = _like(cursor), len(found.columns)
        elif isinstance(key := table_constraint(cursor), Unique):
            found.uniques.append(key)
        elif key is not None:
            found.keys.append(key)
        else:
            found.columns.append(column_def(cursor))
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")")
    return found


def _like(cursor: Cursor) -> RangeVar:
    """``TableLikeClause``, of columns alone"""
    relation = qualified_name(cursor)
    while word := cursor.accept_any("including", "excluding"):
        if word == "including":
            raise not_supported("LIKE ... INCLUDING")
        cursor.take()
    return relation


def table_constraint(cursor: Cursor) -> tuple[str, ...] | Unique | None:
    """``TableConstraint``: the columns of PRIMARY KEY, or UNIQUE; None when there is none."""
    named = cursor.accept("constraint")
    name = cursor.name() if named else None
    if cursor.accept("primary"):
        cursor.expect("key")
        if cursor.word() == "using":
            raise not_supported("PRIMARY KEY USING INDEX")
        columns = column_list(cursor)
        _refuse_constraint_options(cursor)
        return columns
    if cursor.accept("unique"):
        if cursor.word() == "using":
            raise not_supported("UNIQUE USING INDEX")
        _refuse_nulls(cursor)
        unique = Unique(column_list(cursor), name)
        _refuse_unique_options(cursor)
        return unique
    word = cursor.word()
    if word in ("check", "foreign") or (named and word in ("exclude", "not")):
        raise not_supported(_CONSTRAINTS.get(word, "NOT NULL as a table constraint"))
    if named:
        raise cursor.syntax_error()
    return None


def _refuse_constraint_options(cursor: Cursor) -> None:
    word = cursor.word()
    if cursor.accept("include"):  # columns that an index has beside its key
        column_list(cursor)
        word = cursor.word()
    if word in ("with", "using", "deferrable", "initially"):
        raise not_supported(f"PRIMARY KEY ... {word.upper()}")


def _refuse_nulls(cursor: Cursor) -> None:
    """``opt_unique_null_treatment``"""
    if cursor.accept("nulls"):
        if cursor.word() == "not":
            raise not_supported("UNIQUE NULLS NOT DISTINCT")
        cursor.expect("distinct")


def _refuse_unique_options(cursor: Cursor) -> None:
    word = cursor.word()
    if word in ("include", "with", "using", "deferrable", "initially"):
        raise not_supported(f"UNIQUE ... {word.upper()}")


def _column_unique(cursor: Cursor, column: str) -> Unique | None:
    """``[CONSTRAINT name] UNIQUE`` behind a column; None when there is another constraint."""
    ahead = cursor.copy()
    if ahead.accept("constraint"):
        ahead.name()
    if not ahead.accept("unique"):
        return None
    name = cursor.name() if cursor.accept("constraint") else None
    cursor.expect("unique")
    _refuse_nulls(cursor)
    _refuse_unique_options(cursor)
    return Unique((column,), name)


def column_def(cursor: Cursor) -> ColumnDef:
    """``columnDef``"""
    name = cursor.name()
    found_type = column_type(cursor)
    found: list[str] = []
    default: str | None = None
    generations: list[Generation] = []
    references: RangeVar | None = None
    unique: Unique | None = None
    while True:
        if (again := _column_unique(cursor, name)) is not None:
            unique = unique or again
        elif cursor.word() == "default":
            if default is not None:
                raise SqlSyntaxError(f'multiple default values specified for column "{name}"')
            default = default_constant(cursor)
        elif cursor.word() == "generated":
            generations.append(generation(cursor))
        elif references is None and cursor.accept("references"):
            references = _references(cursor)
        elif constraint := _column_constraint(cursor):
            found.append(constraint)
        else:
            break
    return ColumnDef(
        name,
        found_type,
        not_null="not null" in found,
        null="null" in found,
        primary_key="primary key" in found,
        default=default,
        generations=tuple(generations),
        references=references,
        unique=unique,
    )


def _references(cursor: Cursor) -> RangeVar:
    """``REFERENCES qualified_name opt_column_list``, without actions of its own"""
    relation = qualified_name(cursor)
    if cursor.at_symbol("("):
        column_list(cursor)
    if cursor.word() in ("match", "on", "deferrable", "initially"):
        raise not_supported(f"REFERENCES ... {str(cursor.word()).upper()}")
    return relation


def _column_constraint(cursor: Cursor) -> str | None:
    """``ColConstraint``: its name, None when there is none."""
    named = cursor.accept("constraint")
    if named:
        cursor.name()
    if cursor.accept("not"):
        cursor.expect("null")
        return "not null"
    if cursor.accept("null"):
        return "null"
    if cursor.accept("primary"):
        cursor.expect("key")
        _refuse_constraint_options(cursor)
        return "primary key"
    word = cursor.word()
    if word in _CONSTRAINTS:
        raise not_supported(_CONSTRAINTS[word])
    if named:
        raise cursor.syntax_error()
    return None


def _partition_spec(cursor: Cursor) -> PartitionSpec | None:
    """``OptPartitionSpec``"""
    if not cursor.accept("partition"):
        return None
    cursor.expect("by")
    name = cursor.name()
    cursor.expect_symbol("(")
    columns = [_partition_column(cursor)]
    while cursor.accept_symbol(","):
        columns.append(_partition_column(cursor))
    cursor.expect_symbol(")")
    if name.lower() not in ("list", "range", "hash"):
        raise InvalidParameterValue(f'unrecognized partitioning strategy "{name}"')
    strategy = Strategy(name.lower())
    if strategy is Strategy.LIST and len(columns) > 1:
        raise SqlSyntaxError(
            'cannot use "list" partition strategy with more than one column', sqlstate="42P17"
        )
    return PartitionSpec(strategy, tuple(columns))


def _partition_column(cursor: Cursor) -> str:
    if cursor.at_symbol("("):
        raise not_supported("an expression as partition key")
    column = cursor.name()
    after = cursor.token
    if after.kind in (Kind.WORD, Kind.QUOTED) or cursor.at_symbol("("):
        raise not_supported("a partition key with collation, operator class or function")
    return column


def drop_table(cursor: Cursor) -> DropTable:
    """[IF EXISTS] any_name_list opt_drop_behavior"""
    missing_ok = cursor.accept("if", "exists")
    relations = [qualified_name(cursor)]
    while cursor.accept_symbol(","):
        relations.append(qualified_name(cursor))
    cascade = cursor.opt_drop_behavior()
    cursor.expect_end()
    return DropTable(tuple(relations), missing_ok, cascade, notices=cursor.notices)


def create_schema(cursor: Cursor) -> CreateSchema:
    """``CreateSchemaStmt``, without elements"""
    missing_ok = cursor.accept("if", "not", "exists")
    name = None if cursor.word() == "authorization" else cursor.name()
    owner = role_spec(cursor) if cursor.accept("authorization") else None
    if cursor.word() in ("create", "grant"):
        raise not_supported("CREATE SCHEMA with elements")
    cursor.expect_end()
    return CreateSchema(name, owner, missing_ok, notices=cursor.notices)


def drop_schema(cursor: Cursor) -> DropSchema:
    """[IF EXISTS] name_list opt_drop_behavior"""
    missing_ok = cursor.accept("if", "exists")
    names = cursor.name_list()
    cascade = cursor.opt_drop_behavior()
    cursor.expect_end()
    return DropSchema(names, missing_ok, cascade, notices=cursor.notices)
