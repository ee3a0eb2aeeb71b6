"""Calls whose effects last: each is written once.

In: a query, DuckDB's SQL for it. Out: an error where an expression with such a call is written
several times, and would be computed so.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import FeatureNotSupported
from penstock.sql.to_duckdb.catalog_functions import OF_BYTEA, CatalogFunction
from penstock.sql.typed.primnodes import FuncExpr
from penstock.sql.typed.query_nodes import Query


def check_once(query: Query, sql: str, functions_: Mapping[str, CatalogFunction]) -> None:
    """Raises FeatureNotSupported."""
    for name, function in functions_.items():
        if function.once and sql.count(f"pg__{name}(") > _calls(query, name.removesuffix(OF_BYTEA)):
            raise FeatureNotSupported(
                f"{name.removesuffix(OF_BYTEA)} is not supported in such an expression",
                hint="Call it by itself in the select list.",
            )


def _calls(item: object, name: str) -> int:
    if isinstance(item, tuple):
        return sum(_calls(each, name) for each in item)
    if not hasattr(item, "__dataclass_fields__"):
        return 0
    own = isinstance(item, FuncExpr) and item.name == name
    return own + sum(_calls(getattr(item, field), name) for field in item.__dataclass_fields__)
