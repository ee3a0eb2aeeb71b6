"""SELECT, VALUES and set operations to typed queries (analyze.c, parse_clause.c, parse_target.c).

In: raw statements and who knows tables. Out: a ``Query``, or PostgreSQL's error.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError
from penstock.sql.coercion import select_common_type, to_common_type, to_target
from penstock.sql.expressions import AConst, ColumnRef, ConstKind, Expression, SortBy
from penstock.sql.nesting import limited_depth
from penstock.sql.operator_analysis import contains_var
from penstock.sql.primnodes import TEXT, UNKNOWN, Const, Form, Node, Var, typmod_of
from penstock.sql.query.aggregate_analysis import contains_aggregate
from penstock.sql.query.expression import QueryExpressions, sort_key
from penstock.sql.query.from_analysis import FindTable, FromClause, Relations, renamed
from penstock.sql.query.grouping import check_grouping, contains_subquery
from penstock.sql.query.parsenodes import ResTarget, SelectStmt, Star
from penstock.sql.query.primnodes import (
    Cte,
    FromNode,
    OutputColumn,
    Query,
    SetOperationScan,
    SortKey,
    SubqueryScan,
    ValuesScan,
)
from penstock.sql.query.result_name import result_name
from penstock.sql.query.scope import Namespace, Scope
from penstock.sql.query.set_returning import moved_to_from

_INT8 = 20


def analyze_select(raw: SelectStmt, find_table: FindTable) -> Query:
    """The typed query. Raises PenstockError as PostgreSQL, FeatureNotSupported."""
    with limited_depth():
        return SelectAnalysis(find_table).query(raw)


class SelectAnalysis:
    """Of one statement."""

    def __init__(self, find_table: FindTable) -> None:
        self.relations = Relations(find_table, self.query)
        self._ctes: dict[str, Cte] = {}

    def query(self, raw: SelectStmt, parent: Scope | None = None, *, resolve: bool = True) -> Query:
        """Any query; ``parent``: whose columns it can use. ``resolve``: literals without a type
        are text; a side of a set operation takes the type of the other."""
        known, self._ctes = self._ctes, dict(self._ctes)
        try:
            own = self._with(raw, parent)
            if raw.operation is not None:
                query = self._set_operation(raw, parent)
            elif raw.values:
                query = self._values(raw, parent)
            else:
                query = self._select(raw, parent, resolve)
        finally:
            self._ctes = known
        return replace(query, ctes=own)

    def _with(self, raw: SelectStmt, parent: Scope | None) -> tuple[Cte, ...]:
        own: dict[str, Cte] = {}
        for item in raw.ctes:
            if item.name in own:
                raise PenstockError(
                    f'WITH query name "{item.name}" specified more than once', sqlstate="42712"
                )
            query = renamed(self.query(item.query, parent), item.columns, item.name)
            own[item.name] = self._ctes[item.name] = Cte(self.relations.name(), query)
        return tuple(own.values())

    # A plain SELECT

    def _select(self, given: SelectStmt, parent: Scope | None, resolve: bool) -> Query:
        raw = moved_to_from(given)
        scope = Scope(parent)
        nodes = self._from(raw, scope)
        where = None
        if raw.where is not None:
            where = self._expressions(scope, "WHERE").boolean(raw.where, "WHERE")
        windows = {window.name: window for window in raw.windows if window.name is not None}
        expressions = QueryExpressions(
            scope, self.query, "SELECT", aggregates=True, windows=windows, in_windows=True
        )
        columns, targets = _target_list(raw.targets, scope, expressions, resolve)
        having = None
        if raw.having is not None:
            having = QueryExpressions(scope, self.query, "HAVING", aggregates=True).boolean(
                raw.having, "HAVING"
            )
        group = self._group(raw, scope, columns, targets)
        sort = _sort_clause(raw.order, columns, targets, expressions)
        distinct_on = _distinct_on(raw.distinct or (), columns, targets, sort, expressions)
        if raw.distinct == () and any(key.node not in targets for key in sort):
            raise PenstockError(
                "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
                sqlstate="42P10",
            )
        keys = (*distinct_on, *(key.node for key in sort))
        shown = (*targets, *keys, *(() if having is None else (having,)))
        grouped = bool(raw.group) or raw.having is not None or contains_aggregate(shown)
        if grouped and raw is not given:
            raise FeatureNotSupported("a set-returning function beside groups is not supported")
        if grouped:
            check_grouping(shown, group, scope.namespace)
        return Query(
            columns,
            targets,
            nodes,
            where,
            grouped,
            group,
            having,
            raw.distinct == (),
            distinct_on,
            sort,
            *self._limits(raw, scope),
        )

    def _expressions(self, scope: Scope, clause: str) -> QueryExpressions:
        return QueryExpressions(scope, self.query, clause)

    def _from(self, raw: SelectStmt, scope: Scope) -> tuple[FromNode, ...]:
        clause = FromClause(self.relations, scope, self._ctes)
        nodes, names = [], Namespace()
        for item in raw.from_:
            node, found = clause.item(item, names)
            names = names.joined(found)
            nodes.append(node)
        scope.namespace = names
        return tuple(nodes)

    def _group(
        self,
        raw: SelectStmt,
        scope: Scope,
        columns: tuple[OutputColumn, ...],
        targets: tuple[Node, ...],
    ) -> tuple[Node, ...]:
        """A number or an alias means a target, but names of columns come first (SQL:99)."""
        expressions = self._expressions(scope, "GROUP BY")
        found = []
        for item in raw.group:
            position = _position(item, "GROUP BY", len(targets))
            if position is not None:
                node = targets[position]
            elif isinstance(item, ColumnRef) and not _is_column(item, scope):
                by_name = _by_name(item, columns, targets, "GROUP BY")
                node = expressions.transform(item) if by_name is None else by_name
            else:
                node = expressions.transform(item)
            if contains_aggregate((node,)):
                raise PenstockError(
                    "aggregate functions are not allowed in GROUP BY", sqlstate="42803"
                )
            if contains_subquery(node):
                raise FeatureNotSupported("a subquery in GROUP BY is not supported")
            found.append(node)
        return tuple(found)

    def _limits(self, raw: SelectStmt, scope: Scope) -> tuple[int | None, int]:
        limit = self._count(raw.limit, scope, "LIMIT", "2201W")
        offset = self._count(raw.offset, scope, "OFFSET", "2201X")
        return limit, offset or 0

    def _count(self, raw: Expression | None, scope: Scope, word: str, sqlstate: str) -> int | None:
        if raw is None:
            return None
        given = self._expressions(scope, word).transform(raw)
        if contains_var(given):
            raise PenstockError(f"argument of {word} must not contain variables", sqlstate="42P10")
        node = to_target(given, _INT8, -1, "a", Form.IMPLICIT)
        while node is not None and not isinstance(node, Const):
            (node,) = getattr(node, "arguments", None) or (None,)  # int8(integer)
        if node is None:
            raise FeatureNotSupported(f"{word} is supported with a constant number only")
        if node.text is None:
            return None
        if int(node.text) < 0:
            raise PenstockError(f"{word} must not be negative", sqlstate=sqlstate)
        return int(node.text)

    # VALUES and set operations

    def _values(self, raw: SelectStmt, parent: Scope | None) -> Query:
        if len({len(row) for row in raw.values}) > 1:
            raise SqlSyntaxError("VALUES lists must all be the same length")
        expressions = self._expressions(Scope(parent), "VALUES")
        rows = [[expressions.transform(value) for value in row] for row in raw.values]
        types = [select_common_type(list(nodes), "VALUES") for nodes in zip(*rows, strict=True)]
        common = tuple(
            tuple(to_common_type(n, t, "VALUES") for n, t in zip(row, types, strict=True))
            for row in rows
        )
        columns = tuple(
            OutputColumn(f"column{number}", type_) for number, type_ in enumerate(types, 1)
        )
        return self._of_one(ValuesScan(self.relations.name(), columns, common), raw)

    def _set_operation(self, raw: SelectStmt, parent: Scope | None) -> Query:
        assert raw.left is not None and raw.right is not None and raw.operation is not None
        left = self.query(raw.left, parent, resolve=False)
        right = self.query(raw.right, parent, resolve=False)
        word = raw.operation.value
        if len(left.columns) != len(right.columns):
            raise SqlSyntaxError(f"each {word} query must have the same number of columns")
        columns = []
        for first, second in zip(left.columns, right.columns, strict=True):
            type_ = select_common_type([_var(first), _var(second)], word)
            typmod = (
                first.typmod if (first.type, first.typmod) == (second.type, second.typmod) else -1
            )
            columns.append(OutputColumn(first.name, type_, typmod))
        scan = SetOperationScan(
            self.relations.name(),
            tuple(columns),
            raw.operation,
            raw.all,
            self._converted(left, columns, word),
            self._converted(right, columns, word),
        )
        return self._of_one(scan, raw)

    def _converted(self, query: Query, columns: list[OutputColumn], word: str) -> Query:
        wanted = [column.type for column in columns]
        if any(column.type == UNKNOWN for column in query.columns):
            query = _typed(query, wanted, word)
        if [column.type for column in query.columns] == wanted:
            return query
        scan = SubqueryScan(self.relations.name(), query.columns, query)
        targets = tuple(
            to_common_type(column, type_, word)
            for column, type_ in zip(scan.variables(), wanted, strict=True)
        )
        return Query(tuple(columns), targets, (scan,))

    def _of_one(self, scan: ValuesScan | SetOperationScan, raw: SelectStmt) -> Query:
        """ORDER BY and LIMIT over a relation all of whose columns are shown."""
        targets = scan.variables()
        if isinstance(scan, SetOperationScan):
            sort = tuple(_sort_of_set(key, scan, targets) for key in raw.order)
        else:
            names = Namespace(
                columns=tuple((c.name, t) for c, t in zip(scan.columns, targets, strict=True))
            )
            expressions = self._expressions(Scope(None, names), "ORDER BY")
            sort = _sort_clause(raw.order, scan.columns, targets, expressions)
        limit, offset = self._limits(raw, Scope())
        return Query(scan.columns, targets, (scan,), sort=sort, limit=limit, offset=offset)


def _typed(query: Query, wanted: list[int], word: str) -> Query:
    """With types for literals that had none."""
    targets = tuple(
        to_common_type(node, type_, word) if node.type == UNKNOWN else node
        for node, type_ in zip(query.targets, wanted, strict=True)
    )
    columns = tuple(
        replace(column, type=node.type) for column, node in zip(query.columns, targets, strict=True)
    )
    return replace(query, targets=targets, columns=columns)


def _var(column: OutputColumn) -> Node:
    return Var(column.type, column.name, column.typmod)


def _target_list(
    raw: tuple[ResTarget, ...], scope: Scope, expressions: QueryExpressions, resolve: bool
) -> tuple[tuple[OutputColumn, ...], tuple[Node, ...]]:
    columns, targets = [], []
    for target in raw:
        if isinstance(target.value, Star):
            found = list(scope.star(target.value.qualifier))
        else:
            node = expressions.transform(target.value)
            if node.type == UNKNOWN and resolve:
                node = to_common_type(node, TEXT, "SELECT")
            name = result_name(target.value) if target.name is None else target.name
            found = [(name, node)]
        columns += [OutputColumn(name, node.type, typmod_of(node)) for name, node in found]
        targets += [node for _, node in found]
    return tuple(columns), tuple(targets)


def _sort_clause(
    order: tuple[SortBy, ...],
    columns: tuple[OutputColumn, ...],
    targets: tuple[Node, ...],
    expressions: QueryExpressions,
) -> tuple[SortKey, ...]:
    return tuple(
        sort_key(item, _sql92(item.expression, "ORDER BY", columns, targets, expressions))
        for item in order
    )


def _sql92(
    raw: Expression,
    clause: str,
    columns: tuple[OutputColumn, ...],
    targets: tuple[Node, ...],
    expressions: QueryExpressions,
) -> Node:
    """A number or a bare name that is an alias means a target (SQL:92), else an expression."""
    position = _position(raw, clause, len(targets))
    node = None if position is None else targets[position]
    if node is None and isinstance(raw, ColumnRef):
        node = _by_name(raw, columns, targets, clause)
    return expressions.transform(raw) if node is None else node


def _distinct_on(
    raw: tuple[Expression, ...],
    columns: tuple[OutputColumn, ...],
    targets: tuple[Node, ...],
    sort: tuple[SortKey, ...],
    expressions: QueryExpressions,
) -> tuple[Node, ...]:
    """transformDistinctOnClause: rows are sorted by these first of all."""
    nodes = tuple(_sql92(item, "DISTINCT ON", columns, targets, expressions) for item in raw)
    order = [key.node for n, key in enumerate(sort) if key.node not in [k.node for k in sort[:n]]]
    leading = list(itertools.takewhile(nodes.__contains__, order))
    others = order[len(leading) :]
    if nodes and others and any(n not in leading for n in nodes):
        if any(map(contains_subquery, nodes)):  # two of one text are not known to be the same
            raise FeatureNotSupported("a subquery in DISTINCT ON beside ORDER BY is not supported")
        raise PenstockError(
            "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
            sqlstate="42P10",
        )
    return nodes


def _sort_of_set(key: SortBy, scan: SetOperationScan, targets: tuple[Node, ...]) -> SortKey:
    position = _position(key.expression, "ORDER BY", len(targets))
    node = None if position is None else targets[position]
    if node is None and isinstance(key.expression, ColumnRef):
        node = _by_name(key.expression, scan.columns, targets, "ORDER BY")
    if node is None:
        raise PenstockError(
            "invalid UNION/INTERSECT/EXCEPT ORDER BY clause",
            detail="Only result column names can be used, not expressions or functions.",
            hint="Add the expression/function to every SELECT, or move the UNION into a FROM "
            "clause.",
            sqlstate="0A000",
        )
    return sort_key(key, node)


def _position(raw: Expression, clause: str, length: int) -> int | None:
    if not isinstance(raw, AConst):
        return None
    if raw.kind is not ConstKind.INTEGER:
        raise SqlSyntaxError(f"non-integer constant in {clause}")
    if not 1 <= int(raw.value) <= length:
        raise PenstockError(
            f"{clause} position {raw.value} is not in select list", sqlstate="42P10"
        )
    return int(raw.value) - 1


def _by_name(
    raw: ColumnRef, columns: tuple[OutputColumn, ...], targets: tuple[Node, ...], clause: str
) -> Node | None:
    if len(raw.fields) > 1:
        return None
    found = [t for c, t in zip(columns, targets, strict=True) if c.name == raw.fields[0]]
    if any(node != found[0] for node in found):
        raise PenstockError(f'{clause} "{raw.fields[0]}" is ambiguous', sqlstate="42702")
    return found[0] if found else None


def _is_column(raw: ColumnRef, scope: Scope) -> bool:
    return len(raw.fields) == 1 and any(
        name == raw.fields[0] for name, _ in scope.namespace.columns
    )
