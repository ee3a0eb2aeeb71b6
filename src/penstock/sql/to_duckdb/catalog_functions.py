"""Functions that look into the catalogs, as queries of DuckDB call them.

In: nothing. Out: descriptions. A function is called as ``pg__name``, given by whoever runs the
query; what its arguments and result are to a query is in pg_proc, here is what DuckDB hands over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANY: Final = "any"
"""An argument that is handed over as its text."""
OF_BYTEA: Final = "_bytea"
"""Ends the name of a function beside one that takes text."""
VARIADIC: Final = "variadic"
"""The last argument of a table function: any number of texts, or an array of them."""


@dataclass(frozen=True, slots=True)
class CatalogFunction:
    """``arguments``: type names. ``left_out``: SQL for those that a call leaves out."""

    name: str
    arguments: tuple[str, ...]
    returns: str
    left_out: str = "NULL"


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A function in FROM. ``query``: DuckDB's SELECT over ``{0}`` ..., with columns o1, o2 ...;
    None: whoever runs the query gives the rows, too (``RowSource``).

    ``tables``, ``functions``: what the query reads and calls.
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
    """Rows that a query reads from the relation ``name``: those of ``function``, called once.

    ``arguments``: DuckDB's SELECT of them, in one row; ``parameters``: of the query, by number.
    """

    name: str
    function: str
    arguments: str
