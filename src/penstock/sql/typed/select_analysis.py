"""Turn SELECT, VALUES and set operations into typed queries (analyze.c, parse_clause.c).

A raw statement becomes a ``Query``, or raises PostgreSQL's error. The caller's functions look up
tables.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from penstock.attribute import AttGenerated, Attribute
from penstock.errors import (
    FeatureNotSupported,
    InvalidParameterValue,
    PenstockError,
    SqlSyntaxError,
)
from penstock.interrupts import check_for_interrupts
from penstock.pgtypes.pg_type import BOOL, INT4, INT8, INTEGERS, RECORD, TEXT, UNKNOWN
from penstock.sql.grammar.parsenodes import (
    AArray,
    ACase,
    ACoalesce,
    AConst,
    AExpr,
    AExprKind,
    Alias,
    AMinMax,
    ARow,
    ASubLink,
    BoolOp,
    CollateClause,
    ColumnRef,
    CommonTableExpr,
    ConstKind,
    Expression,
    FromItem,
    FuncCall,
    Indirection,
    JoinExpr,
    JoinType,
    RangeFunction,
    RangeSubselect,
    RangeTable,
    ResTarget,
    SelectStmt,
    SetOperation,
    SortBy,
    SqlValueFunction,
    Star,
    SubLinkKind,
    TypeCast,
    WindowDef,
    nodes_of,
)
from penstock.sql.grammar.raw_statements import parse_select
from penstock.sql.text.limits import limited_depth
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.aggregate_analysis import contains_aggregate, has_window
from penstock.sql.typed.coercion import (
    select_common_type,
    to_common_type,
    to_target,
    whole_constant,
)
from penstock.sql.typed.function_analysis import has_set, names_of
from penstock.sql.typed.generated_column import expanded
from penstock.sql.typed.grouping import check_grouping, contains_subquery
from penstock.sql.typed.operator_analysis import contains_var, make_operator
from penstock.sql.typed.primnodes import (
    BoolExpr,
    CoalesceExpr,
    Const,
    Form,
    FuncExpr,
    Node,
    Var,
    is_cast,
    typmod_of,
)
from penstock.sql.typed.query_expression import FUNCTIONS_IN_FROM, QueryExpressions, sort_key
from penstock.sql.typed.query_nodes import (
    Cte,
    CteScan,
    FromNode,
    FunctionScan,
    Join,
    Query,
    Relation,
    SeriesScan,
    SetOperationScan,
    SortKey,
    SubqueryScan,
    TableScan,
    ValuesScan,
)
from penstock.sql.typed.scope import (
    Column,
    FindTable,
    NamedRelation,
    ParseNamespace,
    Relations,
    Scope,
    Surroundings,
    schema_of,
)
from penstock.sql.typed.set_returning import SERIES, fields_from, moved_to_from, spread
from penstock.sqlstate import (
    AmbiguousColumn,
    DatatypeMismatch,
    DuplicateAlias,
    GroupingError,
    InvalidColumnReference,
    InvalidRecursion,
    TooManyColumns,
    UndefinedColumn,
    WindowingError,
)

MAX_COLUMNS = 1664
"""MaxTupleAttributeNumber"""


def analyze_select(raw: SelectStmt, around: FindTable | Surroundings) -> Query:
    """Return the typed query. Raises PostgreSQL's errors, FeatureNotSupported."""
    with limited_depth():
        return SelectAnalysis(around).query(raw)


class SelectAnalysis:
    """The analysis of one statement."""

    def __init__(self, around: FindTable | Surroundings) -> None:
        known = around if isinstance(around, Surroundings) else Surroundings(around)
        self.relations = Relations(known, self.query)
        self._ctes: dict[str, Cte] = {}

    def query(self, raw: SelectStmt, parent: Scope | None = None, *, resolve: bool = True) -> Query:
        """Analyze any query. ``parent``: the outer scope whose columns the query can use.

        ``resolve``: literals without a type become text. False for a side of a set operation, where
        they take the type of the other side.
        """
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
        names = [item.name for item in raw.ctes]
        for name in names:
            if names.count(name) > 1:
                raise DuplicateAlias(f'WITH query name "{name}" specified more than once')
        own: dict[str, Cte] = {}
        for item in in_order(raw.ctes):
            if item.recursive and reads(item.query, item.name):
                made = self._recursive(item, parent)
            else:
                query = renamed(self.query(item.query, parent), item.columns, item.name)
                made = Cte(self.relations.name(), query)
            own[item.name] = self._ctes[item.name] = made
        return tuple(own.values())

    def _recursive(self, item: CommonTableExpr, parent: Scope | None) -> Cte:
        """Analyze a recursive query: the non-recursive term decides names and types.

        Follows determineRecursiveColTypes.
        """
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
            if common != mine.type_oid:
                raise DatatypeMismatch(
                    f'recursive query "{item.name}" column {number} has type '
                    f"{type_name(mine.type_oid)} in non-recursive term but type"
                    f" {type_name(common)} overall",
                    hint="Cast the output of the non-recursive term to the correct type.",
                )
        return Cte(name, first, self._converted(again, list(first.columns), "UNION"), raw.all)

    # A plain SELECT

    def _select(self, given: SelectStmt, parent: Scope | None, resolve: bool) -> Query:
        raw = moved_to_from(spread(fields_from(given, self.relations.around.functions)))
        scope = Scope(parent)
        nodes = self._from(raw, scope)
        where = None
        if raw.where is not None:
            where = self._expressions(scope, "WHERE").boolean(raw.where, "WHERE")
        windows, defined = self._windows(raw, scope)
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
        if not grouped and contains_aggregate(defined):
            raise FeatureNotSupported("an aggregate in an unused WINDOW is not supported")
        shown = (*shown, *defined)
        if raw is not given and any(map(has_set, targets)):
            raise FeatureNotSupported("several set-returning functions in a list are not supported")
        if grouped and raw is not given:
            raise FeatureNotSupported("a set-returning function beside groups is not supported")
        if distinct_on and raw is not given:
            raise FeatureNotSupported("a set-returning function beside DISTINCT ON")
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

    def _windows(
        self, raw: SelectStmt, scope: Scope
    ) -> tuple[dict[str, WindowDef], tuple[Node, ...]]:
        """Return the definitions of WINDOW by name, and the expressions by which they sort rows.
        PostgreSQL analyzes those that no call uses, too (transformWindowDefinitions)."""
        expressions = QueryExpressions(scope, self.relations, "window definitions", aggregates=True)
        known: dict[str, WindowDef] = {}
        nodes: list[Node] = []
        for window in raw.windows:
            if window.refname is not None:
                raise FeatureNotSupported("a window based on another window is not supported")
            assert window.name is not None
            if window.name in known:
                raise WindowingError(f'window "{window.name}" is already defined')
            known[window.name] = window
            nodes += map(expressions.transform, window.partition)
            nodes += (expressions.sort_key(key).node for key in window.order)
        return known, tuple(nodes)

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
        columns: tuple[Attribute, ...],
        targets: tuple[Node, ...],
    ) -> tuple[Node, ...]:
        """Analyze GROUP BY: a number or alias means a target, but a column's name comes first."""
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
            if has_window(node):
                raise WindowingError("window functions are not allowed in GROUP BY")
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
        """Analyze a number of rows (transformLimitClause): an expression that is not a constant is
        left to the execution."""
        if raw is None:
            return None
        given = self._expressions(scope, word).transform(raw)
        node = to_target(given, INT8, -1, "a", Form.IMPLICIT)
        if node is None:
            raise DatatypeMismatch(
                f"argument of {word} must be type bigint, not type {type_name(given.type)}",
            )
        if contains_var(node):
            raise InvalidColumnReference(f"argument of {word} must not contain variables")
        if contains_subquery(node):
            raise FeatureNotSupported(f"a subquery in {word} is not supported")
        constant = whole_constant(node)
        if constant is None:
            return node
        if constant.text is None:
            return None
        count = int(constant.text)
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
        common = []
        for row in rows:
            check_for_interrupts()
            same = (to_common_type(n, t, "VALUES") for n, t in zip(row, types, strict=True))
            common.append(tuple(same))
        columns = tuple(
            Attribute(f"column{number}", type_) for number, type_ in enumerate(types, 1)
        )
        return self._of_one(ValuesScan(self.relations.name(), columns, tuple(common)), raw)

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
            typmod = first.typmod if first.has_type_of(second) else -1
            columns.append(Attribute(first.name, type_, typmod))
        scan = SetOperationScan(
            self.relations.name(),
            tuple(columns),
            raw.operation,
            raw.all,
            self._converted(left, columns, word),
            self._converted(right, columns, word),
        )
        return self._of_one(scan, raw)

    def _converted(self, query: Query, columns: list[Attribute], word: str) -> Query:
        wanted = [column.type_oid for column in columns]
        if any(column.type_oid == UNKNOWN for column in query.columns):
            query = _typed(query, wanted, word)
        if [column.type_oid for column in query.columns] == wanted:
            return query
        scan = SubqueryScan(self.relations.name(), query.columns, query)
        targets = tuple(
            to_common_type(column, type_, word)
            for column, type_ in zip(scan.variables(), wanted, strict=True)
        )
        return Query(tuple(columns), targets, (scan,))

    def _of_one(self, scan: ValuesScan | SetOperationScan, raw: SelectStmt) -> Query:
        """Analyze ORDER BY and LIMIT of VALUES or a set operation; return all of its columns."""
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
    """Give the query's untyped literals the wanted types."""
    targets = tuple(
        to_common_type(node, type_, word) if node.type == UNKNOWN else node
        for node, type_ in zip(query.targets, wanted, strict=True)
    )
    columns = tuple(
        replace(column, type_oid=node.type)
        for column, node in zip(query.columns, targets, strict=True)
    )
    return replace(query, targets=targets, columns=columns)


def _var(column: Attribute) -> Node:
    return Var(column.type_oid, column.name, column.typmod)


def _target_list(
    raw: tuple[ResTarget, ...], scope: Scope, expressions: QueryExpressions, resolve: bool
) -> tuple[tuple[Attribute, ...], tuple[Node, ...]]:
    columns, targets = [], []
    for target in raw:
        if isinstance(target.value, Star):
            found = list(scope.star(target.value.qualifier))
        else:
            node = expressions.transform(target.value)
            if node.type == UNKNOWN and resolve:
                node = to_common_type(node, TEXT, "SELECT")
            shown = result_name(target.value, expressions.subquery_names)
            name = shown if target.name is None else target.name
            found = [(name, node)]
        columns += [Attribute(name, node.type, typmod_of(node)) for name, node in found]
        targets += [node for _, node in found]
    return tuple(columns), tuple(targets)


# Analyze FROM: relations, their columns and joins (parse_clause.c, transformFromClauseItem).
#
# Raw items become typed nodes, and a namespace in which the other clauses look up names.

_INT8_RANGE: Final = range(-(1 << 63), 1 << 63)


class FromClause:
    """The FROM clause of one query. ``ctes``: the visible WITH queries, by name."""

    def __init__(self, relations: Relations, scope: Scope, ctes: Mapping[str, Cte]) -> None:
        self._relations = relations
        self._scope = scope
        self._ctes = ctes

    def item(self, raw: FromItem, seen: ParseNamespace) -> tuple[FromNode, ParseNamespace]:
        """Analyze an item of FROM. ``seen``: the names further left, for LATERAL."""
        match raw:
            case RangeTable():
                return self._table(raw)
            case RangeSubselect():
                return self._subselect(raw, seen)
            case RangeFunction():
                return self._function(raw, seen)
        return self._join(raw, seen)

    def _table(self, raw: RangeTable) -> tuple[FromNode, ParseNamespace]:
        name = raw.relation
        relation: Relation
        cte = self._ctes.get(name.name) if name.schema is None else None
        if cte is not None:
            relation = CteScan(self._relations.name(), cte.query.columns, cte.name)
        else:
            columns = self._relations.around.find_table(name)
            view = self._relations.around.find_view(name)
            if view is None:
                system = self._relations.around.system_columns(name)
                scan = TableScan(self._relations.name(), columns, name, system)
                relation = self._with_virtual(scan)
            else:
                relation = self._view(view, columns)
        schema = None if cte is not None else schema_of(name)
        return relation, _named(relation, raw.alias, name.name, schema)

    def _view(self, text: str, columns: tuple[Attribute, ...]) -> Relation:
        """Return a view as a subquery; columns that the view's text lacks are NULL."""
        given: dict[str, Node] = {}
        from_: tuple[FromNode, ...] = ()
        if text:
            query = self._relations.analyze(_parsed_view(text), None)
            scan = SubqueryScan(self._relations.name(), query.columns, query)
            names = [column.name for column in query.columns]
            given, from_ = dict(zip(names, scan.variables(), strict=True)), (scan,)
        targets = tuple(
            _cast(given.get(column.name, Const(UNKNOWN, None)), column.type_oid)
            for column in columns
        )
        where = None if text else Const(BOOL, "f")
        made = Query(columns, targets, from_, where)
        return SubqueryScan(self._relations.name(), columns, made)

    def _with_virtual(self, scan: TableScan) -> Relation:
        """Compute virtual columns in a subquery, so that an outer join can make them NULL."""
        if not any(column.generated is AttGenerated.VIRTUAL for column in scan.columns):
            return scan
        query = Query(scan.columns, expanded(scan), (scan,))
        return SubqueryScan(self._relations.name(), scan.columns, query)

    def _subselect(
        self, raw: RangeSubselect, seen: ParseNamespace
    ) -> tuple[FromNode, ParseNamespace]:
        outer = Scope(self._scope.parent, seen) if raw.lateral else self._scope.parent
        query = self._relations.analyze(raw.query, outer)
        relation = SubqueryScan(self._relations.name(), query.columns, query, raw.lateral)
        return relation, _named(relation, raw.alias, None, None)

    def _function(
        self, raw: RangeFunction, seen: ParseNamespace
    ) -> tuple[FromNode, ParseNamespace]:
        scope = Scope(self._scope.parent, seen)
        expressions = QueryExpressions(scope, self._relations, FUNCTIONS_IN_FROM)
        call = raw.call
        if not isinstance(call, FuncCall | SqlValueFunction):
            raise FeatureNotSupported("this function is not supported in FROM")
        name = call.name if isinstance(call, SqlValueFunction) else call.name[-1]
        known = self._relations.around.functions.get(name)
        counts = name == SERIES and not raw.ordinality
        if isinstance(call, FuncCall) and counts and not names_of(call):
            bounds = _bounds([expressions.transform(argument) for argument in call.arguments])
            if bounds is not None:
                type_, start, stop, step = bounds
                column = Attribute(raw.alias.name if raw.alias else SERIES, type_)
                series = SeriesScan(self._relations.name(), (column,), start, stop, step)
                return series, _named(series, raw.alias, SERIES, None)
        node = expressions.transform(raw.call)
        if known is None and node.type == RECORD:
            raise FeatureNotSupported(f"function {name} is not supported in FROM of this query")
        columns = known or (Attribute(raw.alias.name if raw.alias else name, node.type),)
        if raw.ordinality:
            columns = (*columns, Attribute("ordinality", INT8))
        scan = FunctionScan(self._relations.name(), columns, name, node, raw.ordinality)
        return scan, _named(scan, raw.alias, name, None)

    # Joins

    def _join(self, raw: JoinExpr, seen: ParseNamespace) -> tuple[FromNode, ParseNamespace]:
        left, left_names = self.item(raw.left, seen)
        # The right side of a RIGHT or FULL join cannot use columns of the left side.
        visible = left_names if raw.type in (JoinType.INNER, JoinType.LEFT) else ParseNamespace()
        right, right_names = self.item(raw.right, seen.joined(visible))
        using = raw.using
        if raw.natural:
            theirs = {name for name, _ in right_names.columns}
            using = tuple(name for name, _ in left_names.columns if name in theirs)
        if raw.natural or using:
            return self._using(raw.type, using, (left, left_names), (right, right_names))
        names = left_names.joined(right_names)
        condition = None
        if raw.condition is not None:
            condition = self._condition(raw.condition, names)
        return Join(raw.type, left, right, condition), names

    def _condition(self, raw: Expression, names: ParseNamespace) -> Node:
        expressions = QueryExpressions(
            Scope(self._scope.parent, names), self._relations, "JOIN conditions"
        )
        return expressions.boolean(raw, "JOIN/ON")

    def _using(
        self,
        type_: JoinType,
        using: tuple[str, ...],
        left: tuple[FromNode, ParseNamespace],
        right: tuple[FromNode, ParseNamespace],
    ) -> tuple[FromNode, ParseNamespace]:
        tests: list[Node] = []
        merged: list[Column] = []
        for name in using:
            first, second = (_one(names, name, side) for names, side in _sides(left, right))
            tests.append(make_operator("=", first, second))
            merged.append((name, _merged(type_, first, second)))
        rest = [c for _, names in (left, right) for c in names.columns if c[0] not in using]
        condition = tests[0] if len(tests) == 1 else BoolExpr(BOOL, BoolOp.AND, tuple(tests))
        node = Join(type_, left[0], right[0], condition if tests else None)
        return node, left[1].merged(right[1], (*merged, *rest))


def _sides(
    left: tuple[FromNode, ParseNamespace], right: tuple[FromNode, ParseNamespace]
) -> tuple[tuple[ParseNamespace, str], tuple[ParseNamespace, str]]:
    return (left[1], "left"), (right[1], "right")


def _one(names: ParseNamespace, name: str, side: str) -> Node:
    found = [node for known, node in names.columns if known == name]
    if not found:
        raise UndefinedColumn(
            f'column "{name}" specified in USING clause does not exist in {side} table',
        )
    if len(found) > 1:
        raise AmbiguousColumn(f'common column name "{name}" appears more than once in {side} table')
    return found[0]


def _merged(type_: JoinType, left: Node, right: Node) -> Node:
    """Return the merged column of JOIN ... USING (buildMergedJoinVar)."""
    common = select_common_type([left, right], "JOIN/USING")
    first, second = (to_common_type(node, common, "JOIN/USING") for node in (left, right))
    if type_ is JoinType.FULL:
        return CoalesceExpr(common, (first, second))
    return second if type_ is JoinType.RIGHT else first


def _named(
    relation: Relation, alias: Alias | None, name: str | None, schema: str | None
) -> ParseNamespace:
    """Return the namespace of one relation; a relation without a name only adds columns."""
    names = [column.name for column in relation.columns]
    if alias is not None:
        if len(alias.columns) > len(names):
            raise InvalidColumnReference(
                f'table "{alias.name}" has {len(names)} columns available but '
                f"{len(alias.columns)} columns specified",
            )
        names[: len(alias.columns)] = alias.columns
        name, schema = alias.name, None
    columns = tuple(zip(names, relation.variables(), strict=True))
    system: tuple[Column, ...] = ()
    if isinstance(relation, TableScan):
        system = tuple((node.name, node) for node in relation.system_variables())
    named = () if name is None else (NamedRelation(name, schema, columns, system),)
    return ParseNamespace(named, columns)


def renamed(query: Query, names: tuple[str, ...], cte: str) -> Query:
    """Return the query with the column names of ``WITH name (columns)``."""
    if len(names) > len(query.columns):
        raise InvalidColumnReference(
            f'WITH query "{cte}" has {len(query.columns)} columns available but {len(names)} '
            "columns specified",
        )
    columns = list(query.columns)
    for number, name in enumerate(names):
        columns[number] = replace(columns[number], name=name)
    return replace(query, columns=tuple(columns))


def _bounds(nodes: list[Node]) -> tuple[int, int, int, int] | None:
    """Return type, start, stop and step if they are constant integers, else None."""
    if len(nodes) not in (2, 3) or any(node.type not in (INT4, INT8) for node in nodes):
        return None
    numbers = [number for node in nodes if (number := _number(node)) is not None]
    if len(numbers) < len(nodes):
        return None
    start, stop, step = (*numbers, 1)[:3]
    if step == 0:
        raise InvalidParameterValue("step size cannot equal zero")
    if stop + step not in _INT8_RANGE:
        raise FeatureNotSupported(f"{SERIES} up to the end of bigint is not supported")
    return max((node.type for node in nodes), key=lambda oid: oid == INT8), start, stop, step


def _number(node: Node) -> int | None:
    if node.type not in INTEGERS:
        return None
    if isinstance(node, Const) and node.text is not None:
        return int(node.text)
    if isinstance(node, FuncExpr) and is_cast(node):
        return _number(node.arguments[0])
    return None


def _cast(node: Node, type_: int) -> Node:
    """Cast a view's column to the type that it has in the catalogs."""
    if node.type == RECORD:
        return node
    found = to_target(node, type_, -1, "e", Form.EXPLICIT)
    assert found is not None, type_
    return found


# Name a column of a query that has no alias after its expression (parse_target.c, FigureColname).

_UNNAMED: Final = "?column?"
_WEAK, _STRONG = 1, 2


def result_name(raw: Expression, subqueries: Mapping[ASubLink, str]) -> str:
    """Return the name that PostgreSQL gives the column. ``subqueries``: the names of the columns of
    scalar subqueries."""
    return _figure(raw, subqueries)[0]


def _figure(raw: Expression, subqueries: Mapping[ASubLink, str]) -> tuple[str, int]:
    """Return the name and its strength."""
    match raw:
        case ColumnRef(fields):
            return fields[-1], _STRONG
        case FuncCall(name):
            return name[-1], _STRONG
        case Indirection(argument, steps=steps):
            named = [step for step in steps if isinstance(step, str)]
            return (named[-1], _STRONG) if named else _figure(argument, subqueries)
        case AExpr(kind=AExprKind.NULLIF):
            return "nullif", _STRONG
        case TypeCast(argument, type_):
            name, strength = _figure(argument, subqueries)
            return (name, strength) if strength > _WEAK else (type_.names[-1], _WEAK)
        case CollateClause(argument):
            return _figure(argument, subqueries)
        case ACase():
            name, strength = _figure(raw.default, subqueries) if raw.default else ("", 0)
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
            return _subquery(raw, subqueries)
    return _UNNAMED, 0


def _subquery(raw: ASubLink, subqueries: Mapping[ASubLink, str]) -> tuple[str, int]:
    if raw.kind is SubLinkKind.EXISTS:
        return "exists", _STRONG
    if raw.kind is SubLinkKind.ARRAY:
        return "array", _STRONG
    if raw.kind is SubLinkKind.EXPR and raw in subqueries:
        return subqueries[raw], _STRONG
    return _UNNAMED, 0


# Analyze ORDER BY, DISTINCT ON and their items (findTargetlistEntrySQL92 of parse_clause.c).
#
# Raw items, with the columns and values of the SELECT list, become typed keys.


def sort_clause(
    order: tuple[SortBy, ...],
    columns: tuple[Attribute, ...],
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
    columns: tuple[Attribute, ...],
    targets: tuple[Node, ...],
    expressions: QueryExpressions,
) -> Node:
    """Analyze an item: a number or bare alias means a target (SQL:92), all else an expression."""
    position = target_position(raw, clause, len(targets))
    node = None if position is None else targets[position]
    if node is None and isinstance(raw, ColumnRef):
        node = target_by_name(raw, columns, targets, clause)
    if node is None:
        node = expressions.transform(raw)
        if node.type == UNKNOWN:
            return to_common_type(node, TEXT, clause)
    return node


def distinct_keys(
    raw: tuple[Expression, ...],
    columns: tuple[Attribute, ...],
    targets: tuple[Node, ...],
    sort: tuple[SortKey, ...],
    expressions: QueryExpressions,
) -> tuple[Node, ...]:
    """Return the keys of DISTINCT ON; ORDER BY must begin with them (42P10).

    Follows transformDistinctOnClause.
    """
    nodes = tuple(_sql92(item, "DISTINCT ON", columns, targets, expressions) for item in raw)
    order = [key.node for n, key in enumerate(sort) if key.node not in [k.node for k in sort[:n]]]
    leading = list(itertools.takewhile(nodes.__contains__, order))
    others = order[len(leading) :]
    if nodes and others and any(n not in leading for n in nodes):
        if any(map(contains_subquery, nodes)):  # we cannot tell whether two subqueries are equal
            raise FeatureNotSupported("a subquery in DISTINCT ON beside ORDER BY is not supported")
        raise InvalidColumnReference(
            "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
        )
    return nodes


def sort_of_set(key: SortBy, scan: SetOperationScan, targets: tuple[Node, ...]) -> SortKey:
    position = target_position(key.expression, "ORDER BY", len(targets))
    node = None if position is None else targets[position]
    if node is None and isinstance(key.expression, ColumnRef):
        node = target_by_name(key.expression, scan.columns, targets, "ORDER BY")
    if node is None:
        raise FeatureNotSupported(
            "invalid UNION/INTERSECT/EXCEPT ORDER BY clause",
            detail="Only result column names can be used, not expressions or functions.",
            hint="Add the expression/function to every SELECT, or move the UNION into a FROM "
            "clause.",
        )
    return sort_key(key, node)


def compared_as_text(
    raw: SelectStmt, columns: tuple[Attribute, ...], targets: tuple[Node, ...]
) -> tuple[tuple[Attribute, ...], tuple[Node, ...]]:
    """Turn untyped targets into text if rows are grouped or sorted by them.

    PostgreSQL does so even inside a UNION, which could give them another type
    (addTargetToGroupList, addTargetToSortList).
    """
    if all(node.type != UNKNOWN for node in targets):
        return columns, targets
    items = [("ORDER BY", item.expression) for item in raw.order]
    items += [("GROUP BY", item) for item in raw.group]
    items += [("DISTINCT ON", item) for item in raw.distinct or ()]
    compared = set(range(len(targets))) if raw.distinct == () else set()
    for clause, item in items:
        if (position := target_position(item, clause, len(targets))) is not None:
            compared.add(position)
        elif isinstance(item, ColumnRef):
            found = target_by_name(item, columns, targets, clause)
            compared.update(index for index, node in enumerate(targets) if node is found)
    new = tuple(
        to_common_type(node, TEXT, "SELECT") if node.type == UNKNOWN and index in compared else node
        for index, node in enumerate(targets)
    )
    shown = zip(columns, new, strict=True)
    return tuple(replace(column, type_oid=node.type) for column, node in shown), new


def in_order(items: tuple[CommonTableExpr, ...]) -> Iterator[CommonTableExpr]:
    """Yield the queries of WITH so that each comes after those that it reads. With RECURSIVE it may
    read later ones, too (TopologicalSort of parse_cte.c)."""
    waiting = list(items)
    while waiting:
        ready = next(
            (
                item
                for item in waiting
                if not item.recursive
                or not any(reads(item.query, o.name) for o in waiting if o is not item)
            ),
            None,
        )
        if ready is None:
            raise FeatureNotSupported("mutual recursion between WITH items is not implemented")
        waiting.remove(ready)
        yield ready


def reads(raw: SelectStmt, name: str) -> bool:
    """Tell whether a query reads the relation ``name``, written without a schema."""
    return any(
        isinstance(item, RangeTable) and item.relation.schema is None and item.relation.name == name
        for item in nodes_of(raw)
    )


@functools.cache
def _parsed_view(text: str) -> SelectStmt:
    """Return the parsed query of a catalog view; there are few, so the cache is unbounded."""
    return parse_select(text)


def target_position(raw: Expression, clause: str, length: int) -> int | None:
    if not isinstance(raw, AConst):
        return None
    if raw.kind is not ConstKind.INTEGER:
        raise SqlSyntaxError(f"non-integer constant in {clause}")
    if not 1 <= int(raw.value) <= length:
        raise InvalidColumnReference(f"{clause} position {raw.value} is not in select list")
    return int(raw.value) - 1


def target_by_name(
    raw: ColumnRef, columns: tuple[Attribute, ...], targets: tuple[Node, ...], clause: str
) -> Node | None:
    if len(raw.fields) > 1:
        return None
    found = [t for c, t in zip(columns, targets, strict=True) if c.name == raw.fields[0]]
    if any(node != found[0] for node in found):
        raise AmbiguousColumn(f'{clause} "{raw.fields[0]}" is ambiguous')
    return found[0] if found else None


def is_column(raw: ColumnRef, scope: Scope) -> bool:
    return len(raw.fields) == 1 and any(
        name == raw.fields[0] for name, _ in scope.namespace.columns
    )
