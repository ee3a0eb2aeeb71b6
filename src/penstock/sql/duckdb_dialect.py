"""A PostgreSQL query over catalogs to DuckDB's SQL.

In: one SELECT, the tables and functions that there are. Out: ``Translation``: DuckDB's text, the
columns with PostgreSQL's names and types, the types of parameters, the tables and functions that
must be there. Tables are read as ``cat."name"``, functions without a template are called as
``pg__name``; both are left to ``penstock.pg_catalog``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from penstock.sql.catalog_from import TableLookup, ViewLookup
from penstock.sql.catalog_functions import BUILT_IN, TABLE_FUNCTIONS, Function, TableFunction
from penstock.sql.catalog_scope import OutputColumn
from penstock.sql.catalog_select import SelectTranslator
from penstock.sql.catalog_tokens import parse_select
from penstock.sql.catalog_types import UNKNOWN, said_types
from penstock.sql.foreign_trees import foreign_tree


@dataclass(frozen=True, slots=True)
class Translation:
    """``parameters``: the types of ``$1``, ``$2`` ..."""

    sql: str
    columns: tuple[OutputColumn, ...]
    parameters: tuple[str, ...]
    tables: frozenset[str]
    functions: frozenset[str]


def translate(
    text: str,
    lookup: TableLookup,
    functions: Mapping[str, Function],
    table_functions: Mapping[str, TableFunction],
    said: Sequence[int] = (),
    views: ViewLookup = lambda schema, name: None,
) -> Translation:
    """Translate one SELECT. Raises PostgreSQL's errors, and FeatureNotSupported.

    ``said``: oids of the parameters' types as far as the client has said them, 0 where not.
    """
    translator = SelectTranslator(
        lookup, views, {**BUILT_IN, **functions}, {**TABLE_FUNCTIONS, **table_functions}
    )
    translator.found.parameters |= said_types(said)
    with foreign_tree():
        query = translator.translate(parse_select(text))
    found = translator.found
    numbers = range(1, max(found.last_parameter, len(said)) + 1)
    return Translation(
        sql=query.sql,
        columns=tuple(
            OutputColumn(column.name, "text" if column.type == UNKNOWN else column.type)
            for column in query.columns
        ),
        parameters=tuple(found.parameters.get(n, "text") for n in numbers),
        tables=frozenset(found.tables),
        functions=frozenset(found.functions),
    )


@dataclass(frozen=True, slots=True)
class Names:
    """What a query names: (schema or "", table) pairs and functions, as far as they are plain."""

    tables: frozenset[tuple[str, str]]
    functions: frozenset[str]


def names_in(text: str) -> Names:
    """Tables and functions that a SELECT names. Raises SqlSyntaxError for what is no SELECT."""
    tree = parse_select(text)
    within = {cte.alias for cte in tree.find_all(exp.CTE)}
    tables = frozenset(
        (table.db, table.name)
        for table in tree.find_all(exp.Table)
        if not isinstance(table.this, exp.Anonymous) and (table.db or table.name not in within)
    )
    return Names(tables, frozenset(_functions(tree)))


def _functions(tree: Any) -> Iterator[str]:
    for call in tree.find_all(exp.Anonymous):
        yield str(call.this).lower()
