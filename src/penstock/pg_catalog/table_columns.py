"""Columns of tables for the catalogs, each table by itself.

In: rows of pg_class. Out: columns as in PostgreSQL, and for a table that cannot be published the
reason. A table that cannot be read at the moment keeps the columns that it had, and does not affect
others. Columns are read again when a table has another version, or another log.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Final

from penstock.attribute import TupleDesc
from penstock.catalog import LakeTable
from penstock.errors import FeatureNotSupported
from penstock.lakehouse.identity import EntryMark, entry_mark
from penstock.lakehouse.state import TableState, load
from penstock.lakehouse.warehouse import Warehouse
from penstock.pg_catalog import CatalogTable
from penstock.walsender.commits import newest_version
from penstock.walsender.lake_columns import columns_of, table_column
from penstock.walsender.troubles import Troubles


@dataclass(frozen=True, slots=True)
class _Columns:
    columns: TupleDesc
    unpublishable: str | None = None


_Key = tuple[str, int, EntryMark | None]
_NONE: Final = _Columns(TupleDesc())


class TableColumns:
    """Read and keep the columns of tables, for the threads of all sessions."""

    def __init__(self, warehouse: Warehouse, troubles: Troubles) -> None:
        self._warehouse = warehouse
        self._troubles = troubles
        self._lock = threading.Lock()
        self._known: dict[int, tuple[_Key, _Columns]] = {}

    def within(self, warehouse: Warehouse) -> TableColumns:
        """Return the columns in another view of the warehouse, which begins with what is known
        here."""
        own = TableColumns(warehouse, self._troubles)
        with self._lock:
            own._known = dict(self._known)
        return own

    def of(self, table: LakeTable) -> CatalogTable:
        """Return the table with its columns. An error that is the table's own is not raised."""
        with self._lock:
            known = self._known.get(table.oid)
        found = _NONE if known is None else known[1]
        with self._troubles.kept("columns", table.qualified_name):
            uri = table.uri or self._warehouse.table_uri(table.schema, table.name)
            version = newest_version(self._warehouse.storage, uri)
            if version is not None:
                key = uri, version, entry_mark(uri, version)
                if known is None or known[0] != key:
                    state = load(self._warehouse.storage, uri)
                    found = _NONE if state is None else _columns(state)
                    with self._lock:
                        self._known[table.oid] = key, found
        return CatalogTable(table, found.columns, unpublishable=found.unpublishable)


def with_columns(table: LakeTable, state: TableState) -> CatalogTable:
    """Return a table with the columns of a version that is loaded."""
    found = _columns(state)
    return CatalogTable(table, found.columns, unpublishable=found.unpublishable)


def _columns(state: TableState) -> _Columns:
    """Return the columns of a version. A table with structs or maps is known, but has no columns to
    publish."""
    try:
        return _Columns(
            TupleDesc(replace(table_column(column), default=None) for column in columns_of(state))
        )
    except FeatureNotSupported as error:
        return _Columns(TupleDesc(), error.message)
