"""Parameters ``$1``, ``$2`` ... of a statement on tables of the lake: types and values.

If the client does not specify a parameter's type, its use decides (parse_param.c). Bind's values
then replace the parameters in the tree as constants, as in PostgreSQL's planner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.pgtypes.pg_type import TEXT
from penstock.sql import builtin
from penstock.sql.builtin.type_cache import types
from penstock.sql.grammar.parsenodes import (
    ASubLink,
    Expression,
    InsertStmt,
    ParamRef,
    ParamValue,
    PreparableStmt,
    RangeVar,
    ResTarget,
    SelectStmt,
    TypeCast,
    TypeName,
    mutated,
    nodes_of,
)
from penstock.sql.text.limits import MAX_PARAMETERS, limited_depth
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.change_analysis import analyze_change, analyze_insert
from penstock.sql.typed.coercion import to_target
from penstock.sql.typed.primnodes import Form, Node
from penstock.sql.typed.query_expression import QueryExpressions
from penstock.sql.typed.scope import Scope, Surroundings
from penstock.sql.typed.select_analysis import SelectAnalysis, analyze_select
from penstock.sqlstate import DatatypeMismatch, UndefinedParameter, UndefinedTable

_Stmt = TypeVar("_Stmt", SelectStmt, PreparableStmt)


def last_parameter(query: PreparableStmt) -> int:
    """Return the highest ``$n`` of a statement, 0 for none. Raises PenstockError (42P02)."""
    with limited_depth():
        numbers = {node.number for node in nodes_of(query) if isinstance(node, ParamRef)}
    for number in numbers:
        if not 1 <= number <= MAX_PARAMETERS:
            raise UndefinedParameter(f"there is no parameter ${number}")
    return max(numbers, default=0)


def with_values(query: _Stmt, values: Sequence[bytes | None], type_oids: Sequence[int]) -> _Stmt:
    """Return the statement with its parameters replaced by ``values``, which are in text format
    and UTF-8."""

    def bound(node: Expression) -> Expression | None:
        if not isinstance(node, ParamRef):
            return None
        value = values[node.number - 1]
        return ParamValue(type_oids[node.number - 1], None if value is None else value.decode())

    with limited_depth():
        found: _Stmt = mutated(query, bound)
    return found


ColumnTypes = Callable[[str | None, str], Mapping[str, int]]
"""(schema or None, table) -> type oids by column, in the table's order; empty if not found."""


def parameter_types(
    query: PreparableStmt, count: int, said: Sequence[int], columns: ColumnTypes
) -> tuple[int, ...]:
    """Return the type oids of ``$1`` to ``$count``: the client's, or the first type that the
    analysis finds, or text. ``said``: the client's types, 0 if unspecified. Errors of the analysis
    are ignored here; running the statement raises them."""
    found = {number: oid for number, oid in enumerate(said, 1) if oid}
    if any(number not in found for number in range(1, count + 1)):
        with suppress(PenstockError):  # running the statement raises the error
            _analyze(query, found, columns)
    return tuple(found.get(number) or TEXT for number in range(1, count + 1))


class _Arguments(QueryExpressions):
    """EXPR_KIND_EXECUTE_PARAMETER"""

    def transform(self, raw: Expression) -> Node:
        """Return the typed tree of a raw one. Raises PenstockError."""
        if isinstance(raw, ASubLink):
            raise FeatureNotSupported("cannot use subquery in EXECUTE parameter")
        return super().transform(raw)


def execute_parameters(arguments: Sequence[Expression], expected: Sequence[int]) -> SelectStmt:
    """Return the query whose one row has the values of EXECUTE's arguments, for parameters of the
    ``expected`` types (EvaluateParams). Raises PenstockError (42804, 42803, 0A000 ...)."""
    analysis = SelectAnalysis(_no_table)
    known = _Arguments(Scope(), analysis.relations, "EXECUTE parameters")
    for number, (argument, oid) in enumerate(zip(arguments, expected, strict=True), 1):
        with limited_depth():
            node = known.transform(argument)
            if to_target(node, oid, -1, "a", Form.IMPLICIT) is None:
                raise DatatypeMismatch(
                    f"parameter ${number} of type {type_name(node.type)} cannot be coerced to the "
                    f"expected type {type_name(oid)}",
                    hint="You will need to rewrite or cast the expression.",
                )
    pairs = zip(arguments, expected, strict=True)
    return SelectStmt(
        targets=tuple(ResTarget(TypeCast(raw, TypeName(_names(oid)))) for raw, oid in pairs)
    )


def _names(oid: int) -> tuple[str, ...]:
    """Return a type's name as ``find_type`` finds it: PostgreSQL's own have no schema."""
    type_ = types()[oid]
    return (type_.name,) if oid in builtin.types() else (type_.schema, type_.name)


def _no_table(relation: RangeVar) -> tuple[Attribute, ...]:
    raise UndefinedTable(f'relation "{relation.name}" does not exist')


def _analyze(query: PreparableStmt, found: dict[int, int], columns: ColumnTypes) -> None:
    def find_table(relation: RangeVar) -> tuple[Attribute, ...]:
        known = columns(relation.schema, relation.name)
        if not known:
            raise UndefinedTable(f'relation "{relation.name}" does not exist')
        return tuple(Attribute(name, oid) for name, oid in known.items())

    around = Surroundings(find_table, parameters=found)
    if isinstance(query, SelectStmt):
        analyze_select(query, around)
    elif isinstance(query, InsertStmt):
        analyze_insert(query, find_table(query.relation), around)
    else:
        analyze_change(query, find_table(query.relation), around)
