"""What the columns of a SELECT are called that have no name (parse_target.c, FigureColname).

In: a parsed query. Out: the same tree with an alias on each such column of its outermost SELECT.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

_UNNAMED: Final = "?column?"
_NAMED: Final[dict[type[exp.Expr], str]] = {
    exp.Case: "case",
    exp.Coalesce: "coalesce",
    exp.Nullif: "nullif",
    exp.Greatest: "greatest",
    exp.Least: "least",
    exp.Exists: "exists",
    exp.Array: "array",
    exp.Stddev: "stddev",
    exp.ArrayAgg: "array_agg",
    exp.CurrentDate: "current_date",
    exp.Boolean: "bool",
    exp.Trim: "btrim",
    exp.StrPosition: "position",
    exp.GroupConcat: "string_agg",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
}


def name_columns(tree: exp.Expr) -> None:
    """Give the aliases."""
    query = tree
    while isinstance(query, (exp.SetOperation, exp.Subquery)):
        query = query.this
    if not isinstance(query, exp.Select):
        return
    for column in list(query.expressions):
        if not isinstance(column, (exp.Alias, exp.Column, exp.Star)):
            name = exp.to_identifier(result_name(column), quoted=True)
            column.replace(exp.alias_(column.copy(), name))


def result_name(column: exp.Expr) -> str:
    """The name of a column that has no alias."""
    return _strong(column) or _unnamed(column)


def _unnamed(column: exp.Expr) -> str:
    """A cast of something without a name is called after its type."""
    if isinstance(column, exp.Cast):
        return _type_name(column)
    return _UNNAMED


def _strong(column: exp.Expr) -> str | None:
    match column:
        case exp.Column() | exp.Alias():
            return column.alias_or_name
        case exp.Paren() | exp.Cast() | exp.Collate() | exp.Filter() | exp.Window():
            return _strong(column.this)
        case exp.Subquery():
            query = column.this
            found = query.expressions if isinstance(query, exp.Select) else ()
            return result_name(found[0]) if found else None
        case exp.Anonymous():
            return str(column.this).lower()
    if type(column) in _NAMED:
        return _NAMED[type(column)]
    if isinstance(column, exp.Func) and not isinstance(column, (exp.Connector, exp.Binary)):
        return column.sql_name().lower()
    return None


_TYPE_NAMES: Final = {
    "int": "int4",
    "bigint": "int8",
    "smallint": "int2",
    "double": "float8",
    "float": "float4",
    "boolean": "bool",
    "decimal": "numeric",
    "char": "bpchar",
    "timestampntz": "timestamp",
}


def _type_name(cast: exp.Expr) -> str:
    name = str(cast.args["to"].this.value).lower()
    return _TYPE_NAMES.get(name, name)
