"""What a column of a query is called that has no alias (parse_target.c, FigureColname).

In: a raw expression. Out: a name.
"""

from __future__ import annotations

from typing import Final

from penstock.sql.grammar.expressions import (
    AArray,
    ACase,
    ACoalesce,
    AExpr,
    AExprKind,
    AMinMax,
    ARow,
    CollateClause,
    ColumnRef,
    Expression,
    FuncCall,
    Indirection,
    SqlValueFunction,
    TypeCast,
)
from penstock.sql.grammar.parsenodes import ASubLink, ResTarget, SubLinkKind

_UNNAMED: Final = "?column?"
_WEAK, _STRONG = 1, 2


def result_name(raw: Expression) -> str:
    """As PostgreSQL calls it."""
    return _figure(raw)[0]


def _figure(raw: Expression) -> tuple[str, int]:
    """(name, how much it says)."""
    match raw:
        case ColumnRef(fields):
            return fields[-1], _STRONG
        case FuncCall(name):
            return name[-1], _STRONG
        case Indirection(argument, steps=steps):
            named = [step for step in steps if isinstance(step, str)]
            return (named[-1], _STRONG) if named else _figure(argument)
        case AExpr(kind=AExprKind.NULLIF):
            return "nullif", _STRONG
        case TypeCast(argument, type_):
            name, strength = _figure(argument)
            return (name, strength) if strength > _WEAK else (type_.names[-1], _WEAK)
        case CollateClause(argument):
            return _figure(argument)
        case ACase():
            name, strength = _figure(raw.default) if raw.default else ("", 0)
            return (name, strength) if strength > _WEAK else ("case", _WEAK)
        case AArray():
            return "array", _STRONG
        case ARow():
            return "row", _STRONG
        case ACoalesce():
            return "coalesce", _STRONG
        case AMinMax():
            return ("greatest" if raw.greatest else "least"), _STRONG
        case SqlValueFunction(name):
            return name, _STRONG
        case ASubLink():
            return _subquery(raw)
    return _UNNAMED, 0


def _subquery(raw: ASubLink) -> tuple[str, int]:
    if raw.kind is SubLinkKind.EXISTS:
        return "exists", _STRONG
    if raw.kind is SubLinkKind.ARRAY:
        return "array", _STRONG
    if raw.kind is SubLinkKind.EXPR and raw.query.targets:
        target: ResTarget = raw.query.targets[0]
        if target.name is not None:
            return target.name, _STRONG
        if isinstance(target.value, Expression):
            return _figure(target.value)
    return _UNNAMED, 0
