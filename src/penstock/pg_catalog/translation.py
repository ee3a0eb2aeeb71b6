"""A query over catalogs: PostgreSQL's grammar and types, DuckDB's SQL.

In: one SELECT, the catalogs and functions that there are. Out: ``Translation``: the columns with
PostgreSQL's names and types, the types of parameters, DuckDB's SQL and what it needs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import SqlSyntaxError
from penstock.pg_catalog.definitions import Columns
from penstock.pgtypes.pg_type import types
from penstock.sql.grammar.parsenodes import SelectStmt
from penstock.sql.grammar.raw_statements import parse_query
from penstock.sql.text.object_names import RangeVar
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction, RowSource, TableFunction
from penstock.sql.to_duckdb.catalog_lowering import from_zero
from penstock.sql.to_duckdb.catalog_query import compile_catalog_query
from penstock.sql.typed.query_nodes import OutputColumn
from penstock.sql.typed.select_analysis import analyze_select
from penstock.sql.typed.statement import Surroundings
from penstock.sqlstate import IndeterminateDatatype, UndefinedTable

TableLookup = Callable[[str, str], Columns | None]
"""(schema or "", name) -> columns, None where there is no such table."""
ViewLookup = Callable[[str, str], str | None]
"""(schema or "", name) -> the query of a view, empty where it has no rows; None: it is a table."""
_CATALOG = "pg_catalog"


@dataclass(frozen=True, slots=True)
class Translation:
    """``parameters``: type oids of ``$1``, ``$2`` ...; ``from_zero``: of each column, whether it
    is an array that begins with 0; ``sources``: relations whose rows functions give."""

    sql: str
    columns: tuple[OutputColumn, ...]
    from_zero: tuple[bool, ...]
    parameters: tuple[int, ...]
    tables: frozenset[str]
    functions: frozenset[str]
    sources: tuple[RowSource, ...] = ()


def translate(
    text: str,
    lookup: TableLookup,
    functions: Mapping[str, CatalogFunction],
    table_functions: Mapping[str, TableFunction],
    said: Sequence[int],
    views: ViewLookup,
) -> Translation:
    """Translate one SELECT. Raises PostgreSQL's errors, and FeatureNotSupported.

    ``said``: oids of the parameters' types as far as the client has said them, 0 where not.
    """
    raw = parse_query(text)
    if not isinstance(raw, SelectStmt):
        raise SqlSyntaxError("a SELECT was expected")
    parameters = {number: oid for number, oid in enumerate(said, 1) if oid}

    def find_table(relation: RangeVar) -> tuple[OutputColumn, ...]:
        schema = "" if relation.schema in (None, _CATALOG) else str(relation.schema)
        columns = lookup(schema, relation.name)
        if columns is None:
            shown = relation.name if not relation.schema else f"{relation.schema}.{relation.name}"
            raise UndefinedTable(f'relation "{shown}" does not exist')
        return output_columns(columns)

    def find_view(relation: RangeVar) -> str | None:
        return views(
            "" if relation.schema in (None, _CATALOG) else str(relation.schema), relation.name
        )

    around = Surroundings(
        find_table,
        find_view,
        {name: output_columns(f.columns) for name, f in table_functions.items()},
        parameters,
    )
    query = analyze_select(raw, around)
    made = compile_catalog_query(query, functions, table_functions)
    last = max([*parameters, len(said)], default=0)
    for number in range(1, last + 1):
        if number not in parameters:
            raise IndeterminateDatatype(f"could not determine data type of parameter ${number}")
    return Translation(
        made.sql,
        query.columns,
        tuple(map(from_zero, query.targets)),
        tuple(parameters[number] for number in range(1, last + 1)),
        made.tables,
        made.functions,
        made.sources,
    )


@functools.cache
def _oids() -> Mapping[str, int]:
    return {row.name: oid for oid, row in types().items()}


def output_columns(columns: Columns) -> tuple[OutputColumn, ...]:
    """Names and types by oid."""
    return tuple(OutputColumn(name, _oids()[kind]) for name, kind in columns)
