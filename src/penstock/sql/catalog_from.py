"""FROM of a catalog query: tables, functions, joins and subqueries (parse_clause.c).

In: sqlglot's FROM and joins. Out: DuckDB's text; the sources are put into the scope in their order,
so that what is LATERAL sees what stands before it. Raises PostgreSQL's 42P01 and 42883.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp

from penstock.errors import FeatureNotSupported, PenstockError
from penstock.sql.catalog_calls import no_function, table_query
from penstock.sql.catalog_expressions import Expressions
from penstock.sql.catalog_functions import TableFunction
from penstock.sql.catalog_scope import Found, Query, Scope, Source
from penstock.sql.catalog_tokens import parse_select
from penstock.sql.catalog_types import element_type
from penstock.sql.catalog_views import Columns, view_query

TableLookup = Callable[[str, str], Columns | None]
"""(schema or "", name) -> columns, None where there is no such table."""
ViewLookup = Callable[[str, str], str | None]
"""(schema or "", name) -> the query of a view, empty where it has no rows; None: it is a table."""


class FromClause:
    """Translates the FROM of one SELECT, filling ``scope``."""

    def __init__(
        self,
        expressions: Expressions,
        lookup: TableLookup,
        views: ViewLookup,
        table_functions: Mapping[str, TableFunction],
        query: Callable[[exp.Expression, Scope], Query],
    ) -> None:
        self._expressions = expressions
        self._scope: Scope = expressions.scope
        self._found: Found = expressions.found
        self._lookup = lookup
        self._views = views
        self._table_functions = table_functions
        self._query = query

    def translate(self, first: Any, joins: list[Any]) -> str:
        """``FROM first joins``, without the word FROM."""
        return self._item(first) + "".join(self._join(join) for join in joins)

    def _join(self, join: exp.Join) -> str:
        before = list(self._scope.sources)
        text = self._item(join.this)
        side, kind = join.side.upper(), join.kind.upper()
        condition = join.args.get("on")
        using = [identifier.name for identifier in join.args.get("using") or []]
        if join.method.upper() == "NATURAL":
            using = _shared(before, self._scope.sources[len(before) :])
        if using:
            on = self._using(before, using)
        elif condition is not None:
            on = self._expressions.boolean(condition)
        else:
            on = ""
        if not on:
            return f" CROSS JOIN {text}" if kind == "CROSS" or join.method else f", {text}"
        return f" {side + ' ' if side else ''}JOIN {text} ON {on}"

    def _using(self, before: list[Source], names: list[str]) -> str:
        (right,) = self._scope.sources[len(before) :]
        left = Scope(sources=before)
        pairs = [(left.column(name, None)[0], right.find(name)) for name in names]
        missing = [name for name, (_, found) in zip(names, pairs, strict=True) if found is None]
        if missing:
            raise PenstockError(
                f'column "{missing[0]}" specified in USING clause does not exist in right table',
                sqlstate="42703",
            )
        self._scope.sources[-1] = Source(right.alias, right.columns, frozenset(names))
        return " AND ".join(f"{mine} = {theirs[0]}" for mine, theirs in pairs if theirs)

    def _item(self, node: Any) -> str:
        nested = node.args.get("joins") or []
        text = self._source(node)
        joined = "".join(self._join(join) for join in nested)
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
            return f"({text}{joined})"
        return text + joined

    def _source(self, node: Any) -> str:
        match node:
            case exp.Table() if isinstance(node.this, exp.Anonymous):
                return self._function(node.this, node)
            case exp.Table():
                return self._table(node)
            case exp.Lateral() if isinstance(node.this, exp.Subquery):
                return "LATERAL " + self._subquery(node.this.this, node, self._scope)
            case exp.Lateral() if isinstance(node.this, exp.Unnest):
                return self._unnest(node.this, node)
            case exp.Lateral():
                return self._function(node.this, node)
            case exp.Unnest():
                return self._unnest(node, node)
            case exp.Values():
                return self._values(node)
            case exp.Subquery() if isinstance(node.this, exp.Table):
                return self.translate(node.this, node.this.args.get("joins") or [])
            case exp.Subquery():
                outer = Scope(self._scope.outer, [], self._scope.tables)
                return self._subquery(node.this, node, outer)
        raise FeatureNotSupported(f"{type(node).__name__} is not supported in FROM")

    def _table(self, node: exp.Table) -> str:
        name, schema = node.name, node.db
        alias, names = _alias(node)
        query = None if schema else self._scope.with_query(name)
        if query is not None:
            return self._add(alias or name, names, query, "")
        columns = self._lookup(schema, name)
        if columns is None:
            shown = f"{schema}.{name}" if schema else name
            raise PenstockError(f'relation "{shown}" does not exist', sqlstate="42P01")
        view = self._views(schema, name)
        if view is not None:
            tree: Any = parse_select(view) if view else None
            inner = None if tree is None else self._query(tree, Scope())
            return self._add(alias or name, names, view_query(columns, inner, self._found), "")
        self._found.tables.add(name)
        source = self._found.new_source()
        renamed = [*names, *(column for column, _ in columns[len(names) :])]
        self._scope.sources.append(
            Source(
                alias or name,
                tuple(
                    (new, f'{source}."{column}"', kind)
                    for new, (column, kind) in zip(renamed, columns, strict=True)
                ),
            )
        )
        return f'cat."{name}" AS {source}'

    def _subquery(self, query: Any, node: Any, scope: Scope) -> str:
        alias, names = _alias(node)
        return self._add(alias or "", names, self._query(query, scope), "")

    def _add(self, alias: str, names: list[str], query: Query, prefix: str) -> str:
        source = self._found.new_source()
        renamed = [*names, *(column.name for column in query.columns[len(names) :])]
        self._scope.sources.append(
            Source(
                alias,
                tuple(
                    (name, f"{source}.o{number}", column.type)
                    for number, (name, column) in enumerate(
                        zip(renamed, query.columns, strict=True), 1
                    )
                ),
            )
        )
        return f"{prefix}({query.sql}) AS {source}"

    def _function(self, call: Any, node: Any) -> str:
        name = str(call.this).lower()
        alias, names = _alias(node)
        function = self._table_functions.get(name)
        if function is None:
            return self._scalar_function(name, call, alias or name, names)
        sql, columns = self.table_function(function, call.expressions)
        if alias and not names and not function.named:
            names = [alias]
        renamed = [*names, *(column for column, _ in columns[len(names) :])]
        kinds = [kind for _, kind in columns]
        return self._lateral(alias or name, renamed, kinds, sql, counts=not function.named)

    def _scalar_function(self, name: str, call: Any, alias: str, names: list[str]) -> str:
        value = self._expressions.translate(call)
        return self._lateral(alias, names or [alias], [value.type], f"SELECT {value.sql} AS o1")

    def table_function(self, function: TableFunction, arguments: list[Any]) -> tuple[str, Columns]:
        """The query that a function in FROM is. Raises PenstockError 42883."""
        values = [self._expressions.translate(argument) for argument in arguments]
        return table_query(function, values, self._found), function.columns

    def _lateral(
        self, alias: str, names: list[str], types: list[str], sql: str, *, counts: bool = False
    ) -> str:
        source = self._found.new_source()
        if counts and self._scope.counted is None:
            self._scope.counted = f"{source}.o1"
        self._scope.sources.append(
            Source(
                alias,
                tuple(
                    (name, f"{source}.o{number}", kind)
                    for number, (name, kind) in enumerate(zip(names, types, strict=True), 1)
                ),
            )
        )
        return f"LATERAL ({sql}) AS {source}"

    def _unnest(self, node: exp.Unnest, named: Any) -> str:
        alias, names = _alias(named)
        (argument,) = node.expressions
        array = self._expressions.translate(argument)
        element = element_type(array.type)
        if element is None:
            raise no_function("unnest", [array])
        name = names[0] if names else alias or "unnest"
        offset = node.args.get("offset")
        if not offset:
            return self._lateral(
                alias or "unnest", [name], [element], f"SELECT unnest({array.sql}) AS o1"
            )
        number = offset.name if isinstance(offset, exp.Identifier) else "ordinality"
        sql = (
            f"SELECT unnest({array.sql}) AS o1, unnest(generate_series(1, len({array.sql}))) AS o2"
        )
        return self._lateral(alias or "unnest", [name, number], [element, "int8"], sql)

    def _values(self, node: exp.Values) -> str:
        alias, names = _alias(node)
        return self._add(alias or "*VALUES*", names, self._query(node, self._scope), "")


def _alias(node: Any) -> tuple[str, list[str]]:
    alias = node.args.get("alias")
    if alias is None:
        return "", []
    return alias.name, [column.name for column in alias.columns]


def _shared(left: list[Source], right: list[Source]) -> list[str]:
    names = {column for source in right for column, _, _ in source.columns}
    return [column for source in left for column, _, _ in source.columns if column in names]
