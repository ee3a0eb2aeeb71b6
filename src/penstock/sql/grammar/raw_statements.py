"""Read queries, INSERT, UPDATE and DELETE from the raw parse tree into nodes of ``parsenodes``.

Every clause of a statement is kept in its frozen node, or is refused by name (0A000). Text that
PostgreSQL's grammar rejects raises 42601.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError
from penstock.interrupts import check_for_interrupts
from penstock.sql.grammar.libpg_query import parse_tree
from penstock.sql.grammar.names import Readers
from penstock.sql.grammar.parsenodes import (
    AArray,
    ABool,
    ABooleanTest,
    ACase,
    ACoalesce,
    AConst,
    AExpr,
    AExprKind,
    Alias,
    AMinMax,
    ANullTest,
    ARow,
    ASubLink,
    BoolOp,
    CollateClause,
    ColumnRef,
    CommonTableExpr,
    ConstKind,
    Default,
    DeleteStmt,
    Expression,
    FromItem,
    FuncCall,
    Indirection,
    InsertStmt,
    JoinExpr,
    JoinType,
    NamedArg,
    Overriding,
    ParamRef,
    PreparableStmt,
    RangeFunction,
    RangeSubselect,
    RangeTable,
    RangeVar,
    ResTarget,
    SelectStmt,
    SetOperation,
    SortBy,
    SqlValueFunction,
    Star,
    Statement,
    SubLinkKind,
    Subscript,
    TypeCast,
    TypeName,
    UpdateStmt,
    WindowDef,
)
from penstock.sql.grammar.raw_node import Json, RawNode, string
from penstock.sql.grammar.source import Source
from penstock.sql.text.limits import MAX_DIGITS, limited_depth

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


_TAGS: Final = {
    SelectStmt: "SELECT",
    InsertStmt: "INSERT",
    UpdateStmt: "UPDATE",
    DeleteStmt: "DELETE",
}


@dataclass(frozen=True, slots=True)
class QueryStatement(Statement):
    """SELECT, VALUES, TABLE, INSERT, UPDATE or DELETE."""

    query: PreparableStmt

    @property
    def tag(self) -> str:
        """The statement's command tag, without row counts (CreateCommandTag)."""
        return _TAGS[type(self.query)]


def parse_query(text: str) -> PreparableStmt:
    """Parse one SELECT, VALUES, TABLE, INSERT, UPDATE or DELETE.

    Raises SqlSyntaxError, FeatureNotSupported, PenstockError (54001).
    """
    statements = parse_tree(text)
    if len(statements) != 1:
        raise SqlSyntaxError("cannot insert multiple commands into a prepared statement")
    return read_query(RawNode.of(statements[0]))


def parse_select(text: str) -> SelectStmt:
    """Parse one SELECT, VALUES or TABLE. Raises as ``parse_query``."""
    query = parse_query(text)
    if not isinstance(query, SelectStmt):
        raise SqlSyntaxError("a SELECT was expected")
    return query


def read_query(raw: RawNode) -> PreparableStmt:
    """Read the node of a statement. Raises FeatureNotSupported, SqlSyntaxError, PenstockError
    (54001)."""
    with limited_depth():
        return _statement(raw)


def _statement(raw: RawNode) -> PreparableStmt:
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


def read_select(node: Json) -> SelectStmt:
    """Read the node of a query that COPY or CREATE TABLE AS runs. Raises as ``read_query``."""
    raw = RawNode.of(node)
    if raw.kind != "SelectStmt":
        raise FeatureNotSupported(f"{_name(raw)} is not supported here")
    with limited_depth():
        return _select(raw)


def _select_of(node: Json) -> SelectStmt:
    raw = RawNode.of(node)
    if raw.kind != "SelectStmt":
        raise FeatureNotSupported(f"{_name(raw)} within WITH is not supported")
    return _select(raw)


# Expressions: each supported kind of node has a function; other kinds are refused by name.

_KINDS: Final = {
    "AEXPR_OP": AExprKind.OP,
    "AEXPR_OP_ANY": AExprKind.OP_ANY,
    "AEXPR_OP_ALL": AExprKind.OP_ALL,
    "AEXPR_DISTINCT": AExprKind.DISTINCT,
    "AEXPR_NOT_DISTINCT": AExprKind.NOT_DISTINCT,
    "AEXPR_NULLIF": AExprKind.NULLIF,
    "AEXPR_IN": AExprKind.IN,
    "AEXPR_LIKE": AExprKind.LIKE,
    "AEXPR_ILIKE": AExprKind.ILIKE,
    "AEXPR_SIMILAR": AExprKind.SIMILAR,
    "AEXPR_BETWEEN": AExprKind.BETWEEN,
    "AEXPR_NOT_BETWEEN": AExprKind.NOT_BETWEEN,
    "AEXPR_BETWEEN_SYM": AExprKind.BETWEEN_SYM,
    "AEXPR_NOT_BETWEEN_SYM": AExprKind.NOT_BETWEEN_SYM,
}
_BOOLS: Final = {"AND_EXPR": BoolOp.AND, "OR_EXPR": BoolOp.OR, "NOT_EXPR": BoolOp.NOT}
_TESTS: Final = {
    "IS_TRUE": "TRUE",
    "IS_NOT_TRUE": "NOT TRUE",
    "IS_FALSE": "FALSE",
    "IS_NOT_FALSE": "NOT FALSE",
    "IS_UNKNOWN": "UNKNOWN",
    "IS_NOT_UNKNOWN": "NOT UNKNOWN",
}
_SUBLINKS: Final = {
    "EXISTS_SUBLINK": SubLinkKind.EXISTS,
    "ANY_SUBLINK": SubLinkKind.ANY,
    "ALL_SUBLINK": SubLinkKind.ALL,
    "EXPR_SUBLINK": SubLinkKind.EXPR,
    "ARRAY_SUBLINK": SubLinkKind.ARRAY,
}
_NULLS: Final = {
    "SORTBY_NULLS_DEFAULT": None,
    "SORTBY_NULLS_FIRST": True,
    "SORTBY_NULLS_LAST": False,
}
_LISTS: Final = frozenset(
    {
        AExprKind.IN,
        AExprKind.BETWEEN,
        AExprKind.NOT_BETWEEN,
        AExprKind.BETWEEN_SYM,
        AExprKind.NOT_BETWEEN_SYM,
    }
)
_VALUE_FUNCTION: Final = "SVFOP_"
_REFUSED: Final = {
    "GroupingFunc": "GROUPING",
    "JsonArrayConstructor": "JSON_ARRAY",
    "JsonFuncExpr": "a query function of SQL/JSON",
    "JsonIsPredicate": "IS JSON",
    "JsonObjectConstructor": "JSON_OBJECT",
    "JsonParseExpr": "JSON()",
    "Literals": "a row",
    "MergeSupportFunc": "MERGE_ACTION",
    "XmlExpr": "an expression of SQL/XML",
}
"""Kinds of nodes that are refused, with the SQL words for them."""
_CATALOG: Final = "pg_catalog"


def read_expression(node: Json) -> Expression:
    """Read a node. Raises FeatureNotSupported, SqlSyntaxError."""
    check_for_interrupts()
    constant = node.get("A_Const")
    if constant is not None:  # a statement may have a million of them
        return _const(constant)
    raw = RawNode.of(node)
    reader = _READERS.get(raw.kind)
    if reader is None:
        shown = _REFUSED.get(raw.kind, raw.kind)
        raise FeatureNotSupported(f"{shown} is not supported in expressions")
    expression = reader(raw)
    raw.done()
    return expression


def _all(nodes: object) -> tuple[Expression, ...]:
    """Read each node of a list."""
    assert isinstance(nodes, list | tuple)
    if len(nodes) == 1 and (literals := nodes[0].get("Literals")):
        columns: tuple[Expression, ...] = literals["columns"]
        return columns
    return tuple(read_expression(node) for node in nodes)


def _optional(node: Json | None) -> Expression | None:
    """Read a node; None if the field is missing."""
    return None if node is None else read_expression(node)


def _required(node: Json | None) -> Expression:
    """Read a node that the grammar always sets."""
    if node is None:
        raise FeatureNotSupported("an expression without an operand is not supported")
    return read_expression(node)


def _sort_by(node: Json) -> SortBy:
    """Read ``expression [ASC | DESC] [NULLS FIRST | LAST]``."""
    raw = RawNode.of(node)
    by = _required(raw.node("node"))
    direction = raw.take("sortby_dir")
    if direction not in ("SORTBY_DEFAULT", "SORTBY_ASC", "SORTBY_DESC"):
        raise FeatureNotSupported("ORDER BY ... USING is not supported")
    found = SortBy(by, direction == "SORTBY_DESC", _NULLS[raw.take("sortby_nulls")])
    raw.done()
    return found


def _window(fields: Json) -> WindowDef:
    """Read the fields of a WindowDef."""
    raw = RawNode("WindowDef", fields)
    found = WindowDef(
        name=raw.take("name"),
        refname=raw.take("refname"),
        partition=_all(raw.nodes("partitionClause")),
        order=tuple(_sort_by(item) for item in raw.nodes("orderClause")),
        frame=int(raw.take("frameOptions") or 0),
        start=_optional(raw.node("startOffset")),
        end=_optional(raw.node("endOffset")),
    )
    raw.done()
    return found


def type_name(fields: Json) -> TypeName:
    """Read the fields of a TypeName."""
    raw = RawNode("TypeName", fields)
    names = raw.names("names")
    if len(names) > 1 and names[0] == _CATALOG:
        names = names[1:]
    bounds = raw.nodes("arrayBounds")
    raw.expect("typemod", -1)
    found = TypeName(names, _typmods(raw), bool(bounds))
    raw.done()
    return found


def _typmods(raw: RawNode) -> tuple[int, ...]:
    numbers = []
    for node in raw.nodes("typmods"):
        item = RawNode.of(node)
        value = item.take("ival") if item.kind == "A_Const" else None
        if value is None:
            raise SqlSyntaxError("type modifiers must be simple constants or identifiers")
        numbers.append(int(value.get("ival", 0)))
    return tuple(numbers)


# One reader for each kind of node


def _const(fields: Json) -> Expression:
    if "sval" in fields:
        return AConst(ConstKind.STRING, fields["sval"].get("sval", ""))
    if "ival" in fields:
        return AConst(ConstKind.INTEGER, str(fields["ival"].get("ival", 0)))
    if "fval" in fields:
        return _number(fields["fval"]["fval"])
    if "boolval" in fields:
        return AConst(ConstKind.BOOLEAN, "true" if fields["boolval"] else "false")
    if "isnull" in fields:
        return AConst(ConstKind.NULL)
    raise FeatureNotSupported("bit strings are not supported in expressions")


def _operator(raw: RawNode) -> Expression:
    kind = _KINDS[raw.take("kind")]
    *schema, operator = raw.names("name")
    if schema not in ([], [_CATALOG]):
        raise FeatureNotSupported(f'operators of schema "{schema[0]}" are not supported')
    left, right = raw.node("lexpr"), raw.node("rexpr")
    if kind not in _LISTS:
        return AExpr(kind, operator, _optional(left), _required(right))
    assert right is not None
    ((_, items),) = right.items()
    return AExpr(kind, operator, _optional(left), _all(items["items"]))


def _null_test(raw: RawNode) -> Expression:
    argument = _required(raw.node("arg"))
    return ANullTest(argument, raw.take("nulltesttype") == "IS_NOT_NULL")


def _boolean_test(raw: RawNode) -> Expression:
    return ABooleanTest(_required(raw.node("arg")), _TESTS[raw.take("booltesttype")])


def _case(raw: RawNode) -> Expression:
    whens = []
    for node in raw.nodes("args"):
        when = RawNode.of(node)
        whens.append((_required(when.node("expr")), _required(when.node("result"))))
        when.done()
    return ACase(_optional(raw.node("arg")), tuple(whens), _optional(raw.node("defresult")))


def _collate(raw: RawNode) -> Expression:
    argument = _required(raw.node("arg"))
    name = raw.names("collname")
    return CollateClause(argument, name[1:] if name[0] == _CATALOG else name)


def _column(raw: RawNode) -> Expression:
    fields = raw.nodes("fields")
    if any("A_Star" in field for field in fields):
        raise FeatureNotSupported("* is not supported in expressions")
    return ColumnRef(tuple(string(field) for field in fields))


def _min_max(raw: RawNode) -> Expression:
    return AMinMax(raw.take("op") == "IS_GREATEST", _all(raw.nodes("args")))


def _named_argument(raw: RawNode) -> Expression:
    raw.expect("argnumber", -1)
    return NamedArg(raw.take("name"), _required(raw.node("arg")))


def _row(raw: RawNode) -> Expression:
    raw.ignore("row_format")
    return ARow(_all(raw.nodes("args")))


def _value_function(raw: RawNode) -> Expression:
    name = str(raw.take("op")).removeprefix(_VALUE_FUNCTION).removesuffix("_N").lower()
    return SqlValueFunction(name, raw.take("typmod") or 0)


def _cast(raw: RawNode) -> Expression:
    fields = raw.node("typeName")
    assert fields is not None
    return TypeCast(_required(raw.node("arg")), type_name(fields))


def _indirection(raw: RawNode) -> Expression:
    argument = _required(raw.node("arg"))
    nodes = raw.nodes("indirection")
    parts = [next(iter(node.items())) for node in nodes]
    fields = [part.get("sval", "*") for kind, part in parts if kind != "A_Indices"]
    sliced = any(part.get("is_slice") for _, part in parts)
    steps = () if sliced else tuple(_step(node) for node in nodes)
    return Indirection(argument, sliced, fields[0] if fields else "", steps)


def _step(node: Json) -> Subscript | str:
    if "A_Star" in node:
        return "*"
    if "String" in node:
        return string(node)
    raw = RawNode.of(node)
    found = Subscript(_required(raw.node("uidx")))
    raw.done()
    return found


def _sublink(raw: RawNode) -> Expression:
    kind = _SUBLINKS.get(raw.take("subLinkType"))
    if kind is None:
        raise FeatureNotSupported("this kind of subquery is not supported")
    operator = raw.names("operName")
    select = raw.node("subselect")
    assert select is not None
    return ASubLink(
        kind,
        _select_of(select),
        _optional(raw.node("testexpr")),
        operator[-1] if operator else "=",
    )


def _call(raw: RawNode) -> Expression:
    name = raw.names("funcname")
    if len(name) > 1 and name[0] == _CATALOG:
        name = name[1:]
    over = raw.node("over")
    return FuncCall(
        name,
        _all(raw.nodes("args")),
        sql_syntax=raw.take("funcformat") == "COERCE_SQL_SYNTAX",
        star=bool(raw.take("agg_star")),
        variadic=bool(raw.take("func_variadic")),
        distinct=bool(raw.take("agg_distinct")),
        order=tuple(_sort_by(item) for item in raw.nodes("agg_order")),
        filter=_optional(raw.node("agg_filter")),
        over=None if over is None else _window(over),
    )


def _number(text: str) -> AConst:
    """Return the constant of a number that does not fit into an int4, or has a fraction."""
    if len(text) > MAX_DIGITS:
        raise FeatureNotSupported(f"numbers of more than {MAX_DIGITS} digits are not supported")
    return AConst(ConstKind.FLOAT, text.replace("_", ""))


_READERS: Final[dict[str, Callable[[RawNode], Expression]]] = {
    "A_ArrayExpr": lambda n: AArray(_all(n.nodes("elements"))),
    "A_Expr": _operator,
    "A_Indirection": _indirection,
    "BoolExpr": lambda n: ABool(_BOOLS[n.take("boolop")], _all(n.nodes("args"))),
    "BooleanTest": _boolean_test,
    "CaseExpr": _case,
    "CoalesceExpr": lambda n: ACoalesce(_all(n.nodes("args"))),
    "CollateClause": _collate,
    "ColumnRef": _column,
    "FuncCall": _call,
    "MinMaxExpr": _min_max,
    "NamedArgExpr": _named_argument,
    "NullTest": _null_test,
    "ParamRef": lambda n: ParamRef(int(n.take("number") or 0)),
    "RowExpr": _row,
    "SQLValueFunction": _value_function,
    "SetToDefault": lambda _: Default(),
    "SubLink": _sublink,
    "TypeCast": _cast,
}


def _select(raw: RawNode) -> SelectStmt:
    raw.expect("limitOption", "LIMIT_OPTION_DEFAULT", "LIMIT_OPTION_COUNT")
    raw.ignore("groupDistinct")  # for grouping sets only, which are refused elsewhere
    left, right = raw.node("larg"), raw.node("rarg")
    found = SelectStmt(
        targets=tuple(_target(node) for node in raw.nodes("targetList")),
        from_=tuple(_from_item(node) for node in raw.nodes("fromClause")),
        where=_optional(raw.node("whereClause")),
        group=_all(raw.nodes("groupClause")),
        having=_optional(raw.node("havingClause")),
        distinct=_distinct(raw),
        windows=tuple(_window(node["WindowDef"]) for node in raw.nodes("windowClause")),
        values=tuple(_all(node["List"]["items"]) for node in raw.nodes("valuesLists")),
        order=tuple(_sort_by(node) for node in raw.nodes("sortClause")),
        limit=_optional(raw.node("limitCount")),
        offset=_optional(raw.node("limitOffset")),
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
    return () if clause == [{}] else _all(clause)


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
    raw.ignore("ctematerialized")  # changes the plan, not the result
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
    return ResTarget(read_expression(value) if star is None else star, name)


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
    raw.ignore("lateral", "is_rowsfrom")  # every function in FROM may be lateral
    ordinality = bool(raw.take("ordinality"))
    functions = raw.nodes("functions")
    if len(functions) != 1:
        raise FeatureNotSupported("ROWS FROM with several functions is not supported")
    call, definitions = functions[0]["List"]["items"]
    if definitions:
        raise FeatureNotSupported("a column definition list is not supported")
    return RangeFunction(read_expression(call), _alias(raw), ordinality)


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
        _optional(raw.node("quals")),
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
        _optional(raw.node("whereClause")),
    )
    raw.done()
    return found


def _delete(raw: RawNode) -> DeleteStmt:
    relation, alias = _relation(raw)
    _refuse(raw, "usingClause", "USING in DELETE")
    found = DeleteStmt(relation, alias, _optional(raw.node("whereClause")))
    raw.done()
    return found


# Expressions outside of queries: row filters and generated columns. The analysis decides which
# expressions they may use.

_BEFORE: Final = "CREATE PUBLICATION p FOR TABLE t WHERE ("
_AFTER: Final = "\n)"
"""The text after the expression, on a new line because the expression may end with a comment."""


def parse_expression(text: str) -> Expression:
    """Parse a text that is one expression.

    Raises SqlSyntaxError, FeatureNotSupported, PenstockError (54001).
    """
    return expression_of(check_syntax(text))


def check_syntax(text: str) -> Json:
    """Return the node of an expression, whether or not Penstock supports it.

    The text is parsed inside parentheses, as in PostgreSQL, so the syntax errors are the same.
    Raises SqlSyntaxError, PenstockError (54001).
    """
    try:
        where = _where(parse_tree(f"{_BEFORE}{text}{_AFTER}"))
    except SqlSyntaxError as error:
        if not error.message.endswith(f'{_AFTER}"'):
            raise
        # For an unterminated quote the message shows the rest of the text, our suffix included.
        raise SqlSyntaxError(error.message.removesuffix(f'{_AFTER}"') + '"') from None
    if where is None:
        raise SqlSyntaxError('syntax error at or near ")"')
    return where


def _where(statements: Sequence[Json]) -> Json | None:
    """Return the WHERE of our statement; None if the text itself closed our parenthesis."""
    match statements:
        case [
            {
                "CreatePublicationStmt": {
                    "pubobjects": [{"PublicationObjSpec": {"pubtable": {"whereClause": found}}}],
                    **more,
                }
            }
        ] if more.keys() == {"pubname"}:
            where: Json = found
            return where
    return None


def expression_of(node: Json) -> Expression:
    """Read a node's JSON, such as ``{"A_Expr": {...}}``. Raises FeatureNotSupported, 54001."""
    with limited_depth():
        return read_expression(node)


def without_parentheses(text: str) -> str:
    """Drop the parentheses around a whole expression, as pg_get_expr does with ``pretty``."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    try:
        check_syntax(text[1:-1])
    except PenstockError:
        return text
    return text[1:-1]


def _query(raw: RawNode, _source: Source) -> QueryStatement:
    return QueryStatement(read_query(raw))


READERS: Final[Readers] = dict.fromkeys(
    ("SelectStmt", "InsertStmt", "UpdateStmt", "DeleteStmt"), _query
)
