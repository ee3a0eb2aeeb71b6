"""Descriptions of functions that read the catalogs, for queries of DuckDB.

A query calls a function as ``pg__name``; the code that runs the query provides it. pg_proc has its
argument and result types for queries; the types here are those of the values that DuckDB passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANY: Final = "any"
"""An argument that is passed as its text."""
OF_BYTEA: Final = "_bytea"
"""The end of the name of a bytea function beside one that takes text."""
VARIADIC: Final = "variadic"
"""The last argument of a table function: any number of texts, or an array of them."""


@dataclass(frozen=True, slots=True)
class CatalogFunction:
    """A function. ``arguments``: type names. ``left_out``: SQL for arguments left out."""

    name: str
    arguments: tuple[str, ...]
    returns: str
    left_out: str = "NULL"


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A function in FROM. ``query``: DuckDB's SELECT over ``{0}`` ..., with columns o1, o2 ...;
    None: the caller that runs the query provides the rows, too (``RowSource``). ``tables``,
    ``functions``: names that the query reads and calls.
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

    ``arguments``: DuckDB's SELECT of them, in one row. ``parameters``: of the query, by number.
    """

    name: str
    function: str
    arguments: str
