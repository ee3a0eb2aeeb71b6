"""SELECT, VALUES and set operations to typed queries (analyze.c, parse_clause.c, parse_target.c).

In: raw statements and who knows tables. Out: a ``Query``, or PostgreSQL's error.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal

from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError
from penstock.pgtypes.pg_type import INT8, TEXT, UNKNOWN
from penstock.sql.grammar.expressions import ColumnRef, Expression
from penstock.sql.grammar.parsenodes import (
    CommonTableExpr,
    ResTarget,
    SelectStmt,
    SetOperation,
    Star,
)
from penstock.sql.grammar.raw_names import reads
from penstock.sql.text.limits import limited_depth
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.aggregate_analysis import contains_aggregate
from penstock.sql.typed.coercion import select_common_type, to_common_type, to_target
from penstock.sql.typed.from_analysis import FromClause, renamed
from penstock.sql.typed.grouping import check_grouping, contains_subquery
from penstock.sql.typed.operator_analysis import contains_var
from penstock.sql.typed.primnodes import (
    Const,
    Form,
    Node,
    Param,
    Var,
    typmod_of,
)
from penstock.sql.typed.query_expression import QueryExpressions
from penstock.sql.typed.query_nodes import (
    Cte,
    FromNode,
    OutputColumn,
    Query,
    SetOperationScan,
    SubqueryScan,
    ValuesScan,
)
from penstock.sql.typed.result_name import result_name
from penstock.sql.typed.scope import ParseNamespace, Scope
from penstock.sql.typed.set_returning import moved_to_from, spread
from penstock.sql.typed.sort_clause import (
    compared_as_text,
    distinct_keys,
    is_column,
    sort_clause,
    sort_of_set,
    target_by_name,
    target_position,
)
from penstock.sql.typed.statement import FindTable, Relations, Surroundings
from penstock.sqlstate import (
    DatatypeMismatch,
    DuplicateAlias,
    GroupingError,
    InvalidColumnReference,
    InvalidRecursion,
    NumericValueOutOfRange,
    TooManyColumns,
)

_INT8_LIMIT = 1 << 63
MAX_COLUMNS = 1664
"""MaxTupleAttributeNumber"""


def analyze_select(raw: SelectStmt, around: FindTable | Surroundings) -> Query:
    """The typed query. Raises PenstockError as PostgreSQL, FeatureNotSupported."""
    with limited_depth():
        return SelectAnalysis(around).query(raw)


class SelectAnalysis:
    """Of one statement."""

    def __init__(self, around: FindTable | Surroundings) -> None:
        known = around if isinstance(around, Surroundings) else Surroundings(around)
        self.relations = Relations(known, self.query)
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
        if len(query.columns) > MAX_COLUMNS:
            raise TooManyColumns(f"target lists can have at most {MAX_COLUMNS} entries")
        return replace(query, ctes=own)

    def _with(self, raw: SelectStmt, parent: Scope | None) -> tuple[Cte, ...]:
        own: dict[str, Cte] = {}
        for item in raw.ctes:
            if item.name in own:
                raise DuplicateAlias(f'WITH query name "{item.name}" specified more than once')
            if item.recursive and reads(item.query, item.name):
                made = self._recursive(item, parent)
            else:
                query = renamed(self.query(item.query, parent), item.columns, item.name)
                made = Cte(self.relations.name(), query)
            own[item.name] = self._ctes[item.name] = made
        return tuple(own.values())

    def _recursive(self, item: CommonTableExpr, parent: Scope | None) -> Cte:
        """determineRecursiveColTypes: the first query decides about names and types."""
        raw = item.query
        if raw.operation is not SetOperation.UNION or raw.left is None or raw.right is None:
            raise InvalidRecursion(
                f'recursive query "{item.name}" does not have the form '
                "non-recursive-term UNION [ALL] recursive-term",
            )
        if raw.order or raw.limit is not None or raw.offset is not None or raw.ctes:
            raise FeatureNotSupported("ORDER BY, LIMIT and WITH in a recursive query")
        first = renamed(self.query(raw.left, parent), item.columns, item.name)
        name = self.relations.name()
        self._ctes[item.name] = Cte(name, first)
        again = self.query(raw.right, parent, resolve=False)
        if len(first.columns) != len(again.columns):
            raise SqlSyntaxError("each UNION query must have the same number of columns")
        for number, (mine, other) in enumerate(zip(first.columns, again.columns, strict=True), 1):
            common = select_common_type([_var(mine), _var(other)], "UNION")
            if common != mine.type:
                raise DatatypeMismatch(
                    f'recursive query "{item.name}" column {number} has type '
                    f"{type_name(mine.type)} in non-recursive term but type {type_name(common)} "
                    "overall",
                    hint="Cast the output of the non-recursive term to the correct type.",
                )
        return Cte(name, first, self._converted(again, list(first.columns), "UNION"), raw.all)

    # A plain SELECT

    def _select(self, given: SelectStmt, parent: Scope | None, resolve: bool) -> Query:
        raw = moved_to_from(spread(given))
        scope = Scope(parent)
        nodes = self._from(raw, scope)
        where = None
        if raw.where is not None:
            where = self._expressions(scope, "WHERE").boolean(raw.where, "WHERE")
        windows = {window.name: window for window in raw.windows if window.name is not None}
        expressions = QueryExpressions(
            scope, self.relations, "SELECT", aggregates=True, windows=windows, in_windows=True
        )
        columns, targets = _target_list(raw.targets, scope, expressions, resolve)
        columns, targets = compared_as_text(raw, columns, targets)
        having = None
        if raw.having is not None:
            having = QueryExpressions(scope, self.relations, "HAVING", aggregates=True).boolean(
                raw.having, "HAVING"
            )
        group = self._group(raw, scope, columns, targets)
        sort = sort_clause(raw.order, columns, targets, expressions)
        distinct_on = distinct_keys(raw.distinct or (), columns, targets, sort, expressions)
        if raw.distinct == () and any(key.node not in targets for key in sort):
            raise InvalidColumnReference(
                "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
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
        return QueryExpressions(scope, self.relations, clause)

    def _from(self, raw: SelectStmt, scope: Scope) -> tuple[FromNode, ...]:
        clause = FromClause(self.relations, scope, self._ctes)
        nodes, names = [], ParseNamespace()
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
            position = target_position(item, "GROUP BY", len(targets))
            if position is not None:
                node = targets[position]
            elif isinstance(item, ColumnRef) and not is_column(item, scope):
                by_name = target_by_name(item, columns, targets, "GROUP BY")
                node = expressions.transform(item) if by_name is None else by_name
            else:
                node = expressions.transform(item)
            if node.type == UNKNOWN:
                node = to_common_type(node, TEXT, "GROUP BY")
            if contains_aggregate((node,)):
                raise GroupingError("aggregate functions are not allowed in GROUP BY")
            if contains_subquery(node):
                raise FeatureNotSupported("a subquery in GROUP BY is not supported")
            found.append(node)
        return tuple(found)

    def _limits(self, raw: SelectStmt, scope: Scope) -> tuple[int | Node | None, int | Node]:
        limit = self._count(raw.limit, scope, "LIMIT", "2201W")
        offset = self._count(raw.offset, scope, "OFFSET", "2201X")
        return limit, offset or 0

    def _count(
        self, raw: Expression | None, scope: Scope, word: str, sqlstate: str
    ) -> int | Node | None:
        if raw is None:
            return None
        given = self._expressions(scope, word).transform(raw)
        if contains_var(given):
            raise InvalidColumnReference(f"argument of {word} must not contain variables")
        node = to_target(given, INT8, -1, "a", Form.IMPLICIT)
        while node is not None and not isinstance(node, Const):
            (node,) = getattr(node, "arguments", None) or (None,)  # int8(integer)
        if isinstance(given, Param):
            return to_target(given, INT8, -1, "a", Form.IMPLICIT)
        if node is None:
            raise FeatureNotSupported(f"{word} is supported with a constant number only")
        if node.text is None:
            return None
        count = int(Decimal(node.text).to_integral_value(ROUND_HALF_UP))
        if not -_INT8_LIMIT <= count < _INT8_LIMIT:
            raise NumericValueOutOfRange("bigint out of range")
        if count < 0:
            raise PenstockError(f"{word} must not be negative", sqlstate=sqlstate)
        return count

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
            sort = tuple(sort_of_set(key, scan, targets) for key in raw.order)
        else:
            names = ParseNamespace(
                columns=tuple((c.name, t) for c, t in zip(scan.columns, targets, strict=True))
            )
            expressions = self._expressions(Scope(None, names), "ORDER BY")
            sort = sort_clause(raw.order, scan.columns, targets, expressions)
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
