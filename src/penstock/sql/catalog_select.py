"""SELECT over catalogs in DuckDB's SQL (analyze.c, parse_target.c).

In: sqlglot's tree of a query. Out: ``Query``: text whose columns are called o1, o2 ..., with
PostgreSQL's names and types for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlglot import exp

from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError
from penstock.sql.catalog_calls import table_query
from penstock.sql.catalog_expressions import Expressions
from penstock.sql.catalog_from import FromClause, TableLookup, ViewLookup
from penstock.sql.catalog_functions import Function, TableFunction
from penstock.sql.catalog_names import figure_column_name
from penstock.sql.catalog_order import order_and_limit, sort_key
from penstock.sql.catalog_scope import Found, OutputColumn, Query, Scope
from penstock.sql.catalog_typed import Typed, coerce
from penstock.sql.catalog_types import catalog_type, common_type

_SET_OPERATIONS: Final[dict[type[exp.Expression], str]] = {
    exp.Union: "UNION",
    exp.Except: "EXCEPT",
    exp.Intersect: "INTERSECT",
}


class SelectTranslator:
    """Translates queries; ``found`` gathers what they need."""

    def __init__(
        self,
        lookup: TableLookup,
        views: ViewLookup,
        functions: Mapping[str, Function],
        table_functions: Mapping[str, TableFunction],
    ) -> None:
        self.found = Found()
        self._lookup = lookup
        self._views = views
        self._functions = functions
        self._table_functions = table_functions

    def translate(self, node: Any, outer: Scope | None = None) -> Query:
        """One query, with the query around it."""
        while isinstance(node, exp.Subquery | exp.Paren) and not node.args.get("joins"):
            node = node.this
        scope = Scope(outer)
        self._with(node, scope)
        match node:
            case exp.SetOperation():
                return self._set_operation(node, scope)
            case exp.Values():
                return self._values(node, scope)
            case exp.Select():
                return self._select(node, scope)
        raise FeatureNotSupported(f"{type(node).__name__} is not supported in catalog queries")

    def _with(self, node: Any, scope: Scope) -> None:
        clause = node.args.get("with_")
        if clause is None:
            return
        tables: dict[str, Query] = {}
        for table in clause.expressions:
            scope.tables = dict(tables)
            if clause.args.get("recursive") and isinstance(table.this, exp.SetOperation):
                tables[table.alias] = self._recursive(table, scope)
            else:
                tables[table.alias] = _renamed(table, self.translate(table.this, scope))
        scope.tables = tables

    def _recursive(self, table: exp.CTE, scope: Scope) -> Query:
        """A query that may read itself; what reads it gets all of it."""
        union: Any = table.this
        every = "" if union.args.get("distinct") else " ALL"
        first = _renamed(table, self.translate(union.this, scope))
        name = self.found.new_source()
        names = ", ".join(f"o{n}" for n in range(1, len(first.columns) + 1))
        itself = Query(f"SELECT {names} FROM {name}", first.columns)
        inner = Scope(scope.outer, [], {**scope.tables, table.alias: itself})
        again = self.translate(union.expression, inner)
        if len(first.columns) != len(again.columns):
            raise _not_as_many("UNION")
        types = [column.type for column in first.columns]
        return Query(
            f"WITH RECURSIVE {name}({names}) AS "
            f"({_as_types(first, types)} UNION{every} {_as_types(again, types)}) "
            f"SELECT {names} FROM {name}",
            first.columns,
        )

    # SELECT

    def _expressions(self, scope: Scope) -> Expressions:
        return Expressions(
            scope, self._functions, self._table_functions, self.found, self.translate
        )

    def _select(self, node: exp.Select, scope: Scope) -> Query:
        expressions = self._expressions(scope)
        from_text = self._from(node, expressions)
        spread = _spread_call(node)
        if spread is not None:
            return self._spread(node, spread, expressions, from_text)
        names, values = self._targets(node, expressions)
        outputs = [
            coerce(value, "text", self.found) if value.parameter is not None else value
            for value in values
        ]
        targets = ", ".join(f"{value.sql} AS o{n}" for n, value in enumerate(outputs, 1))
        sql = f"SELECT {self._distinct(node, expressions)}{targets or '1'}{from_text}"
        sql += self._rest(node, expressions, names, outputs)
        ordered = any(node.args.get(word) for word in ("order", "group", "distinct", "limit"))
        if scope.counted is not None and not scope.aggregated and not ordered:
            sql += f" ORDER BY {scope.counted}"
        columns = tuple(
            OutputColumn(name, value.type) for name, value in zip(names, outputs, strict=True)
        )
        return Query(sql, columns)

    def _from(self, node: exp.Select, expressions: Expressions) -> str:
        clause = node.args.get("from_")
        if clause is None:
            return ""
        source = FromClause(
            expressions, self._lookup, self._views, self._table_functions, self.translate
        )
        return " FROM " + source.translate(clause.this, node.args.get("joins") or [])

    def _targets(self, node: exp.Select, expressions: Expressions) -> tuple[list[str], list[Typed]]:
        names: list[str] = []
        values: list[Typed] = []
        for target in node.expressions:
            starred = target if isinstance(target, exp.Star) else target.this
            if isinstance(starred, exp.Star) and isinstance(target, exp.Star | exp.Column):
                table = None if isinstance(target, exp.Star) else target.table
                if table is None and node.args.get("from_") is None:
                    raise SqlSyntaxError("SELECT * with no tables specified is not valid")
                for name, sql, kind in expressions.scope.star(table):
                    names.append(name)
                    values.append(Typed(sql, kind))
            else:
                names.append(figure_column_name(target))
                values.append(expressions.translate(target))
        return names, values

    def _distinct(self, node: exp.Select, expressions: Expressions) -> str:
        distinct = node.args.get("distinct")
        if distinct is None:
            return ""
        on = distinct.args.get("on")
        if on is None:
            return "DISTINCT "
        keys = on.expressions if isinstance(on, exp.Tuple) else [on]
        return f"DISTINCT ON ({', '.join(expressions.translate(k).sql for k in keys)}) "

    def _rest(
        self, node: exp.Select, expressions: Expressions, names: list[str], values: list[Typed]
    ) -> str:
        out = ""
        where = node.args.get("where")
        if where is not None:
            out += f" WHERE {expressions.boolean(where.this)}"
        group = node.args.get("group")
        if group is not None:
            keys = [sort_key(key, expressions, names, values) for key in group.expressions]
            out += f" GROUP BY {', '.join(keys)}"
        having = node.args.get("having")
        if having is not None:
            out += f" HAVING {expressions.boolean(having.this)}"
        return out + order_and_limit(node, expressions, names, values)

    def _spread(
        self, node: exp.Select, call: exp.Anonymous, expressions: Expressions, from_text: str
    ) -> Query:
        """``SELECT (f(...)).* FROM ...``: the arguments first, then the function over them."""
        function = self._table_functions[str(call.this).lower()]
        arguments = [expressions.translate(argument) for argument in call.expressions]
        inner, outer = self.found.new_source(), self.found.new_source()
        targets = ", ".join(f"{value.sql} AS o{n}" for n, value in enumerate(arguments, 1))
        rest = self._rest(node, expressions, [], [])
        passed = [Typed(f"{inner}.o{n}", value.type) for n, value in enumerate(arguments, 1)]
        query = table_query(function, passed, self.found)
        columns = ", ".join(f"{outer}.o{n} AS o{n}" for n in range(1, len(function.columns) + 1))
        sql = (
            f"SELECT {columns} FROM (SELECT {targets}{from_text}{rest}) AS {inner}, "
            f"LATERAL ({query}) AS {outer}"
        )
        return Query(sql, tuple(OutputColumn(name, kind) for name, kind in function.columns))

    # UNION, VALUES

    def _set_operation(self, node: exp.SetOperation, scope: Scope) -> Query:
        left, right = (self.translate(side, scope) for side in (node.this, node.expression))
        word = _SET_OPERATIONS[type(node)]
        if len(left.columns) != len(right.columns):
            raise _not_as_many(word)
        types = [
            common_type([mine.type, theirs.type])
            for mine, theirs in zip(left.columns, right.columns, strict=True)
        ]
        every = "" if node.args.get("distinct") else " ALL"
        sql = f"{_as_types(left, types)} {word}{every} {_as_types(right, types)}"
        names = [column.name for column in left.columns]
        values = [Typed(f"o{n}", kind) for n, kind in enumerate(types, 1)]
        sql = f"SELECT * FROM ({sql}) AS {self.found.new_source()}"
        sql += order_and_limit(node, self._expressions(scope), names, values)
        return Query(sql, tuple(map(OutputColumn, names, types)))

    def _values(self, node: exp.Values, scope: Scope) -> Query:
        expressions = self._expressions(scope)
        rows = [
            [expressions.translate(cell) for cell in row.expressions] for row in node.expressions
        ]
        if len({len(row) for row in rows}) > 1:
            raise SqlSyntaxError("VALUES lists must all be the same length")
        types = [common_type([cell.type for cell in column]) for column in zip(*rows, strict=True)]
        names = [f"o{n}" for n in range(1, len(types) + 1)]
        lines = ", ".join(
            "("
            + ", ".join(
                coerce(cell, kind, self.found).sql for cell, kind in zip(row, types, strict=True)
            )
            + ")"
            for row in rows
        )
        sql = f"SELECT * FROM (VALUES {lines}) AS {self.found.new_source()}({', '.join(names)})"
        columns = tuple(OutputColumn(f"column{n}", kind) for n, kind in enumerate(types, 1))
        return Query(sql, columns)


def _renamed(table: exp.CTE, query: Query) -> Query:
    """With the names of ``WITH table (names)``."""
    names = [column.name for column in table.args["alias"].columns]
    names += [column.name for column in query.columns[len(names) :]]
    return Query(
        query.sql,
        tuple(
            OutputColumn(name, column.type)
            for name, column in zip(names, query.columns, strict=True)
        ),
    )


def _not_as_many(word: str) -> PenstockError:
    return PenstockError(
        f"each {word} query must have the same number of columns", sqlstate="42601"
    )


def _as_types(query: Query, types: list[str]) -> str:
    if [column.type for column in query.columns] == types:
        return f"({query.sql})"
    targets = ", ".join(
        f"CAST(o{n} AS {catalog_type(kind).held}) AS o{n}" for n, kind in enumerate(types, 1)
    )
    return f"(SELECT {targets} FROM ({query.sql}))"


def _spread_call(node: exp.Select) -> exp.Anonymous | None:
    if len(node.expressions) != 1:
        return None
    (target,) = node.expressions
    if not isinstance(target, exp.Dot) or not isinstance(target.expression, exp.Star):
        return None
    inner = target.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    return inner if isinstance(inner, exp.Anonymous) else None
