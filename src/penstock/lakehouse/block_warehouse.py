"""A warehouse as a transaction block sees it: with the tables that the block itself has made.

In: a warehouse, first entries of logs. Out: ``BlockWarehouse``, which holds the first entries of
new tables in memory. Only those who read a log through its storage find them.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import DuplicateObject, FeatureNotSupported
from penstock.lakehouse.actions import lines
from penstock.lakehouse.log import entry_uri, log_folder
from penstock.lakehouse.row_pairs import pairs_folder
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.state import TableState
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table import DeltaTable, new_table_entry
from penstock.lakehouse.table_layout import NO_LAYOUT, TableLayout
from penstock.lakehouse.warehouse import Warehouse
from penstock.relation import qualified


class BlockWarehouse(Warehouse):
    """A warehouse with tables that are not committed yet.

    ``entries``: the lines of their first log entries, by the tables' URIs.
    """

    def __init__(self, warehouse: Warehouse, entries: Mapping[str, tuple[str, ...]]) -> None:
        self._held = {entry_uri(uri, 0): _content(entry) for uri, entry in entries.items()}
        super().__init__(
            warehouse.uri, warehouse.storage.fsync, node_id=warehouse.node_id, held=self._held
        )
        self.entries = dict(entries)

    def create(
        self, schema: str, table: str, columns: TableSchema, layout: TableLayout = NO_LAYOUT
    ) -> DeltaTable:
        """Make a table that only this block sees. Raises FeatureNotSupported in an object store:
        if the store does not answer, COMMIT could not take the table back. Raises DuplicateObject.
        """
        self.check_there()
        if not self.storage.is_local:
            raise FeatureNotSupported(
                "CREATE TABLE in a transaction block is not supported in a warehouse in an object "
                "store",
                hint="Run it outside of BEGIN ... COMMIT.",
            )
        uri, name = self.table_uri(schema, table), qualified(schema, table)
        if uri in self.entries or self.storage.exists(entry_uri(uri, 0)):
            raise DuplicateObject(f'table "{uri}" already exists')
        entry = new_table_entry(name, columns, layout)
        self.entries[uri] = tuple(lines(entry))
        self._held[entry_uri(uri, 0)] = _content(self.entries[uri])
        state = TableState()
        state.apply(0, entry)
        return DeltaTable(self.storage, self.store, uri, name, state)

    def remove(self, schema: str, table: str) -> None:
        """Drop a table of this block; the block removes its files. Raises FeatureNotSupported if
        the table was made outside of it."""
        uri = self.table_uri(schema, table)
        if self.entries.pop(uri, None) is None:
            raise FeatureNotSupported(
                f'the table in "{log_folder(uri)}" is not of this transaction block'
            )
        del self._held[entry_uri(uri, 0)]


def remove_empty_folders(storage: Storage, table_uri: str) -> None:
    """Remove the empty folders at a URI that is no table. The log folder is left to its maker."""
    for folder in (pairs_folder(table_uri), table_uri):
        storage.remove_empty_folder(folder)


def _content(entry: tuple[str, ...]) -> bytes:
    return "".join(f"{line}\n" for line in entry).encode()
