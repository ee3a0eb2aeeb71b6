"""Parameters ``$1``, ``$2`` ... of a statement on tables of the lake: types and values.

If the client does not specify a parameter's type, its use decides (parse_param.c). Bind's values
then replace the parameters in the tree as constants, as in PostgreSQL's planner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from penstock.attribute import Attribute
from penstock.errors import PenstockError
from penstock.pgtypes.pg_type import TEXT
from penstock.sql.grammar.parsenodes import (
    Expression,
    InsertStmt,
    ParamRef,
    ParamValue,
    PreparableStmt,
    RangeVar,
    SelectStmt,
    mutated,
    nodes_of,
)
from penstock.sql.text.limits import MAX_PARAMETERS, limited_depth
from penstock.sql.typed.change_analysis import analyze_change, analyze_insert
from penstock.sql.typed.scope import Surroundings
from penstock.sql.typed.select_analysis import analyze_select
from penstock.sqlstate import UndefinedParameter, UndefinedTable

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
