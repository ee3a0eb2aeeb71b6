"""FROM: relations, their columns and joins (parse_clause.c, transformFromClauseItem).

In: raw items, who knows tables, the queries of WITH. Out: typed nodes, and the namespace that the
other clauses see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.errors import FeatureNotSupported, InvalidParameterValue
from penstock.pgtypes.pg_type import BOOL, INT4, INT8, INTEGERS, RECORD, UNKNOWN
from penstock.sql.grammar.expressions import BoolOp, Expression, FuncCall, SqlValueFunction
from penstock.sql.grammar.parsenodes import (
    Alias,
    FromItem,
    JoinExpr,
    JoinType,
    RangeFunction,
    RangeSubselect,
    RangeTable,
    SelectStmt,
)
from penstock.sql.grammar.raw_statements import parse_query
from penstock.sql.typed.coercion import select_common_type, to_common_type, to_target
from penstock.sql.typed.function_analysis import names_of
from penstock.sql.typed.generated_column import expanded
from penstock.sql.typed.operator_analysis import make_operator
from penstock.sql.typed.primnodes import (
    BoolExpr,
    CoalesceExpr,
    Const,
    Form,
    FuncExpr,
    Node,
    is_cast,
)
from penstock.sql.typed.query_expression import FUNCTIONS_IN_FROM, QueryExpressions
from penstock.sql.typed.query_nodes import (
    Cte,
    CteScan,
    FromNode,
    FunctionScan,
    Join,
    OutputColumn,
    Query,
    Relation,
    SeriesScan,
    SubqueryScan,
    TableScan,
)
from penstock.sql.typed.scope import Column, NamedRelation, ParseNamespace, Scope
from penstock.sql.typed.set_returning import SERIES
from penstock.sql.typed.statement import Relations
from penstock.sqlstate import AmbiguousColumn, InvalidColumnReference, UndefinedColumn

_INT8_RANGE: Final = range(-(1 << 63), 1 << 63)


class FromClause:
    """Of one query. ``ctes``: queries of WITH that it sees, by name."""

    def __init__(self, relations: Relations, scope: Scope, ctes: Mapping[str, Cte]) -> None:
        self._relations = relations
        self._scope = scope
        self._ctes = ctes

    def item(self, raw: FromItem, seen: ParseNamespace) -> tuple[FromNode, ParseNamespace]:
        """``seen``: what stands at its left, for LATERAL."""
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
            relation = (
                self._with_virtual(TableScan(self._relations.name(), columns, name))
                if view is None
                else self._view(view, columns)
            )
        schema = None if cte is not None else (name.schema or "public")
        return relation, _named(relation, raw.alias, name.name, schema)

    def _view(self, text: str, columns: tuple[OutputColumn, ...]) -> Relation:
        """Its query, with NULL for columns that it leaves out."""
        given: dict[str, Node] = {}
        from_: tuple[FromNode, ...] = ()
        if text:
            raw = parse_query(text)
            assert isinstance(raw, SelectStmt)
            query = self._relations.analyze(raw, None)
            scan = SubqueryScan(self._relations.name(), query.columns, query)
            names = [column.name for column in query.columns]
            given, from_ = dict(zip(names, scan.variables(), strict=True)), (scan,)
        targets = tuple(
            _cast(given.get(column.name, Const(UNKNOWN, None)), column.type) for column in columns
        )
        where = None if text else Const(BOOL, "f")
        made = Query(columns, targets, from_, where)
        return SubqueryScan(self._relations.name(), columns, made)

    def _with_virtual(self, scan: TableScan) -> Relation:
        """As a query where columns are made when they are read: an outer join makes them NULL."""
        if not any(column.virtual for column in scan.columns):
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
                column = OutputColumn(raw.alias.name if raw.alias else SERIES, type_)
                series = SeriesScan(self._relations.name(), (column,), start, stop, step)
                return series, _named(series, raw.alias, SERIES, None)
        node = expressions.transform(raw.call)
        columns = known or (OutputColumn(raw.alias.name if raw.alias else name, node.type),)
        if raw.ordinality:
            columns = (*columns, OutputColumn("ordinality", INT8))
        scan = FunctionScan(self._relations.name(), columns, name, node, raw.ordinality)
        return scan, _named(scan, raw.alias, name, None)

    # Joins

    def _join(self, raw: JoinExpr, seen: ParseNamespace) -> tuple[FromNode, ParseNamespace]:
        left, left_names = self.item(raw.left, seen)
        # RIGHT and FULL: nothing at the left of them can be looked into.
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
    """buildMergedJoinVar"""
    common = select_common_type([left, right], "JOIN/USING")
    first, second = (to_common_type(node, common, "JOIN/USING") for node in (left, right))
    if type_ is JoinType.FULL:
        return CoalesceExpr(common, (first, second))
    return second if type_ is JoinType.RIGHT else first


def _named(
    relation: Relation, alias: Alias | None, name: str | None, schema: str | None
) -> ParseNamespace:
    """Of one relation, by its alias; one without a name is seen by its columns only."""
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
    named = () if name is None else (NamedRelation(name, schema, columns),)
    return ParseNamespace(named, columns)


def renamed(query: Query, names: tuple[str, ...], cte: str) -> Query:
    """With the column names of ``WITH name (columns)``."""
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
    """Type, start, stop and step where they are whole numbers and constant."""
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
    """A view's column in the type that the catalogs say."""
    if node.type == RECORD:
        return node
    found = to_target(node, type_, -1, "e", Form.EXPLICIT)
    assert found is not None, type_
    return found
