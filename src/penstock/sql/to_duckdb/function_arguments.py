"""Arguments of functions in FROM as DuckDB's SQL.

In: what a function takes, typed values. Out: one SQL expression for each of its arguments; those
that a call leaves out are NULL, variadic ones one list.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.sql.to_duckdb.catalog_functions import VARIADIC, TableFunction
from penstock.sql.to_duckdb.catalog_lowering import held_as
from penstock.sql.to_duckdb.duckdb_values import Value, refused
from penstock.sql.typed.coercion import element
from penstock.sql.typed.primnodes import Node, column_names


def argument_cells(function: TableFunction, values: Sequence[Value]) -> list[str]:
    """In the function's order."""
    plain = [kind for kind in function.arguments if kind != VARIADIC]
    cells = [
        f"CAST({value.sql} AS {held_as(kind)})" for kind, value in zip(plain, values, strict=False)
    ]
    cells += [function.left_out] * (len(plain) - len(cells))
    if len(plain) == len(function.arguments):
        return cells
    rest = values[len(plain) :]
    if len(rest) == 1 and element(rest[0].type):
        return [*cells, rest[0].sql]
    return [*cells, f"CAST([{', '.join(value.sql for value in rest)}] AS VARCHAR[])"]


def check_constant(name: str, call: Node) -> None:
    """Raises FeatureNotSupported: rows are asked for once, before the query has any itself."""
    if column_names(call):
        raise refused(f"function {name} with columns of other relations as arguments")
