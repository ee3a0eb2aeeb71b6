"""Queries and changes of rows of the raw parse tree as ``parsenodes`` has them.

In: the text of one statement. Out: a frozen raw statement; every clause is in it, or is refused by
its name (0A000). What PostgreSQL's grammar does not take is 42601.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.errors import FeatureNotSupported, SqlSyntaxError
from penstock.sql.grammar.expressions import Expression
from penstock.sql.grammar.libpg_query import parse_tree
from penstock.sql.grammar.parsenodes import (
    Alias,
    CommonTableExpr,
    DeleteStmt,
    FromItem,
    InsertStmt,
    JoinExpr,
    JoinType,
    Overriding,
    QueryStatement,
    RangeFunction,
    RangeSubselect,
    RangeTable,
    ResTarget,
    SelectStmt,
    SetOperation,
    Star,
    UpdateStmt,
)
from penstock.sql.grammar.raw_expressions import RawExpressions
from penstock.sql.grammar.raw_node import Json, RawNode, string
from penstock.sql.text.limits import limited_depth
from penstock.sql.text.object_names import RangeVar

_JOINS: Final = {
    "JOIN_INNER": JoinType.INNER,
    "JOIN_LEFT": JoinType.LEFT,
    "JOIN_RIGHT": JoinType.RIGHT,
    "JOIN_FULL": JoinType.FULL,
}
_OPERATIONS: Final = {
    "SETOP_NONE": None,
    "SETOP_UNION": SetOperation.UNION,
    "SETOP_INTERSECT": SetOperation.INTERSECT,
    "SETOP_EXCEPT": SetOperation.EXCEPT,
}


def parse_query(text: str) -> QueryStatement:
    """One SELECT, VALUES, TABLE, INSERT, UPDATE or DELETE.

    Raises SqlSyntaxError, FeatureNotSupported, PenstockError (54001).
    """
    statements = parse_tree(text)
    if len(statements) != 1:
        raise SqlSyntaxError("cannot insert multiple commands into a prepared statement")
    with limited_depth():
        return _statement(RawNode.of(statements[0]))


def _statement(raw: RawNode) -> QueryStatement:
    match raw.kind:
        case "SelectStmt":
            return _select(raw)
        case "InsertStmt":
            return _insert(raw)
        case "UpdateStmt":
            return _update(raw)
        case "DeleteStmt":
            return _delete(raw)
    raise FeatureNotSupported(f"{_name(raw)} is not supported")


def _name(raw: RawNode) -> str:
    return raw.kind.removesuffix("Stmt").upper()


def _select_of(node: Json) -> SelectStmt:
    raw = RawNode.of(node)
    if raw.kind != "SelectStmt":
        raise FeatureNotSupported(f"{_name(raw)} within WITH is not supported")
    return _select(raw)


_expressions: Final = RawExpressions(_select_of)
read_expression: Final = _expressions.read
"""Of the JSON of a node. Raises SqlSyntaxError, FeatureNotSupported."""


def _select(raw: RawNode) -> SelectStmt:
    raw.expect("limitOption", "LIMIT_OPTION_DEFAULT", "LIMIT_OPTION_COUNT")
    raw.ignore("groupDistinct")  # of grouping sets, which are refused
    left, right = raw.node("larg"), raw.node("rarg")
    found = SelectStmt(
        targets=tuple(_target(node) for node in raw.nodes("targetList")),
        from_=tuple(_from_item(node) for node in raw.nodes("fromClause")),
        where=_expressions.optional(raw.node("whereClause")),
        group=_expressions.all(raw.nodes("groupClause")),
        having=_expressions.optional(raw.node("havingClause")),
        distinct=_distinct(raw),
        windows=tuple(_expressions.window(node["WindowDef"]) for node in raw.nodes("windowClause")),
        values=tuple(_expressions.all(node["List"]["items"]) for node in raw.nodes("valuesLists")),
        order=tuple(_expressions.sort_by(node) for node in raw.nodes("sortClause")),
        limit=_expressions.optional(raw.node("limitCount")),
        offset=_expressions.optional(raw.node("limitOffset")),
        ctes=_with(raw),
        operation=_OPERATIONS[raw.take("op")],
        all=bool(raw.take("all")),
        left=None if left is None else _select(RawNode("SelectStmt", left)),
        right=None if right is None else _select(RawNode("SelectStmt", right)),
    )
    raw.done()
    return found


def _distinct(raw: RawNode) -> tuple[Expression, ...] | None:
    clause = raw.take("distinctClause")
    if clause is None:
        return None
    return () if clause == [{}] else _expressions.all(clause)


def _with(raw: RawNode) -> tuple[CommonTableExpr, ...]:
    fields = raw.node("withClause")
    if fields is None:
        return ()
    clause = RawNode("WithClause", fields)
    recursive = bool(clause.take("recursive"))
    found = tuple(_common_table(node, recursive) for node in clause.nodes("ctes"))
    clause.done()
    return found


def _common_table(node: Json, recursive: bool) -> CommonTableExpr:
    raw = RawNode.of(node)
    raw.ignore("ctematerialized")  # how, not what
    query = raw.node("ctequery")
    assert query is not None
    names = raw.names("aliascolnames")
    found = CommonTableExpr(raw.take("ctename"), _select_of(query), names, recursive)
    raw.done()
    return found


def _target(node: Json) -> ResTarget:
    raw = RawNode.of(node)
    name, value = raw.take("name"), raw.node("val")
    if raw.take("indirection"):
        raise FeatureNotSupported("SET of a part of a column is not supported")
    raw.done()
    assert value is not None
    if "MultiAssignRef" in value:
        raise FeatureNotSupported("SET of several columns from one row is not supported")
    star = _star(value)
    return ResTarget(_expressions.read(value) if star is None else star, name)


def _star(value: Json) -> Star | None:
    fields = value["ColumnRef"]["fields"] if "ColumnRef" in value else []
    if not any("A_Star" in field for field in fields):
        return None
    return Star(tuple(string(field) for field in fields[:-1]))


# FROM


def _from_item(node: Json) -> FromItem:
    raw = RawNode.of(node)
    found: FromItem
    match raw.kind:
        case "RangeVar":
            found = RangeTable(*_range_var(raw))
        case "RangeSubselect":
            query = raw.node("subquery")
            assert query is not None
            found = RangeSubselect(_select_of(query), _alias(raw), bool(raw.take("lateral")))
        case "RangeFunction":
            found = _range_function(raw)
        case "JoinExpr":
            found = _join(raw)
        case _:
            raise FeatureNotSupported(f"{raw.kind} is not supported in FROM")
    raw.done()
    return found


def _range_var(raw: RawNode) -> tuple[RangeVar, Alias | None]:
    raw.expect("relpersistence", "p")
    relation = RangeVar(
        raw.take("relname"),
        raw.take("schemaname"),
        raw.take("catalogname"),
        only=not raw.take("inh"),
    )
    return relation, _alias(raw)


def _alias(raw: RawNode) -> Alias | None:
    fields = raw.node("alias")
    if fields is None:
        return None
    alias = RawNode("Alias", fields)
    found = Alias(alias.take("aliasname"), alias.names("colnames"))
    alias.done()
    return found


def _range_function(raw: RawNode) -> RangeFunction:
    raw.ignore("lateral", "is_rowsfrom")  # every function in FROM may be
    ordinality = bool(raw.take("ordinality"))
    functions = raw.nodes("functions")
    if len(functions) != 1:
        raise FeatureNotSupported("ROWS FROM with several functions is not supported")
    call, definitions = functions[0]["List"]["items"]
    if definitions:
        raise FeatureNotSupported("a column definition list is not supported")
    return RangeFunction(_expressions.read(call), _alias(raw), ordinality)


def _join(raw: RawNode) -> JoinExpr:
    left, right = raw.node("larg"), raw.node("rarg")
    assert left is not None and right is not None
    if raw.take("join_using_alias") or raw.take("alias"):
        raise FeatureNotSupported("an alias of a join is not supported")
    return JoinExpr(
        _JOINS[raw.take("jointype")],
        _from_item(left),
        _from_item(right),
        bool(raw.take("isNatural")),
        raw.names("usingClause"),
        _expressions.optional(raw.node("quals")),
    )


# Changes


def _refuse(raw: RawNode, field: str, what: str) -> None:
    if raw.take(field):
        raise FeatureNotSupported(f"{what} is not supported")


def _relation(raw: RawNode) -> tuple[RangeVar, Alias | None]:
    fields: Any = raw.node("relation")
    table = RawNode("RangeVar", fields)
    found = _range_var(table)
    table.done()
    return found


def _insert(raw: RawNode) -> InsertStmt:
    relation, _ = _relation(raw)
    override = Overriding(raw.take("override"))
    columns: list[str] = []
    for node in raw.nodes("cols"):
        column = RawNode.of(node)
        columns.append(column.take("name"))
        if column.take("indirection"):
            raise FeatureNotSupported("inserting into a part of a column is not supported")
        column.done()
    query = raw.node("selectStmt")
    given = None if query is None else _select_of(query)
    found = InsertStmt(relation, tuple(columns) or None, given, override)
    raw.done()
    return found


def _update(raw: RawNode) -> UpdateStmt:
    relation, alias = _relation(raw)
    _refuse(raw, "fromClause", "FROM in UPDATE")
    found = UpdateStmt(
        relation,
        alias,
        tuple(_target(node) for node in raw.nodes("targetList")),
        _expressions.optional(raw.node("whereClause")),
    )
    raw.done()
    return found


def _delete(raw: RawNode) -> DeleteStmt:
    relation, alias = _relation(raw)
    _refuse(raw, "usingClause", "USING in DELETE")
    found = DeleteStmt(relation, alias, _expressions.optional(raw.node("whereClause")))
    raw.done()
    return found
