"""Operators of a catalog query in DuckDB's SQL (parse_oper.c).

In: sqlglot's tree of comparisons, matches, arithmetic, IN and ANY. Out: ``Typed`` text. What
operands are is left to ``Expressions``, which this is a part of. Raises PostgreSQL's errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp

from penstock.errors import FeatureNotSupported, PenstockError
from penstock.sql.catalog_functions import Function, TableFunction
from penstock.sql.catalog_scope import Found, Query, Scope
from penstock.sql.catalog_typed import Typed, coerce
from penstock.sql.catalog_types import (
    UNKNOWN,
    arithmetic_type,
    array_type,
    common_type,
    element_type,
    is_string,
)


class Operators:
    """The part of ``Expressions`` that has to do with operators."""

    def __init__(
        self,
        scope: Scope,
        functions: Mapping[str, Function],
        table_functions: Mapping[str, TableFunction],
        found: Found,
        query: Callable[[exp.Expression, Scope], Query],
    ) -> None:
        self.scope = scope
        self.functions = functions
        self.table_functions = table_functions
        self.found = found
        self._query = query

    def translate(self, node: exp.Expression) -> Typed:
        """One expression."""
        raise NotImplementedError

    def boolean(self, node: exp.Expression) -> str:
        """An expression as a condition."""
        return coerce(self.translate(node), "bool", self.found).sql

    # Operators

    def _pair(self, left: Typed, right: Typed) -> tuple[Typed, Typed]:
        kind = common_type([left.type, right.type])
        if left.type == UNKNOWN:
            left = coerce(left, kind, self.found)
        if right.type == UNKNOWN:
            right = coerce(right, kind, self.found)
        return left, right

    def _comparison(self, node: exp.Expression, operator: str) -> Typed:
        if isinstance(node.expression, exp.Any | exp.All):
            return self._any(node, operator)
        left, right = self._pair(self.translate(node.this), self.translate(node.expression))
        if is_string(left.type) != is_string(right.type):
            raise PenstockError(
                f"operator does not exist: {left.type} {operator} {right.type}",
                hint="No operator matches the given name and argument types. "
                "You might need to add explicit type casts.",
                sqlstate="42883",
            )
        return Typed(f"({left.sql} {operator} {right.sql})", "bool")

    def _any(self, node: exp.Expression, operator: str) -> Typed:
        every = isinstance(node.expression, exp.All)
        inner = node.expression.this
        left = self.translate(node.this)
        if isinstance(inner, exp.Subquery | exp.Select):
            query = self._query(inner, self.scope)
            left = coerce(left, query.columns[0].type, self.found)
            word = "ALL" if every else "ANY"
            return Typed(f"({left.sql} {operator} {word} ({query.sql}))", "bool")
        array = self.translate(inner)
        if array.type == UNKNOWN:
            array = coerce(array, array_type(left.type), self.found)
        element = element_type(array.type)
        if element is None:
            raise PenstockError("op ANY/ALL (array) requires array on right side", sqlstate="42809")
        left = coerce(left, element, self.found) if left.type == UNKNOWN else left
        if operator == "=" and not every:
            return Typed(f"list_contains({array.sql}, {left.sql})", "bool")
        if operator == "<>" and every:
            return Typed(f"(NOT list_contains({array.sql}, {left.sql}))", "bool")
        raise FeatureNotSupported("only = ANY and <> ALL are supported over arrays")

    def _arithmetic(self, node: exp.Expression, operator: str) -> Typed:
        left, right = self.translate(node.this), self.translate(node.expression)
        if "pg_lsn" in (left.type, right.type):
            return self._lsn_arithmetic(left, right, operator)
        kind = arithmetic_type(left.type, right.type)
        left = coerce(left, kind, self.found) if left.type == UNKNOWN else left
        right = coerce(right, kind, self.found) if right.type == UNKNOWN else right
        if operator == "/" and kind.startswith("int"):
            operator = "//"
        return Typed(f"({left.sql} {operator} {right.sql})", kind)

    def _lsn_arithmetic(self, left: Typed, right: Typed, operator: str) -> Typed:
        """Positions differ by bytes (pg_lsn.c)."""
        if operator == "-" and right.type in ("pg_lsn", UNKNOWN):
            left, right = (coerce(side, "pg_lsn", self.found) for side in (left, right))
            return Typed(f"CAST({_wide(left)} - {_wide(right)} AS DECIMAL(38,6))", "numeric")
        return Typed(f"CAST({_wide(left)} {operator} {_wide(right)} AS UBIGINT)", "pg_lsn")

    def _match(self, node: exp.Expression, template: str) -> Typed:
        left = coerce(self.translate(node.this), "text", self.found)
        right = coerce(self.translate(node.expression), "text", self.found)
        sql = template.format(left.sql, right.sql)
        return Typed(f"(NOT {sql})" if node.args.get("negate") else sql, "bool")

    def _escape(self, node: exp.Escape) -> Typed:
        """``LIKE pattern ESCAPE character``"""
        match: Any = node.this
        word = {exp.Like: "LIKE", exp.ILike: "ILIKE"}.get(type(match))
        if word is None:
            raise FeatureNotSupported("ESCAPE is supported with LIKE and ILIKE")
        sides = (match.this, match.expression, node.expression)
        left, right, escape = (
            coerce(self.translate(side), "text", self.found).sql for side in sides
        )
        sql = f"({left} {word} {right} ESCAPE {escape})"
        return Typed(f"(NOT {sql})" if match.args.get("negate") else sql, "bool")

    def _dpipe(self, node: exp.DPipe) -> Typed:
        left, right = self.translate(node.this), self.translate(node.expression)
        arrays = [t for t in (left.type, right.type) if element_type(t) is not None]
        if arrays:
            sides = [
                side if element_type(side.type) else Typed(f"[{side.sql}]", arrays[0])
                for side in (left, right)
            ]
            return Typed(f"list_concat({sides[0].sql}, {sides[1].sql})", arrays[0])
        left, right = (coerce(side, "text", self.found) for side in (left, right))
        return Typed(f"({left.sql} || {right.sql})", "text")

    def _and(self, node: exp.And) -> Typed:
        return Typed(f"({self.boolean(node.this)} AND {self.boolean(node.expression)})", "bool")

    def _or(self, node: exp.Or) -> Typed:
        return Typed(f"({self.boolean(node.this)} OR {self.boolean(node.expression)})", "bool")

    def _not(self, node: exp.Not) -> Typed:
        return Typed(f"(NOT {self.boolean(node.this)})", "bool")

    def _neg(self, node: exp.Neg) -> Typed:
        inner = self.translate(node.this)
        return Typed(f"(-{inner.sql})", inner.type)

    def _is(self, node: exp.Is) -> Typed:
        word = {"Null": "NULL", "Boolean": "TRUE"}.get(type(node.expression).__name__, "NULL")
        if isinstance(node.expression, exp.Boolean) and not node.expression.this:
            word = "FALSE"
        negated = "NOT " if node.args.get("negate") else ""
        return Typed(f"({self.translate(node.this).sql} IS {negated}{word})", "bool")

    def _in(self, node: exp.In) -> Typed:
        left = self.translate(node.this)
        query = node.args.get("query")
        if query is not None:
            inner = self._query(query, self.scope)
            left = coerce(left, inner.columns[0].type, self.found)
            return Typed(f"({left.sql} IN ({inner.sql}))", "bool")
        items = [self.translate(item) for item in node.expressions]
        kind = common_type([left.type, *(item.type for item in items)])
        left = coerce(left, kind, self.found) if left.type == UNKNOWN else left
        sql = ", ".join(
            (coerce(item, kind, self.found) if item.type == UNKNOWN else item).sql for item in items
        )
        return Typed(f"({left.sql} IN ({sql}))", "bool")

    def _between(self, node: exp.Between) -> Typed:
        value = self.translate(node.this)
        low = coerce(self.translate(node.args["low"]), value.type, self.found)
        high = coerce(self.translate(node.args["high"]), value.type, self.found)
        return Typed(f"({value.sql} BETWEEN {low.sql} AND {high.sql})", "bool")


def _wide(position: Typed) -> str:
    """Positions are unsigned: what lies between two of them is not."""
    return f"CAST({position.sql} AS HUGEINT)"
