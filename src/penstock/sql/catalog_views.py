"""Views over the catalogs: pg_tables, information_schema (system_views.sql).

In: a view's columns and its query, translated. Out: the view as a ``Query`` with all its columns in
their order; those that the query does not give are NULL. Without a query there are no rows.
"""

from __future__ import annotations

from penstock.sql.catalog_scope import Found, OutputColumn, Query
from penstock.sql.catalog_typed import Typed, coerce
from penstock.sql.catalog_types import catalog_type

Columns = tuple[tuple[str, str], ...]
"""Names and types of a table's columns."""


def view_query(columns: Columns, query: Query | None, found: Found) -> Query:
    """``query`` None: the view is empty."""
    source = found.new_source()
    given = {} if query is None else {c.name: (n, c.type) for n, c in enumerate(query.columns, 1)}
    targets = []
    for number, (name, kind) in enumerate(columns, 1):
        value = f"CAST(NULL AS {catalog_type(kind).held})"
        if name in given:
            place, has = given[name]
            value = coerce(Typed(f"{source}.o{place}", has), kind, found).sql
        targets.append(f"{value} AS o{number}")
    rest = "WHERE FALSE" if query is None else f"FROM ({query.sql}) AS {source}"
    outputs = tuple(OutputColumn(name, kind) for name, kind in columns)
    return Query(f"SELECT {', '.join(targets)} {rest}", outputs)
