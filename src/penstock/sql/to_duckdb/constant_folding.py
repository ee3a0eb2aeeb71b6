"""Constants that are written as arithmetic: ``24 * 60 * 60``, ``3 * interval '1 h'`` (clauses.c).

In: a typed expression. Out: a constant where it is one of integers or intervals and has a value,
otherwise the expression itself. What has no value (``1 / 0``) stays, and is then refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.pgtypes.pg_type import INT2, INT4, INT8, INTERVAL
from penstock.sql.to_duckdb.interval_arithmetic import evaluated
from penstock.sql.typed.primnodes import Const, FuncExpr, Node, OpExpr, RelabelType, is_cast

_BITS: Final = {INT2: 16, INT4: 32, INT8: 64}


def _divide(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_OPERATORS: Final[dict[str, Callable[[int, int], int]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divide,
    "%": lambda left, right: left - right * _divide(left, right),
}


def folded(node: Node) -> Node:
    """The constant that the expression is, or the expression."""
    value = evaluated(node) if node.type == INTERVAL else _integer(node)
    if value is None or isinstance(node, Const):
        return node
    return Const(node.type, str(value))


def _integer(node: Node) -> int | None:
    """The value of an expression of integer constants, None where it has none."""
    if node.type not in _BITS:
        return None
    value = _evaluated(node)
    bits = _BITS[node.type]
    return value if value is not None and -(1 << bits - 1) <= value < 1 << bits - 1 else None


def _evaluated(node: Node) -> int | None:
    if isinstance(node, Const):
        return None if node.text is None else int(node.text)
    if isinstance(node, RelabelType):
        return _integer(node.argument)
    if isinstance(node, FuncExpr) and is_cast(node):
        return _integer(node.arguments[0])
    if not isinstance(node, OpExpr):
        return None
    values = [_integer(argument) for argument in node.arguments]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None
    if len(numbers) == 1:
        return {"-": -numbers[0], "+": numbers[0]}.get(node.name)
    if node.name in ("/", "%") and numbers[1] == 0:
        return None
    operation = _OPERATORS.get(node.name)
    return None if operation is None else operation(*numbers)
