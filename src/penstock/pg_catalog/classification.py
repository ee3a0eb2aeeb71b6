"""Which statements are questions for the catalogs.

In: SQL. Out: yes or no, for whoever hands statements to the catalogs or to Spark.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from penstock.errors import PenstockError
from penstock.pg_catalog.functions import functions, table_functions
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pg_catalog.snapshot import CatalogSnapshot
from penstock.sql.grammar.raw_names import names_in
from penstock.sql.to_duckdb.catalog_templates import KNOWN_FUNCTIONS

_NEWEST: Final = 18


def reads_catalog_only(sql: str, more: Collection[str] = ()) -> bool:
    """Whether a statement is a SELECT over system catalogs, or over nothing at all.

    False for everything else, statements that are not understood among them. A name that begins
    with ``pg_`` is a catalog's, whether there is such a catalog or not. ``more``: names of the
    functions that the node adds.
    """
    try:
        names = names_in(sql)
    except PenstockError:
        return False
    if any(not _is_catalog(schema, table) for schema, table in names.tables):
        return False
    return bool(names.tables) or names.functions <= _KNOWN_FUNCTIONS.union(more)


def _is_catalog(schema: str, table: str) -> bool:
    if schema and schema != "pg_catalog":
        return schema == "information_schema"
    return table.startswith("pg_")


_NOBODY: Final = CatalogSnapshot("")
_KNOWN_FUNCTIONS: Final = (
    KNOWN_FUNCTIONS
    | frozenset(functions(_NOBODY, SessionFacts("", "", _NEWEST)))
    | frozenset(table_functions(_NEWEST))
)
