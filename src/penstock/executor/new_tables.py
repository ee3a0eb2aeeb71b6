"""Tables that a transaction block has made, at its COMMIT: first their logs, without rows, then
what they hold, by commits like those of other tables, and with the end of all the catalogs' rows.

In: what is written down of a block. Out: first entries of logs, put or taken back; rows of the
catalogs, in the transaction that the block is forgotten in. Until that one nobody on the node knows
the tables (``BlockCommits.makes``), and nobody else takes their names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from penstock.catalog import CatalogTransaction, MadeTable
from penstock.errors import CommitConflict, DuplicateObject, StorageError, UndefinedObject
from penstock.lakehouse.block_warehouse import remove_empty_folders
from penstock.lakehouse.log import entry_uri, list_log, log_folder, read_entry
from penstock.lakehouse.schema import own_types
from penstock.lakehouse.staged_change import StagedChange
from penstock.lakehouse.user_metadata import group_of
from penstock.lakehouse.warehouse import Warehouse
from penstock.relation import TableName
from penstock.sqlstate import DuplicateTable, InvalidSchemaName

log = logging.getLogger(__name__)


class NewTables:
    """For every session."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse: Final = warehouse

    def check(self, t: CatalogTransaction, tables: Iterable[MadeTable]) -> None:
        """Whether they could be there now, whatever others have done since they were made.

        Raises PenstockError (3F000, 42704, 42710, 42P07).
        """
        types = {oid for enum in t.types.all() for oid in (enum.oid, enum.array_oid)}
        for table in tables:
            row = table.row
            if t.namespaces.find(row.schema) is None:
                raise InvalidSchemaName(f'schema "{row.schema}" does not exist')
            if row.owner is not None and t.roles.find_oid(row.owner) is None:
                raise UndefinedObject(f"role {row.owner} was concurrently dropped")
            for name in table.names:
                if t.is_taken(row.schema, name):
                    raise DuplicateTable(f'relation "{name}" already exists')
            if t.tables.in_folder_of(row.schema, row.name) is not None:
                raise DuplicateTable(f'relation "{row.name}" already exists')
            if t.types.find(row.schema, row.name) is not None:
                raise DuplicateObject(f'type "{row.name}" already exists')
            for oid in own_types(table.metadata["schemaString"]) - types:
                raise UndefinedObject(f"type {oid} was concurrently dropped")

    def put(self, table: MadeTable) -> None:
        """Its log, durable on return. Raises DuplicateTable: another table lies there."""
        self._warehouse.check_there()  # an empty mount point would take it, too
        self._warehouse.storage.create_folder(log_folder(table.uri))
        try:
            self._warehouse.store.put(table.uri, 0, table.entry)
        except CommitConflict:
            if not self.is_there(table):
                raise DuplicateTable(f'relation "{table.row.name}" already exists') from None

    def is_there(self, table: MadeTable) -> bool:
        """Whether its log was put. Raises StorageError."""
        entry = read_entry(self._warehouse.storage, table.uri, 0) or []
        found = (action["metaData"]["id"] for action in entry if "metaData" in action)
        return table.table_id in found

    def undo(self, table: MadeTable, change: StagedChange | None, block: str) -> bool:
        """Take it back, with its files. False where others have written to it: it stays, and its
        rows are to be taken back. Raises StorageError."""
        storage = self._warehouse.storage
        if self.is_there(table):
            listing = list_log(storage, table.uri)
            own = [read_entry(storage, table.uri, v) or [] for v in listing.entries if v]
            if listing.checkpoints or any(group_of(entry) != block for entry in own):
                log.error(
                    'table "%s" of a transaction block that is rolled back stays: others have '
                    "written to it",
                    table.row.qualified_name,
                )
                return False
            for version in reversed(listing.entries):  # the first one says whose it is
                storage.remove(entry_uri(table.uri, version))
            if self.is_there(table):
                raise StorageError(f'could not remove the log of table "{table.uri}"')
        for uri in () if change is None else change.uris():
            storage.remove(uri)
        storage.remove_empty_folder(log_folder(table.uri))
        remove_empty_folders(storage, table.uri)
        return True

    @staticmethod
    def enter(t: CatalogTransaction, tables: Collection[MadeTable]) -> None:
        """From now on everybody knows them, and follows them from before their first rows."""
        for table in tables:
            t.tables.add(table.row)
            for sequence in table.sequences:
                t.sequences.add(sequence)
            t.transactions.advance(table.row.oid, 0, table.table_id)


def names_of(tables: Iterable[MadeTable]) -> set[TableName]:
    """Of relations that come with new tables."""
    return {(table.row.schema, name) for table in tables for name in table.names}
