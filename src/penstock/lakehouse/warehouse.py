"""The warehouse: the root of a node's Delta tables, with a folder per schema, and one per table.

A ``Warehouse`` opens and creates tables, and has the cuts table, the side tables and a folder for
temporary files that executors must read. The catalog knows which tables exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

import pyarrow as pa
from pyarrow import fs

from penstock.errors import (
    ConfigurationError,
    DuplicateObject,
    FeatureNotSupported,
    StorageError,
)
from penstock.lakehouse.actions import lines
from penstock.lakehouse.cluster import Cluster
from penstock.lakehouse.cuts import Cuts
from penstock.lakehouse.log import entry_uri, log_folder
from penstock.lakehouse.log_store import GuardedLogStore, LogStore, log_store
from penstock.lakehouse.names import earlier_folder_name, folder_name, written_names
from penstock.lakehouse.row_pairs import pairs_folder
from penstock.lakehouse.schema import SOURCE, TableSchema
from penstock.lakehouse.side_table import CONFLICTS, MESSAGES, VERIFICATIONS, SideTable
from penstock.lakehouse.state import TableState, load
from penstock.lakehouse.storage import Storage, resolve
from penstock.lakehouse.table import DeltaTable, new_table_entry
from penstock.lakehouse.table_layout import NO_LAYOUT, TableLayout
from penstock.lakehouse.xact import TableLog
from penstock.relation import TableName, qualified

OWN_FOLDER: Final = "_penstock"


class Warehouse:
    """A root folder or object store prefix. ``spark`` is needed only to commit to object stores
    without conditional puts (``log_store``).

    ``node_id``: the owner's id, once it is written in the warehouse; None skips the check.
    ``held``: files of its storage that exist only in memory.
    """

    def __init__(
        self,
        uri: str,
        fsync: bool = True,
        spark: Cluster | None = None,
        node_id: str | None = None,
        held: Mapping[str, bytes] | None = None,
    ) -> None:
        self.storage: Final = Storage(uri, fsync, {} if held is None else held)
        self.node_id = node_id
        self.check_lease: Callable[[], None] = lambda: None
        """Raises an error before a commit if another process runs a node here: ObjectInUse, or
        StorageError if that is not known."""
        self.confirm_lease: Callable[[], bool] = lambda: False
        """As ``check_lease``, and asks the storage. Returns False if there is no lease."""
        self.uri: Final = self.storage.uri
        self._spark = spark

    @property
    def filesystem(self) -> fs.FileSystem:
        """pyarrow's filesystem of the root."""
        return resolve(self.uri)[0]

    @cached_property
    def store(self) -> LogStore:
        """The log store of the warehouse."""
        return GuardedLogStore(log_store(self.storage, self._spark, self._guard), self._guard)

    def _guard(self) -> None:
        self.check_lease()

    def log_of(self, uri: str) -> TableLog:
        """Return the log of a table, to commit to it."""
        return TableLog(self.storage, self.store, uri)

    @cached_property
    def cuts(self) -> Cuts:
        """The cuts of all subscriptions of the node."""
        return Cuts(self.storage, self.store, f"{self.uri}/{OWN_FOLDER}/cuts", self.check_there)

    @cached_property
    def conflicts(self) -> SideTable:
        """The table of all subscriptions' changes that could not be applied as received."""
        return self._side_table("conflicts", CONFLICTS)

    @cached_property
    def messages(self) -> SideTable:
        """The table of messages that publishers' sessions have emitted, for subscriptions that ask
        for them."""
        return self._side_table("messages", MESSAGES)

    @cached_property
    def verifications(self) -> SideTable:
        """The table of key ranges that were compared with the publishers in the background."""
        return self._side_table("verifications", VERIFICATIONS)

    def _side_table(self, name: str, schema: pa.Schema) -> SideTable:
        folder = f"{self.uri}/{OWN_FOLDER}"
        return SideTable(self.storage, self.store, folder, name, schema)

    def subscription_uri(self, app_id: str) -> str:
        """Return the URI of a subscription's record."""
        return f"{self.uri}/{OWN_FOLDER}/subscriptions/{app_id}.json"

    def subscription_records(self) -> list[str]:
        """Return the URIs of all subscriptions' records."""
        folder = self.subscription_uri("").rpartition("/")[0]
        names = (info.base_name for info in self.storage.list(folder) if info.is_file)
        return sorted(f"{folder}/{name}" for name in names if name.endswith(".json"))

    def prepared_uri(self, app_id: str) -> str:
        """Return the URI of a subscription's prepared transactions."""
        return f"{self.uri}/{OWN_FOLDER}/prepared/{app_id}"

    @property
    def _owner_uri(self) -> str:
        return f"{self.uri}/{OWN_FOLDER}/node_id"

    def owner(self) -> str | None:
        """Return the id of the node to which the warehouse belongs; None if none is written."""
        written = self.storage.read_if_there(self._owner_uri) or b""
        return written.decode(errors="replace").strip() or None

    def claim(self, node_id: str) -> None:
        """Write the owner's id into the warehouse, and check it from now on."""
        if self.owner() != node_id:
            self.storage.create_folder(f"{self.uri}/{OWN_FOLDER}")
            self.storage.write(self._owner_uri, f"{node_id}\n".encode())
        self.node_id = node_id

    def check_there(self) -> None:
        """Check the owner's id, by one small read. Raises StorageError if the warehouse is not
        there (an empty mount point looks like a new warehouse), ConfigurationError if it belongs to
        another node.
        """
        if self.node_id is None:
            return
        found = self.owner()
        if found is None:
            raise self.not_there(self.node_id)
        if found != self.node_id:
            raise self.not_ours(found, self.node_id)

    def not_there(self, node_id: str) -> StorageError:
        """Return the error for a warehouse that is missing."""
        return StorageError(
            f'the warehouse "{self.uri}" is not there',
            detail=f'The node\'s id is not in "{self._owner_uri}".',
            hint="Mount it, or put it back; a running node then goes on by itself. If it is lost "
            f"for good, write {node_id} to that file of a new one, and subscribe again.",
        )

    def not_ours(self, owner: str, node_id: str) -> ConfigurationError:
        """Return the error for another node's warehouse."""
        return ConfigurationError(
            f'the warehouse "{self.uri}" belongs to another node',
            detail=f'That node\'s id is {owner}, as "{self._owner_uri}" says.',
            hint="Set the parameter warehouse to one of its own. If that node is gone for good, "
            f"write {node_id} to that file; this node then takes the warehouse over.",
        )

    def table_uri(self, schema: str, table: str) -> str:
        """Return the URI at which a table lies, or would be made (``names.folder_name``).

        A table that was made under the earlier rule for names stays where it is.
        """
        uri, earlier = self._places(schema, table)
        if uri == earlier or self.storage.exists(log_folder(uri)):
            return uri
        state = load(self.storage, earlier)
        if state is None:
            return uri
        source = state.properties.get(SOURCE)
        if source is None:  # not made by us: it has its folders' names
            mine = (earlier_folder_name(schema), earlier_folder_name(table)) == (schema, table)
        else:
            mine = (schema, table) in written_names(source)
        return earlier if mine else uri

    def open(self, schema: str, table: str, *, vectors: bool = True) -> DeltaTable | None:
        """Open a table at its newest version; return None if there is none. ``vectors``: as for
        ``DeltaTable.load``.

        Raises FeatureNotSupported for a table that our commits would damage, DuplicateObject if the
        folder is another table's.
        """
        name, uri = qualified(schema, table), self.table_uri(schema, table)
        found = DeltaTable.load(self.storage, self.store, uri, name, vectors=vectors)
        if found is not None:
            self._check_owner(found, (schema, table))
        return found

    def create(
        self, schema: str, table: str, columns: TableSchema, layout: TableLayout = NO_LAYOUT
    ) -> DeltaTable:
        """Create a table without rows. Raises DuplicateObject, and as ``check_there``;
        FeatureNotSupported if the layout does not fit the columns."""
        self.check_there()
        uri, name = self.table_uri(schema, table), qualified(schema, table)
        return DeltaTable.create(self.storage, self.store, uri, name, columns, layout)

    def _places(self, schema: str, table: str) -> tuple[str, str]:
        """Return the URIs of a table by the rule for names, and by the earlier rule."""
        return (
            f"{self.uri}/{folder_name(schema)}/{folder_name(table)}",
            f"{self.uri}/{earlier_folder_name(schema)}/{earlier_folder_name(table)}",
        )

    def _check_owner(self, table: DeltaTable, name: TableName) -> None:
        """Raise DuplicateObject if two names have the same folder in this file system.

        A table that was moved here by hand, from the folder of its own name, is accepted.
        """
        owners = written_names(table.properties.get(SOURCE, ""))
        if not owners or name in owners:
            return
        here = table.uri.casefold()
        for owner in owners:
            if here in (place.casefold() for place in self._places(*owner)):
                raise DuplicateObject(
                    f'the folder of table "{table.name}" holds table "{qualified(*owner)}"',
                    detail=f'The file system takes their folders for one: "{table.uri}".',
                    hint="Rename one of the tables at its publisher, or put the warehouse on a "
                    "file system that tells upper case from lower case.",
                )

    def remove(self, schema: str, table: str) -> None:
        """Remove a table with its rows. Its Delta log is removed first: the rest is no table.
        Raises StorageError, ObjectInUse."""
        self.check_lease()
        uri = self.table_uri(schema, table)
        self.storage.remove_folder(log_folder(uri))
        self.storage.remove_folder(uri)

    @property
    def staging(self) -> str:
        """The URI of the folder of temporary files."""
        return f"{self.uri}/{OWN_FOLDER}/staging"


# A warehouse as a transaction block sees it, with the tables that the block itself has created.
# Their first log entries are held in memory, so only readers that use this storage find them.


class BlockWarehouse(Warehouse):
    """A warehouse with tables that are not committed yet.

    ``entries``: the lines of their first log entries, by the tables' URIs.
    """

    def __init__(self, warehouse: Warehouse, entries: Mapping[str, tuple[str, ...]]) -> None:
        self._held = {entry_uri(uri, 0): _content(entry) for uri, entry in entries.items()}
        super().__init__(
            warehouse.uri, warehouse.storage.fsync, node_id=warehouse.node_id, held=self._held
        )
        self.check_lease = warehouse.check_lease
        self.entries = dict(entries)

    def create(
        self, schema: str, table: str, columns: TableSchema, layout: TableLayout = NO_LAYOUT
    ) -> DeltaTable:
        """Create a table that only this block sees. Raises DuplicateObject; FeatureNotSupported in
        an object store: if the store did not answer, COMMIT could not take the table back.
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
        the table was made outside of the block."""
        uri = self.table_uri(schema, table)
        if self.entries.pop(uri, None) is None:
            raise FeatureNotSupported(
                f'the table in "{log_folder(uri)}" is not of this transaction block'
            )
        del self._held[entry_uri(uri, 0)]


def remove_empty_folders(storage: Storage, table_uri: str) -> None:
    """Remove the folders of a table that no longer exists, if they are empty."""
    for folder in (pairs_folder(table_uri), table_uri):
        storage.remove_empty_folder(folder)


def _content(entry: tuple[str, ...]) -> bytes:
    return "".join(f"{line}\n" for line in entry).encode()
