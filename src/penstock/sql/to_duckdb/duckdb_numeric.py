"""Numerics of any length in queries: quotients and rounding (numeric.c).

In: typed calls. Out: a ``Value`` by functions of the connection that ``numeric_functions`` makes
known. A row filter has decimals only.
"""

from __future__ import annotations

from decimal import Decimal

from penstock.pgtypes.pg_type import INT4, NUMERIC
from penstock.sql.to_duckdb.duckdb_predicate import ExpressionCompiler, strict, stripped
from penstock.sql.to_duckdb.duckdb_values import (
    Value,
    as_text,
)
from penstock.sql.to_duckdb.numeric_functions import DIVISION, MAX_SCALE, ROUND
from penstock.sql.typed.primnodes import Const, FuncExpr, OpExpr


class NumericCompiler(ExpressionCompiler):
    """What ``QueryCompiler`` knows beside a filter's expressions."""

    def _division(self, node: OpExpr) -> Value:
        values = [self.value(argument) for argument in node.arguments]
        divisor = stripped(node.arguments[1])
        by_zero = not isinstance(divisor, Const) or not Decimal(divisor.text or 0)
        fails = by_zero or any(value.fails for value in values)
        result = Value(f"{DIVISION}({', '.join(map(as_text, values))})", NUMERIC, None, fails)
        return strict(values, result, () if self._case else node.arguments)

    def _round(self, node: FuncExpr) -> Value:
        """Of numbers that are texts; a row filter has decimals only."""
        value = self.value(node.arguments[0])
        digits = stripped(node.arguments[-1]) if len(node.arguments) > 1 else Const(INT4, "0")
        text = digits.text if isinstance(digits, Const) else None
        if value.shape is not None or text is None or not 0 <= int(text) <= MAX_SCALE:
            return self._function(node)
        sql = f"{ROUND}({value.sql}, {text})"
        return strict([value], Value(sql, NUMERIC, None, value.fails))
