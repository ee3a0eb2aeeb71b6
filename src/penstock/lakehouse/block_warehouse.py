"""A warehouse as a transaction block sees it: with the tables that it has made itself.

In: a warehouse, first entries of logs. Out: ``BlockWarehouse``, which keeps the entries of new
tables to itself: whoever reads a log through its storage finds them, and nobody else does.
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
    """``entries``: by the URIs of tables, the lines of their first entries."""

    def __init__(self, warehouse: Warehouse, entries: Mapping[str, tuple[str, ...]]) -> None:
        self._held = {entry_uri(uri, 0): _content(entry) for uri, entry in entries.items()}
        super().__init__(
            warehouse.uri, warehouse.storage.fsync, node_id=warehouse.node_id, held=self._held
        )
        self.entries = dict(entries)

    def create(
        self, schema: str, table: str, columns: TableSchema, layout: TableLayout = NO_LAYOUT
    ) -> DeltaTable:
        """Raises FeatureNotSupported where COMMIT could not take it back in a store that has not
        answered."""
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
        """Its files go with the block."""
        uri = self.table_uri(schema, table)
        if self.entries.pop(uri, None) is None:
            raise FeatureNotSupported(
                f'the table in "{log_folder(uri)}" is not of this transaction block'
            )
        del self._held[entry_uri(uri, 0)]


def remove_empty_folders(storage: Storage, table_uri: str) -> None:
    """Of what is no table: those that hold nothing. The log's is left to who has put it there."""
    for folder in (pairs_folder(table_uri), table_uri):
        storage.remove_empty_folder(folder)


def _content(entry: tuple[str, ...]) -> bytes:
    return "".join(f"{line}\n" for line in entry).encode()
