"""Expressions of the raw parse tree as ``expressions`` has them.

In: JSON of a node. Out: frozen raw expressions. What is not known here is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.errors import FeatureNotSupported, SqlSyntaxError
from penstock.sql.grammar.expressions import (
    AArray,
    ABool,
    ABooleanTest,
    ACase,
    ACoalesce,
    AConst,
    AExpr,
    AExprKind,
    AMinMax,
    ANullTest,
    ARow,
    BoolOp,
    CollateClause,
    ColumnRef,
    ConstKind,
    Default,
    Expression,
    FuncCall,
    Indirection,
    NamedArg,
    ParamRef,
    SortBy,
    SqlValueFunction,
    Subscript,
    TypeCast,
    TypeName,
    WindowDef,
)
from penstock.sql.grammar.parsenodes import ASubLink, SelectStmt, SubLinkKind
from penstock.sql.grammar.raw_node import Json, RawNode, string
from penstock.sql.text.limits import MAX_DIGITS

ReadSelect = Callable[[Json], SelectStmt]

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
    "MergeSupportFunc": "MERGE_ACTION",
    "XmlExpr": "an expression of SQL/XML",
}
"""Kinds of nodes as they are written."""
_CATALOG: Final = "pg_catalog"


class RawExpressions:
    """Reads nodes. ``select``: who reads the SELECT of a subquery."""

    def __init__(self, select: ReadSelect) -> None:
        self._select = select
        self._readers: dict[str, Callable[[RawNode], Expression]] = {
            "A_ArrayExpr": lambda n: AArray(self.all(n.nodes("elements"))),
            "A_Const": self._const,
            "A_Expr": self._operator,
            "A_Indirection": self._indirection,
            "BoolExpr": lambda n: ABool(_BOOLS[n.take("boolop")], self.all(n.nodes("args"))),
            "BooleanTest": self._boolean_test,
            "CaseExpr": self._case,
            "CoalesceExpr": lambda n: ACoalesce(self.all(n.nodes("args"))),
            "CollateClause": self._collate,
            "ColumnRef": self._column,
            "FuncCall": self._call,
            "MinMaxExpr": self._min_max,
            "NamedArgExpr": self._named_argument,
            "NullTest": self._null_test,
            "ParamRef": lambda n: ParamRef(int(n.take("number") or 0)),
            "RowExpr": self._row,
            "SQLValueFunction": self._value_function,
            "SetToDefault": lambda _: Default(),
            "SubLink": self._sublink,
            "TypeCast": self._cast,
        }

    def read(self, node: Json) -> Expression:
        """Raises FeatureNotSupported, SqlSyntaxError."""
        raw = RawNode.of(node)
        reader = self._readers.get(raw.kind)
        if reader is None:
            shown = _REFUSED.get(raw.kind, raw.kind)
            raise FeatureNotSupported(f"{shown} is not supported in expressions")
        expression = reader(raw)
        raw.done()
        return expression

    def all(self, nodes: object) -> tuple[Expression, ...]:
        """Each of a list."""
        assert isinstance(nodes, list | tuple)
        return tuple(self.read(node) for node in nodes)

    def optional(self, node: Json | None) -> Expression | None:
        """None where there is none."""
        return None if node is None else self.read(node)

    def required(self, node: Json | None) -> Expression:
        """One that the grammar promises."""
        if node is None:
            raise FeatureNotSupported("an expression without an operand is not supported")
        return self.read(node)

    def sort_by(self, node: Json) -> SortBy:
        """``expression [ASC | DESC] [NULLS FIRST | LAST]``"""
        raw = RawNode.of(node)
        by = self.required(raw.node("node"))
        direction = raw.take("sortby_dir")
        if direction not in ("SORTBY_DEFAULT", "SORTBY_ASC", "SORTBY_DESC"):
            raise FeatureNotSupported("ORDER BY ... USING is not supported")
        found = SortBy(by, direction == "SORTBY_DESC", _NULLS[raw.take("sortby_nulls")])
        raw.done()
        return found

    def window(self, fields: Json) -> WindowDef:
        """The fields of a WindowDef."""
        raw = RawNode("WindowDef", fields)
        found = WindowDef(
            name=raw.take("name"),
            refname=raw.take("refname"),
            partition=self.all(raw.nodes("partitionClause")),
            order=tuple(self.sort_by(item) for item in raw.nodes("orderClause")),
            frame=int(raw.take("frameOptions") or 0),
            start=self.optional(raw.node("startOffset")),
            end=self.optional(raw.node("endOffset")),
        )
        raw.done()
        return found

    def type_name(self, fields: Json) -> TypeName:
        """The fields of a TypeName."""
        raw = RawNode("TypeName", fields)
        names = raw.names("names")
        if len(names) > 1 and names[0] == _CATALOG:
            names = names[1:]
        bounds = raw.nodes("arrayBounds")
        raw.expect("typemod", -1)
        found = TypeName(names, self._typmods(raw), bool(bounds))
        raw.done()
        return found

    def _typmods(self, raw: RawNode) -> tuple[int, ...]:
        numbers = []
        for node in raw.nodes("typmods"):
            item = RawNode.of(node)
            value = item.take("ival") if item.kind == "A_Const" else None
            if value is None:
                raise SqlSyntaxError("type modifiers must be simple constants or identifiers")
            numbers.append(int(value.get("ival", 0)))
        return tuple(numbers)

    # One reader a kind

    def _const(self, raw: RawNode) -> Expression:
        if raw.take("isnull"):
            return AConst(ConstKind.NULL)
        for field, inner, kind in (
            ("ival", "ival", ConstKind.INTEGER),
            ("fval", "fval", ConstKind.FLOAT),
            ("sval", "sval", ConstKind.STRING),
            ("boolval", "boolval", ConstKind.BOOLEAN),
        ):
            value = raw.take(field)
            if value is None:
                continue
            if kind is ConstKind.INTEGER:
                return AConst(kind, str(value.get(inner, 0)))
            if kind is ConstKind.BOOLEAN:
                return AConst(kind, "true" if value.get(inner) else "false")
            text = str(value.get(inner, ""))
            return AConst(kind, text) if kind is ConstKind.STRING else _number(text)
        raise FeatureNotSupported("bit strings are not supported in expressions")

    def _operator(self, raw: RawNode) -> Expression:
        kind = _KINDS[raw.take("kind")]
        *schema, operator = raw.names("name")
        if schema not in ([], [_CATALOG]):
            raise FeatureNotSupported(f'operators of schema "{schema[0]}" are not supported')
        left, right = raw.node("lexpr"), raw.node("rexpr")
        if kind not in _LISTS:
            return AExpr(kind, operator, self.optional(left), self.required(right))
        assert right is not None
        ((_, items),) = right.items()
        return AExpr(kind, operator, self.optional(left), self.all(items["items"]))

    def _null_test(self, raw: RawNode) -> Expression:
        argument = self.required(raw.node("arg"))
        return ANullTest(argument, raw.take("nulltesttype") == "IS_NOT_NULL")

    def _boolean_test(self, raw: RawNode) -> Expression:
        return ABooleanTest(self.required(raw.node("arg")), _TESTS[raw.take("booltesttype")])

    def _case(self, raw: RawNode) -> Expression:
        whens = []
        for node in raw.nodes("args"):
            when = RawNode.of(node)
            whens.append((self.required(when.node("expr")), self.required(when.node("result"))))
            when.done()
        return ACase(
            self.optional(raw.node("arg")), tuple(whens), self.optional(raw.node("defresult"))
        )

    def _collate(self, raw: RawNode) -> Expression:
        argument = self.required(raw.node("arg"))
        name = raw.names("collname")
        return CollateClause(argument, name[1:] if name[0] == _CATALOG else name)

    def _column(self, raw: RawNode) -> Expression:
        fields = raw.nodes("fields")
        if any("A_Star" in field for field in fields):
            raise FeatureNotSupported("* is not supported in expressions")
        return ColumnRef(tuple(string(field) for field in fields))

    def _min_max(self, raw: RawNode) -> Expression:
        return AMinMax(raw.take("op") == "IS_GREATEST", self.all(raw.nodes("args")))

    def _named_argument(self, raw: RawNode) -> Expression:
        raw.expect("argnumber", -1)
        return NamedArg(raw.take("name"), self.required(raw.node("arg")))

    def _row(self, raw: RawNode) -> Expression:
        raw.ignore("row_format")
        return ARow(self.all(raw.nodes("args")))

    def _value_function(self, raw: RawNode) -> Expression:
        name = str(raw.take("op")).removeprefix(_VALUE_FUNCTION).removesuffix("_N").lower()
        return SqlValueFunction(name, raw.take("typmod") or 0)

    def _cast(self, raw: RawNode) -> Expression:
        fields = raw.node("typeName")
        assert fields is not None
        return TypeCast(self.required(raw.node("arg")), self.type_name(fields))

    def _indirection(self, raw: RawNode) -> Expression:
        argument = self.required(raw.node("arg"))
        nodes = raw.nodes("indirection")
        parts = [next(iter(node.items())) for node in nodes]
        fields = [part.get("sval", "*") for kind, part in parts if kind != "A_Indices"]
        sliced = any(part.get("is_slice") for _, part in parts)
        steps = () if sliced else tuple(self._step(node) for node in nodes)
        return Indirection(argument, sliced, fields[0] if fields else "", steps)

    def _step(self, node: Json) -> Subscript | str:
        if "A_Star" in node:
            return "*"
        if "String" in node:
            return string(node)
        raw = RawNode.of(node)
        found = Subscript(self.required(raw.node("uidx")))
        raw.done()
        return found

    def _sublink(self, raw: RawNode) -> Expression:
        kind = _SUBLINKS.get(raw.take("subLinkType"))
        if kind is None:
            raise FeatureNotSupported("this kind of subquery is not supported")
        operator = raw.names("operName")
        select = raw.node("subselect")
        assert select is not None
        return ASubLink(
            kind,
            self._select(select),
            self.optional(raw.node("testexpr")),
            operator[-1] if operator else "=",
        )

    def _call(self, raw: RawNode) -> Expression:
        name = raw.names("funcname")
        if len(name) > 1 and name[0] == _CATALOG:
            name = name[1:]
        over = raw.node("over")
        return FuncCall(
            name,
            self.all(raw.nodes("args")),
            sql_syntax=raw.take("funcformat") == "COERCE_SQL_SYNTAX",
            star=bool(raw.take("agg_star")),
            variadic=bool(raw.take("func_variadic")),
            distinct=bool(raw.take("agg_distinct")),
            order=tuple(self.sort_by(item) for item in raw.nodes("agg_order")),
            filter=self.optional(raw.node("agg_filter")),
            over=None if over is None else self.window(over),
        )


def _number(text: str) -> AConst:
    """What does not fit an int4, or has a fraction."""
    if len(text) > MAX_DIGITS:
        raise FeatureNotSupported(f"numbers of more than {MAX_DIGITS} digits are not supported")
    return AConst(ConstKind.FLOAT, text.replace("_", ""))
