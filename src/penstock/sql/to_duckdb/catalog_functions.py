"""Descriptions of functions that read the catalogs, for queries of DuckDB.

A query calls a function as ``pg__name``; the code that runs the query provides it. pg_proc has its
types for the analysis of queries; the types here are those of the values that DuckDB passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANY: Final = "any"
"""The type of an argument that is passed as text, whatever its own type is."""
OF_BYTEA: Final = "_bytea"
"""The suffix of a function for bytea, if a function of the same name takes text."""
VARIADIC: Final = "variadic"
"""The last argument of a table function: any number of texts, or an array of them."""


@dataclass(frozen=True, slots=True)
class CatalogFunction:
    """A function. ``arguments``: type names. ``left_out``: SQL for omitted arguments."""

    name: str
    arguments: tuple[str, ...]
    returns: str
    left_out: str = "NULL"


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A function in FROM. ``query``: a SELECT for DuckDB with columns o1, o2 ... and the arguments
    as ``{0}`` ...; None: the code that runs the SQL provides the rows (``RowSource``). ``tables``,
    ``functions``: names of what ``query`` reads and calls.
    """

    name: str
    arguments: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    query: str | None
    tables: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    left_out: str = "NULL"


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows that a query reads from the relation ``name``: the result of ``function``, called once.

    ``arguments``: a SELECT for DuckDB that returns the arguments in one row.
    """

    name: str
    function: str
    arguments: str
