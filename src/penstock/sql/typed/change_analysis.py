"""Turn INSERT, UPDATE and DELETE into typed plans (analyze.c: transformInsertStmt and others).

A plan holds the new values, coerced to their columns; wrong statements raise PostgreSQL's errors.
The code that runs a plan finds each row's partition, and checks the right to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.attribute import Attribute
from penstock.errors import (
    FeatureNotSupported,
    SqlSyntaxError,
    UndefinedObject,
)
from penstock.pgtypes.pg_type import BOOL, UNKNOWN
from penstock.sql.grammar.column import NEXTVAL
from penstock.sql.grammar.parsenodes import (
    AConst,
    Alias,
    ConstKind,
    Default,
    DeleteStmt,
    Expression,
    InsertStmt,
    Overriding,
    ParamRef,
    ParamValue,
    SelectStmt,
    Star,
    UpdateStmt,
)
from penstock.sql.text.limits import limited_depth
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.coercion import to_target
from penstock.sql.typed.column_default import coerced_default
from penstock.sql.typed.expression_analysis import parameter_constant
from penstock.sql.typed.generated_column import (
    check_inserted,
    check_updated,
    expanded,
    is_values_list,
    with_generated_rows,
    with_generated_settings,
)
from penstock.sql.typed.primnodes import (
    Const,
    Form,
    Node,
)
from penstock.sql.typed.query_expression import QueryExpressions
from penstock.sql.typed.query_nodes import Query, SubqueryScan, TableScan, ValuesScan
from penstock.sql.typed.scope import (
    FindTable,
    NamedRelation,
    ParseNamespace,
    Scope,
    Surroundings,
    schema_of,
)
from penstock.sql.typed.select_analysis import SelectAnalysis
from penstock.sql.typed.set_returning import as_select
from penstock.sqlstate import DatatypeMismatch, DuplicateColumn, UndefinedColumn

_CAST_HINT = "You will need to rewrite or cast the expression."


@dataclass(frozen=True, slots=True)
class InsertPlan:
    """The plan of an INSERT. ``columns``: names of the written columns. ``query``: their values.

    ``drawn``: columns that take values from their sequences; the query has NULL for them. With
    each column comes None if every row takes a value, or else the index of a boolean in the query
    that is true for the rows that do. These booleans follow the values. With ``drawn``, the query
    computes no generated columns, because they may depend on the drawn values.
    """

    columns: tuple[str, ...]
    query: Query
    drawn: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """An UPDATE or DELETE. ``settings``: (column, new value) over ``target``; () for DELETE."""

    target: TableScan
    settings: tuple[tuple[str, Node], ...]
    where: Node | None


def analyze_insert(
    raw: InsertStmt, target: Sequence[Attribute], around: FindTable | Surroundings
) -> InsertPlan:
    """Return the plan. Raises PenstockError (42601, 42703, 42804, ...), FeatureNotSupported."""
    if raw.query is None and not target:
        raise FeatureNotSupported("INSERT ... DEFAULT VALUES without columns is not supported")
    if raw.query is None:
        defaults = (Default(),) * len(target)
        raw = replace(raw, columns=None, query=SelectStmt(values=(defaults,)))
    wanted = _wanted(raw, target)
    with limited_depth():
        analysis = SelectAnalysis(around)
        given = _given(raw, wanted, analysis)
        check_inserted(raw, wanted[: len(given.columns)])
        plan = _with_defaults(given, target)
        plan = _with_sequences(plan, raw, wanted[: len(given.columns)], target)
        if plan.drawn:
            return plan
        rows = SubqueryScan(analysis.relations.name(), plan.query.columns, plan.query)
        made = with_generated_rows(plan.columns, rows, target, raw.relation.name)
        return plan if made is None else InsertPlan(tuple(c.name for c in made.columns), made)


def _given(raw: InsertStmt, wanted: list[Attribute], analysis: SelectAnalysis) -> InsertPlan:
    assert raw.query is not None
    sets = as_select(raw.query)
    if sets is not None:
        query = _rows(sets, wanted, analysis, named=raw.columns is not None)
    elif is_values_list(raw.query):
        query = _values(raw.query, wanted, analysis, named=raw.columns is not None)
    else:
        query = _rows(raw.query, wanted, analysis, named=raw.columns is not None)
    return InsertPlan(tuple(column.name for column in wanted[: len(query.columns)]), query)


def analyze_change(
    raw: UpdateStmt | DeleteStmt, target: Sequence[Attribute], around: FindTable | Surroundings
) -> ChangePlan:
    """Return the plan. Raises as ``analyze_insert``."""
    analysis = SelectAnalysis(around)
    scan = TableScan(analysis.relations.name(), tuple(target), raw.relation)
    scope = Scope(None, _names(scan, raw.alias))
    with limited_depth():
        where = None
        if raw.where is not None:
            expressions = QueryExpressions(scope, analysis.relations, "WHERE")
            where = expressions.boolean(raw.where, "WHERE")
        settings = _settings(raw, scan, scope, analysis) if isinstance(raw, UpdateStmt) else ()
    return ChangePlan(scan, settings, where)


def _names(scan: TableScan, alias: Alias | None) -> ParseNamespace:
    if alias is not None and alias.columns:
        raise SqlSyntaxError('syntax error at or near "("')
    columns = tuple(
        (column.name, variable)
        for column, variable in zip(scan.columns, expanded(scan), strict=True)
    )
    schema = None if alias else schema_of(scan.table)
    name = alias.name if alias else scan.table.name
    return ParseNamespace((NamedRelation(name, schema, columns),), columns)


# INSERT


def _wanted(raw: InsertStmt, target: Sequence[Attribute]) -> list[Attribute]:
    if raw.columns is None:
        return list(target)
    known = {column.name: column for column in target}
    for name in raw.columns:
        if name not in known:
            raise _no_column(name, raw.relation.name)
        if raw.columns.count(name) > 1:
            raise DuplicateColumn(f'column "{name}" specified more than once')
    return [known[name] for name in raw.columns]


def _no_column(name: str, table: str) -> UndefinedObject:
    return UndefinedColumn(f'column "{name}" of relation "{table}" does not exist')


def _check_width(width: int, wanted: int, named: bool) -> None:
    if width > wanted:
        raise SqlSyntaxError("INSERT has more expressions than target columns")
    if named and width < wanted:
        raise SqlSyntaxError("INSERT has more target columns than expressions")


def _values(
    raw: SelectStmt, wanted: list[Attribute], analysis: SelectAnalysis, *, named: bool
) -> Query:
    """Analyze VALUES: each value is coerced to its column's type right away."""
    if len({len(row) for row in raw.values}) > 1:
        raise SqlSyntaxError("VALUES lists must all be the same length")
    if raw.ctes:
        raise FeatureNotSupported("WITH in front of VALUES is not supported in INSERT")
    width = len(raw.values[0])
    _check_width(width, len(wanted), named)
    expressions = QueryExpressions(Scope(), analysis.relations, "VALUES")
    columns = tuple(wanted[:width])
    rows = tuple(
        tuple(
            _assigned_raw(value, column, expressions)
            for value, column in zip(row, columns, strict=True)
        )
        for row in raw.values
    )
    scan = ValuesScan(analysis.relations.name(), columns, rows)
    return Query(columns, scan.variables(), (scan,))


def _rows(
    raw: SelectStmt, wanted: list[Attribute], analysis: SelectAnalysis, *, named: bool
) -> Query:
    _type_parameters(raw, wanted, analysis.relations.around.parameters)
    query = analysis.query(raw)
    width = len(query.columns)
    _check_width(width, len(wanted), named)
    columns = tuple(wanted[:width])
    scan = SubqueryScan(analysis.relations.name(), query.columns, query)
    targets = []
    for position, (given, column) in enumerate(zip(scan.variables(), columns, strict=True)):
        targets.append(assigned(_literal(raw, position) or given, column))
    return Query(columns, tuple(targets), (scan,))


def _type_parameters(
    raw: SelectStmt, wanted: list[Attribute], types: dict[int, int] | None
) -> None:
    """Give each parameter in the SELECT list the type of its column, as for a string literal."""
    if types is None or raw.operation is not None:
        return
    for target, column in zip(raw.targets, wanted, strict=False):
        if isinstance(target.value, ParamRef):
            types.setdefault(target.value.number, column.type_oid)


def _literal(raw: SelectStmt, position: int) -> Const | None:
    """Return a string literal of the SELECT list: it takes the column's type, not text."""
    if raw.operation is not None or position >= len(raw.targets) or raw.distinct is not None:
        return None
    if any(isinstance(target.value, Star) for target in raw.targets):
        return None
    value = raw.targets[position].value
    if isinstance(value, ParamValue):
        node = parameter_constant(value)
        return node if isinstance(node, Const) and node.type == UNKNOWN else None
    if not isinstance(value, AConst) or value.kind not in (ConstKind.STRING, ConstKind.NULL):
        return None
    return Const(UNKNOWN, value.value if value.kind is ConstKind.STRING else None)


def _with_defaults(plan: InsertPlan, target: Sequence[Attribute]) -> InsertPlan:
    """Add the defaults of columns that the statement leaves out (rewriteTargetListIU)."""
    more = [c for c in target if c.default is not None and c.name not in plan.columns]
    if not more:
        return plan
    query = plan.query
    if (
        query.limit is not None
        or query.sort
        or query.distinct
        or query.distinct_on
        or query.grouped
    ):
        raise FeatureNotSupported("INSERT of such a query leaves out a column with a default")
    query = replace(
        query,
        columns=(*query.columns, *more),
        targets=(*query.targets, *map(_default, more)),
    )
    return InsertPlan((*plan.columns, *(column.name for column in more)), query)


def _with_sequences(
    plan: InsertPlan,
    raw: InsertStmt,
    given: Sequence[Attribute],
    target: Sequence[Attribute],
) -> InsertPlan:
    """Find the columns and rows that take values from sequences.

    ``given``: the columns that the statement gives values to, in its order.
    """
    assert raw.query is not None
    rows = raw.query.values if is_values_list(raw.query) else ()
    places = {column.name: place for place, column in enumerate(given)}
    for column in (c for c in target if c.default == NEXTVAL):
        place = places.get(column.name)
        if place is None or (column.identity and raw.override is Overriding.USER_VALUE):
            plan = replace(plan, drawn=(*plan.drawn, (column.name, None)))
            continue
        marks = [isinstance(row[place], Default) for row in rows]
        if marks and all(marks):
            plan = replace(plan, drawn=(*plan.drawn, (column.name, None)))
        elif any(marks):
            plan = _with_marks(plan, column.name, marks)
    return plan


def _with_marks(plan: InsertPlan, column: str, marks: Sequence[bool]) -> InsertPlan:
    """Add a boolean to each row of VALUES: whether it takes the next value of the sequence."""
    (scan,) = plan.query.from_
    assert isinstance(scan, ValuesScan)
    mark = Attribute("", BOOL)
    scan = replace(
        scan,
        columns=(*scan.columns, mark),
        rows=tuple(
            (*row, Const(BOOL, "t" if marked else "f"))
            for row, marked in zip(scan.rows, marks, strict=True)
        ),
    )
    query = replace(
        plan.query,
        columns=(*plan.query.columns, mark),
        targets=(*plan.query.targets, scan.variables()[-1]),
        from_=(scan,),
    )
    drawn = (*plan.drawn, (column, len(plan.query.columns)))
    return InsertPlan(plan.columns, query, drawn)


def _default(column: Attribute) -> Node:
    if column.default in (None, NEXTVAL):
        return assigned(Const(UNKNOWN, None), column)
    assert column.default is not None
    value = coerced_default(column.name, column.default, column.type_oid, column.typmod)
    return Const(column.type_oid, value, column.typmod)


# UPDATE


def _settings(
    raw: UpdateStmt, scan: TableScan, scope: Scope, analysis: SelectAnalysis
) -> tuple[tuple[str, Node], ...]:
    known = {column.name: column for column in scan.columns}
    expressions = QueryExpressions(scope, analysis.relations, "UPDATE")
    settings: dict[str, Node] = {}
    for target in raw.targets:
        name = target.name or ""
        if name not in known:
            raise _no_column(name, raw.relation.name)
        if name in settings:
            raise SqlSyntaxError(f'multiple assignments to same column "{name}"')
        if isinstance(target.value, Star):
            raise FeatureNotSupported("whole rows are not supported in expressions")
        if isinstance(target.value, Default) and known[name].default == NEXTVAL:
            raise FeatureNotSupported(f'UPDATE of column "{name}" to DEFAULT is not supported')
        settings[name] = _assigned_raw(target.value, known[name], expressions)
    check_updated(raw, known)
    return tuple(with_generated_settings(settings, scan, raw.relation.name).items())


def _assigned_raw(raw: Expression, column: Attribute, expressions: QueryExpressions) -> Node:
    if isinstance(raw, Default):
        return _default(column)
    return assigned(expressions.transform(raw), column)


def assigned(node: Node, column: Attribute) -> Node:
    """Coerce a value to its column (transformAssignedExpr). Raises PenstockError (42804)."""
    found = to_target(node, column.type_oid, column.typmod, "a", Form.IMPLICIT)
    if found is None:
        raise DatatypeMismatch(
            f'column "{column.name}" is of type {type_name(column.type_oid)} but expression is of '
            f"type {type_name(node.type)}",
            hint=_CAST_HINT,
        )
    return found
