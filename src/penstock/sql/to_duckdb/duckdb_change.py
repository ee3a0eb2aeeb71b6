"""Compile INSERT, UPDATE and DELETE to DuckDB's SQL.

An INSERT becomes a query for its rows, with values as the table stores them. The conditions and new
values of UPDATE and DELETE become expressions over the columns of the changed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.attribute import Attribute
from penstock.pgtypes.numeric import precision_and_scale
from penstock.pgtypes.pg_type import NUMERIC
from penstock.sql.grammar.parsenodes import RangeVar
from penstock.sql.text.limits import limited_depth
from penstock.sql.to_duckdb.duckdb_query import (
    CompiledQuery,
    QueryCompiler,
    TableInput,
    compile_rows,
)
from penstock.sql.to_duckdb.duckdb_values import (
    Value,
    as_text,
    duckdb_type,
)
from penstock.sql.to_duckdb.session_values import SessionValues
from penstock.sql.typed.change_analysis import ChangePlan, InsertPlan
from penstock.sql.typed.coercion import element
from penstock.sql.typed.generated_column import analyze_generation
from penstock.sql.typed.primnodes import Node, substituted
from penstock.sql.typed.query_nodes import TableScan

_ROWS: Final = "r1"


def compile_insert(plan: InsertPlan, session: SessionValues | None = None) -> CompiledQuery:
    """Compile the inserted rows, as the table stores them. Raises as ``compile_query``."""
    compiled = compile_rows(plan.query, session)
    shown = ", ".join(
        f"{stored(value, column)} AS c{number}"
        for number, (value, column) in enumerate(
            zip(compiled.values, plan.query.columns, strict=True), 1
        )
    )
    return replace(compiled, sql=f"SELECT {shown} FROM ({compiled.sql})")


def stored(value: Value, column: Attribute) -> str:
    """Return SQL of the value as its column stores it (``penstock.pgtypes.arrow_type``)."""
    item = element(value.type)
    if NUMERIC not in (value.type, item):
        return value.sql
    shape = precision_and_scale(column.typmod)
    if item:
        return f"CAST({value.sql} AS {duckdb_type(value.type, shape)})"
    if shape is None:
        return as_text(value)
    return f"CAST({value.sql} AS {duckdb_type(NUMERIC, shape)})"


@dataclass(frozen=True)
class CompiledExpression:
    """An expression. ``sql`` uses ``columns``, pairs such as (c1, column), of ``relation``.

    ``inputs``: other tables that its subqueries read.
    """

    sql: str
    relation: str
    columns: tuple[tuple[str, Attribute], ...]
    inputs: tuple[TableInput, ...]


def compile_expression(
    plan: ChangePlan,
    node: Node,
    column: Attribute | None = None,
    session: SessionValues | None = None,
) -> CompiledExpression:
    """Compile an expression. ``column``: the column that it sets; None for the condition.

    Raises as ``compile_query``.
    """
    compiler = QueryCompiler(session)
    compiler.scan(plan.target)
    with limited_depth():
        value = compiler.value(node)
    own, *others = compiler.tables
    inputs: Sequence[TableInput] = [compiler.input(scan) for scan in others]
    sql = value.sql if column is None else stored(value, column)
    return CompiledExpression(sql, own.name, compiler.input(own).columns, tuple(inputs))


def compile_generation(
    column: Attribute, columns: Sequence[Attribute], table: str
) -> CompiledExpression:
    """Compile a generated column, for rows whose other columns are known.

    ``table``: ``[schema.]name``. Raises as ``analyze_generation`` and ``compile_query``.
    """
    scan = TableScan(_ROWS, tuple(columns), RangeVar(table))
    names = (each.name for each in columns)
    values = dict(zip(names, scan.variables(), strict=True))
    node = substituted(analyze_generation(column, columns, table), values)
    return compile_expression(ChangePlan(scan, (), None), node, column)
