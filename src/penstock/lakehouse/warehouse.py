"""The warehouse: the root of a node's Delta tables, one folder per schema, one in it per table.

In: its URI, and a Spark session where the store needs one. Out: open and new tables, the cuts
table, places for what executors must read. Which tables there are is left to the catalog.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from pyarrow import fs
from pyspark.sql import SparkSession

from penstock.lakehouse.cuts import Cuts
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.log_store import LogStore, log_store
from penstock.lakehouse.names import folder_name
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.storage import Storage, resolve
from penstock.lakehouse.table import DeltaTable

OWN_FOLDER: Final = "_penstock"


class Warehouse:
    """A root folder or object store prefix. ``spark`` is needed to commit to object stores only."""

    def __init__(self, uri: str, fsync: bool = True, spark: SparkSession | None = None) -> None:
        self.storage: Final = Storage(uri, fsync)
        self.uri: Final = self.storage.uri
        self._spark = spark

    @property
    def filesystem(self) -> fs.FileSystem:
        """pyarrow's filesystem of the root."""
        return resolve(self.uri)[0]

    @cached_property
    def store(self) -> LogStore:
        """What puts log entries here."""
        return log_store(self.storage, self._spark)

    @cached_property
    def cuts(self) -> Cuts:
        """The cuts of all subscriptions of the node."""
        return Cuts(self.storage, self.store, f"{self.uri}/{OWN_FOLDER}/cuts")

    def table_uri(self, schema: str, table: str) -> str:
        """Where the table of that schema and name lies (``names.folder_name``)."""
        return f"{self.uri}/{folder_name(schema)}/{folder_name(table)}"

    def open(self, schema: str, table: str) -> DeltaTable | None:
        """Open a table at its newest version; None when there is none.

        Raises FeatureNotSupported for a table that commits by files would damage.
        """
        return DeltaTable.load(
            self.storage, self.store, self.table_uri(schema, table), f"{schema}.{table}"
        )

    def create(self, schema: str, table: str, columns: TableSchema) -> DeltaTable:
        """Create a table without rows. Raises DuplicateObject."""
        return DeltaTable.create(
            self.storage, self.store, self.table_uri(schema, table), f"{schema}.{table}", columns
        )

    def remove(self, schema: str, table: str) -> None:
        """Remove a table with its rows; its log goes first, so that what is left is no table."""
        uri = self.table_uri(schema, table)
        self.storage.remove_folder(log_folder(uri))
        self.storage.remove_folder(uri)

    def staging_path(self, name: str) -> str:
        """The URI of a passing file that executors read; its folder exists."""
        folder = f"{self.uri}/{OWN_FOLDER}/staging"
        self.storage.create_folder(folder)
        return f"{folder}/{name}"
