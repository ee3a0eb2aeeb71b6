"""Analyze expressions of queries: columns of several relations, subqueries and aggregates.

Raw expressions, with a scope and a clause, become typed nodes (parse_expr.c). Expressions over a
single table, such as row filters, use ``ExpressionAnalysis`` directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import (
    FeatureNotSupported,
    SqlSyntaxError,
    UndefinedObject,
    WrongObjectType,
)
from penstock.interrupts import check_for_interrupts
from penstock.pgtypes.pg_type import BOOL, CHAR, INT4, NAME, RECORD, UNKNOWN
from penstock.sql.grammar.parsenodes import (
    AConst,
    ARow,
    ASubLink,
    ColumnRef,
    Expression,
    FuncCall,
    Indirection,
    ParamRef,
    SortBy,
    SqlValueFunction,
    SubLinkKind,
    Subscript,
    WindowDef,
)
from penstock.sql.text.limits import MAX_PARAMETERS
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.aggregate_analysis import aggregate, window
from penstock.sql.typed.coercion import array_of, element, to_boolean, to_target
from penstock.sql.typed.expression_analysis import ExpressionAnalysis, constant
from penstock.sql.typed.function_analysis import (
    AGGREGATE,
    WINDOW,
    call,
    function_name,
    kinds,
    not_allowed,
)
from penstock.sql.typed.grouping import relations_of
from penstock.sql.typed.operator_analysis import make_operator
from penstock.sql.typed.primnodes import (
    FieldSelect,
    Form,
    FuncExpr,
    Node,
    Param,
    SubscriptingRef,
    Var,
    typmod_of,
)
from penstock.sql.typed.query_nodes import SessionValue, SortKey, SubLink
from penstock.sql.typed.scope import Relations, Scope
from penstock.sqlstate import (
    DatatypeMismatch,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedParameter,
)

_OF_SESSION: Final = frozenset({"now", "transaction_timestamp", "current_database"})
"""Functions without arguments that return a value of the session."""
FUNCTIONS_IN_FROM: Final = "functions in FROM"
_SETS: Final = ("SELECT", FUNCTIONS_IN_FROM)
"""Clauses in which functions may return sets."""
_EXPANDARRAY: Final = ("information_schema", "_pg_expandarray")
SUBLINK_COLUMN: Final = "subquery"
"""The relation name of the Var that stands for a subquery's column in ``SubLink.test``."""


class QueryExpressions(ExpressionAnalysis):
    """The analysis of one query's expressions.

    ``clause``: its name in messages. ``windows``: the definitions of the query's WINDOW clause.
    """

    def __init__(
        self,
        scope: Scope,
        relations: Relations,
        clause: str,
        *,
        aggregates: bool = False,
        windows: dict[str, WindowDef] | None = None,
        in_windows: bool = False,
    ) -> None:
        super().__init__({}, "")
        self._scope = scope
        self._relations = relations
        self.clause = clause
        self._aggregates = aggregates
        self._windows = windows or {}
        self._in_windows = in_windows
        self.subquery_names: dict[ASubLink, str] = {}
        """The columns of the scalar subqueries that were analyzed."""

    def transform(self, raw: Expression) -> Node:
        """Return the typed tree of a raw one. Raises PenstockError."""
        check_for_interrupts()
        match raw:
            case AConst():  # a statement may have a million of them
                return constant(raw)
            case ColumnRef(fields):
                return self._scope.resolve(fields)
            case FuncCall():
                return self._any_call(raw)
            case ASubLink():
                return self._subquery(raw)
            case SqlValueFunction(name, typmod):
                if typmod >= 0:
                    raise FeatureNotSupported(f"{name.upper()}({typmod}) is not supported")
                return SessionValue(super().transform(raw).type, name)
            case ParamRef(number):
                return self._parameter(number)
            case Indirection(argument, steps=steps) if steps:
                return self._indirected(self.transform(argument), steps)
        return super().transform(raw)

    def _parameter(self, number: int) -> Node:
        types = self._relations.around.parameters
        if types is None or not 1 <= number <= MAX_PARAMETERS:
            raise UndefinedParameter(f"there is no parameter ${number}")
        return Param(types.get(number, UNKNOWN), number, types)

    def _indirected(self, node: Node, steps: Sequence[Subscript | str]) -> Node:
        for step in steps:
            if isinstance(step, str):
                node = field_of(node, step)
            else:
                node = self._element_of(node, self.transform(step.index))
        return node

    def _element_of(self, node: Node, index: Node) -> Node:
        # A name is an array of "char", numbered from 0 (raw_array_subscript_handler).
        type_ = CHAR if node.type == NAME else element(node.type)
        if not type_:
            raise DatatypeMismatch(
                f"cannot subscript type {type_name(node.type)} because it does not support"
                " subscripting",
            )
        at = to_target(index, INT4, -1, "a", Form.IMPLICIT)
        if at is None:
            raise DatatypeMismatch("array subscript must have type integer")
        return SubscriptingRef(type_, node, at)

    def sort_key(self, raw: SortBy) -> SortKey:
        """Return a sort key whose expression uses the scope's columns."""
        return sort_key(raw, self.transform(raw.expression))

    def _any_call(self, raw: FuncCall) -> Node:
        if raw.name == _EXPANDARRAY:
            return self._expanded_array(raw)
        name = function_name(raw)
        if not kinds(name) & {AGGREGATE, WINDOW}:
            given = [self.transform(argument) for argument in raw.arguments]
            node = call(raw, given, self.clause, sets=self.clause in _SETS)
            return SessionValue(node.type, name) if name in _OF_SESSION else node
        allowed = self._aggregates if raw.over is None else self._in_windows
        if not allowed and (raw.over is not None or AGGREGATE in kinds(name)):
            raise not_allowed(raw, self.clause)
        arguments = tuple(self.transform(argument) for argument in raw.arguments)
        order = tuple(self.sort_key(key) for key in raw.order)
        filter_ = None if raw.filter is None else self.boolean(raw.filter, "FILTER")
        self._check_level((*arguments, *(key.node for key in order), *filter(None, [filter_])))
        function = aggregate(raw, arguments, order, filter_)
        if raw.over is None:
            return function
        definition = self._definition(raw.over)
        return window(
            function,
            definition,
            tuple(self.transform(item) for item in definition.partition),
            tuple(self.sort_key(key) for key in definition.order),
            (self._optional(definition.start), self._optional(definition.end)),
        )

    def _expanded_array(self, raw: FuncCall) -> Node:
        """Analyze information_schema._pg_expandarray: rows (x, n). The typmod holds x's type."""
        arguments = tuple(self.transform(argument) for argument in raw.arguments)
        type_ = element(arguments[0].type) if len(arguments) == 1 else 0
        if not type_:
            shown = ", ".join(type_name(node.type) for node in arguments)
            raise UndefinedFunction(f"function {'.'.join(_EXPANDARRAY)}({shown}) does not exist")
        return FuncExpr(RECORD, 0, _EXPANDARRAY[-1], arguments, typmod=type_)

    def _check_level(self, arguments: tuple[Node, ...]) -> None:
        """Refuse an aggregate of columns of the outer query, as it would belong to that query
        (check_agg_arguments)."""
        used = {relation for node in arguments for relation in relations_of(node)}
        own, *outer = (scope.relation_names() for scope in self._scope.and_outer())
        if not used & own and used & set().union(*outer):
            raise FeatureNotSupported("an aggregate of an outer query's columns is not supported")

    def boolean(self, raw: Expression, clause: str) -> Node:
        """Return a condition. Raises PenstockError (42804)."""
        return to_boolean(self.transform(raw), clause)

    def _optional(self, raw: Expression | None) -> Node | None:
        return None if raw is None else self.transform(raw)

    def _definition(self, raw: WindowDef) -> WindowDef:
        if raw.refname is not None:
            raise FeatureNotSupported("OVER with the name of another window is not supported")
        if raw.name is None:
            return raw
        found = self._windows.get(raw.name)
        if found is None:
            raise UndefinedObject(f'window "{raw.name}" does not exist')
        return found

    def _subquery(self, raw: ASubLink) -> Node:
        query = self._relations.analyze(raw.query, self._scope)
        if raw.kind is SubLinkKind.EXISTS:
            return SubLink(BOOL, raw.kind, query)
        if isinstance(raw.test, ARow):
            raise FeatureNotSupported("comparing a row with a subquery is not supported")
        if len(query.columns) != 1:
            raise SqlSyntaxError("subquery must return only one column")
        (column,) = query.columns
        if raw.kind is SubLinkKind.EXPR:
            self.subquery_names[raw] = column.name
            return SubLink(column.type_oid, raw.kind, query)
        if raw.kind is SubLinkKind.ARRAY and element(column.type_oid):
            raise FeatureNotSupported("arrays of more than one dimension are not supported")
        if raw.kind is SubLinkKind.ARRAY and not array_of(column.type_oid):
            raise UndefinedObject(
                f"could not find array type for data type {type_name(column.type_oid)}"
            )
        if raw.kind is SubLinkKind.ARRAY:
            return SubLink(array_of(column.type_oid), raw.kind, query)
        assert raw.test is not None
        value = Var(column.type_oid, "c1", column.typmod, relation=SUBLINK_COLUMN)
        test = make_operator(raw.operator, self.transform(raw.test), value)
        if test.type != BOOL:
            raise DatatypeMismatch("operator must return type boolean, not another one")
        return SubLink(BOOL, raw.kind, query, test)


def field_of(node: Node, name: str) -> Node:
    """Return ``(row).field`` for a row of _pg_expandarray."""
    if node.type == RECORD and isinstance(node, FuncExpr) and typmod_of(node) < 0:
        raise FeatureNotSupported(f"({node.name}(...)).{name} is not supported: call it in FROM")
    if node.type != RECORD or typmod_of(node) < 0:
        raise WrongObjectType(
            f"column notation .{name} applied to type {type_name(node.type)}, which is not a "
            "composite type",
        )
    types = {"x": typmod_of(node), "n": INT4}
    if name not in types:
        raise UndefinedColumn(f'could not identify column "{name}" in record data type')
    return FieldSelect(types[name], node, name)


def sort_key(raw: SortBy, node: Node) -> SortKey:
    """Return a sort key. NULL is greater than any value, so by default it is last with ASC."""
    first = raw.descending if raw.nulls_first is None else raw.nulls_first
    return SortKey(node, raw.descending, first)
